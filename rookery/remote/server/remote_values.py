"""Values that lie on clients, as the server knows them: where they come from, not what they are."""

from dataclasses import dataclass, field

import jax
import numpy as np

from rookery.remote.protocol.plan import Call
from rookery.remote.protocol.wire import DType, Keys
from rookery.types import Tree


@dataclass(frozen=True, eq=False)
class Sent:
    """A server value, sent to a client when a step there first needs it.

    Attributes:
        token: its token; for rows, that of the first slot.
        leaves: its arrays.
        are_rows: whether each slot gets a row of its own.
        is_counted: whether an algorithm sends it. A value that a client lost is sent again without
            being counted.
    """

    token: int
    leaves: list[np.ndarray | jax.Array]
    are_rows: bool
    is_counted: bool = True


@dataclass(frozen=True, eq=False)
class Computed:
    """The result of a step, which runs when the server requests something that depends on it.

    Attributes:
        token: token of the first slot's result.
        call: the step.
        arguments: the leaves of its arguments.
        settings: values of its traced settings.
        key: the step's key, before the client's number is folded in.
        occurrences: per slot, how many earlier slots the same client is in; None where no client is
            in two slots.
        missing: slots that did not reply when the result was requested.
        has_own_key: whether the key is already one client's own, as a job's is.
    """

    token: int
    call: Call
    arguments: "list[RemoteValue]"
    settings: list[np.ndarray]
    key: Keys | None
    occurrences: list[int] | None
    missing: set[int] = field(default_factory=set)
    has_own_key: bool = False


@dataclass(frozen=True, eq=False)
class Recalled:
    """The rows of a memory.

    Attributes:
        memory: the memory's number, in the order of the state.
        changed: by client, the leaves that replace its row from this round on, and the slot.
    """

    memory: int
    changed: "dict[int, tuple[list[RemoteValue], int]]"


@dataclass(frozen=True, eq=False)
class Copied:
    """A per-client value that both the client and the server hold.

    Attributes:
        rows: the server's copy, one row per client.
        sent: by client, the value of this round that equals its row.
    """

    rows: Sent
    sent: "dict[int, list[RemoteValue]]"


Source = Sent | Computed | Recalled | Copied


@dataclass(frozen=True, eq=False)
class RemoteValue:
    """One array that every client of a cohort has, or can make."""

    source: Source
    leaf: int
    shape: tuple[int, ...]
    dtype: DType


def remote_values(source: Source, like: Tree) -> Tree:
    """A tree of remote values, one for each array of a tree of arrays or shapes."""
    leaves, structure = jax.tree.flatten(like)
    values = [RemoteValue(source, i, leaf.shape, leaf.dtype) for i, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, values)


def step_of(values: list[RemoteValue]) -> str:
    """The step that computes some values, for messages and events."""
    names = [v.source.call.name for v in values if isinstance(v.source, Computed)]
    return names[-1] if names else "memory"
