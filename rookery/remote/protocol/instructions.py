"""What a request tells a client to do: the small part of a message that is not arrays."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from rookery.remote.protocol import wire
from rookery.remote.protocol.wire import WireError

Ref = tuple[int, int]
"""A leaf of a value: the value's token and the leaf's index. Memory m has the token -1 - m."""

MemoryChange = tuple[int, int, list[Ref]]
"""A memory's number, the stamp of its new content, and the leaves of that content."""

NO_OCCURRENCE = -1
"""Occurrence of a client in a cohort that cannot hold a client twice."""

OWN_KEY = -2
"""In place of an occurrence: the key is already the client's own and is used unchanged."""

_MAX_BYTES = 1 << 20

_compact = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True)
class Instruction:
    """Run one step.

    Attributes:
        token: token under which the client stores the result.
        call: number of the call in the plan.
        occurrence: how many earlier slots of the cohort the client is in, or ``NO_OCCURRENCE``, or
            ``OWN_KEY``.
        arguments: the leaves of its arguments.
    """

    token: int
    call: int
    occurrence: int
    arguments: list[Ref]


@dataclass(frozen=True)
class Instructions:
    """One request. The client commits, drops values of other rounds, restores, runs, replies.

    Attributes:
        round: number of the round; the client drops values of other rounds.
        tokens: tokens of the values that come with this message, in order.
        commit: memory changes made of values that the client already has. Stamps increase, so a
            change that is received twice is made once.
        restore: memory changes made of values that come with this message.
        steps: the steps to run, in order.
        reply: the leaves to send back.
    """

    round: int
    tokens: list[int] = field(default_factory=list)
    commit: list[MemoryChange] = field(default_factory=list)
    restore: list[MemoryChange] = field(default_factory=list)
    steps: list[Instruction] = field(default_factory=list)
    reply: list[Ref] = field(default_factory=list)


def write(instructions: Instructions) -> dict[str, np.ndarray]:
    """Instructions as an array of a message.

    >>> read(write(Instructions(round=3, reply=[(7, 0)]))).reply
    [(7, 0)]
    """
    it = instructions
    steps = [[s.token, s.call, s.occurrence, s.arguments] for s in it.steps]
    content = [it.round, it.tokens, it.commit, it.restore, steps, it.reply]
    return {"instructions": wire.encode_text(_compact(content))}


def read(arrays: wire.Arrays) -> Instructions:
    """The instructions in a message; raises :class:`WireError` if there are none."""
    array = arrays.get("instructions")
    if array is None or array.size > _MAX_BYTES:
        raise WireError(f"the request needs instructions of at most {_MAX_BYTES} bytes.")
    return _parsed(wire.decode_text(array))


@lru_cache(16)  # clients that share a process are often sent the same
def _parsed(text: str) -> Instructions:
    try:
        round, tokens, commit, restore, steps, reply = json.loads(text)
        return Instructions(
            _whole(round),
            [_whole(token) for token in tokens],
            [(_whole(m), _whole(stamp), _refs(refs)) for m, stamp, refs in commit],
            [(_whole(m), _whole(stamp), _refs(refs)) for m, stamp, refs in restore],
            [Instruction(_whole(t), _whole(c), _whole(o), _refs(refs)) for t, c, o, refs in steps],
            _refs(reply),
        )
    except (ValueError, TypeError, RecursionError) as error:
        raise WireError(f"malformed instructions: {error}") from None


def _refs(values: Iterable[tuple[object, object]]) -> list[Ref]:
    return [(_whole(token), _whole(leaf)) for token, leaf in values]


def _whole(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not an integer")
    return value
