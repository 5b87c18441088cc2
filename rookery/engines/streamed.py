"""Runs of a population on disk: rows are on the device for the rounds that need them.

Rounds are divided into windows. Before a window begins, a scout finds the clients that it will
visit (:mod:`rookery.engines.scout`), and their rows are read. While a window is computed, a thread
reads the rows of the next one. What clients remember is in host memory; the rows of a window's
clients go to the device and come back.
"""

import abc
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from rookery.clients.population import Population
from rookery.engines.code_key import CodeKey
from rookery.engines.engine import AbstractRunner, Program, Progress
from rookery.engines.scout import NotScoutable, depends_on_unknown, visited_clients
from rookery.program.algorithm import AbstractAlgorithm, numbers_to_arrays
from rookery.program.ledger import Ledger
from rookery.program.memory import Memory
from rookery.types import Key, Tree

MOST_ROUNDS = 100
"""Of a window: a run that ends sooner should not read rows for many rounds more."""


class InMemoryRunner(AbstractRunner):
    """A runner whose population can be exchanged between two calls."""

    @abc.abstractmethod
    def use(self, population: Population) -> None:
        """Compute with this population from now on."""


@dataclass(frozen=True)
class _Window:
    """The rows of the clients that some rounds visit.

    Attributes:
        first: the first of these rounds.
        rounds: how many they are.
        clients: who is visited, in ascending order.
        population: all clients, with the rows of these on the device.
    """

    first: int
    rounds: int
    clients: np.ndarray
    population: Population


class StreamedRunner(AbstractRunner):
    """Runs windows of rounds on a runner that has the rows of a window in memory.

    Args:
        program: of all runs; its population is on disk.
        algorithms: one per run.
        inner: the runner that computes.
        capacity: the most rounds of a window.
        window_bytes: how many bytes of rows a window may have, if it has more than one round.
    """

    def __init__(
        self,
        program: Program,
        algorithms: Sequence[AbstractAlgorithm],
        inner: InMemoryRunner,
        capacity: int,
        window_bytes: int,
    ):
        self._population, self._inner = program.population, inner
        self._nobody = jax.device_put(program.population.resident(np.zeros(0, int), 1, 1))
        self._scout = _Scout(program, algorithms)
        self._capacity, self._window_bytes = capacity, window_bytes
        self._rounds: int | None = None  # of a window
        self._sizes = (0, 0)  # clients and rows that the arrays of a window have room for
        self._now: _Window | None = None
        self._next: tuple[int, Future[_Window]] | None = None
        self._reader = ThreadPoolExecutor(1, "rows")

    def close(self) -> None:
        """End the thread that reads."""
        self._reader.shutdown(cancel_futures=True)

    def advance(self, states, keys, first, n, *, may_reuse=False) -> list[Progress]:
        """Run rounds, one window after another; see :meth:`AbstractRunner.advance`.

        With ``may_reuse`` the memories of the given states are overwritten.
        """
        self._scout.check(states[0])
        current = [_on_host(state, may_reuse) for state in states]
        spent: list[list[Ledger]] = [[] for _ in states]
        is_finite = [True] * len(states)
        begun = 0
        while begun < max(n):
            window = self._window(current, keys, first + begun)
            rounds = min(window.first + window.rounds - (first + begun), max(n) - begun)
            todo = [
                min(rounds, max(0, wanted - begun)) if finite else 0
                for wanted, finite in zip(n, is_finite, strict=True)
            ]
            shown = [_shown(state, window) for state in current]
            done = self._inner.advance(
                shown, keys, first + begun, todo, may_reuse=may_reuse or begun > 0
            )
            for run, new in enumerate(done):
                if todo[run]:
                    current[run] = _taken_back(current[run], new.state, window)
                    spent[run] += new.ledgers
                    is_finite[run] = new.is_finite
            begun += rounds
        return [Progress(current[i], spent[i], is_finite[i]) for i in range(len(states))]

    def _window(self, states: Sequence[Tree], keys: Sequence[Key], round: int) -> _Window:
        """The window that has a round; while it is computed, the next one is read."""
        now = self._now
        if now is not None and now.first <= round < now.first + now.rounds:
            return now
        self._now = now = None
        self._inner.use(self._nobody)  # the rows of the last window are released
        if self._scout.draws_by_state:
            self._now = self._read(states, keys, round, 1)
        else:
            if self._rounds is None:
                self._rounds = self._fitting(states, keys, round)
            begin = round - round % self._rounds
            if self._next is not None and self._next[0] == begin:
                self._now = self._next[1].result()
            else:
                self._now = self._read(states, keys, begin, self._rounds)
            begin += self._rounds
            self._next = begin, self._reader.submit(self._read, states, keys, begin, self._rounds)
        self._inner.use(self._now.population)
        return self._now

    def _fitting(self, states: Sequence[Tree], keys: Sequence[Key], round: int) -> int:
        """How many rounds a window may have."""
        rounds = self._capacity
        while rounds > 1:
            clients = self._scout.visited(states, keys, round - round % rounds, rounds)
            excess = _nbytes(self._population, clients) / self._window_bytes
            if excess <= 1:
                break
            rounds = max(1, min(rounds - 1, int(rounds / excess)))
        return rounds

    def _read(self, states: Sequence[Tree], keys: Sequence[Key], first: int, n: int) -> _Window:
        clients = self._scout.visited(states, keys, first, n)
        rows = int(np.asarray(self._population.counts)[:, clients].sum())
        self._sizes = _roomy(clients.size, self._sizes[0]), _roomy(rows, self._sizes[1])
        resident = jax.device_put(self._population.resident(clients, *self._sizes))
        return _Window(first, n, clients, resident)


class _Scout:
    """Finds the clients of rounds to come, of all runs together.

    Attributes:
        draws_by_state: whether the draws of a round depend on the state before it, so that only the
            next round can be known; None before ``check``.
    """

    def __init__(self, program: Program, algorithms: Sequence[AbstractAlgorithm]):
        parts = [eqx.partition(numbers_to_arrays(a), eqx.is_array) for a in algorithms]
        self._name = algorithms[0].name
        self._numbers, self._structure = [numbers for numbers, _ in parts], parts[0][1]
        population = jax.device_put(program.population.resident(np.zeros(0, int), 1, 1))
        self._program = Program(program.problem, population, program.clock, program.aggregate)
        self._key = CodeKey([program.problem, algorithms[0], program.clock, program.aggregate])
        self._like: Tree = None  # a state of the right shapes
        self.draws_by_state: bool | None = None

    def check(self, state: Tree) -> None:
        """Find out on what the draws depend, or raise if they cannot be known beforehand."""
        if self.draws_by_state is not None:
            return
        algorithm, state = eqx.combine(self._numbers[0], self._structure), _forgetful(state)
        self._like = jax.tree.map(jnp.zeros_like, state)
        key, zero, one = jax.random.key(0), jnp.int32(0), jnp.int32(1)

        def depends(is_state_known: bool) -> bool:
            return depends_on_unknown(
                lambda unknown: visited_clients(
                    self._program, algorithm, state, is_state_known, unknown, key, zero, one
                )
            )

        try:
            self.draws_by_state = depends(False)
            if self.draws_by_state and depends(True):
                raise NotScoutable("a draw that depends on what clients reply in the same round")
        except NotScoutable as found:
            raise ValueError(
                f"{self._name} cannot run with a population on disk: it uses {found}, so who takes "
                "part in a round is not known before the round is computed. Read all rows with "
                "population.in_memory()."
            ) from None

    def visited(
        self, states: Sequence[Tree], keys: Sequence[Key], first: int, n: int
    ) -> np.ndarray:
        """The clients that any run visits in rounds ``first`` to ``first + n - 1``, sorted."""
        mask = np.zeros(self._program.population.n_clients, bool)
        for numbers, state, key in zip(self._numbers, states, keys, strict=True):
            mask |= np.asarray(
                _visited(
                    self._key,
                    self._program,
                    numbers,
                    self._structure,
                    _forgetful(state) if self.draws_by_state else self._like,
                    bool(self.draws_by_state),
                    key,
                    jnp.asarray(first, jnp.int32),
                    jnp.asarray(n, jnp.int32),
                )
            )
        return np.flatnonzero(mask)


@eqx.filter_jit
def _visited(
    code: CodeKey,
    program: Program,
    numbers: Tree,
    structure: Tree,
    state: Tree,
    is_state_known: bool,
    key: Key,
    first: jax.Array,
    n: jax.Array,
) -> Bool[Array, " clients"]:
    del code  # it only tells programs apart
    algorithm, unknown = eqx.combine(numbers, structure), jnp.zeros(())
    return visited_clients(program, algorithm, state, is_state_known, unknown, key, first, n)


def _is_memory(node: object) -> bool:
    return isinstance(node, Memory)


def _forgetful(state: Tree) -> Tree:
    """A state whose memories have a single row each; a scout knows none of them."""

    def one(leaf):
        if not _is_memory(leaf):
            return leaf
        return Memory(jax.tree.map(lambda a: np.zeros_like(a[:1]), leaf.rows), leaf.n_clients)

    return jax.tree.map(one, state, is_leaf=_is_memory)


def _on_host(state: Tree, may_reuse: bool) -> Tree:
    """A state whose memories are NumPy arrays that may be written to."""

    def one(leaf):
        if not _is_memory(leaf):
            return leaf

        def writable(rows):
            is_ours = may_reuse and isinstance(rows, np.ndarray) and rows.flags.writeable
            return rows if is_ours else np.array(rows)

        return Memory(jax.tree.map(writable, leaf.rows), leaf.n_clients)

    return jax.tree.map(one, state, is_leaf=_is_memory)


def _shown(state: Tree, window: _Window) -> Tree:
    """A state whose memories have the rows of a window's clients alone."""
    capacity = window.population.offsets.shape[1]

    def one(leaf):
        if not _is_memory(leaf):
            return leaf

        def some(rows):
            shown = np.zeros((capacity, *rows.shape[1:]), rows.dtype)
            shown[: window.clients.size] = rows[window.clients]
            return jnp.asarray(shown)

        return Memory(jax.tree.map(some, leaf.rows), leaf.n_clients)

    return jax.tree.map(one, state, is_leaf=_is_memory)


def _taken_back(before: Tree, shown: Tree, window: _Window) -> Tree:
    """A new state, with the rows of a window's clients written into the memories."""

    def one(old, new):
        if not _is_memory(old):
            return new

        def write(rows, some):
            rows[window.clients] = np.asarray(some)[: window.clients.size]
            return rows

        return Memory(jax.tree.map(write, old.rows, new.rows), old.n_clients)

    return jax.tree.map(one, before, shown, is_leaf=_is_memory)


def _nbytes(population: Population, clients: np.ndarray) -> int:
    """Bytes of the rows of some clients."""
    of_row = sum(
        int(np.prod(leaf.shape[1:])) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(population.data)
    )
    return int(np.asarray(population.counts)[:, clients].sum()) * of_row


def _roomy(needed: int, had: int) -> int:
    """A length for arrays of ``needed`` entries; few lengths, so that few programs are compiled.

    >>> _roomy(1000, 0), _roomy(1000, 5000), _roomy(1100, 1024)
    (1024, 5000, 1280)
    """
    if needed <= had:
        return had
    step = max(1, 2 ** (needed.bit_length() - 1) // 4)
    return max(1, -(-needed // step) * step)
