"""When a server that polls stops waiting, and which clients have begun and arrived by then.

The rule itself is :func:`rookery.program.polling.timetable`: from one event to the next, until
enough results are there and no job at work is too old. Results closer than a few rounding errors
are one event, so an event is the earliest finish of a job that the event before did not take in.

A walk over all events is long, and each of its steps would look at every job. So the first event of
each block (:mod:`rookery.engines.blocks`) is found in one pass over the jobs, or known from the
poll before (:mod:`rookery.engines.job_index`). Every search after that reads the few blocks where
something happens in time. And the walk begins at or shortly before its
end: it may begin at any event that it would visit.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from rookery.engines.blocks import (
    SIDE,
    blocks_at_once,
    by_block,
    clients_of,
    n_blocks,
    smallest,
)
from rookery.engines.client_list import ClientList, list_by_blocks
from rookery.program.polling import SIMULTANEOUS
from rookery.types import Tree

Pick = Callable[[jax.Array], jax.Array]
"""From an array with a row for each client to the rows of some of them."""


Seconds = Float[Array, " jobs"]


class Times(NamedTuple):
    """When jobs begin and end, in seconds since the round began.

    Attributes:
        start: when the job began, or will begin if nothing else happens.
        seconds: how long it lasts.
        finish: when it ends.
        due: from when on an event takes the result in; a few rounding errors before ``finish``.
        ready: from when on an event lets it begin; a few rounding errors before ``start``.
        is_idle: whether it is yet to begin.
    """

    start: Seconds
    seconds: Seconds
    finish: Seconds
    due: Seconds
    ready: Seconds
    is_idle: Bool[Array, " jobs"]

    @classmethod
    def of(
        cls,
        start: Seconds,
        seconds: Seconds,
        is_idle: Bool[Array, " jobs"],
        now: Float[Array, ""],
    ) -> "Times":
        """Those of jobs at a poll that begins now.

        Args:
            start: when the job began, or from when it could begin.
            seconds: how long it lasts.
            is_idle: whether it is yet to begin.
            now: when the poll begins.
        """
        start = jnp.where(is_idle, jnp.maximum(start, now), start)
        finish = start + seconds
        slack = SIMULTANEOUS * jnp.finfo(finish.dtype).eps * jnp.maximum(jnp.abs(start), seconds)
        return cls(start, seconds, finish, finish - slack, start - slack, is_idle)


class Timeline:
    """The times of all jobs.

    Args:
        n_clients: how many jobs there are.
        times: of the jobs that a :data:`Pick` picks.
        usual: how many jobs usually begin or end during a poll.
        first: for every block of clients a time before which nothing happens to their jobs; None
            finds it in a pass over all jobs.
    """

    def __init__(
        self,
        n_clients: int,
        times: Callable[[Pick], Times],
        usual: int,
        first: Float[Array, " blocks"] | None = None,
    ):
        self._n = n_clients
        self._times = times
        self._usual = usual
        self._first = by_block(first_event(self.all()), jnp.min) if first is None else first

    def all(self) -> Times:
        """The times of all clients' jobs."""
        return self._times(lambda values: values)

    def of(self, ids: Int[Array, "..."]) -> Times:
        """The times of some clients' jobs."""
        return self._times(lambda values: values[ids])

    def begun_by(self, time: Float[Array, ""], buffer: ClientList | None) -> ClientList:
        """The clients that were idle and have begun by then; ``buffer`` is written over."""

        def are_in(ids):
            times = self.of(ids)
            return times.is_idle & (times.ready <= time)

        return list_by_blocks(self._n, self._first <= time, are_in, self._usual, buffer)

    def due_by(
        self,
        time: Float[Array, ""],
        buffer: ClientList | None,
        times: Callable[[Pick], Times] | None = None,
    ) -> ClientList:
        """The clients whose results have arrived by then.

        Args:
            time: until when.
            buffer: a list that is written over.
            times: the same times, if they are now found elsewhere.
        """
        times = times or self._times

        def are_in(ids):
            return times(lambda values: values[ids]).due <= time

        return list_by_blocks(self._n, self._first <= time, are_in, self._usual, buffer)

    def end_of_wait(
        self,
        now: Float[Array, ""],
        earliest: Float[Array, ""],
        must_wait: Callable[[jax.Array], Bool[Array, ""]],
    ) -> Float[Array, ""]:
        """The first event at which the server need not wait, ``now`` included.

        Args:
            now: when the server begins to wait.
            earliest: a time before which the server certainly waits: now, or when some job is due.
            must_wait: whether it has to wait at a time.
        """
        inf = jnp.array(jnp.inf, now.dtype)

        def step_back(carry):
            """From a time to the last finish before it, and the first finish after that."""
            _, time, _ = carry

            def look(times, found):
                before, after, due = found
                is_left = times.due > now
                is_before = times.finish < time
                earlier = jnp.where(is_left & is_before, times.finish, -inf)
                later = jnp.where(is_left & ~is_before, times.finish, inf)
                due_then = jnp.where(is_left & ~is_before, times.due, inf)
                return (
                    jnp.maximum(before, jnp.max(earlier)),
                    jnp.minimum(after, jnp.min(later)),
                    jnp.minimum(due, jnp.min(due_then)),
                )

            before, after, due = self._look_while(
                lambda first, found: first < found[1], look, (now, inf, inf)
            )
            # whether an event at that time would take in a job that ends later
            is_within_event = (before > now) & (due <= before)
            return is_within_event, before, after

        # all jobs that end by then are taken in by then, and no other job is: the event after that
        # is an event of the walk, whatever came before
        start = (earliest > now, earliest, inf)
        _, _, close = lax.while_loop(lambda carry: carry[0], step_back, start)

        def next_event(time):
            def look(times, found):
                return jnp.minimum(found, jnp.min(jnp.where(times.due > time, times.finish, inf)))

            return self._look_while(lambda first, found: first < found, look, inf)

        return lax.while_loop(must_wait, next_event, jnp.where(earliest <= now, now, close))

    def kth_due(self, k: int) -> Float[Array, ""]:
        """When the k-th result is due, counted from one."""
        if k == self._n:
            return jnp.max(self.all().due)
        if k * SIDE >= self._n:
            return jnp.sort(self.all().due)[k - 1]

        def look(times, found):
            return smallest(jnp.append(found, times.due), k)[0]

        least = self._look_while(
            lambda first, least: first < jnp.max(least),
            look,
            jnp.full(k, jnp.inf, self._first.dtype),
        )
        return jnp.max(least)

    def _look_while(
        self,
        goes_on: Callable[[jax.Array, Tree], jax.Array],
        look: Callable[[Times, Tree], Tree],
        found: Tree,
    ) -> Tree:
        """Apply ``found = look(times, found)`` to jobs, in the order of their blocks' first events.

        Args:
            goes_on: whether to look at a block, from its first event and what was found.
            look: may see more jobs than it has to; those that are no clients never end.
            found: the first value.
        """
        size = blocks_at_once(self._n, self._usual)
        if size == n_blocks(self._n):
            return look(self.all(), found)

        def once(carry):
            left, _, found = carry
            first, blocks = smallest(left, size)
            ids, are_clients = clients_of(blocks, self._n)
            is_new = are_clients & jnp.repeat(first < jnp.inf, SIDE)  # none is looked at twice
            times = self.of(ids)
            due = jnp.where(is_new, times.due, jnp.inf)
            finish = jnp.where(is_new, times.finish, jnp.inf)
            found = look(times._replace(due=due, finish=finish), found)
            return left.at[blocks].set(jnp.inf), jnp.max(first), found

        start = (self._first, jnp.min(self._first), found)
        return lax.while_loop(lambda carry: goes_on(*carry[1:]), once, start)[2]


def first_event(times: Times) -> Float[Array, " jobs"]:
    """Shortly before something happens to a job: it begins, or it is due if it has begun.

    XLA may round the times in the pass over all jobs otherwise than those of a few.
    """
    slack = times.finish - times.due
    return jnp.where(times.is_idle, times.ready, times.due) - slack
