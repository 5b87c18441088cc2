"""The compiled engine: many rounds, and many runs of one structure, are one XLA call."""

from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rookery import check
from rookery.engines.code_key import CodeKey
from rookery.engines.engine import AbstractEngine, AbstractRunner, Event, Program, Progress
from rookery.engines.round_costs import RoundCosts, ledgers
from rookery.engines.traced import many_rounds
from rookery.program.algorithm import AbstractAlgorithm, numbers_to_arrays
from rookery.program.ledger import Ledger
from rookery.types import Key, Tree

_programs: list[str] = []  # the algorithms of all programs that this process has compiled


def programs_compiled() -> int:
    """How many programs this process has compiled: one per structure and number of runs."""
    return len(_programs)


class Compiled(AbstractEngine):
    """Runs whole chunks of rounds as one XLA program on this machine.

    >>> import rookery as rk
    >>> rk.Compiled(clients_at_once=4).rounds_per_call
    100

    Args:
        clients_at_once: how many clients of a cohort go through one vmap; the others follow. None
            takes the whole cohort, which is fastest for small models; a smaller number bounds
            memory.
        rounds_per_call: the most rounds of one XLA call.
    """

    clients_at_once: int | None = None
    rounds_per_call: int = 100

    def __check_init__(self):
        if self.clients_at_once is not None:
            check.count("clients_at_once", self.clients_at_once)
        check.count("rounds_per_call", self.rounds_per_call)

    def prepare(self, program: Program, algorithms: Sequence[AbstractAlgorithm]) -> AbstractRunner:
        """Move the data to the device; compilation happens at the first call."""
        program.population.check_rows("the compiled engine")
        return _CompiledRunner(program, algorithms, self.clients_at_once, self.rounds_per_call)


class _CompiledRunner(AbstractRunner):
    """Runs whose algorithms differ in array leaves only share one program."""

    def __init__(
        self,
        program: Program,
        algorithms: Sequence[AbstractAlgorithm],
        clients_at_once: int | None,
        capacity: int,
    ):
        parts = [eqx.partition(numbers_to_arrays(a), eqx.is_array) for a in algorithms]
        self._numbers = stack([numbers for numbers, _ in parts])
        self._structure = parts[0][1]
        self._program = Program(
            program.problem, jax.device_put(program.population), program.clock, program.aggregate
        )
        self._key = CodeKey([program.problem, algorithms[0], program.clock, program.aggregate])
        self._clients_at_once, self._capacity = clients_at_once, capacity

    def follow(self, note: Callable[[int, Event], None]) -> None:
        """Nothing: simulated clients do not fail."""

    def close(self) -> None:
        """Nothing is held outside this process."""

    def advance(
        self, states: Sequence[Tree], keys: Sequence[Key], first: int, n: Sequence[int]
    ) -> list[Progress]:
        stacked, key = stack(states), jnp.stack(list(keys))
        spent: list[list[Ledger]] = [[] for _ in states]
        is_finite = [True] * len(states)
        for begun in range(0, max(n), self._capacity):
            todo = [
                min(self._capacity, max(0, wanted - begun)) if finite else 0
                for wanted, finite in zip(n, is_finite, strict=True)
            ]
            stacked, costs, status = _advance(
                self._key,
                self._program,
                self._numbers,
                self._structure,
                self._clients_at_once,
                self._capacity,
                stacked,
                key,
                jnp.asarray(first + begun, jnp.int32),
                jnp.asarray(todo, jnp.int32),
            )
            costs = jax.device_get(costs)
            for run, (done, finite) in enumerate(status.tolist()):
                spent[run] += ledgers(jax.tree.map(lambda a, i=run, d=done: a[i, :d], costs))
                is_finite[run] &= bool(finite)
        return [
            Progress(_state_of(stacked, np.int32(i)), spent[i], is_finite[i])
            for i in range(len(states))
        ]


@eqx.filter_jit
def _advance(
    code: CodeKey,
    program: Program,
    numbers: Tree,
    structure: Tree,
    clients_at_once: int | None,
    capacity: int,
    states: Tree,
    keys: jax.Array,
    first: jax.Array,
    n: jax.Array,
) -> tuple[Tree, RoundCosts, jax.Array]:
    del code  # it only tells programs apart
    _programs.append(type(structure).__name__)  # only while tracing, so once per program

    def one(numbers, state, key, n):
        algorithm = eqx.combine(numbers, structure)
        return many_rounds(program, algorithm, clients_at_once, capacity, state, key, first, n)

    if n.shape[0] > 1:
        return jax.vmap(one)(numbers, states, keys, n)
    # a single run keeps real branches and loop lengths, which a vmap would turn into selects
    alone = jax.tree.map(lambda a: a[0], (numbers, states, keys, n))
    return jax.tree.map(lambda a: a[None], one(*alone))


def stack(trees: Sequence[Tree]) -> Tree:
    """Trees of one structure, leaf by leaf along a new first axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


@jax.jit  # one call for a run: a call for each of its leaves takes longer than a round does
def _state_of(stacked: Tree, i: np.int32) -> Tree:
    return jax.tree.map(lambda a: a[i], stacked)
