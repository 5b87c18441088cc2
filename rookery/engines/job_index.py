"""What a poll would otherwise search all jobs for, kept from poll to poll during a call.

With many clients, few jobs begin or end in a poll. The pass over all of them that finds these took
longer than all searches after it. So the rounds of a call carry an index along in
``InFlight.index``: for every block of clients (:mod:`rookery.engines.blocks`) a time before which
nothing happens in it, and the list of clients whose results have arrived. A poll renews the blocks
of the clients that it touches.

The times are lower bounds. Searches read jobs themselves, so a bound that is too low costs a look
at a block and changes no number. When a round ends, times are counted from its end
(:func:`rookery.program.polling.later`), and every job's time is rounded on its own. The bounds fall
by what that rounding can amount to.
"""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rookery.engines.blocks import LEAST, SIDE, by_block, clients_of
from rookery.engines.client_list import WIDTH, ClientList, list_of
from rookery.engines.waiting import Times, first_event
from rookery.program.polling import SIMULTANEOUS, InFlight
from rookery.types import Tree

MANY = LEAST * SIDE
"""With at most this many clients a search reads all blocks, and an index would not help."""


class Events(NamedTuple):
    """For every block of clients, when something happens to one of its jobs.

    Attributes:
        first: a time before which no job begins, and none that has begun is due.
        scale: a bound on the times and durations of its jobs, to which they are rounded.
    """

    first: Float[Array, " blocks"]
    scale: Float[Array, " blocks"]


class JobIndex(NamedTuple):
    """What is known of all jobs without a pass over them.

    Attributes:
        events: of every block.
        arrived: the clients of ``has_arrived``.
    """

    events: Events
    arrived: ClientList


def indexed(state: Tree) -> Tree:
    """A state whose jobs have an index if there are many."""

    def one(jobs):
        if not isinstance(jobs, InFlight) or jobs.is_idle.shape[0] <= MANY:
            return jobs
        events = Events(*map(by_block, _events_of(jobs), (jnp.min, jnp.max)))
        return replace(jobs, index=JobIndex(events, list_of(jobs.has_arrived, WIDTH)))

    return jax.tree.map(one, state, is_leaf=_is_jobs)


def without_index(state: Tree) -> Tree:
    """The state as it is between calls."""
    return jax.tree.map(
        lambda jobs: replace(jobs, index=()) if _is_jobs(jobs) else jobs, state, is_leaf=_is_jobs
    )


def indices(state: Tree) -> list[tuple[InFlight, JobIndex]]:
    """The jobs of a state that have an index."""
    leaves = jax.tree.leaves(state, is_leaf=_is_jobs)
    return [
        (jobs, jobs.index) for jobs in leaves if _is_jobs(jobs) and isinstance(jobs.index, JobIndex)
    ]


def moved_on(state: Tree, seconds: Float[Array, ""]) -> Tree:
    """The state with bounds that count from ``seconds`` later, as the times of its jobs do."""

    def one(jobs):
        if not (_is_jobs(jobs) and isinstance(jobs.index, JobIndex)):
            return jobs
        first, scale = jobs.index.events
        scale = scale + seconds
        error = SIMULTANEOUS * jnp.finfo(first.dtype).eps * (scale + seconds)
        events = Events(first - seconds - error, scale)
        return replace(jobs, index=jobs.index._replace(events=events))

    return jax.tree.map(one, state, is_leaf=_is_jobs)


def renewed(
    events: Events | tuple[()],
    jobs: InFlight,
    ids: Int[Array, " slots"],
    active: Bool[Array, " slots"],
) -> Events | tuple[()]:
    """The events once the jobs of some clients have changed; nothing if there is no index."""
    if not isinstance(events, Events):
        return ()
    n = jobs.is_idle.shape[0]
    blocks = ids // SIDE
    clients, are_clients = clients_of(blocks, n)
    first, scale = _events_of(jobs, clients)
    first = jnp.where(are_clients, first, jnp.inf).reshape(-1, SIDE)  # there are many clients
    at = jnp.where(active, blocks, events.first.shape[0])
    return Events(
        events.first.at[at].set(jnp.min(first, axis=1), mode="drop"),
        events.scale.at[at].set(jnp.max(scale.reshape(-1, SIDE), axis=1), mode="drop"),
    )


def _events_of(
    jobs: InFlight, ids: Int[Array, " some"] | None = None
) -> tuple[Float[Array, " some"], Float[Array, " some"]]:
    """The first event of each client's job, or of some clients', and the scale of its times."""
    start, seconds, is_idle = (
        a if ids is None else a[ids] for a in (jobs.start, jobs.seconds, jobs.is_idle)
    )
    ever = jnp.array(-jnp.inf, start.dtype)  # a poll begins later than that
    first = first_event(Times.of(start, seconds, is_idle, ever))
    return first, jnp.maximum(jnp.abs(start), seconds)


def _is_jobs(leaf: object) -> bool:
    return isinstance(leaf, InFlight)
