"""How long the server waits, how many replies it needs, and which ones it rejects."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from rookery import check


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
    """

    wait_for: float = 60.0
    min_replies: int | float = 1.0
    retries: int = 3
    back_off: float = 1.0
    largest_norm: float = math.inf

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
    return all([bool(np.isfinite(leaf).all()) for leaf in leaves if _is_inexact(leaf)])


def norm(leaves: Sequence[np.ndarray | jax.Array], limit: float = 0.0) -> float:
    """The Euclidean norm of a reply; 0 if there is no limit to compare it with."""
    if math.isinf(limit):
        return 0.0
    total = 0.0
    for leaf in leaves:
        if _is_inexact(leaf):
            wide = np.abs(leaf).astype(np.float64).ravel()
            with np.errstate(over="ignore"):  # an overflow counts as infinity
                total += float(wide @ wide)
    return math.sqrt(total)


def _is_inexact(leaf: np.ndarray | jax.Array) -> bool:
    # NumPy does not count bfloat16 as a floating-point type
    return isinstance(leaf, np.ndarray) and _is_floating(leaf.dtype)


@lru_cache
def _is_floating(dtype: np.dtype) -> bool:
    return jnp.issubdtype(dtype, jnp.inexact)
