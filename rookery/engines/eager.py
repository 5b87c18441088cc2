"""The eager engine: plain Python loops that define what a program means, and check it."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from rookery import tree, uint64
from rookery.clients.local_client import LocalClient
from rookery.engines.engine import AbstractEngine, AbstractRunner, Program, Progress
from rookery.program.accounting import AbstractMeteredFederation
from rookery.program.algorithm import AbstractAlgorithm, numbers_to_arrays
from rookery.program.federation import (
    NO_SETTINGS,
    Placed,
    Settings,
    Step,
    ask_as_cohort,
    check_step,
    client_key,
    common_cohort,
    step_name,
)
from rookery.program.ledger import Ledger
from rookery.program.memory import Memory, check_recall, rows_to_keep
from rookery.program.participation import Cohort
from rookery.program.polling import (
    PollResult,
    all_finite,
    begun,
    check_poll,
    delivered,
    job_key,
    later,
    plain_values,
    received,
    timetable,
)
from rookery.program.step import python_loop
from rookery.types import Key, Tree


class EagerFederation(AbstractMeteredFederation):
    """The words, one client after another.

    Attributes:
        cohorts: the clients that replied in each exchange so far.
    """

    def __init__(self, program: Program, round: int):
        weights = jnp.asarray(program.population.weights, float)
        n_clients, clock = program.population.n_clients, program.clock
        super().__init__(n_clients, weights, round, program.aggregate, clock)
        self._population = program.population
        self._clock = program.clock
        self.cohorts: list[tuple[int, ...]] = []

    @property
    def ledger(self) -> Ledger:
        """What the round has cost so far."""
        return self.costs.ledger

    @property
    def now(self) -> float:
        """Virtual seconds since the round began."""
        return self.costs.now

    def map(self, step: Step, *values: Placed, key: Key | None = None, **settings) -> Placed:
        """A loop over the cohort; a failure names the client, the step and the round."""
        cohort = common_cohort(step, values)
        check_step(step, settings)
        replies = []
        for slot, id in enumerate(cohort.ids.tolist()):
            occurrence = None if cohort.occurrence is None else cohort.occurrence[slot]
            own = client_key(key, id, occurrence)
            arguments = [_row(v.value, slot) if v.is_stacked else v.value for v in values]
            is_billed = bool(cohort.active[slot])
            reply, work = self._run(id, own, step, arguments, settings)
            replies.append(reply)
            if is_billed:
                self.costs.work(*work, cohort, slot)
        shapes = {str(jax.tree.map(jnp.shape, reply)) for reply in replies}
        if len(shapes) > 1:
            raise ValueError(
                f"round {self.round}, step {step_name(step)}: clients replied with different "
                f"shapes: {shapes}. All clients of a cohort must reply alike."
            )
        return Placed(cohort, jax.tree.map(lambda *r: jnp.stack(r), *replies), is_stacked=True)

    def recall(self, cohort: Cohort, memory: Memory) -> Placed:
        """One row after another."""
        check_recall(cohort, memory, self.n_clients)
        rows = [_row(memory.rows, id) for id in cohort.ids.tolist()]
        return Placed(cohort, jax.tree.map(lambda *r: jnp.stack(r), *rows), is_stacked=True)

    def keep(self, memory: Memory, placed: Placed) -> Memory:
        """One row after another; inactive slots write nothing."""
        rows, cohort = rows_to_keep(memory, placed, self.n_clients)
        kept = memory.rows
        for slot, (id, is_active) in enumerate(
            zip(cohort.ids.tolist(), cohort.active.tolist(), strict=True)
        ):
            if is_active:
                kept = jax.tree.map(lambda a, r, c=id, s=slot: a.at[c].set(r[s]), kept, rows)
        return Memory(kept, memory.n_clients)

    def poll(self, jobs, step, *values, rules, key, settings=NO_SETTINGS) -> PollResult:
        """One event after another."""
        check_step(step, settings)
        plain = plain_values(values)
        check_poll(jobs, self.n_clients, plain, rules, self.aggregate)
        nbytes_up = tree.nbytes(jobs.results) // self.n_clients

        def nbytes(client: int) -> int:
            return self.costs.unsent(client, values) + nbytes_up

        def work(client: int) -> tuple[int, int]:
            own = job_key(key, client, jobs.begun[client])
            return self._run(client, own, step, received(plain, client), settings)[1]

        table = timetable(jobs, self._clock, self.now, nbytes, rules, work)
        for id in table.begins:
            self.costs.send_job(id, values)
        jobs = begun(jobs, table, key, plain)
        replies = {}
        for id in table.arrives:
            own = jax.random.wrap_key_data(jobs.keys[id])
            replies[id], spent = self._run(id, own, step, _row(jobs.values, id), settings)
            self.costs.work(*spent)
        self.costs.end_poll(len(replies), nbytes_up, table.now)
        self.cohorts.append(tuple(replies))
        return delivered(jobs, replies, self.weights, table.now, rules)

    def ask(self, who, step, *values, key, settings=NO_SETTINGS) -> Tree:
        """An exchange with a cohort of the clients asked."""
        return ask_as_cohort(self, who, step, values, key, settings)

    def repeat(self, n, body, init) -> Tree:
        """A Python loop."""
        return python_loop(n, body, init)

    def _run(
        self,
        id: int,
        key: Key | None,
        step: Step,
        values: Sequence[Tree],
        settings: Settings,
    ) -> tuple[Tree, tuple[int, int]]:
        """One client's reply, and its gradients and Hessian-vector products.

        A failure names the client, the step and the round.
        """
        own = self._population.only(id) if self._population.is_on_disk else self._population
        client = LocalClient(own, id, key, python_loop)
        try:
            reply = step(client, *values, **settings)
        except Exception as error:
            error.add_note(f"client {id}, step {step_name(step)}, round {self.round}")
            raise
        gradients, hessian_vectors = uint64.read(client.work)
        return reply, (gradients, hessian_vectors)

    def _collect(self, placed: Placed, *, needs_all: bool) -> tuple[Tree, Cohort]:
        rows, cohort = placed.rows(), placed.cohort
        self.costs.end_exchange(self.kind, cohort, tree.nbytes(rows) // len(cohort))
        self.cohorts.append(tuple(cohort.ids[cohort.active].tolist()))
        return rows, cohort


def _row(rows: Tree, i: int) -> Tree:
    return jax.tree.map(lambda a: a[i], rows)


class _EagerRunner(AbstractRunner):
    def __init__(self, program: Program, algorithms: Sequence[AbstractAlgorithm]):
        population = program.population
        if not population.is_on_disk:
            population = jax.tree.map(jnp.asarray, population)
        self._program = Program(program.problem, population, program.clock, program.aggregate)
        self._algorithms = [numbers_to_arrays(a) for a in algorithms]

    def advance(self, states, keys, first, n, *, may_reuse=False) -> list[Progress]:
        runs = zip(self._algorithms, states, keys, n, strict=True)
        return [self._one(algorithm, state, key, first, n) for algorithm, state, key, n in runs]

    def _one(
        self, algorithm: AbstractAlgorithm, state: Tree, key: Key, first: int, n: int
    ) -> Progress:
        ledgers: list[Ledger] = []
        cohorts: list[tuple[tuple[int, ...], ...]] = []
        is_finite = True
        for round in range(first, first + n):
            fed = EagerFederation(self._program, round)
            state = algorithm.round(
                fed, self._program.problem, state, jax.random.fold_in(key, round)
            )
            ledgers.append(fed.ledger)
            cohorts.append(tuple(fed.cohorts))
            state = later(state, jnp.asarray(fed.now, float))
            is_finite = all_finite(state, self._program.aggregate)
            if not is_finite:
                break
        return Progress(state, ledgers, is_finite, cohorts)


class Eager(AbstractEngine):
    """Runs a program one operation at a time: slow, easy to inspect, and strict.

    >>> import rookery as rk
    >>> engine = rk.Eager()  # pass it as rk.run(..., engine=engine)
    """

    def prepare(self, program: Program, algorithms: Sequence[AbstractAlgorithm]) -> AbstractRunner:
        """Check the population; nothing is compiled."""
        program.population.check_rows("the eager engine")
        return _EagerRunner(program, algorithms)
