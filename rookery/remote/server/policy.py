"""How long the server waits, how many replies it needs, and which ones it rejects."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from rookery import check, tree


@dataclass(frozen=True)
class Policy:
    """What to do when clients do not reply in time, or reply with invalid values.

    An exchange ends when all clients of the cohort have replied, or after ``wait_for`` seconds. If
    at least ``min_replies`` have replied by then, the mean is taken over those, and every missing
    client is recorded as an event. Otherwise the missing clients are asked again. If too few have
    replied after all retries, the run stops; the same command resumes it from its checkpoint.

    A client that timed out is backed off: it is not asked for ``wait_for`` seconds, twice as long
    after each further timeout, up to sixteen times, as long as the other clients suffice. Each
    round in which it is skipped is recorded. A reply in time ends the back-off.

    Sums and stacks need every reply, whatever ``min_replies`` is: an algorithm that asks for each
    client's value could not tell which ones are missing. A robust aggregator needs as many replies
    as it takes to tolerate its Byzantine clients.

    Replies with NaN or infinity, and replies that are out of all proportion to those of the other
    clients, are rejected and recorded. A robust aggregator is given them instead: it tolerates
    them.

    >>> Policy(min_replies=0.8).needed(10)
    8
    >>> Policy(min_replies=3).needed(10)
    3

    Args:
        wait_for: deadline of every attempt, in seconds.
        min_replies: how many clients of a cohort must reply: an integer, or a fraction of the
            cohort as a float above 0 and at most 1.0. Never fewer than one.
        retries: how often missing clients are asked again.
        back_off: seconds before the first retry, doubled before each further one; at most
            ``wait_for``.
        largest_norm: replies with a larger Euclidean norm are rejected.
        largest_ratio: so are replies whose norm is more than this many times the median norm of the
            other clients in the same exchange, if there are two others at least, and replies that
            claim that many times the others' work. Infinity turns it off.
    """

    wait_for: float = 60.0
    min_replies: int | float = 1.0
    retries: int = 3
    back_off: float = 1.0
    largest_norm: float = math.inf
    largest_ratio: float = 1e4

    def __post_init__(self):
        check.positive("Policy.wait_for", self.wait_for)
        if isinstance(self.min_replies, float):
            check.fraction("Policy.min_replies", self.min_replies)
        else:
            check.count("Policy.min_replies", self.min_replies)
        check.count("Policy.retries", self.retries, least=0)
        check.not_negative("Policy.back_off", self.back_off)
        if not self.largest_norm > 0:
            raise ValueError(f"Policy.largest_norm must be above 0, got {self.largest_norm}.")
        if not self.largest_ratio > 1:
            raise ValueError(f"Policy.largest_ratio must be above 1, got {self.largest_ratio}.")

    def needed(self, asked: int) -> int:
        """How many of ``asked`` clients must reply."""
        if isinstance(self.min_replies, float):
            return max(1, math.ceil(self.min_replies * asked - 1e-9))
        return min(self.min_replies, asked)

    def pause(self, attempt: int) -> float:
        """Seconds to wait before the retry number ``attempt``, counted from 0."""
        return min(self.back_off * 2**attempt, self.wait_for)


def is_finite(leaves: Sequence[np.ndarray | jax.Array]) -> bool:
    """Whether a reply holds no NaN and no infinity."""
    inexact = (leaf for leaf in leaves if _is_inexact(leaf))
    return all(bool(np.isfinite(block).all()) for leaf in inexact for block in tree.blocks(leaf))


def norm(leaves: Sequence[np.ndarray | jax.Array]) -> float:
    """The Euclidean norm of a reply: infinity if it overflows.

    >>> norm([np.array([3.0, 4.0]), np.array([7])])
    5.0
    """
    total = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for leaf in leaves:
            if isinstance(leaf, np.ndarray) and _is_inexact(leaf):
                total += _squared(leaf)
    return math.sqrt(total) if total == total else math.inf


def outliers(norms: Mapping[int, float], ratio: float) -> dict[int, float]:
    """Those whose norm exceeds ``ratio`` times the median of the others, and that median.

    Beside a median of zero only what overflows is out of proportion.

    >>> outliers({0: 1.0, 1: 2.0, 2: 1e9, 3: 1.5}, ratio=1e4)
    {2: 1.5}

    Args:
        norms: by slot.
        ratio: infinity finds none.
    """
    left, found = sorted(norms.items(), key=lambda item: item[1]), {}
    # without a longer one the median of the others is smaller: the longest is the first to fail
    while len(left) > 2:
        slot, longest = left.pop()
        middle = float(np.median([size for _, size in left]))
        if not longest > ratio * middle or (middle == 0 and not math.isinf(longest)):
            break
        found[slot] = middle
    return found


def _squared(leaf: np.ndarray) -> float:
    """The sum of squares of an array, in double precision."""
    total = 0.0
    for block in tree.blocks(leaf):
        wide = np.abs(block).astype(np.float64)
        total += float(wide @ wide)
    return total


def _is_inexact(leaf: np.ndarray | jax.Array) -> bool:
    # NumPy does not count bfloat16 as a floating-point type
    return isinstance(leaf, np.ndarray) and _is_floating(leaf.dtype)


@lru_cache
def _is_floating(dtype: np.dtype) -> bool:
    return jnp.issubdtype(dtype, jnp.inexact)
