"""When a server that polls stops waiting, without a walk from one arrival to the next.

The rule itself is :func:`rookery.program.polling.timetable`: from one event to the next, until
enough results are there and no job at work is too old. Results closer than a few rounding errors
are one event, so an event is the earliest finish of a job that the event before did not take in.
With many jobs the walk is long. It may begin at any event that it would visit; this module finds
one at or shortly before its end.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from rookery.engines.masked_loop import by_row, row_of

FEW = 1024
"""Up to this many results are taken out one by one; more are found by sorting."""


def end_of_wait(
    now: Float[Array, ""],
    finish: Float[Array, " clients"],
    due: Float[Array, " clients"],
    earliest: Float[Array, ""],
    must_wait: Callable[[jax.Array], Bool[Array, ""]],
) -> Float[Array, ""]:
    """The first event at which the server need not wait, ``now`` included.

    Args:
        now: when the server begins to wait.
        finish: when each job ends.
        due: from when on an event takes the job in; a few rounding errors before ``finish``.
        earliest: a time before which the server certainly waits.
        must_wait: whether it has to wait at a time.
    """
    inf = jnp.array(jnp.inf, finish.dtype)

    def next_event(time):
        return jnp.min(jnp.where(due > time, finish, inf))

    def is_within_event(time):
        """Whether a job that ends later would be taken in by an event at this time."""
        return (time > now) & jnp.any((finish > time) & (due <= time) & (due > now))

    def last_finish_before(time):
        return jnp.maximum(now, jnp.max(jnp.where((finish < time) & (due > now), finish, -inf)))

    # all jobs that end by ``time`` are taken in by then, and no other job is: the event after that
    # is an event of the walk, whatever came before
    before = lax.while_loop(is_within_event, last_finish_before, last_finish_before(earliest))
    close = jnp.min(jnp.where((finish > before) & (due > now), finish, inf))
    return lax.while_loop(must_wait, next_event, jnp.where(earliest <= now, now, close))


def kth_smallest(values: Float[Array, " n"], k: int) -> Float[Array, ""]:
    """The k-th smallest of some values, counted from one.

    >>> float(kth_smallest(jnp.array([3.0, 1.0, 2.0]), 2))
    2.0
    """
    (n,) = values.shape
    if k == n:
        return jnp.max(values)
    if k > FEW:
        return jnp.sort(values)[k - 1]
    # a sqrt n x sqrt n table, and the least value in each row that is not taken: a turn of the loop
    # costs O(sqrt n), and writes nothing that it reads, or XLA would copy the table
    side = math.isqrt(n - 1) + 1
    columns = jnp.arange(side, dtype=jnp.int32)

    def take(_, carry):
        least, last, _ = carry  # ``last``: in each row, where the value taken last is if one equals
        at = jnp.argmin(least).astype(jnp.int32)
        value, (begin, row) = least[at], row_of(values, at, side)
        index = begin + columns
        is_own = index >= at * side
        place = jnp.min(jnp.where(is_own & (row == value) & (index > last[at]), index, n))
        is_left = is_own & ((row > value) | ((row == value) & (index > place)))
        following = jnp.min(jnp.where(is_left, row, jnp.inf))
        last = last.at[at].set(jnp.where(following == value, place, -1))
        return least.at[at].set(following), last, value

    least = by_row(values, side, jnp.min)
    start = (least, jnp.full(least.shape, -1, jnp.int32), values[0])
    return lax.fori_loop(0, k, take, start)[2]
