"""What a round of a curve costs, from shapes alone: no data, no client work, no compiled round.

The server's side of the rounds is run as it is, so cohorts and random lengths are drawn as in a
real run. Client steps are only traced for the shapes of their replies, which are then all ones;
they are run if the clock has a time for the clients' work.
"""

import jax
import jax.numpy as jnp

from rookery import tree
from rookery.clients.local_client import LocalClient
from rookery.engines import compile_cache
from rookery.engines.eager import EagerFederation
from rookery.engines.engine import Program
from rookery.experiment.config import CurveSettings
from rookery.program.accounting import AbstractMeteredFederation
from rookery.program.aggregate import Mean
from rookery.program.algorithm import check_constraints, first_state, numbers_to_arrays
from rookery.program.federation import (
    NO_SETTINGS,
    Placed,
    Settings,
    Step,
    ask_as_cohort,
    common_cohort,
    step_name,
)
from rookery.program.ledger import Ledger
from rookery.program.memory import Memory
from rookery.program.participation import Cohort
from rookery.program.polling import PollResult, begun, delivered, later, plain_values, timetable
from rookery.program.step import python_loop, traced_loop
from rookery.tasks.task import Task
from rookery.types import Tree


def trace_costs(curve: CurveSettings, task: Task, rounds: int = 11) -> list[Ledger]:
    """Exchanges, messages and bytes of the first rounds of a curve.

    Args:
        curve: the algorithm and the clock.
        task: the problem and the clients; their data may be blank.
        rounds: how many; eleven see what an algorithm does every tenth round.
    """
    compile_cache.turn_on()  # the server's own operations are many small programs
    n_clients = task.population.n_clients
    curve.algorithm.check(task.problem, n_clients)
    check_constraints(curve.algorithm, task.problem)
    program = Program(task.problem, task.population, curve.clock, Mean())
    algorithm = numbers_to_arrays(curve.algorithm)
    start = jax.tree.map(jnp.asarray, task.start(0))
    state = first_state(algorithm, task.problem, n_clients, start)
    replies: dict[str, Tree] = {}
    ledgers = []
    for round in range(rounds):
        if curve.clock.compute is None:
            fed = _ShapeFederation(program, round, replies)
        else:  # only the clients' steps tell how long they take
            fed = EagerFederation(program, round)
        key = jax.random.fold_in(jax.random.key(0), round)
        state = algorithm.round(fed, task.problem, state, key)
        state = later(state, jnp.asarray(fed.costs.now, float))
        ledgers.append(fed.costs.ledger)
    return ledgers


class _ShapeFederation(AbstractMeteredFederation):
    """The words for a server whose clients reply with ones of the right shapes."""

    def __init__(self, program: Program, round: int, replies: dict[str, Tree]):
        weights = jnp.asarray(program.population.weights, float)
        n_clients, clock = program.population.n_clients, program.clock
        super().__init__(n_clients, weights, round, program.aggregate, clock)
        self._program, self._replies = program, replies

    def map(self, step, *values: Placed, key=None, **settings) -> Placed:
        """One reply, repeated for the cohort."""
        cohort = common_cohort(step, values)
        arguments = tuple(
            jax.tree.map(lambda a: _shape(a, 1), v.value)
            if v.is_stacked
            else jax.tree.map(_shape, v.value)
            for v in values
        )
        reply = self._reply(step, arguments, settings)
        rows = jax.tree.map(lambda a: jnp.ones((len(cohort), *a.shape), a.dtype), reply)
        return Placed(cohort, rows, is_stacked=True)

    def recall(self, cohort: Cohort, memory: Memory) -> Placed:
        """The rows of the cohort."""
        rows = jax.tree.map(lambda a: a[cohort.ids], memory.rows)
        return Placed(cohort, rows, is_stacked=True)

    def keep(self, memory: Memory, placed: Placed) -> Memory:
        """The memory as it was: only shapes matter."""
        return memory

    def poll(self, jobs, step, *values, rules, key, settings=NO_SETTINGS) -> PollResult:
        """One event after another, as on the eager engine."""
        plain = plain_values(values)
        nbytes_up = tree.nbytes(jobs.results) // self.n_clients
        table = timetable(
            jobs,
            self._program.clock,
            self.costs.now,
            lambda client: self.costs.unsent(client, values) + nbytes_up,
            rules,
            work=lambda client: (0, 0),
        )
        for id in table.begins:
            self.costs.send_job(id, values)
        jobs = begun(jobs, table, key, plain)
        reply = jax.tree.map(lambda a: jnp.ones(a.shape[1:], a.dtype), jobs.results)
        self.costs.end_poll(len(table.arrives), nbytes_up, table.now)
        replies = dict.fromkeys(table.arrives, reply)
        return delivered(jobs, replies, self.weights, table.now, rules)

    def ask(self, who, step, *values, key, settings=NO_SETTINGS) -> Tree:
        """An exchange with a cohort of the clients asked."""
        return ask_as_cohort(self, who, step, values, key, settings)

    def repeat(self, n, body, init) -> Tree:
        """A Python loop."""
        return python_loop(n, body, init)

    def _reply(self, step: Step, arguments: tuple, settings: Settings) -> Tree:
        """The shapes of a client's reply, traced once for every call of a round."""
        leaves, structure = jax.tree.flatten(dict(settings))
        known = [_shape(leaf) if isinstance(leaf, jax.Array) else leaf for leaf in leaves]
        call = f"{step_name(step)} {arguments} {known} {structure}"
        if call not in self._replies:

            def traced(values, key):
                client = LocalClient(self._program.population, jnp.int32(0), key, traced_loop)
                return step(client, *values, **settings)

            self._replies[call] = jax.eval_shape(traced, arguments, jax.random.key(0))
        return self._replies[call]

    def _collect(self, placed: Placed, *, needs_all: bool) -> tuple[Tree, Cohort]:
        rows = placed.rows()
        self.costs.end_exchange(self.kind, placed.cohort, tree.nbytes(rows) // len(placed.cohort))
        return rows, placed.cohort


def _shape(array: jax.Array, without: int = 0) -> jax.ShapeDtypeStruct:
    """Shape and type, without some leading axes."""
    return jax.ShapeDtypeStruct(jnp.shape(array)[without:], jnp.result_type(array))
