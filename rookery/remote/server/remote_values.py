"""Values that lie on clients, as the server knows them: by handles, never by content."""

from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from rookery.remote.protocol.plan import Call
from rookery.remote.protocol.wire import Keys
from rookery.types import Tree


@dataclass(frozen=True, eq=False)
class Sent:
    """A value of the server, sent to a client when a step first needs it there.

    Attributes:
        token: its name; of rows, that of the first slot's.
        leaves: its arrays.
        are_rows: whether every slot gets another row.
        is_billed: whether an algorithm sends it; what a client has lost is sent again unbilled.
    """

    token: int
    leaves: list[Any]
    are_rows: bool
    is_billed: bool = True


@dataclass(frozen=True, eq=False)
class Computed:
    """What a step returns; it is run when the server asks for something that depends on it.

    Attributes:
        token: of the first slot's reply.
        call: the step.
        values: the leaves of its arguments.
        numbers: its settings that travel.
        key: of the step, before it is folded with the client's number.
        occurrences: per slot, or None.
        missing: slots that did not answer when they were asked for it.
        has_own_key: whether the key is one client's already, as that of a job.
    """

    token: int
    call: Call
    values: "list[RemoteValue]"
    numbers: list[np.ndarray]
    key: Keys | None
    occurrences: list[int] | None
    missing: set[int] = field(default_factory=set)
    has_own_key: bool = False


@dataclass(frozen=True, eq=False)
class Recalled:
    """What clients remember.

    Attributes:
        memory: its number, in the order of the state.
        changed: by client, the leaves that it keeps instead from this round on, and its slot.
    """

    memory: int
    changed: "dict[int, tuple[list[RemoteValue], int]]"


@dataclass(frozen=True, eq=False)
class Copied:
    """What every client has a copy of its own of, and the server too.

    Attributes:
        rows: the copies of the server, one row per client.
        sent: by client, the value of this round that the copy is of.
    """

    rows: Sent
    sent: "dict[int, list[RemoteValue]]"


Source = Sent | Computed | Recalled | Copied


@dataclass(frozen=True, eq=False)
class RemoteValue:
    """One array that every client of a cohort has, or can have."""

    source: Source
    leaf: int
    shape: tuple[int, ...]
    dtype: Any


def handles_of(source: Source, like: Tree) -> Tree:
    """A tree of handles, for arrays of the shapes and types of another tree."""
    leaves, structure = jax.tree.flatten(like)
    handles = [RemoteValue(source, i, leaf.shape, leaf.dtype) for i, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, handles)


def name_of(handles: list[RemoteValue]) -> str:
    """The step that some handles are of, for messages and notes."""
    names = [h.source.call.name for h in handles if isinstance(h.source, Computed)]
    return names[-1] if names else "memory"
