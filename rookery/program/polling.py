"""InFlight that clients work on at their own pace, and what a poll of the server finds."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.program.aggregate import Aggregate, Mean
from rookery.program.async_trace import AsyncTrace
from rookery.program.delays import KINDS
from rookery.program.memory import PerClient
from rookery.types import Key, Tree

SIMULTANEOUS = 8
"""Events that are closer than so many rounding errors are one: 0.1 + 0.2 is 0.3."""


class InFlight(eqx.Module):
    """One job per client, in flight or about to begin; a field of an algorithm's state.

    ``fed.poll`` reads and renews it. As a part of the state it is in every checkpoint, so a run
    that goes on from one finds all jobs as they were. Times are seconds since the round began,
    which stays exact however long a run is; between rounds the engine sets them back. Every field
    but the last five has one row per client.

    Attributes:
        values: a copy of the values that the client received; its job knows no others.
        results: the latest result that each client has delivered; at first what it was made with.
        start: when the job in flight began, or from when the client could begin.
        seconds: how long the job in flight lasts, or the delay of the next one.
        version: the server's version at which the job in flight began.
        begun: how many jobs the client has begun.
        keys: of the job in flight, as numbers.
        is_idle: whether no job is in flight.
        has_arrived: whether the latest poll brought a result of this client; all true at first.
        polls: the server's version: how many polls there were.
        began: seconds from the beginning of the run to that of the round.
        diary: what the server has received so far, and when.
        kind: whose delays the jobs have, ``inner`` or ``outer``.
        n_clients: how many rows there are, or None before they are made.
    """

    values: tuple[Tree, ...]
    results: Tree
    start: jax.Array
    seconds: jax.Array
    version: jax.Array
    begun: jax.Array
    keys: jax.Array
    is_idle: jax.Array
    has_arrived: jax.Array
    polls: jax.Array
    began: jax.Array
    diary: AsyncTrace
    kind: str = eqx.field(static=True)
    n_clients: int | None = eqx.field(static=True, default=None)

    @classmethod
    def of(cls, kind: str, values: tuple[Tree, ...], result: Tree) -> "InFlight":
        """InFlight that are yet to begin, to be made in ``init``.

        Args:
            kind: ``inner`` or ``outer``.
            values: what a job is sent, for its shapes alone; one row of what is per client.
            result: what counts as every client's latest result before it has delivered one.
        """
        check.one_of("kind of jobs", kind, KINDS)
        zero, none = jnp.zeros(()), jnp.zeros((), jnp.int32)
        keys = jnp.zeros_like(jax.random.key_data(jax.random.key(0)))
        idle = jnp.array(True)
        diary = AsyncTrace.empty()
        return cls(
            values, result, zero, zero, none, none, keys, idle, idle, none, zero, diary, kind
        )

    def for_clients(self, n_clients: int) -> "InFlight":
        """The same with a row for each client."""
        if self.n_clients is not None:
            raise ValueError(f"these jobs already have rows, for {self.n_clients} clients.")

        def repeat(leaf):
            return jnp.repeat(jnp.asarray(leaf)[None], n_clients, axis=0)

        rows = jax.tree.map(repeat, self)
        return replace(
            rows, polls=self.polls, began=self.began, diary=self.diary, n_clients=n_clients
        )


@dataclass(frozen=True)
class PollRules:
    """When the server stops waiting for results, and how much a late result counts.

    The server stops at the first moment at which enough results have arrived and no running job
    would exceed the staleness bound. Every result that is finished by then arrives.

    Staleness counts polls: from the one at which a client received the values to the one at which
    its result arrives. A result of the same poll has staleness 0.

    >>> PollRules(wait_for=2, first_wait_for=10).needed(polls=0)
    10

    Attributes:
        wait_for: the least number of results.
        first_wait_for: the same at the first poll; None is ``wait_for``.
        staleness: the largest staleness a result may have; None is no bound, 0 waits for every job.
        discount: the factor of a result in ``PollResult.sum``, as a function of its staleness; None
            is one.
    """

    wait_for: int
    first_wait_for: int | None = None
    staleness: int | None = None
    discount: Callable[[jax.Array], jax.Array] | None = None

    def needed(self, polls: int | jax.Array) -> int | jax.Array:
        """The least number of results after so many polls; ``polls`` may be traced."""
        if self.first_wait_for is None:
            return self.wait_for
        if isinstance(polls, int):
            return self.first_wait_for if polls == 0 else self.wait_for
        return jnp.where(polls == 0, self.first_wait_for, self.wait_for)

    def check(self, n_clients: int) -> None:
        """Raise unless so many clients can satisfy the rules."""
        for name in ("wait_for", "first_wait_for"):
            value = getattr(self, name)
            if value is not None and check.count(name, value) > n_clients:
                raise ValueError(
                    f"{name}={value} results cannot come from {n_clients} clients with a job each. "
                    f"Use at most {n_clients}."
                )
        if self.staleness is not None:
            check.count("staleness", self.staleness, least=0)


class PollResult(NamedTuple):
    """What a poll has brought. All sums are over the results that arrived, times their weights.

    Attributes:
        jobs: the jobs after the poll; its ``results`` are the latest of all clients.
        arrivals: how many results arrived.
        weight: the sum of the weights of their clients.
        sum: the sum of the results, each times its discount if the poll was given one.
        change: the sum of the results minus those that the same clients had delivered before. The
            mean over all clients' latest results moves by it.
        stalest: the largest staleness among them, in versions of the server.
    """

    jobs: InFlight
    arrivals: jax.Array
    weight: jax.Array
    sum: Tree
    change: Tree
    stalest: jax.Array


def job_key(key: Key, client: Any, number: Any) -> Key:
    """The key of a client's job: of the poll at which it began, the client and the job's number."""
    return jax.random.fold_in(jax.random.fold_in(key, client), number)


def received(values: tuple, client: Any) -> tuple[Tree, ...]:
    """What a client is sent: its own row of values that are :class:`PerClient`, all of others."""
    return tuple(
        jax.tree.map(lambda a: a[client], value.rows) if isinstance(value, PerClient) else value
        for value in values
    )


def nbytes_of(value: Tree) -> int:
    """Bytes of a value on its way to one client."""
    if not isinstance(value, PerClient):
        return tree.nbytes(value)
    leaves = jax.tree.leaves(value.rows)
    return tree.nbytes(leaves) // jnp.shape(leaves[0])[0] if leaves else 0


def later(state: Tree, seconds: jax.Array) -> Tree:
    """A state whose jobs count time from so many seconds later, when the next round begins."""

    def move(jobs):
        if not isinstance(jobs, InFlight):
            return jobs
        return replace(jobs, start=jobs.start - seconds, began=jobs.began + seconds)

    return jax.tree.map(move, state, is_leaf=_is_jobs)


def async_traces(state: Tree) -> dict[str, dict[str, Any]]:
    """What the server has received, for every kind of jobs in a state; empty if it has none."""
    leaves = jax.tree.leaves(state, is_leaf=_is_jobs)
    return {jobs.kind: jobs.diary.as_dict() for jobs in leaves if isinstance(jobs, InFlight)}


def all_finite(state: Tree) -> jax.Array:
    """Whether nothing in a state is NaN or infinite, but for jobs.

    Looking through the tables of all clients would cost more than a server's step. What is wrong in
    a result is wrong in the iterates as soon as it is used.
    """
    leaves = jax.tree.leaves(state, is_leaf=_is_jobs)
    return tree.all_finite([leaf for leaf in leaves if not isinstance(leaf, InFlight)])


def check_poll(
    jobs: InFlight, n_clients: int, values: tuple, rules: PollRules, aggregate: Aggregate
) -> None:
    """Raise unless jobs are of these clients and have the shapes of the values."""
    if not isinstance(jobs, InFlight):
        raise TypeError(f"poll takes InFlight, got {type(jobs).__name__}.")
    if jobs.n_clients != n_clients:
        raise ValueError(
            f"the jobs have rows for {jobs.n_clients} clients, and there are {n_clients}. "
            "Make the state with rookery.program.algorithm.first_state, which knows how many."
        )
    rules.check(n_clients)
    check_ask(n_clients, values, aggregate)
    wanted = tuple(_shapes(value, 1) for value in jobs.values)
    got = tuple(_shapes(v.rows, 1) if isinstance(v, PerClient) else _shapes(v) for v in values)
    if wanted != got:
        raise ValueError(f"these jobs are sent {wanted}, got {got}.")


def check_ask(n_clients: int, values: tuple, aggregate: Aggregate) -> None:
    """Raise unless a PerClient has a row for each client and the run's rule is the mean.

    The mean is the only rule that can be kept up while results come one by one.
    """
    for value in values:
        if not isinstance(value, PerClient):
            continue
        lengths = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(value.rows)}
        if not value.has_rows or lengths - {(n_clients,)}:
            raise ValueError(
                f"a PerClient needs {n_clients} rows along its first axis, one for each client, "
                f"got {_shapes(value.rows)}."
            )
    if not isinstance(aggregate, Mean):
        raise ValueError(
            "asynchronous programs keep a running mean of what clients have sent; "
            f"aggregate={type(aggregate).__name__} needs all replies at once. Leave it at Mean()."
        )


def check_result(jobs: InFlight, rows: Tree) -> None:
    """Raise unless results, one row each, are like those that the jobs were made with."""
    wanted, got = _shapes(jobs.results, 1), _shapes(rows, 1)
    if wanted != got:
        raise ValueError(f"a job of these gives {wanted}, got {got}.")


def _is_jobs(leaf: Any) -> bool:
    return isinstance(leaf, InFlight)


def _shapes(tree: Tree, skip: int = 0) -> Tree:
    return jax.tree.map(lambda a: f"{jnp.result_type(a)}{[*jnp.shape(a)[skip:]]}", tree)
