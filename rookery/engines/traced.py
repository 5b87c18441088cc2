"""The words, traced: a cohort is a vmap, loops are lax loops, costs are arrays in the carry.

In a poll, what touches every client is at most one pass over the times
(:mod:`rookery.engines.waiting`), and with many clients not even that
(:mod:`rookery.engines.job_index`). Computing results and copying rows loops over lists of the
affected clients (:mod:`rookery.engines.client_list`).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from rookery import tree, uint64
from rookery.clients.local_client import LocalClient
from rookery.engines import client_groups, client_list
from rookery.engines.client_groups import computed_and_summed, group_size
from rookery.engines.client_list import ClientList, list_of, visit_some, weighted_sum, written
from rookery.engines.engine import Program
from rookery.engines.job_index import Events, JobIndex, indices, renewed
from rookery.engines.round_costs import RoundCosts
from rookery.engines.spread import AbstractSpread, OneDevice
from rookery.engines.waiting import Pick, Timeline, Times
from rookery.program.aggregate import Mean
from rookery.program.delays import Clock, Compute
from rookery.program.federation import (
    NO_SETTINGS,
    AbstractFederation,
    Cached,
    Placed,
    Settings,
    Step,
    client_key,
    common_cohort,
)
from rookery.program.memory import Memory, check_recall, rows_to_keep
from rookery.program.participation import Cohort
from rookery.program.polling import (
    InFlight,
    PollResult,
    PollRules,
    check_ask,
    check_poll,
    check_result,
    job_key,
    nbytes_of,
    plain_values,
    received,
)
from rookery.program.step import traced_loop
from rookery.rng import quick
from rookery.types import Key, Tree

ONE_DEVICE = OneDevice()
"""Where clients are computed unless an engine says otherwise."""


class TracedFederation(AbstractFederation):
    """The words, traced. It lives while a round is traced; loops carry what it has noted.

    Attributes:
        costs: of the round so far.
        has_kept_finite: whether all rows that clients have kept so far were finite.
    """

    def __init__(
        self,
        program: Program,
        round: int | jax.Array,
        clients_at_once: int | None,
        spread: AbstractSpread = ONE_DEVICE,
    ):
        population = program.population
        weights = jnp.asarray(population.weights, float)
        super().__init__(population.n_clients, weights, round, program.aggregate)
        self.costs = RoundCosts.zero()
        self.has_kept_finite = jnp.array(True)
        self._population = population
        self._clock = program.clock
        self._clients_at_once = clients_at_once
        self._spread = spread
        self._usual: int | None = None  # how many clients a set to ask has, as far as polls tell
        self._lists: dict[int, tuple[jax.Array, _Listed]] = {}  # id of a mask -> it and its clients
        self._holders: dict[int, jax.Array] = {}  # cached value -> which clients hold it
        self._pending: dict[int, jax.Array] = {}  # cohort -> bytes sent since its last reply
        self._work: dict[int, jax.Array] = {}  # the same of work, if the clock has a time for it

    # ---- synchronous words

    def map(self, step: Step, *values: Placed, key: Key | None = None, **settings) -> Placed:
        """One vmap over the cohort, or several, one after another or on several devices."""
        cohort = common_cohort(step, values)
        stacked = [v.value for v in values if v.is_stacked]

        def one(slot):
            id, occurrence, own = slot
            client = self._client(id, client_key(key, id, occurrence))
            rows = iter(own)
            arguments = [next(rows) if v.is_stacked else v.value for v in values]
            return step(client, *arguments, **settings), client.work

        slots = (cohort.ids, cohort.occurrence, stacked)
        nbytes = sum(tree.nbytes(v.value) // (len(cohort) if v.is_stacked else 1) for v in values)
        size = self._clients_at_once or group_size(nbytes, len(cohort))
        mean = None
        if self._sums_as_they_come(nbytes * len(cohort)):
            weights = self.slot_weights(cohort)
            replies, work, mean = computed_and_summed(one, slots, weights, min(size, len(cohort)))
        else:
            replies, work = self._spread.compute(one, cohort.ids, slots, size)
        self.costs = self.costs.worked(cohort.active, work)
        if cohort.token in self._work:
            self._work[cohort.token] = self._work[cohort.token] + uint64.as_floats(work)
        return Placed(cohort, replies, is_stacked=True, mean=mean)

    def _sums_as_they_come(self, nbytes: int) -> bool:
        """Whether replies that have about as many bytes as this together should be summed so."""
        is_possible = isinstance(self.aggregate, Mean) and isinstance(self._spread, OneDevice)
        return is_possible and nbytes > client_groups.SUMMED_BYTES

    def recall(self, cohort: Cohort, memory: Memory) -> Placed:
        """A gather of rows."""
        check_recall(cohort, memory, self.n_clients)
        at = self._population.place(cohort.ids)
        rows = self._spread.read(memory.rows, at, self.n_clients)
        return Placed(cohort, rows, is_stacked=True)

    def keep(self, memory: Memory, placed: Placed) -> Memory:
        """A scatter of rows, which are searched for NaN and infinity on the way."""
        rows, cohort = rows_to_keep(memory, placed, self.n_clients)
        active = tree.where(cohort.active, rows, tree.zeros_like(rows))
        self.has_kept_finite = self.has_kept_finite & tree.all_finite(active)
        at = self._population.place(cohort.ids)
        table = self._spread.write(memory.rows, at, cohort.active, rows, self.n_clients)
        return Memory(table, memory.n_clients)

    def repeat(self, n, body, init) -> Tree:
        """A ``fori_loop`` that carries the costs along."""

        def once(i, carry):
            value, notes = carry
            self._take(notes)
            holders, pending, work = map(tuple, (self._holders, self._pending, self._work))
            lists = dict(self._lists)
            value = body(i, value)
            # what was cached, drawn or listed inside the body ends with it
            self._lists = lists
            self._holders = {token: self._holders[token] for token in holders}
            self._pending = {token: self._pending[token] for token in pending}
            self._work = {token: self._work[token] for token in work}
            return value, self._notes()

        value, notes = lax.fori_loop(0, n, once, (init, self._notes()))
        self._take(notes)
        return value

    def _notes(self) -> tuple[Tree, ...]:
        """What loops carry along."""
        return self.costs, self.has_kept_finite, self._holders, self._pending, self._work

    def _take(self, notes: tuple[Tree, ...]) -> None:
        self.costs, self.has_kept_finite, self._holders, self._pending, self._work = notes

    # ---- asynchronous words

    def poll(self, jobs, step, *values, rules, key, settings=NO_SETTINGS) -> PollResult:
        """An exact simulation of the events, from one arrival to the next."""
        plain = plain_values(values)
        check_poll(jobs, self.n_clients, plain, rules, self.aggregate)
        width = client_list.width(self.n_clients, self._clients_at_once, rules.wait_for)
        self._usual = rules.wait_for

        # newly idle clients: when will they be available, and how long will they take?
        index = jobs.index
        has_index = isinstance(index, JobIndex)
        idle = index.arrived if has_index else self._listed(jobs.has_arrived).clients
        jobs = _draw(self._clock, jobs, idle, width)

        # when does the server stop waiting?
        nbytes_up, began = tree.nbytes(jobs.results) // self.n_clients, self.costs.seconds
        with_transfer = None
        if self._clock.bandwidth is not None:
            everyone = jnp.arange(self.n_clients, dtype=jnp.int32)
            nbytes = self._unsent(values, lambda a: a) + nbytes_up
            with_transfer = jobs.seconds + self._clock.transfer_seconds(everyone, nbytes)
        if self._clock.compute is not None:
            busy = self._busy(self._clock.compute, jobs, step, plain, key, settings, width)
            with_transfer = (jobs.seconds if with_transfer is None else with_transfer) + busy

        def times_of(jobs: InFlight, pick: Pick) -> Times:
            start, seconds, is_idle = map(pick, (jobs.start, jobs.seconds, jobs.is_idle))
            lasts = seconds if with_transfer is None else pick(with_transfer)
            return Times.of(start, jnp.where(is_idle, lasts, seconds), is_idle, began)

        # the index knows nothing of the seconds that transfer and work add to idle jobs
        first = jobs.index.events.first if has_index and with_transfer is None else None
        timeline = Timeline(self.n_clients, partial(times_of, jobs), rules.wait_for, first)
        now = _end_of_wait(timeline, jobs, rules, began)

        # the clients that begin by then receive the values
        begin = timeline.begun_by(now, buffer=idle)
        jobs = _begin(jobs, plain, begin, key, width, times_of)

        # the results that arrive by then; a job has the same times once it has begun, and XLA would
        # have to copy those before
        arrive = timeline.due_by(now, buffer=begin, times=partial(times_of, jobs))
        self._send_to(begin, values, width)
        result = self._deliver(jobs, step, arrive, now, rules, settings, width)
        self.costs = self.costs.replied(nbytes_up, arrive.size, self.n_clients, now)
        return result

    def _busy(
        self,
        compute: Compute,
        jobs: InFlight,
        step: Step,
        plain: tuple[Tree, ...],
        key: Key,
        settings: Settings,
        width: int,
    ) -> Float[Array, " clients"]:
        """How long idle clients would work if they began now; zero for the others.

        Only the counters of the step are used, so XLA removes nearly all of its arithmetic.
        """

        def one(id):
            own = job_key(key, id, jobs.begun[id])
            client = self._client(id, quick(own))
            step(client, *received(plain, id), **settings)
            return client.work

        def visit(ids, active, table):
            work = uint64.as_floats(self._compute(one, ids, ids))
            return written(table, ids, active, compute.seconds(ids, work))

        idle = self._listed(jobs.is_idle).clients
        return visit_some(idle, width, visit, jnp.zeros_like(jobs.seconds))

    def ask(self, who, step, *values, key, settings=NO_SETTINGS) -> Tree:
        """A loop over the set, some clients at a time."""
        plain = plain_values(values)
        check_ask(self.n_clients, plain, self.aggregate)
        clients, weight = self._listed(who)

        def one(id):
            client = self._client(id, client_key(key, id, None))
            return step(client, *received(plain, id), **settings), client.work

        shape = jax.eval_shape(one, jax.ShapeDtypeStruct((), jnp.int32))[0]
        nbytes_up = tree.nbytes(shape)
        exchange = self.costs.exchanges

        def visit(ids, active, carry):
            total, slowest, costs = carry
            replies, work = self._compute(one, ids, ids)
            nbytes = self._unsent(values, lambda a: a[ids]) + nbytes_up
            lasts = self._clock.exchange_seconds(
                self.kind, self.round, exchange, ids, active, nbytes, uint64.as_floats(work)
            )
            total = tree.add(total, weighted_sum(self.weights[ids], active, replies))
            return total, jnp.maximum(slowest, lasts), costs.worked(active, work)

        zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shape)
        width = client_list.width(self.n_clients, self._clients_at_once, self._usual)
        carry = (zeros, jnp.zeros(()), self.costs)
        total, slowest, self.costs = visit_some(clients, width, visit, carry)
        self._send_to(clients, values, width)
        self.costs = self.costs.replied(
            nbytes_up, clients.size, self.n_clients, self.costs.seconds + slowest
        )
        return tree.scale(1 / weight, total)

    def _deliver(
        self,
        jobs: InFlight,
        step: Step,
        arrive: ClientList,
        now: Float[Array, ""],
        rules: PollRules,
        settings: Settings,
        width: int,
    ) -> PollResult:
        """What the poll has brought: the results that arrive now."""

        def one(id):
            client = self._client(id, quick(jax.random.wrap_key_data(jobs.keys[id])))
            values = jax.tree.map(lambda a: a[id], jobs.values)
            return step(client, *values, **settings), client.work

        def note(ids, active, carry):
            """What depends on the latest results and on when the jobs began."""
            change, weight, stalest, start, is_idle, has_arrived, trace = carry
            weight = weight + jnp.sum(jnp.where(active, self.weights[ids], 0.0))
            before = jax.tree.map(lambda a: a[ids], jobs.results)
            change = tree.sub(change, weighted_sum(self.weights[ids], active, before))
            began, version = start[ids], jobs.version[ids]
            stalest = jnp.maximum(stalest, jnp.max(jnp.where(active, jobs.polls - version, 0)))
            trace = trace.add(
                active,
                client=ids,
                began=jobs.began + began,
                ended=jobs.began + (began + jobs.seconds[ids]),
                taken=jobs.began + now,
                version=version,
                used_in=jobs.polls,
            )
            rows = jnp.where(active, now, began), active, active
            tables = written((start, is_idle, has_arrived), ids, active, rows)
            return change, weight, stalest, *tables, trace

        def visit(ids, active, carry):
            results, total, change, costs = carry
            replies, work = self._compute(one, ids, ids)
            check_result(jobs, replies)
            results = written(results, ids, active, replies)
            weights = counts = self.weights[ids]
            if rules.discount is not None:
                counts = weights * rules.discount(jobs.polls - jobs.version[ids])
            total = tree.add(total, weighted_sum(counts, active, replies))
            change = tree.add(change, weighted_sum(weights, active, replies))
            return results, total, change, costs.worked(active, work)

        zeros = jax.tree.map(lambda a: jnp.zeros(a.shape[1:], a.dtype), jobs.results)
        nobody, none = jnp.zeros(self.n_clients, bool), jnp.zeros((), jnp.int32)
        weight = jnp.zeros((), self.weights.dtype)
        carry = (zeros, weight, none, jobs.start, jobs.is_idle, nobody, jobs.trace)
        # XLA would copy all results if one loop read and wrote them, or if nothing made the loop
        # that reads come before the one that writes
        noted = visit_some(arrive, width, note, carry)
        change, weight, stalest, start, is_idle, has_arrived, trace = noted
        self._lists[id(has_arrived)] = has_arrived, _Listed(arrive, weight)
        carry = (jobs.results, zeros, change, self.costs)
        results, total, change, self.costs = visit_some(arrive, width, visit, carry)
        after = replace(
            jobs,
            results=results,
            start=start,
            is_idle=is_idle,
            has_arrived=has_arrived,
            polls=jobs.polls + 1,
            trace=trace,
            index=jobs.index and jobs.index._replace(arrived=arrive),
        )
        return PollResult(after, arrive.size, weight, total, change, stalest)

    def note_lists(self, state: Tree) -> None:
        """Note which clients have arrived, as far as the jobs of the round's state have an index.

        A mask is known by its identity, so it takes the very state that the round is given.
        """
        for jobs, index in indices(state):
            who = jobs.has_arrived
            self._lists[id(who)] = who, _Listed(index.arrived, self._weight_of(who))

    def _weight_of(self, who: Bool[Array, " clients"]) -> Float[Array, ""]:
        return jnp.sum(jnp.where(who, self.weights, 0.0))

    def _listed(self, who: Bool[Array, " clients"]) -> "_Listed":
        """The clients of a mask; a mask that is used again is not searched again."""
        known = self._lists.get(id(who))
        if known is not None:
            return known[1]
        clients = list_of(who, self._usual or client_list.WIDTH)
        found = _Listed(clients, self._weight_of(who))
        self._lists[id(who)] = who, found  # as long as the mask is here, no other has its id
        return found

    def _unsent(self, values: tuple[Tree | Cached, ...], pick: Pick) -> Float[Array, " clients"]:
        """Bytes of the values that each of some clients does not hold."""
        nbytes = pick(jnp.zeros(self.n_clients))
        for value in values:
            if isinstance(value, Cached):
                holders = pick(self._holding(value))
                nbytes = nbytes + jnp.where(holders, 0.0, tree.nbytes(value.value))
            else:
                nbytes = nbytes + nbytes_of(value)
        return nbytes

    def _send_to(self, clients: ClientList, values: tuple[Tree | Cached, ...], width: int) -> None:
        """Bill the values going down to some clients."""
        for value, plain in zip(values, plain_values(values), strict=True):
            if isinstance(value, Cached):
                receivers = self._send_cached(clients, value, width)
            else:
                receivers = clients.size
            self.costs = self.costs.sent(nbytes_of(plain), receivers, self.n_clients)

    def _send_cached(self, clients: ClientList, value: Cached, width: int) -> Int[Array, ""]:
        """Note that the clients of a list hold a value, and return how many did not."""

        def visit(ids, active, carry):
            holders, count = carry
            lacks = active & ~holders[ids]
            return written(holders, ids, lacks, lacks), count + jnp.sum(lacks, dtype=jnp.int32)

        carry = (self._holding(value), jnp.zeros((), jnp.int32))
        self._holders[value.token], count = visit_some(clients, width, visit, carry)
        return count

    # ---- what an engine implements besides

    def _new_cohort(self, cohort: Cohort) -> None:
        # known before a loop begins, or bytes that are sent inside it would be lost at its end
        self._pending.setdefault(cohort.token, jnp.zeros(len(cohort)))
        if self._clock.compute is not None:
            self._work.setdefault(cohort.token, jnp.zeros((len(cohort), 2)))

    def _new_cached(self, cached: Cached, holders: jax.Array) -> None:
        self._holders[cached.token] = holders

    def _send(self, cohort: Cohort, value: Tree | Cached, *, as_rows: bool) -> Tree:
        if as_rows:
            slots, nbytes = cohort.active, tree.nbytes(value) // len(cohort)
        elif isinstance(value, Cached):
            holders = self._holding(value)
            slots, nbytes = cohort.distinct & ~holders[cohort.ids], tree.nbytes(value.value)
            self._holders[value.token] = holders.at[cohort.ids].max(cohort.active)
        else:
            slots, nbytes = cohort.distinct, tree.nbytes(value)
        self._new_cohort(cohort)
        self.costs = self.costs.sent(nbytes, jnp.sum(slots, dtype=jnp.uint32), len(cohort))
        self._pending[cohort.token] = self._pending[cohort.token] + jnp.where(slots, nbytes, 0.0)
        return value.value if isinstance(value, Cached) else value

    def _collect(self, placed: Placed, *, needs_all: bool) -> tuple[Tree, Cohort]:
        rows, cohort = placed.rows(), placed.cohort
        nbytes = tree.nbytes(rows) // len(cohort)
        self._new_cohort(cohort)
        seconds = self._clock.exchange_seconds(
            self.kind,
            self.round,
            self.costs.exchanges,
            cohort.ids,
            cohort.active,
            self._pending[cohort.token] + nbytes,
            self._work.get(cohort.token),
        )
        replies = jnp.sum(cohort.active, dtype=jnp.uint32)
        self.costs = self.costs.replied(nbytes, replies, len(cohort), self.costs.seconds + seconds)
        self._pending[cohort.token] = jnp.zeros(len(cohort))
        if cohort.token in self._work:
            self._work[cohort.token] = jnp.zeros((len(cohort), 2))
        return rows, cohort

    def _compute(self, one: Callable[[Tree], Tree], ids: jax.Array, slots: Tree) -> Tree:
        return self._spread.compute(one, ids, slots, self._clients_at_once)

    def _client(self, id: jax.Array, key: Key | None) -> LocalClient:
        return LocalClient(self._population, id, key, traced_loop)

    def _holding(self, cached: Cached) -> Bool[Array, " clients"]:
        """Which clients hold a cached value."""
        if cached.token not in self._holders:
            raise ValueError(
                "a value that was cached inside fed.repeat is used after the loop. Call fed.cache "
                "before the loop."
            )
        return self._holders[cached.token]


class _Listed(NamedTuple):
    """The clients of a mask, and the sum of their weights."""

    clients: ClientList
    weight: Float[Array, ""]


def _end_of_wait(
    timeline: Timeline, jobs: InFlight, rules: PollRules, now: Float[Array, ""]
) -> Float[Array, ""]:
    """When the server stops waiting: enough results are there, and no job at work is too old."""
    usual, first = rules.wait_for, rules.first_wait_for
    if first is None or first == usual:
        enough = timeline.kth_due(usual)
    else:
        enough = lax.cond(
            jobs.polls == 0, lambda: timeline.kth_due(first), lambda: timeline.kth_due(usual)
        )
    bound = rules.staleness
    if bound is None:
        return timeline.end_of_wait(now, enough, lambda time: time < enough)

    def is_too_old(times, time):
        """Which jobs are at work by then, and may not be staler."""
        age = jnp.where(times.is_idle, 0, jobs.polls - jobs.version)
        return (age >= bound) & (times.ready <= time)

    def must_wait(time):
        times = timeline.all()
        return (time < enough) | jnp.any(is_too_old(times, time) & (times.due > time))

    times = timeline.all()
    oldest = jnp.max(jnp.where(is_too_old(times, now), times.due, now))
    return timeline.end_of_wait(now, jnp.maximum(enough, oldest), must_wait)


def _draw(clock: Clock, jobs: InFlight, clients: ClientList, width: int) -> InFlight:
    """The jobs with the time at which newly idle clients can begin, and their next delay."""

    def visit(ids, active, carry):
        start, seconds, events = carry

        def one(id, ready):
            here = jobs.began + ready
            comes, delay = clock.job(jobs.kind, id, jobs.begun[id], here)
            return ready + (comes - here), delay

        start, seconds = written((start, seconds), ids, active, jax.vmap(one)(ids, start[ids]))
        now = replace(jobs, start=start, seconds=seconds)
        return start, seconds, renewed(events, now, ids, active)

    carry = (jobs.start, jobs.seconds, jobs.index and jobs.index.events)
    start, seconds, events = visit_some(clients, width, visit, carry)
    return replace(jobs, start=start, seconds=seconds, index=_with_events(jobs, events))


def _begin(
    jobs: InFlight,
    values: tuple[Tree, ...],
    clients: ClientList,
    key: Key,
    width: int,
    times_of: Callable[[InFlight, Pick], Times],
) -> InFlight:
    """The jobs once those that begin have copies of the values, and keys and times of their own."""

    def visit(ids, active, carry):
        tables, events = carry
        _, _, start, seconds, is_idle, _, begun = tables
        number = begun[ids]
        current = replace(jobs, start=start, seconds=seconds, is_idle=is_idle)
        times = times_of(current, lambda a: a[ids])

        def one(id, number):
            return received(values, id), jax.random.key_data(job_key(key, id, number))

        held, keys = jax.vmap(one)(ids, number)
        version = jnp.broadcast_to(jobs.polls, ids.shape)
        rows = held, keys, times.start, times.seconds, times.is_idle & ~active, version, number + 1
        tables = written(tables, ids, active, rows)
        current = replace(jobs, start=tables[2], seconds=tables[3], is_idle=tables[4])
        return tables, renewed(events, current, ids, active)

    tables = (
        jobs.values, jobs.keys, jobs.start, jobs.seconds, jobs.is_idle, jobs.version, jobs.begun
    )  # fmt: skip
    carry = (tables, jobs.index and jobs.index.events)
    tables, events = visit_some(clients, width, visit, carry)
    held, keys, start, seconds, is_idle, version, begun = tables
    return replace(
        jobs,
        values=held,
        keys=keys,
        start=start,
        seconds=seconds,
        is_idle=is_idle,
        version=version,
        begun=begun,
        index=_with_events(jobs, events),
    )


def _with_events(jobs: InFlight, events: Events | tuple[()]) -> JobIndex | tuple[()]:
    return jobs.index and jobs.index._replace(events=events)
