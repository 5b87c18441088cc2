"""The words, traced: a cohort is a vmap, loops are lax loops, costs are arrays in the carry.

In a poll, only comparisons of times touch every client. Computing results and copying rows loops
over the affected clients alone (:mod:`rookery.engines.masked_loop`).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from rookery import tree
from rookery.clients.local_client import LocalClient
from rookery.engines import client_groups, masked_loop
from rookery.engines.client_groups import computed_and_summed, group_size
from rookery.engines.engine import Program
from rookery.engines.masked_loop import visit_some, weighted_sum, written
from rookery.engines.round_costs import RoundCosts
from rookery.engines.spread import AbstractSpread, OneDevice
from rookery.engines.waiting import end_of_wait, kth_smallest
from rookery.program.aggregate import Mean
from rookery.program.async_trace import AsyncTrace
from rookery.program.delays import Clock
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
    SIMULTANEOUS,
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
        self._holders: dict[int, jax.Array] = {}  # cached value -> which clients hold it
        self._pending: dict[int, jax.Array] = {}  # cohort -> bytes sent since its last reply

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
            holders, pending = tuple(self._holders), tuple(self._pending)
            value = body(i, value)
            # what was cached or drawn inside the body ends with it
            self._holders = {token: self._holders[token] for token in holders}
            self._pending = {token: self._pending[token] for token in pending}
            return value, self._notes()

        value, notes = lax.fori_loop(0, n, once, (init, self._notes()))
        self._take(notes)
        return value

    def _notes(self) -> tuple[Tree, ...]:
        """What loops carry along."""
        return self.costs, self.has_kept_finite, self._holders, self._pending

    def _take(self, notes: tuple[Tree, ...]) -> None:
        self.costs, self.has_kept_finite, self._holders, self._pending = notes

    # ---- asynchronous words

    def poll(self, jobs, step, *values, rules, key, settings=NO_SETTINGS) -> PollResult:
        """An exact simulation of the events, from one arrival to the next."""
        plain = plain_values(values)
        check_poll(jobs, self.n_clients, plain, rules, self.aggregate)
        width = masked_loop.width(self.n_clients, self._clients_at_once, rules.wait_for)
        self._usual = rules.wait_for
        everyone, now = jnp.arange(self.n_clients, dtype=jnp.int32), self.costs.seconds

        # newly idle clients: when will they be available, and how long will they take?
        jobs = _draw(self._clock, jobs, width)

        # when does the server stop waiting?
        needed = rules.needed(jobs.polls)
        nbytes_up = tree.nbytes(jobs.results) // self.n_clients
        nbytes = self._unsent(values) + nbytes_up
        lasts = jobs.seconds + self._clock.transfer_seconds(everyone, nbytes)
        start = jnp.where(jobs.is_idle, jnp.maximum(jobs.start, now), jobs.start)
        seconds = jnp.where(jobs.is_idle, lasts, jobs.seconds)
        version = jnp.where(jobs.is_idle, jobs.polls, jobs.version)
        finish = start + seconds
        slack = SIMULTANEOUS * jnp.finfo(finish.dtype).eps * jnp.maximum(jnp.abs(start), seconds)
        due = finish - slack

        is_old = jnp.zeros(self.n_clients, bool)
        if rules.staleness is not None:
            is_old = jobs.polls - version >= rules.staleness

        def must_wait(time):
            too_few = jnp.sum(due <= time, dtype=jnp.int32) < needed
            if rules.staleness is None:
                return too_few
            return too_few | jnp.any(is_old & (start - slack <= time) & (due > time))

        earliest = _time_of_enough(due, rules, jobs.polls)
        if rules.staleness is not None:
            waited_for = is_old & (start - slack <= now)
            earliest = jnp.maximum(earliest, jnp.max(jnp.where(waited_for, due, now)))
        now = end_of_wait(now, finish, due, earliest, must_wait)
        is_in = due <= now

        # the clients that have begun by then receive the values
        begins = jobs.is_idle & (start - slack <= now)
        self._send_to(begins, values)
        jobs = _begin(jobs, plain, begins, key, width, seconds)
        began, trace = _noted(jobs, is_in, width, start, finish, now, version)
        jobs = replace(
            jobs,
            start=began,
            is_idle=is_in | (jobs.is_idle & ~begins),
            has_arrived=is_in,
            polls=jobs.polls + 1,
            trace=trace,
        )

        # the results
        age = jobs.polls - 1 - version
        results, total, change = self._deliver(jobs, step, age, rules, settings, width)
        self.costs = self.costs.replied(nbytes_up, is_in, now)
        return PollResult(
            jobs=replace(jobs, results=results),
            arrivals=jnp.sum(is_in, dtype=jnp.int32),
            weight=jnp.sum(jnp.where(is_in, self.weights, 0.0)),
            sum=total,
            change=change,
            stalest=jnp.max(jnp.where(is_in, age, 0)),
        )

    def ask(self, who, step, *values, key, settings=NO_SETTINGS) -> Tree:
        """A loop over the set, some clients at a time."""
        plain = plain_values(values)
        check_ask(self.n_clients, plain, self.aggregate)

        def one(id):
            client = self._client(id, client_key(key, id, None))
            return step(client, *received(plain, id), **settings), client.work

        shape = jax.eval_shape(one, jax.ShapeDtypeStruct((), jnp.int32))[0]
        nbytes_up = tree.nbytes(shape)
        nbytes = self._unsent(values) + nbytes_up
        exchange = self.costs.exchanges

        def visit(ids, active, carry):
            total, slowest, costs = carry
            replies, work = self._compute(one, ids, ids)
            lasts = self._clock.exchange_seconds(
                self.kind, self.round, exchange, ids, active, nbytes[ids]
            )
            total = tree.add(total, weighted_sum(self.weights, ids, active, replies))
            return total, jnp.maximum(slowest, lasts), costs.worked(active, work)

        zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shape)
        width = masked_loop.width(self.n_clients, self._clients_at_once, self._usual)
        carry = (zeros, jnp.zeros(()), self.costs)
        total, slowest, self.costs = visit_some(who, width, visit, carry)
        self._send_to(who, values)
        self.costs = self.costs.replied(nbytes_up, who, self.costs.seconds + slowest)
        return tree.scale(1 / jnp.sum(jnp.where(who, self.weights, 0.0)), total)

    def _deliver(
        self,
        jobs: InFlight,
        step: Step,
        age: Int[Array, " clients"],
        rules: PollRules,
        settings: Settings,
        width: int,
    ) -> tuple[Tree, Tree, Tree]:
        """The new table of results, and the two sums of a :class:`PollResult`."""
        counts = self.weights
        if rules.discount is not None:
            counts = counts * rules.discount(age)

        def one(id):
            client = self._client(id, quick(jax.random.wrap_key_data(jobs.keys[id])))
            values = jax.tree.map(lambda a: a[id], jobs.values)
            return step(client, *values, **settings), client.work

        def visit(ids, active, carry):
            results, total, change, costs = carry
            replies, work = self._compute(one, ids, ids)
            check_result(jobs, replies)
            results = written(results, ids, active, replies)
            total = tree.add(total, weighted_sum(counts, ids, active, replies))
            change = tree.add(change, weighted_sum(self.weights, ids, active, replies))
            return results, total, change, costs.worked(active, work)

        def look_up(ids, active, change):
            before = jax.tree.map(lambda a: a[ids], jobs.results)
            return tree.sub(change, weighted_sum(self.weights, ids, active, before))

        zeros = jax.tree.map(lambda a: jnp.zeros(a.shape[1:], a.dtype), jobs.results)
        # XLA would copy the whole table if one loop read and wrote it, or if nothing made the loop
        # that reads come before the one that writes
        change = visit_some(jobs.has_arrived, width, look_up, zeros)
        carry = (jobs.results, zeros, change, self.costs)
        results, total, change, self.costs = visit_some(jobs.has_arrived, width, visit, carry)
        return results, total, change

    def _unsent(self, values: tuple[Tree | Cached, ...]) -> Float[Array, " clients"]:
        """Bytes of the values that each client does not hold."""
        nbytes = jnp.zeros(self.n_clients)
        for value in values:
            if isinstance(value, Cached):
                nbytes = nbytes + jnp.where(self._holding(value), 0.0, tree.nbytes(value.value))
            else:
                nbytes = nbytes + nbytes_of(value)
        return nbytes

    def _send_to(self, who: Bool[Array, " clients"], values: tuple[Tree | Cached, ...]) -> None:
        """Bill the values going down to the clients of a mask."""
        for value, plain in zip(values, plain_values(values), strict=True):
            to = who
            if isinstance(value, Cached):
                holders = self._holding(value)
                to = who & ~holders
                self._holders[value.token] = holders | who
            self.costs = self.costs.sent(nbytes_of(plain), to)

    # ---- what an engine implements besides

    def _new_cohort(self, cohort: Cohort) -> None:
        # known before a loop begins, or bytes that are sent inside it would be lost at its end
        self._pending.setdefault(cohort.token, jnp.zeros(len(cohort)))

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
        self.costs = self.costs.sent(nbytes, slots)
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
        )
        self.costs = self.costs.replied(nbytes, cohort.active, self.costs.seconds + seconds)
        self._pending[cohort.token] = jnp.zeros(len(cohort))
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


def _time_of_enough(
    due: Float[Array, " clients"], rules: PollRules, polls: Int[Array, ""]
) -> Float[Array, ""]:
    """When enough results have arrived."""
    usual = partial(kth_smallest, k=rules.wait_for)
    if rules.first_wait_for is None:
        return usual(due)
    return lax.cond(polls == 0, partial(kth_smallest, k=rules.first_wait_for), usual, due)


def _draw(clock: Clock, jobs: InFlight, width: int) -> InFlight:
    """The jobs with the time at which newly idle clients can begin, and their next delay."""

    def visit(ids, active, carry):
        def one(id):
            ready = jobs.start[id]
            here = jobs.began + ready
            comes, delay = clock.job(jobs.kind, id, jobs.begun[id], here)
            return ready + (comes - here), delay

        return written(carry, ids, active, jax.vmap(one)(ids))

    start, seconds = visit_some(jobs.has_arrived, width, visit, (jobs.start, jobs.seconds))
    return replace(jobs, start=start, seconds=seconds)


def _begin(
    jobs: InFlight,
    values: tuple[Tree, ...],
    begins: Bool[Array, " clients"],
    key: Key,
    width: int,
    seconds: Float[Array, " clients"],
) -> InFlight:
    """The jobs once those that begin have copies of the values, and keys and times of their own."""

    def visit(ids, active, carry):
        def one(id):
            number = jobs.begun[id]
            data = jax.random.key_data(job_key(key, id, number))
            return received(values, id), data, seconds[id], jobs.polls, number + 1

        return written(carry, ids, active, jax.vmap(one)(ids))

    tables = (jobs.values, jobs.keys, jobs.seconds, jobs.version, jobs.begun)
    held, keys, lasts, version, begun = visit_some(begins, width, visit, tables)
    return replace(jobs, values=held, keys=keys, seconds=lasts, version=version, begun=begun)


def _noted(
    jobs: InFlight,
    is_in: Bool[Array, " clients"],
    width: int,
    start: Float[Array, " clients"],
    finish: Float[Array, " clients"],
    now: Float[Array, ""],
    version: Int[Array, " clients"],
) -> tuple[Float[Array, " clients"], AsyncTrace]:
    """The starts, now for the clients whose jobs have arrived, and the trace with these jobs."""

    def visit(ids, active, carry):
        new, trace = carry
        trace = trace.add(
            active,
            client=ids,
            began=jobs.began + start[ids],
            ended=jobs.began + finish[ids],
            taken=jobs.began + now,
            version=version[ids],
            used_in=jobs.polls,
        )
        return written(new, ids, active, jnp.broadcast_to(now, ids.shape)), trace

    return visit_some(is_in, width, visit, (start, jobs.trace))
