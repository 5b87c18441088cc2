"""The compiled engine: many rounds, and many runs of one structure, are one XLA call."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rookery import check
from rookery.engines.engine import AbstractEngine, AbstractRunner, Program, Progress
from rookery.engines.traced import many_rounds, read_books
from rookery.program.algorithm import AbstractAlgorithm, numbers_to_arrays
from rookery.program.ledger import Ledger
from rookery.types import Key, Tree

_programs: list[str] = []  # the algorithms of all programs that this process has compiled


def programs_compiled() -> int:
    """How many programs this process has compiled so far: one per structure and number of lanes."""
    return len(_programs)


class Compiled(AbstractEngine):
    """Runs whole chunks of rounds as one XLA program on this machine.

    Args:
        clients_at_once: how many clients of a cohort go through one vmap; the rest wait their
            turn. None takes the whole cohort, which is fastest for small models; a smaller number
            bounds memory.
        rounds_per_call: the most rounds that run before Python hears of them again.
    """

    clients_at_once: int | None = None
    rounds_per_call: int = 100

    def __check_init__(self):
        if self.clients_at_once is not None:
            check.count("clients_at_once", self.clients_at_once)
        check.count("rounds_per_call", self.rounds_per_call)

    def prepare(self, program: Program, algorithms: Sequence[AbstractAlgorithm]) -> AbstractRunner:
        """Make ready; compilation happens at the first call."""
        program.population.check_rows("the compiled engine")
        return _CompiledRunner(program, algorithms, self.clients_at_once, self.rounds_per_call)


class _CompiledRunner(AbstractRunner):
    """BatchLoop share one program: their algorithms differ in array leaves only."""

    def __init__(self, program, algorithms, clients_at_once, capacity):
        arrays = [eqx.partition(numbers_to_arrays(a), eqx.is_array) for a in algorithms]
        self._lanes = stack([numbers for numbers, _ in arrays])
        self._structure = arrays[0][1]
        self._program = Program(
            program.problem, jax.device_put(program.population), program.clock, program.aggregate
        )
        self._clients_at_once, self._capacity = clients_at_once, capacity

    def advance(
        self, states: Sequence[Tree], keys: Sequence[Key], first: int, n: Sequence[int]
    ) -> list[Progress]:
        stacked, key = stack(states), jnp.stack(list(keys))
        ledgers: list[list[Ledger]] = [[] for _ in states]
        is_finite = [True] * len(states)
        for begun in range(0, max(n), self._capacity):
            todo = [
                min(self._capacity, max(0, lane - begun)) if finite else 0
                for lane, finite in zip(n, is_finite, strict=True)
            ]
            stacked, books, status = _advance(
                self._program,
                self._lanes,
                self._structure,
                self._clients_at_once,
                self._capacity,
                stacked,
                key,
                jnp.asarray(first + begun, jnp.int32),
                jnp.asarray(todo, jnp.int32),
            )
            books = jax.device_get(books)
            for lane, (done, finite) in enumerate(status.tolist()):
                mine = jax.tree.map(lambda a, i=lane, d=done: a[i, :d], books)
                ledgers[lane] += read_books(mine)
                is_finite[lane] &= bool(finite)
        return [
            Progress(_lane(stacked, np.int32(i)), ledgers[i], is_finite[i])
            for i in range(len(states))
        ]


@eqx.filter_jit
def _advance(program, lanes, structure, at_once, capacity, states, keys, first, n):
    _programs.append(type(structure).__name__)  # only while tracing, so once per program

    def one(numbers, state, key, n):
        algorithm = eqx.combine(numbers, structure)
        return many_rounds(program, algorithm, at_once, capacity, state, key, first, n)

    if n.shape[0] > 1:
        return jax.vmap(one)(lanes, states, keys, n)
    # a single lane keeps real branches and loop lengths, which a vmap would turn into selects
    alone = jax.tree.map(lambda a: a[0], (lanes, states, keys, n))
    return jax.tree.map(lambda a: a[None], one(*alone))


def stack(trees: Sequence[Tree]) -> Tree:
    """Trees of one structure, leaf by leaf along a new first axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


@jax.jit  # one call for a lane: a call for each of its leaves takes longer than a round does
def _lane(stacked: Tree, i: Any) -> Tree:
    return jax.tree.map(lambda a: a[i], stacked)
