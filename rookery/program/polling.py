"""Asynchronous work: jobs in flight, and the rules of a poll.

A client without a job begins one as soon as it is available, with the values that the server has
then. The server waits until enough results have arrived, and takes all that are finished. The rules
(who begins, who arrives, how stale, when the server stops waiting, what it receives) are the pure
functions ``timetable``, ``begun`` and ``delivered``; an engine only runs the clients in between.
The compiled engine has a vectorised form of its own, and must agree.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from rookery import check, tree
from rookery.program.aggregate import Aggregate, Mean, robust_rule
from rookery.program.async_trace import AsyncTrace, TraceRecord
from rookery.program.delays import KINDS, Clock
from rookery.program.memory import Memory, PerClient, repeated
from rookery.program.values import Cached
from rookery.types import Key, Tree

SIMULTANEOUS = 8
"""Two events closer than this many rounding errors are simultaneous: 0.1 + 0.2 is 0.3."""


class InFlight(eqx.Module):
    """One job per client, running or about to begin; a field of an algorithm's state.

    ``fed.poll`` reads it and returns the next one. It is a part of the state and so of every
    checkpoint: a resumed run finds all jobs as they were. Times are seconds since the round began,
    which stays exact however long a run is; between rounds the engine shifts them. Every field but
    the last six has one row per client.

    >>> import jax.numpy as jnp
    >>> w = jnp.zeros(3)
    >>> jobs = InFlight.of("inner", values=(w,), result=w).for_clients(10)
    >>> jobs.results.shape, int(jobs.is_idle.sum())
    ((10, 3), 10)

    Attributes:
        values: a copy of the values that the client received; its job sees no others.
        results: the latest result of each client; at first the one that ``of`` was given.
        start: when the running job began, or from when an idle client could begin.
        seconds: how long the running job lasts, or the delay of the next one.
        version: the server's version at which the running job began.
        begun: how many jobs the client has begun.
        keys: random key of the running job, as key data.
        is_idle: whether no job is running.
        has_arrived: whether the latest poll brought a result of this client; all true at first.
        polls: the server's version: how many polls there were.
        began: seconds from the beginning of the run to that of the round.
        trace: which jobs the server has received so far, and when.
        kind: whose delays the jobs have, ``inner`` or ``outer``.
        n_clients: how many rows there are, or None before they are made.
        index: what an engine knows of the jobs without searching them; empty between its calls.
    """

    values: tuple[Tree, ...]
    results: Tree
    start: Float[Array, "*clients"]
    seconds: Float[Array, "*clients"]
    version: Int[Array, "*clients"]
    begun: Int[Array, "*clients"]
    keys: UInt32[Array, "*clients words"]
    is_idle: Bool[Array, "*clients"]
    has_arrived: Bool[Array, "*clients"]
    polls: Int[Array, ""]
    began: Float[Array, ""]
    trace: AsyncTrace
    kind: str = eqx.field(static=True)
    n_clients: int | None = eqx.field(static=True, default=None)
    index: Tree = ()

    @classmethod
    def of(cls, kind: str, values: tuple[Tree, ...], result: Tree) -> "InFlight":
        """Jobs that are yet to begin, to be made in ``init``.

        Args:
            kind: ``inner`` or ``outer``.
            values: what a job is sent, for its shapes alone; one row of what is per client.
            result: what counts as every client's latest result before it has delivered one.
        """
        check.one_of("kind of jobs", kind, KINDS)
        zero, none = jnp.zeros(()), jnp.zeros((), jnp.int32)
        keys = jnp.zeros_like(jax.random.key_data(jax.random.key(0)))
        idle = jnp.array(True)
        trace = AsyncTrace.empty()
        return cls(
            values, result, zero, zero, none, none, keys, idle, idle, none, zero, trace, kind
        )

    def for_clients(self, n_clients: int) -> "InFlight":
        """The same with a row for each client."""
        if self.n_clients is not None:
            raise ValueError(f"these jobs already have rows, for {self.n_clients} clients.")
        rows = repeated(replace(self, trace=None), n_clients)  # the trace is large, and one for all
        return replace(
            rows, polls=self.polls, began=self.began, trace=self.trace, n_clients=n_clients
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
        first_wait_for: the same at the first poll; None means ``wait_for``.
        staleness: the largest staleness a result may have; None is no bound, 0 waits for every job.
        discount: the factor of a result in ``PollResult.sum``, as a function of its staleness; None
            is one.
    """

    wait_for: int
    first_wait_for: int | None = None
    staleness: int | None = None
    discount: Callable[[jax.Array], jax.Array] | None = None

    def needed(self, polls: int | jax.Array) -> int | jax.Array:
        """The least number of results after ``polls`` polls, which may be traced."""
        if self.first_wait_for is None:
            return self.wait_for
        if isinstance(polls, int):
            return self.first_wait_for if polls == 0 else self.wait_for
        return jnp.where(polls == 0, self.first_wait_for, self.wait_for)

    def check(self, n_clients: int) -> None:
        """Raise unless ``n_clients`` clients can satisfy the rules."""
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
    """What a poll has brought. All sums are over the results that arrived, times client weights.

    ``fed.poll`` returns it. The mean of what has arrived, here from two clients of four:

    >>> jobs = InFlight.of("inner", values=(), result=jnp.zeros(1)).for_clients(4)
    >>> total = jnp.array([3.0]) * 0.25 + jnp.array([5.0]) * 0.25
    >>> got = PollResult(jobs, 2, 0.5, sum=total, change=total, stalest=0)
    >>> float((got.sum / got.weight)[0])
    4.0

    Attributes:
        jobs: the jobs after the poll; ``jobs.results`` are the latest of all clients.
        arrivals: how many results arrived.
        weight: the sum of the weights of their clients.
        sum: the sum of the results, each times its discount if the rules have one.
        change: the sum of the results minus the previous results of the same clients. The mean over
            all clients' latest results moves by it.
        stalest: the largest staleness among them.
    """

    jobs: InFlight
    arrivals: Int[Array, ""]
    weight: Float[Array, ""]
    sum: Tree
    change: Tree
    stalest: Int[Array, ""]


# ---- the rules


@dataclass(frozen=True)
class Timetable:
    """What happens during a poll; times are seconds since the round began.

    Attributes:
        now: when the server stops waiting.
        begins: the clients whose jobs have begun by then.
        arrives: the clients whose results have arrived by then.
        start: per client, when its running job began, or from when it could begin.
        seconds: per client, how long its running job lasts, or the delay of the next one.
    """

    now: float
    begins: list[int]
    arrives: list[int]
    start: list[float]
    seconds: list[float]


def timetable(
    jobs: InFlight,
    clock: Clock,
    now: float,
    nbytes: Callable[[int], int],
    rules: PollRules,
    work: Callable[[int], Sequence[int]],
) -> Timetable:
    """Who begins, who arrives, and when the server stops waiting, in virtual time.

    Args:
        jobs: before the poll.
        clock: delays and availability.
        now: when the poll begins, in seconds since the round began.
        nbytes: bytes that move, down and up, for the job of a client that begins now.
        rules: when the server stops waiting.
        work: gradients and Hessian-vector products of that job, in rows; called only if the clock
            has a time for them.
    """
    start, seconds = jobs.start.tolist(), jobs.seconds.tolist()
    versions, numbers = jobs.version.tolist(), jobs.begun.tolist()
    is_idle, is_new = jobs.is_idle.tolist(), jobs.has_arrived.tolist()
    clients, version = range(len(start)), int(jobs.polls)
    needed, staleness = rules.needed(version), rules.staleness

    for i in clients:  # newly idle: when will it be available, and how long will it take?
        if is_new[i]:
            here = jobs.began + jnp.asarray(start[i], float)
            comes, delay = clock.job(jobs.kind, jnp.int32(i), numbers[i], here)
            start[i], seconds[i] = start[i] + float(comes - here), float(delay)

    begins_at, ends_at = list(start), [0.0] * len(start)
    for i in clients:
        lasts = seconds[i]
        if is_idle[i]:
            begins_at[i] = max(start[i], now)
            moved = jnp.asarray(float(nbytes(i)))
            lasts += float(clock.transfer_seconds(jnp.int32(i), moved))
            if clock.compute is not None:
                evaluations = jnp.asarray(work(i), float)
                lasts += float(clock.compute.seconds(jnp.int32(i), evaluations))
        ends_at[i] = begins_at[i] + lasts

    eps = SIMULTANEOUS * float(jnp.finfo(jobs.start.dtype).eps)
    slack = [eps * max(abs(b), e - b) for b, e in zip(begins_at, ends_at, strict=True)]
    events = [now, *sorted(ends_at[i] for i in clients if ends_at[i] - slack[i] > now)]
    arrives = list[int]()
    for now in events:
        arrives = [i for i in clients if ends_at[i] - slack[i] <= now]
        at_work = [i for i in clients if begins_at[i] - slack[i] <= now and i not in arrives]
        ages = [0 if is_idle[i] else version - versions[i] for i in at_work]
        if len(arrives) >= needed and (staleness is None or all(a < staleness for a in ages)):
            break

    begins = [i for i in clients if is_idle[i] and begins_at[i] - slack[i] <= now]
    for i in begins:
        start[i], seconds[i] = begins_at[i], ends_at[i] - begins_at[i]
    return Timetable(now, begins, arrives, start, seconds)


def begun(jobs: InFlight, table: Timetable, key: Key, values: Sequence[Tree]) -> InFlight:
    """The jobs once the clients that begin have received the values, each with a key of its own."""
    keys, held = jobs.keys, jobs.values
    for i in table.begins:
        keys = keys.at[i].set(jax.random.key_data(job_key(key, i, jobs.begun[i])))
        held = jax.tree.map(lambda a, v, i=i: a.at[i].set(v), held, received(values, i))
    begins = _mask(jobs, table.begins)
    return replace(
        jobs,
        values=held,
        start=jnp.asarray(table.start, jobs.start.dtype),
        seconds=jnp.asarray(table.seconds, jobs.seconds.dtype),
        version=jnp.where(begins, jobs.polls, jobs.version),
        begun=jobs.begun + begins.astype(jnp.int32),
        keys=keys,
        is_idle=jobs.is_idle & ~begins,
    )


def delivered(
    jobs: InFlight,
    replies: Mapping[int, Tree],
    weights: Float[Array, " clients"],
    now: float,
    rules: PollRules,
) -> PollResult:
    """What a poll has brought when the given clients have replied.

    Args:
        jobs: while they run.
        replies: results by client.
        weights: of all clients.
        now: when the server stops waiting, in seconds since the round began.
        rules: for the discount.
    """
    arrived, version, versions = sorted(replies), int(jobs.polls), jobs.version.tolist()
    results, start, trace = jobs.results, jobs.start, jobs.trace
    total = change = jax.tree.map(lambda a: jnp.zeros(a.shape[1:], a.dtype), results)
    for i in arrived:
        reply = replies[i]
        check_result(jobs, jax.tree.map(lambda a: jnp.asarray(a)[None], reply))
        factor = 1.0 if rules.discount is None else rules.discount(jnp.int32(version - versions[i]))
        total = tree.axpy(weights[i] * factor, reply, total)
        before = jax.tree.map(lambda a, i=i: a[i], results)
        change = tree.axpy(weights[i], tree.sub(reply, before), change)
        results = jax.tree.map(lambda a, r, i=i: a.at[i].set(r), results, reply)
        trace = trace.add(
            [True],
            client=i,
            began=jobs.began + jobs.start[i],
            ended=jobs.began + jobs.start[i] + jobs.seconds[i],
            taken=jobs.began + now,
            version=versions[i],
            used_in=version,
        )
        start = start.at[i].set(now)
    has_arrived = _mask(jobs, arrived)
    return PollResult(
        jobs=replace(
            jobs,
            results=results,
            start=start,
            is_idle=jobs.is_idle | has_arrived,
            has_arrived=has_arrived,
            polls=jobs.polls + 1,
            trace=trace,
        ),
        arrivals=jnp.asarray(len(arrived), jnp.int32),
        weight=jnp.asarray(sum(float(weights[i]) for i in arrived)),
        sum=total,
        change=change,
        stalest=jnp.asarray(max((version - versions[i] for i in arrived), default=0), jnp.int32),
    )


def job_key(key: Key, client: int | jax.Array, number: int | jax.Array) -> Key:
    """The key of a client's job: of the poll at which it began, the client and the job's number."""
    return jax.random.fold_in(jax.random.fold_in(key, client), number)


# ---- values of a job


def plain_values(values: Sequence[Tree | Cached]) -> tuple[Tree, ...]:
    """The values themselves, whether they are cached or not."""
    return tuple(v.value if isinstance(v, Cached) else v for v in values)


def received(values: Sequence[Tree], client: int | jax.Array) -> tuple[Tree, ...]:
    """What a client is sent: its own row of each :class:`PerClient`, and all of other values."""
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


# ---- jobs in a state


def later(state: Tree, seconds: float | jax.Array) -> Tree:
    """A state whose jobs count time from ``seconds`` later, when the next round begins."""

    def move(jobs):
        if not isinstance(jobs, InFlight):
            return jobs
        return replace(jobs, start=jobs.start - seconds, began=jobs.began + seconds)

    return jax.tree.map(move, state, is_leaf=_is_jobs)


def async_traces(state: Tree) -> dict[str, TraceRecord]:
    """The :class:`AsyncTrace` of every kind of jobs in a state as JSON; empty if it has no jobs."""
    leaves = jax.tree.leaves(state, is_leaf=_is_jobs)
    return {jobs.kind: jobs.trace.as_dict() for jobs in leaves if isinstance(jobs, InFlight)}


def all_finite(state: Tree, aggregate: Aggregate) -> bool:
    """Whether a state holds no NaN and no infinity; jobs are not searched.

    Searching the tables of all clients would cost more than a server's step, and a bad result shows
    in the iterates as soon as it is used. With a robust rule a client may have or send what is not
    finite, so rows of clients are not searched at all.
    """
    memories = [] if robust_rule(aggregate) is not None else _memories(state)
    return tree.is_finite([*_on_server(state, aggregate), *memories])


def server_is_finite(state: Tree, aggregate: Aggregate) -> Bool[Array, ""]:
    """The same of what the server holds, traced: memories are not searched either."""
    return tree.all_finite(_on_server(state, aggregate))


def memories_are_finite(state: Tree) -> Bool[Array, ""]:
    """The same of all clients' memories, which takes time in proportion to their number.

    An engine that knows which rows a round has written need not search the others.
    """
    return tree.all_finite(_memories(state))


def _on_server(state: Tree, aggregate: Aggregate) -> list[Tree]:
    leaves = jax.tree.leaves(state, is_leaf=_is_table)
    tables = InFlight | Memory if robust_rule(aggregate) is None else InFlight | Memory | PerClient
    return [leaf for leaf in leaves if not isinstance(leaf, tables)]


def _memories(state: Tree) -> list[Memory]:
    leaves = jax.tree.leaves(state, is_leaf=_is_table)
    return [leaf for leaf in leaves if isinstance(leaf, Memory)]


def has_row_per_client(state: Tree) -> Tree:
    """For every leaf of a state whether it has a row for each client.

    >>> state = {"w": jnp.zeros(3), "own": Memory.of(jnp.zeros(3)).for_clients(10)}
    >>> jax.tree.leaves(has_row_per_client(state))
    [True, False]
    """

    def mark(leaf):
        marks = jax.tree.map(lambda _: _is_table(leaf), leaf)
        if isinstance(leaf, InFlight):
            none = jax.tree.map(lambda _: False, leaf.trace)
            marks = replace(marks, polls=False, began=False, trace=none)
        return marks

    return jax.tree.map(mark, state, is_leaf=_is_table)


# ---- checks


def check_poll(
    jobs: InFlight, n_clients: int, values: Sequence[Tree], rules: PollRules, aggregate: Aggregate
) -> None:
    """Raise unless the jobs belong to these clients and were made for values of these shapes."""
    if not isinstance(jobs, InFlight):
        raise TypeError(f"fed.poll needs the state's InFlight, got {type(jobs).__name__}.")
    if jobs.n_clients != n_clients:
        raise ValueError(
            f"fed.poll: the jobs have rows for {jobs.n_clients} clients, and there are "
            f"{n_clients}. Make the state with rookery.program.algorithm.first_state."
        )
    rules.check(n_clients)
    check_ask(n_clients, values, aggregate)
    wanted = tuple(_shapes(value, 1) for value in jobs.values)
    got = tuple(_shapes(v.rows, 1) if isinstance(v, PerClient) else _shapes(v) for v in values)
    if wanted != got:
        raise ValueError(
            f"fed.poll: got values {got}, but these jobs were created for values {wanted} "
            "(see InFlight.of)."
        )


def check_ask(n_clients: int, values: Sequence[Tree], aggregate: Aggregate) -> None:
    """Raise unless every PerClient has a row for each client and the run's rule is the mean.

    Only the mean can be updated while results arrive one by one.
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
    """Raise unless results, one row each, have the shapes that the jobs were made with."""
    wanted, got = _shapes(jobs.results, 1), _shapes(rows, 1)
    if wanted != got:
        raise ValueError(
            f"the step returned {got}, but these jobs were created for results {wanted} "
            "(see InFlight.of)."
        )


def _is_jobs(leaf: object) -> bool:
    return isinstance(leaf, InFlight)


def _is_table(leaf: object) -> bool:
    return isinstance(leaf, InFlight | Memory | PerClient)


def _mask(jobs: InFlight, clients: Sequence[int]) -> Bool[Array, " clients"]:
    chosen = set(clients)
    return jnp.array([i in chosen for i in range(jobs.is_idle.shape[0])])


def _shapes(tree: Tree, skip: int = 0) -> Tree:
    return jax.tree.map(lambda a: f"{jnp.result_type(a)}{[*jnp.shape(a)[skip:]]}", tree)
