"""Runs on several devices: client steps are divided among them, and the runs of a sweep."""

from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from rookery.engines import collection
from rookery.engines.client_blocks import block_size, divided
from rookery.engines.code_key import CodeKey
from rookery.engines.devices import Device
from rookery.engines.engine import AbstractRunner, Program, Progress
from rookery.engines.program_count import note_program
from rookery.engines.round_costs import RoundCosts, ledgers
from rookery.engines.rounds import Lanes, many_runs
from rookery.engines.spread import CLIENTS, AbstractSpread, AnyDevice, ByClient
from rookery.program.algorithm import AbstractAlgorithm, numbers_to_arrays
from rookery.program.ledger import Ledger
from rookery.program.memory import Memory
from rookery.types import Tree

RUNS = "runs"
"""The axis of a mesh along which the runs of a sweep are divided."""


def runs_side_by_side(n_runs: int, n_devices: int) -> int:
    """How many groups of devices work on different runs; each group divides its runs' clients.

    >>> runs_side_by_side(n_runs=16, n_devices=4), runs_side_by_side(n_runs=3, n_devices=4)
    (4, 2)
    """
    return max(g for g in range(1, n_devices + 1) if n_devices % g == 0 and g <= n_runs)


class ShardedRunner(AbstractRunner):
    """Runs whose algorithms differ in array leaves only share one program on several devices.

    Args:
        program: of all runs.
        algorithms: one per run.
        devices: at least two.
        is_by_client: whether rows and memory are divided by client; otherwise every device has all.
        clients_at_once: the most clients in a vmap on one device.
        capacity: the most rounds of one call.
    """

    def __init__(
        self,
        program: Program,
        algorithms: Sequence[AbstractAlgorithm],
        devices: tuple[Device, ...],
        is_by_client: bool,
        clients_at_once: int | None,
        capacity: int,
    ):
        n = len(devices)
        groups = 1 if is_by_client else runs_side_by_side(len(algorithms), n)
        self._mesh = Mesh(np.array(devices).reshape(groups, n // groups), (RUNS, CLIENTS))
        self._padding = -len(algorithms) % groups
        self._is_alone = {d.process_index for d in devices} == {jax.process_index()}
        parts = [eqx.partition(numbers_to_arrays(a), eqx.is_array) for a in algorithms]
        self._structure = parts[0][1]
        self._numbers = self._put(self._stacked([numbers for numbers, _ in parts]), P(RUNS))
        population, self._spread = program.population, _spread(program, is_by_client, n // groups)
        if is_by_client:
            population = divided(population, self._mesh)
        self._program = self._put(
            Program(program.problem, population, program.clock, program.aggregate), P()
        )
        self._key = CodeKey([program.problem, algorithms[0], program.clock, program.aggregate])
        self._clients_at_once, self._capacity = clients_at_once, capacity
        self._last: tuple[list[Tree], Tree] | None = None  # states handed out, and on the devices

    def agreed(self, number: float) -> float:
        """The number of the first process."""
        if self._is_alone:
            return number
        return float(multihost_utils.broadcast_one_to_all(np.float32(number)))

    def advance(self, states, keys, first, n, *, may_reuse=False) -> list[Progress]:
        """Rounds of all runs; the padding of the last group runs none."""
        self._check_agreement(first, n)
        stacked = self._on_devices(states)
        key = self._put(self._stacked([jax.random.key_data(key) for key in keys]), P(RUNS))
        impl = str(jax.random.key_impl(keys[0]))
        spent: list[list[Ledger]] = [[] for _ in states]
        is_finite = [True] * len(states)
        for begun in range(0, max(n), self._capacity):
            todo = [
                min(self._capacity, max(0, wanted - begun)) if finite else 0
                for wanted, finite in zip(n, is_finite, strict=True)
            ]
            counts = jnp.asarray([*todo, *[0] * self._padding], jnp.int32)
            kept = _Kept(
                self._key,
                self._program,
                self._numbers,
                self._structure,
                _Layout(self._mesh, self._spread, self._is_alone),
                self._clients_at_once,
                self._capacity,
                key,
                impl,
                self._put(jnp.asarray(first + begun, jnp.int32), P()),
                self._put(counts, P(RUNS)),
            )
            with collection.paused():  # the first call traces
                stacked, costs, status = _advance(kept, stacked)
            costs, status = jax.device_get((costs, status))
            for run, (done, finite) in enumerate(status[: len(states)].tolist()):
                spent[run] += ledgers(jax.tree.map(lambda a, i=run, d=done: a[i, :d], costs))
                is_finite[run] &= bool(finite)
        handed = [_local(_state_of(stacked, np.int32(i))) for i in range(len(states))]
        self._last = handed, stacked
        return [Progress(state, spent[i], is_finite[i]) for i, state in enumerate(handed)]

    def _on_devices(self, states: Sequence[Tree]) -> Tree:
        """The states stacked, on the devices; they still are if they come from the last call."""
        if self._last is not None:
            handed, stacked = self._last
            if len(handed) == len(states) and all(map(_same, handed, states)):
                return stacked
        return self._put(self._stacked(states), P(RUNS))

    def _stacked(self, trees: Sequence[Tree]) -> Tree:
        every = [*trees, *[trees[-1]] * self._padding]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *every)

    def _put(self, tree: Tree, spec: P) -> Tree:
        """The arrays of a tree on the devices, unless they are there already."""
        sharding = NamedSharding(self._mesh, spec)

        def put(leaf):
            if not eqx.is_array_like(leaf) or isinstance(leaf, bool | int | float | complex):
                return leaf
            if isinstance(leaf, jax.Array) and leaf.sharding.device_set == sharding.device_set:
                return leaf
            if self._is_alone:
                return jax.device_put(leaf, sharding)
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                data = put(jax.random.key_data(leaf))
                return jax.random.wrap_key_data(data, impl=str(jax.random.key_impl(leaf)))
            plain = np.asarray(leaf, jax.dtypes.canonicalize_dtype(leaf.dtype))
            return jax.make_array_from_callback(plain.shape, sharding, lambda at: plain[at])

        return jax.tree.map(put, tree)

    def _check_agreement(self, first: int, n: Sequence[int]) -> None:
        """Raise if processes that compute together want different rounds: they would hang."""
        if self._is_alone:
            return
        wanted = multihost_utils.process_allgather(np.array([first, *n], np.int32))
        if (wanted != wanted[0]).any():
            raise ValueError(
                "the processes of this run want different rounds. Process by process, the first "
                f"round and how many of each run: {wanted.tolist()}. Start all with the same "
                "arguments; to resume, give each a copy of the same run directory."
            )


class _Layout(eqx.Module):
    """How a call is divided; static."""

    mesh: Mesh = eqx.field(static=True)
    spread: AbstractSpread = eqx.field(static=True)
    is_alone: bool = eqx.field(static=True)


class _Kept(eqx.Module):
    """What a call reads and leaves as it is."""

    code: CodeKey  # it only tells programs apart
    program: Program
    numbers: Tree
    structure: Tree
    layout: _Layout
    clients_at_once: int | None
    capacity: int
    keys: jax.Array
    impl: str
    first: jax.Array
    n: jax.Array


@eqx.filter_jit(donate="all-except-first")
def _advance(kept: _Kept, states: Tree) -> tuple[Tree, RoundCosts, jax.Array]:
    """Some rounds of all runs, which write the new states over the old."""
    note_program(type(kept.structure).__name__)
    layout, program = kept.layout, kept.program
    arrays, static = eqx.partition(program, eqx.is_array)
    n_clients, is_by_client = program.population.n_clients, isinstance(layout.spread, ByClient)

    def on_each_device(arrays, numbers, states, keys, first, n):
        keys = jax.random.wrap_key_data(keys, impl=kept.impl)
        lanes, at_once = Lanes(kept.structure, numbers, states, keys), kept.clients_at_once
        program = eqx.combine(arrays, static)
        return many_runs(program, lanes, at_once, kept.capacity, first, n, layout.spread)

    data = jax.tree.map(lambda _: P(), arrays)
    of_states = jax.tree.map(lambda _: P(RUNS), states)
    if is_by_client:
        n_devices = layout.mesh.shape[CLIENTS]
        padding = block_size(n_clients, n_devices) * n_devices - n_clients
        data = eqx.tree_at(
            lambda p: p.population.data,
            data,
            jax.tree.map(lambda _: P(CLIENTS), arrays.population.data),
        )
        of_states = _of_memories(lambda rows: P(RUNS, CLIENTS), of_states)
        states = _of_memories(lambda rows: _longer(rows, padding), states)
    new, costs, status = jax.shard_map(
        on_each_device,
        mesh=layout.mesh,
        in_specs=(data, P(RUNS), of_states, P(RUNS), P(), P(RUNS)),
        out_specs=(of_states, P(RUNS), P(RUNS)),
        check_vma=False,
    )(arrays, kept.numbers, states, kept.keys, kept.first, kept.n)
    if is_by_client:
        new = _of_memories(lambda rows: rows[:, :n_clients], new)
    if not layout.is_alone:  # every process sees all
        everywhere = NamedSharding(layout.mesh, P())
        new, costs, status = jax.lax.with_sharding_constraint((new, costs, status), everywhere)
    return new, costs, status


def _spread(program: Program, is_by_client: bool, n_devices: int) -> AbstractSpread:
    if is_by_client:
        return ByClient(n_devices, block_size(program.population.n_clients, n_devices))
    return AnyDevice(n_devices)


def _of_memories(fn: Callable[[jax.Array], object], states: Tree) -> Tree:
    """The states with ``fn`` of every table of clients' memory."""

    def one(node):
        if not isinstance(node, Memory):
            return node
        return Memory(jax.tree.map(fn, node.rows), node.n_clients)

    return jax.tree.map(one, states, is_leaf=lambda node: isinstance(node, Memory))


def _longer(rows: jax.Array, padding: int) -> jax.Array:
    """Stacked tables of memory with rows for clients that do not exist."""
    if not padding:
        return rows
    return jnp.concatenate([rows, jnp.repeat(rows[:, :1], padding, axis=1)], axis=1)


def _local(state: Tree) -> Tree:
    """A state as one device has it, if every device has all of it; otherwise as it is."""
    leaves = jax.tree.leaves(state)
    if not all(leaf.is_fully_replicated for leaf in leaves):
        return state
    return jax.tree.map(lambda leaf: leaf.addressable_data(0), state)


def _same(a: Tree, b: Tree) -> bool:
    """Whether two states are the same arrays."""
    old, new = jax.tree.leaves(a), jax.tree.leaves(b)
    return len(old) == len(new) and all(x is y for x, y in zip(old, new, strict=True))


@jax.jit
def _state_of(stacked: Tree, i: np.int32) -> Tree:
    return jax.tree.map(lambda a: a[i], stacked)
