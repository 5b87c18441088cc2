"""What a reply may be: how large, and of which form."""

from functools import lru_cache

import numpy as np

from rookery.remote.protocol import wire
from rookery.remote.protocol.plan import spec, spec_nbytes
from rookery.remote.protocol.wire import Kind, Message, WireError
from rookery.remote.server.requests import Reply, Request

SPARE = 64 << 10
"""Bytes that a reply may have besides what was asked for."""

_FEW = 4  # arrays that it may have besides, such as its work
_DESCRIBED = 512  # bytes to describe one array
_NOTHING = wire.Limits(arrays=_FEW, description=_FEW * _DESCRIBED, body=SPARE)
_MOST_WORK = 1 << 53


class ReplyLimits:
    """By client, the largest reply that it was ever asked for: late ones must be read as well.

    Args:
        spare: bytes that a reply may have besides.
    """

    def __init__(self, spare: int):
        self._spare = spare
        self._limits: dict[int, wire.Limits] = {}

    def of(self, client: int) -> wire.Limits:
        """What a client's replies may claim."""
        return self._limits.get(client, _NOTHING)

    def make(self, ask: Request) -> None:
        """Let a client's replies be as large as what it is asked for, and not much larger."""
        before, now = self.of(ask.client), _needed(tuple(ask.wanted), self._spare)
        if not before.allow(now):
            self._limits[ask.client] = before.joined(now)


def read(message: Message, ask: Request) -> Reply:
    """What a slot gave, or :class:`WireError` if that is not what it was asked for."""
    arrays = message.arrays
    if message.kind is Kind.FAILURE:
        raise WireError(wire.read_text(arrays.get("reason", np.zeros(0, np.uint8))))
    leaves = [array for path, array in arrays.items() if path.startswith("give/")]
    work = arrays.get("work")
    if message.kind is not Kind.REPLY or work is None or spec(work) != "uint64[2]":
        raise WireError("reply refused: it is not the reply to a step")
    if len(arrays) != len(leaves) + 1 or [spec(leaf) for leaf in leaves] != ask.wanted:
        raise WireError(
            f"reply refused: {ask.wanted} was wanted, got {[spec(leaf) for leaf in leaves]}"
        )
    if work.max() > _MOST_WORK:
        raise WireError(f"reply refused: it claims {work.max()} units of work")
    # not before: what was not asked for is not worth the time
    return Reply([wire.wrapped(leaf) for leaf in leaves], (int(work[0]), int(work[1])))


@lru_cache(1000)
def _needed(wanted: tuple[str, ...], spare: int) -> wire.Limits:
    """What a reply needs that has leaves of some types and shapes."""
    return wire.Limits(
        arrays=len(wanted) + _FEW,
        description=(len(wanted) + _FEW) * _DESCRIBED,
        body=sum(spec_nbytes(w) + 16 for w in wanted) + spare,
    )
