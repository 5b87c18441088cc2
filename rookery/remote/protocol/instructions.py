"""What a message asks of a client: the small part of it that is not arrays."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rookery.remote.protocol import wire
from rookery.remote.protocol.wire import WireError

Ref = tuple[int, int]
"""A value's token and the number of a leaf of it. A client's memory m has the token -1 - m."""

MOST = 1 << 20
"""Bytes of a script."""

OWN_KEY = -2

_compact = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True)
class Instruction:
    """One step to be run.

    Attributes:
        token: under which the reply is kept.
        call: its number in the plan.
        occurrence: how often the client stood in earlier slots, or -1 where that cannot be;
            ``OWN_KEY`` says that the key is the client's own and is taken as it is.
        values: the leaves of its arguments.
    """

    token: int
    call: int
    occurrence: int
    values: list[Ref]


@dataclass(frozen=True)
class Instructions:
    """In this order: ``commit``, forget the values of other rounds, ``remember``, run, give.

    Attributes:
        round: the number of the round; values of other rounds are forgotten.
        brought: the tokens of values that come with this message, in order.
        commit: what a memory becomes, out of values that the client has: memory, stamp, leaves.
            The stamp grows, so that a change which comes twice is made once.
        remember: the same, out of values that come with this message.
        tasks: steps to run, in order.
        give: leaves that the server wants.
    """

    round: int
    brought: list[int] = field(default_factory=list)
    commit: list[tuple[int, int, list[Ref]]] = field(default_factory=list)
    remember: list[tuple[int, int, list[Ref]]] = field(default_factory=list)
    tasks: list[Instruction] = field(default_factory=list)
    give: list[Ref] = field(default_factory=list)


def write(script: Instructions) -> Any:
    """A script as an array."""
    tasks = [[t.token, t.call, t.occurrence, t.values] for t in script.tasks]
    content = [script.round, script.brought, script.commit, script.remember, tasks, script.give]
    return wire.text(_compact(content))


def read(arrays: Mapping[str, Any]) -> Instructions:
    """The script of a message, or :class:`WireError`."""
    array = arrays.get("script")
    if array is None or array.size > MOST:
        raise WireError("the message has no script, or one that is too long.")
    try:
        round, brought, commit, remember, tasks, give = json.loads(wire.read_text(array))
        return Instructions(
            _whole(round),
            [_whole(token) for token in brought],
            [(_whole(m), _whole(stamp), _refs(refs)) for m, stamp, refs in commit],
            [(_whole(m), _whole(stamp), _refs(refs)) for m, stamp, refs in remember],
            [Instruction(_whole(t), _whole(c), _whole(o), _refs(refs)) for t, c, o, refs in tasks],
            _refs(give),
        )
    except (ValueError, TypeError, RecursionError) as error:
        raise WireError(f"this is not a script: {error}") from None


def _refs(values: Any) -> list[Ref]:
    return [(_whole(token), _whole(leaf)) for token, leaf in values]


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a whole number")
    return value
