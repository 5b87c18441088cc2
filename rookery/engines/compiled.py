"""The compiled engine: many rounds, and many runs of one structure, are one XLA call."""

from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rookery import check
from rookery.clients.population import Population
from rookery.engines.code_key import CodeKey
from rookery.engines.devices import BY_CLIENT, REPLICATED, Device, Devices, chosen
from rookery.engines.engine import AbstractEngine, AbstractRunner, Event, Program, Progress
from rookery.engines.program_count import note_program
from rookery.engines.program_count import programs_compiled as programs_compiled
from rookery.engines.round_costs import RoundCosts, ledgers
from rookery.engines.sharded import ShardedRunner
from rookery.engines.traced import many_runs
from rookery.program.algorithm import AbstractAlgorithm, numbers_to_arrays
from rookery.program.ledger import Ledger
from rookery.types import Key, Tree


class Compiled(AbstractEngine):
    """Runs whole chunks of rounds as one XLA program on this machine.

    >>> import rookery as rk
    >>> rk.Compiled(clients_at_once=4).rounds_per_call
    100

    Args:
        clients_at_once: how many clients of a cohort go through one vmap; the others follow. None
            takes the whole cohort, which is fastest for small models; a smaller number bounds
            memory. It is per device.
        rounds_per_call: the most rounds of one XLA call.
        devices: how many devices, or which out of ``jax.devices()``; None is JAX's default device.
            The clients of a cohort are divided among them, and so are the runs of a sweep. Numbers
            agree with those of one device up to rounding; ledgers are equal.
        data: with several devices, where clients' rows and memory are. "replicated": every device
            has all of them, so that every cohort is divided evenly. "by client": each device has
            those of some clients and computes for these; it needs less memory, but a cohort may
            fall unevenly.
    """

    clients_at_once: int | None = None
    rounds_per_call: int = 100
    devices: Devices = None
    data: str = REPLICATED

    def __check_init__(self):
        if self.clients_at_once is not None:
            check.count("clients_at_once", self.clients_at_once)
        check.count("rounds_per_call", self.rounds_per_call)
        check.one_of("data", self.data, (REPLICATED, BY_CLIENT))
        if self.data == BY_CLIENT and len(chosen(self.devices)) < 2:
            raise ValueError(
                f"data={BY_CLIENT!r} divides rows among several devices, got "
                f"devices={self.devices}."
            )
        chosen(self.devices)

    def placed(self, population: Population) -> Population:
        """On the run's first device, or on the host if no device is to have all of it."""
        if self.data == REPLICATED:
            return jax.device_put(population, _named(self.devices))
        return jax.tree.map(
            lambda a: np.asarray(a, jax.dtypes.canonicalize_dtype(a.dtype)), population
        )

    def prepare(self, program: Program, algorithms: Sequence[AbstractAlgorithm]) -> AbstractRunner:
        """Move the data to the device; compilation happens at the first call."""
        program.population.check_rows("the compiled engine")
        devices = chosen(self.devices)
        if len(devices) > 1:
            return ShardedRunner(
                program,
                algorithms,
                devices,
                self.data == BY_CLIENT,
                self.clients_at_once,
                self.rounds_per_call,
            )
        device = _named(self.devices)
        return _CompiledRunner(
            program, algorithms, self.clients_at_once, self.rounds_per_call, device
        )


def _named(devices: Devices) -> Device | None:
    """The first device that the caller has named and this process has; None is the default."""
    if devices is None or isinstance(devices, int):
        return None
    return next(d for d in devices if d.process_index == jax.process_index())


class _CompiledRunner(AbstractRunner):
    """Runs whose algorithms differ in array leaves only share one program."""

    def __init__(
        self,
        program: Program,
        algorithms: Sequence[AbstractAlgorithm],
        clients_at_once: int | None,
        capacity: int,
        device: Device | None,
    ):
        parts = [eqx.partition(numbers_to_arrays(a), eqx.is_array) for a in algorithms]
        self._numbers = stack([numbers for numbers, _ in parts])
        self._structure = parts[0][1]
        self._program = Program(
            program.problem,
            jax.device_put(program.population, device),
            program.clock,
            program.aggregate,
        )
        self._key = CodeKey([program.problem, algorithms[0], program.clock, program.aggregate])
        self._clients_at_once, self._capacity = clients_at_once, capacity
        self._device = device

    def follow(self, note: Callable[[int, Event], None]) -> None:
        """Nothing: simulated clients do not fail."""

    def close(self) -> None:
        """Nothing is held outside this process."""

    def advance(
        self, states: Sequence[Tree], keys: Sequence[Key], first: int, n: Sequence[int]
    ) -> list[Progress]:
        stacked, key = jax.device_put(stack(states), self._device), jnp.stack(list(keys))
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
    note_program(type(structure).__name__)
    return many_runs(program, structure, clients_at_once, capacity, numbers, states, keys, first, n)


def stack(trees: Sequence[Tree]) -> Tree:
    """Trees of one structure, leaf by leaf along a new first axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


@jax.jit  # one call for a run: a call for each of its leaves takes longer than a round does
def _state_of(stacked: Tree, i: np.int32) -> Tree:
    return jax.tree.map(lambda a: a[i], stacked)
