"""The compiled engine: many rounds, and many runs of one structure, are one XLA call."""

import functools
from collections.abc import Sequence
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rookery import check
from rookery.clients.population import Population
from rookery.engines import collection, compile_cache, program_store
from rookery.engines.code_key import CodeKey
from rookery.engines.devices import BY_CLIENT, REPLICATED, Device, Devices, chosen
from rookery.engines.engine import AbstractEngine, AbstractRunner, Program, Progress
from rookery.engines.program_count import note_program
from rookery.engines.program_count import programs_compiled as programs_compiled
from rookery.engines.round_costs import RoundCosts, ledgers
from rookery.engines.rounds import Lanes, many_rounds, many_rounds_of_lanes
from rookery.engines.sharded import ShardedRunner
from rookery.engines.streamed import MOST_ROUNDS, InMemoryRunner, StreamedRunner
from rookery.program.algorithm import AbstractAlgorithm, numbers_to_arrays
from rookery.program.ledger import Ledger
from rookery.program.polling import has_row_per_client
from rookery.types import Tree


class Compiled(AbstractEngine):
    """Runs whole chunks of rounds as one XLA program on this machine.

    >>> import rookery as rk
    >>> rk.Compiled(clients_at_once=4).rounds_per_call
    1000

    Args:
        clients_at_once: how many clients of a cohort go through one vmap; the others follow. None
            chooses by the size of the model: the whole cohort of a small one, a few clients of a
            large one, so that they fit into a processor's cache. It is per device.
        rounds_per_call: the most rounds of one XLA call. A run makes calls of about a second, or
            as long as it is to the next evaluation, checkpoint or callback; the numbers do not
            depend on it.
        devices: how many devices, or which out of ``jax.devices()``; None is JAX's default device.
            The clients of a cohort are divided among them, and so are the runs of a sweep. Numbers
            agree with those of one device up to rounding; ledgers are equal.
        window_bytes: of a population on disk (``Population.open``): how many bytes of clients' rows
            are brought to the device at a time. They serve as many rounds as they suffice for, one
            at least; the rows for the next rounds are read meanwhile.
        data: with several devices, where clients' rows and memory are. "replicated": every device
            has all of them, so that every cohort is divided evenly. "by client": each device has
            those of some clients and computes for these; it needs less memory, but a cohort may
            fall unevenly.
    """

    clients_at_once: int | None = None
    rounds_per_call: int = 1000
    devices: Devices = None
    data: str = REPLICATED
    window_bytes: int = 1 << 28

    def __check_init__(self):
        if self.clients_at_once is not None:
            check.count("clients_at_once", self.clients_at_once)
        check.count("rounds_per_call", self.rounds_per_call)
        check.count("window_bytes", self.window_bytes)
        check.one_of("data", self.data, (REPLICATED, BY_CLIENT))
        if self.data == BY_CLIENT and len(chosen(self.devices)) < 2:
            raise ValueError(
                f"data={BY_CLIENT!r} divides rows among several devices, got "
                f"devices={self.devices}."
            )
        chosen(self.devices)

    def placed(self, population: Population) -> Population:
        """On the run's first device, or on the host if no device is to have all of it."""
        compile_cache.turn_on()
        if self.data == REPLICATED:
            return jax.device_put(population, _named(self.devices))
        return jax.tree.map(
            lambda a: np.asarray(a, jax.dtypes.canonicalize_dtype(a.dtype)), population
        )

    def prepare(self, program: Program, algorithms: Sequence[AbstractAlgorithm]) -> AbstractRunner:
        """Move the data to the device; compilation happens at the first call."""
        program.population.check_rows("the compiled engine")
        compile_cache.turn_on()
        devices = chosen(self.devices)
        if program.population.is_on_disk:
            if len(devices) > 1:
                raise ValueError(
                    f"a population on disk is computed on one device, got devices={self.devices}. "
                    "Leave devices out, or read all rows with population.in_memory()."
                )
            return self._streamed(program, algorithms, _named(self.devices))
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

    def _streamed(
        self, program: Program, algorithms: Sequence[AbstractAlgorithm], device: Device | None
    ) -> AbstractRunner:
        empty = replace(program, population=program.population.resident(np.zeros(0, int), 1, 1))
        inner = _CompiledRunner(
            empty, algorithms, self.clients_at_once, self.rounds_per_call, device
        )
        most = min(self.rounds_per_call, MOST_ROUNDS)
        return StreamedRunner(program, algorithms, inner, most, self.window_bytes)


def _named(devices: Devices) -> Device | None:
    """The first device that the caller has named and this process has; None means the default."""
    if devices is None or isinstance(devices, int):
        return None
    return next(d for d in devices if d.process_index == jax.process_index())


class _CompiledRunner(InMemoryRunner):
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
        self._numbers = _joined([numbers for numbers, _ in parts])
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
        self._stacked: Tree = None  # the lanes after the last call,
        self._in_stack: list[Tree] = []  # and the state of each that took part in it

    def use(self, population: Population) -> None:
        """Compute with this population from now on."""
        population = jax.device_put(population, self._device)
        self._program = replace(self._program, population=population)

    def advance(self, states, keys, first, n, *, may_reuse=False) -> list[Progress]:
        lanes, left = range(len(states)), list(n)
        current, key = self._start(states, left, may_reuse), _joined(list(keys))
        ended, is_finite = list(states), [True for _ in lanes]
        spent: list[list[Ledger]] = [[] for _ in lanes]
        while any(left):
            active = [wanted > 0 for wanted in left]
            count = min(wanted for wanted in left if wanted)
            tables, others = eqx.partition(current, has_row_per_client(current))
            settings = (self._key, self._program, self._numbers, self._structure)
            numbers = (np.int32(first), np.int32(min(count, self._capacity)), np.array(active))
            kept = (settings, self._clients_at_once, self._capacity, others, key, numbers)
            like = (current, *_no_costs())
            with collection.paused():  # the first call traces
                current, costs, status = program_store.call(_advance, kept, tables, like)
            costs = jax.device_get(costs)
            done, *finite = status.tolist()
            for i in lanes:
                if not active[i]:
                    continue
                own = (slice(done),) if len(lanes) == 1 else (slice(done), i)
                spent[i] += ledgers(jax.tree.map(lambda a, own=own: a[own], costs))
                is_finite[i] = bool(finite[i])
                left[i] = left[i] - done if is_finite[i] else 0
                if not left[i]:
                    ended[i] = current if len(lanes) == 1 else _lane(current, np.int32(i))
            first += done
            if len(lanes) > 1:
                self._stacked = current
                self._in_stack = [ended[i] if active[i] else None for i in lanes]
        return [Progress(ended[i], spent[i], is_finite[i]) for i in lanes]

    def _start(self, states: Sequence[Tree], n: Sequence[int], may_reuse: bool) -> Tree:
        """The states as one tree, whose rows per client the program may overwrite."""
        if len(states) > 1:
            # the lanes of the last call, unless a run that continues has another state by now
            pairs = zip(states, self._in_stack, n, strict=False)
            is_last = self._in_stack and all(a is b for a, b, count in pairs if count)
            return self._stacked if is_last else jax.device_put(stack(states), self._device)
        state = jax.device_put(states[0], self._device)
        if may_reuse:
            return state
        marks = has_row_per_client(state)
        return jax.tree.map(lambda a, is_row: jnp.copy(a) if is_row else a, state, marks)


@functools.cache
def _no_costs() -> tuple[Tree, Tree]:
    """The structure of costs and of the status after some rounds."""
    return jax.eval_shape(lambda: (RoundCosts.zero(), jnp.zeros(2, jnp.int32)))


def _advance(kept: tuple[Tree, ...], tables: Tree) -> tuple[Tree, RoundCosts, jax.Array]:
    """Some rounds of all runs, which write the tables of rows per client in place."""
    (code, program, numbers, structure), clients_at_once, capacity, others, keys, counts = kept
    del code  # it only tells programs apart
    note_program(type(structure).__name__)
    (first, n, matters), states = counts, eqx.combine(tables, others)
    if matters.shape[0] == 1:
        # a single run keeps real branches and loop lengths, which a vmap would turn into selects
        algorithm = eqx.combine(numbers, structure)
        return many_rounds(program, algorithm, clients_at_once, capacity, states, keys, first, n)
    lanes = Lanes(structure, numbers, states, keys)
    return many_rounds_of_lanes(program, lanes, clients_at_once, capacity, first, n, matters)


def stack(trees: Sequence[Tree]) -> Tree:
    """Trees of one structure, leaf by leaf along a new first axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _joined(trees: list[Tree]) -> Tree:
    """Several trees stacked, or the only one as it is."""
    return stack(trees) if len(trees) > 1 else trees[0]


@jax.jit  # one call for a run: a call for each of its leaves takes longer than a round does
def _lane(stacked: Tree, i: np.int32) -> Tree:
    return jax.tree.map(lambda a: a[i], stacked)
