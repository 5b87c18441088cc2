"""How long the server waits, how many replies it needs, and which it takes."""

import math
from dataclasses import dataclass
from functools import lru_cache

import jax.numpy as jnp
import numpy as np

from rookery import check


@dataclass(frozen=True)
class Policy:
    """What to do when clients do not answer, or answer nonsense.

    An exchange ends when all clients of a cohort have answered, or after ``wait_for`` seconds. If
    by then at least ``min_replies`` have answered, a mean is taken over those, and every client
    that is missing is noted. If not, the others are asked again; when that has not helped either,
    the run stops, and the same command goes on from where it was.

    A client that was silent is left alone for ``wait_for`` seconds, and for twice as long each time
    it is silent again, up to sixteen times that, as long as the others may be enough; it is noted
    in every round. A reply in time ends that.

    Sums and stacks need every reply, whatever ``min_replies`` is: an algorithm that asked for each
    client's value could not know which of them are missing. A robust rule in place of the mean
    needs as many as it takes to bear a bad one.

    Args:
        wait_for: seconds, for every attempt.
        min_replies: how many clients of a cohort must answer: a whole number, or a share of those
            asked as a float above 0 and at most 1.0. Never fewer than one.
        retries: how often those missing are asked again.
        back_off: seconds before the first of these; twice as many before each later one, and never
            more than ``wait_for``.
        largest_norm: a reply of a larger Euclidean norm is refused.
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
        """How many of so many clients must answer."""
        if isinstance(self.min_replies, float):
            return max(1, math.ceil(self.min_replies * asked - 1e-9))
        return min(self.min_replies, asked)

    def pause(self, attempt: int) -> float:
        """Seconds before those missing are asked again, after so many attempts to do so."""
        return min(self.back_off * 2**attempt, self.wait_for)


def is_finite(leaves: list[np.ndarray]) -> bool:
    """Whether no number of a reply is NaN or infinite."""
    return all(bool(np.all(np.isfinite(leaf))) for leaf in leaves if _is_inexact(leaf))


def norm(leaves: list[np.ndarray], limit: float = 0.0) -> float:
    """The Euclidean norm of a reply; 0 where there is no limit to hold it against."""
    if math.isinf(limit):
        return 0.0
    total = 0.0
    for leaf in leaves:
        if _is_inexact(leaf):
            wide = np.abs(leaf).astype(np.float64).ravel()
            with np.errstate(over="ignore"):  # infinity is what such a norm is taken for
                total += float(wide @ wide)
    return math.sqrt(total)


def _is_inexact(leaf) -> bool:
    # NumPy does not know that bfloat16 is a floating-point type
    return isinstance(leaf, np.ndarray) and _holds_fractions(leaf.dtype)


@lru_cache
def _holds_fractions(dtype: np.dtype) -> bool:
    return jnp.issubdtype(dtype, jnp.inexact)
