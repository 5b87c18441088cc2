"""Requests to clients, the replies that they allow, and the progress of an attempt."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import jax
import numpy as np

from rookery.remote.protocol import wire
from rookery.remote.protocol.plan import Call, spec, spec_nbytes
from rookery.remote.protocol.wire import Kind, Message, WireError
from rookery.remote.server.claimed_work import ClaimedWork

MARGIN = 64 << 10
"""Bytes that a reply may have in addition to the requested arrays."""

_MORE_ARRAYS = 4  # that a reply may have in addition to the requested ones, such as its work
_DESCRIPTION = 512  # bytes to describe one array
_EMPTY = wire.Limits(arrays=_MORE_ARRAYS, description=_MORE_ARRAYS * _DESCRIPTION, body=MARGIN)


class TooFewReplies(RuntimeError):
    """Fewer clients replied than the policy requires, after all retries."""


class MemoryLost(RuntimeError):
    """A client was restarted and lost what it had kept since the last checkpoint."""


@dataclass(frozen=True)
class Request:
    """What one slot is asked for.

    Attributes:
        client: the client's number.
        build: makes the arrays of the message; called for every attempt, because the client may
            have lost values in the meantime.
        wanted: types and shapes of the leaves that the reply must have.
        is_counted: whether the reply counts as the algorithm's traffic; checkpoints do not.
        calls: the steps that the last message built tells the client to run.
    """

    client: int
    build: Callable[[], wire.Arrays]
    wanted: list[str]
    is_counted: bool = True
    calls: Callable[[], Sequence[Call]] = tuple


@dataclass(frozen=True)
class Reply:
    """One slot's reply.

    Attributes:
        leaves: the requested leaves.
        work: gradient evaluations and Hessian-vector products, in samples.
    """

    leaves: list[np.ndarray | jax.Array]
    work: tuple[int, int] = (0, 0)


@dataclass
class Attempt:
    """The state of one attempt at an exchange; everything is by slot.

    Attributes:
        requests: all requests of the exchange.
        numbers: the exchange number that the reply must have.
        pending: requests that have no reply yet.
        replies: accepted replies.
        non_finite: replies that hold NaN or infinity.
        rejected: slots whose values were rejected. They are not asked again: a client would send
            the same values.
        failed: why a slot has failed.
        timed_out: slots that failed by timeout alone; their replies may still arrive.
        lost: slots whose client has lost values, or everything.
    """

    requests: Mapping[int, Request]
    numbers: dict[int, int] = field(default_factory=dict)
    pending: dict[int, Request] = field(init=False)
    replies: dict[int, Reply] = field(default_factory=dict)
    non_finite: dict[int, Reply] = field(default_factory=dict)
    rejected: set[int] = field(default_factory=set)
    failed: dict[int, str] = field(default_factory=dict)
    timed_out: set[int] = field(default_factory=set)
    lost: dict[int, int] = field(default_factory=dict)

    def __post_init__(self):
        self.pending = dict(self.requests)

    def restart(self) -> None:
        """Clear the failures, before pending requests are sent again."""
        self.failed, self.lost, self.timed_out = {}, {}, set()


class ReplyLimits:
    """Per client, the largest reply that it was ever asked for: late replies are read too.

    Args:
        margin: bytes that a reply may have in addition to the requested arrays.
    """

    def __init__(self, margin: int):
        self._margin = margin
        self._limits: dict[int, wire.Limits] = {}

    def of(self, client: int) -> wire.Limits:
        """Limits on a client's replies."""
        return self._limits.get(client, _EMPTY)

    def extend(self, request: Request) -> None:
        """Allow replies as large as a request asks for, plus the margin."""
        before, now = self.of(request.client), _limits_of(tuple(request.wanted), self._margin)
        if not before.allow(now):
            self._limits[request.client] = before.joined(now)


def read_reply(message: Message, request: Request, claimed_work: ClaimedWork) -> Reply:
    """The reply in a message; raises :class:`WireError` if it does not match the request."""
    arrays = message.arrays
    if message.kind is Kind.FAILURE:
        raise WireError(wire.decode_text(arrays.get("reason", np.zeros(0, np.uint8))))
    leaves = [array for path, array in arrays.items() if path.startswith("reply/")]
    work = arrays.get("work")
    if (
        message.kind is not Kind.REPLY
        or not isinstance(work, np.ndarray)
        or spec(work) != "uint64[2]"
    ):
        raise WireError("reply rejected: not the reply to a step")
    got = [spec(leaf) for leaf in leaves]
    if len(arrays) != len(leaves) + 1 or got != request.wanted:
        raise WireError(f"reply rejected: expected {request.wanted}, got {got}")
    claimed = int(work[0]), int(work[1])
    claimed_work.check(request.client, request.calls(), claimed)
    # keys are made last: JAX compiles for every new shape of keys, and a peer chooses shapes
    return Reply([wire.wrap_keys(leaf) for leaf in leaves], claimed)


@lru_cache(1000)
def _limits_of(wanted: tuple[str, ...], margin: int) -> wire.Limits:
    """Limits of a reply with leaves of these types and shapes."""
    return wire.Limits(
        arrays=len(wanted) + _MORE_ARRAYS,
        description=(len(wanted) + _MORE_ARRAYS) * _DESCRIPTION,
        body=sum(spec_nbytes(w) + 16 for w in wanted) + margin,
    )
