"""How much privacy of its rows a run spends: epsilon after every round, by dp-accounting.

How often a client draws rows, and how many averages it takes over a draw, follows from the key and
the settings, never from the data; so all releases of all clients are known before a run begins.

A row is in one split, so only the releases from that split concern it. The divergences of a client
add up over its draws. Epsilon is that of the client which has spent most: at every order of the
Rényi divergence, the largest of all clients and splits.
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rookery.clients.population import Population
from rookery.engines.engine import Program
from rookery.engines.scout import ScoutFederation, depends_on_unknown, unknown_like
from rookery.program.algorithm import numbers_to_arrays
from rookery.program.ledger import Ledger
from rookery.program.row_privacy import (
    MOST_AVERAGES,
    MOST_DRAWS,
    DrawKind,
    RowPrivate,
    RowPrivateFederation,
)
from rookery.runner.accountant import (
    AbstractSpending,
    DPObject,
    accountant,
    accounting,
    divergences,
    without_rows,
)
from rookery.types import Key, Tree

MOST_COUNTS = 2**24
"""How many numbers of draws are in memory at once; rounds are counted in pieces."""

MOST_SIZES = 64
"""For how many numbers of rows divergences are computed; others are rounded down."""


class RowSpending(AbstractSpending):
    """What a run with private rows spends.

    Args:
        algorithm: the private program.
        population: the clients; only their numbers of rows are used.
    """

    def __init__(self, algorithm: RowPrivate, population: Population):
        super().__init__(algorithm)
        self._algorithm, self._population = algorithm, population
        self._orders = np.asarray(accountant(replaces=True).orders)
        shape = len(population.splits), population.n_clients
        self._divergences = np.zeros((*shape, len(self._orders)))
        self._releases = np.zeros(shape, np.int64)
        self._largest = [np.zeros(len(self._orders))]  # after each round
        self._most = [0]
        self._has_draws: list[bool] = []

    @property
    def rounds(self) -> int:
        """How many rounds are known."""
        return len(self._most) - 1

    def add(self, kinds: list[DrawKind], draws: np.ndarray) -> None:
        """Append rounds: [rounds, clients, kinds, averages], how many draws there were."""
        tables = [self._table(kind, draws[:, :, k]) for k, kind in enumerate(kinds)]
        for one in draws:
            for k, kind in enumerate(kinds):
                split = self._population.splits.index(kind.split)
                self._divergences[split] += np.einsum("ca,cao->co", one[:, k], tables[k])
                self._releases[split] += one[:, k] @ np.arange(MOST_AVERAGES + 1)
            self._largest.append(self._divergences.max(axis=(0, 1)))
            self._most.append(int(self._releases.max()))
            self._has_draws.append(bool(one.any()))

    def releases(self, rounds: int) -> int:
        """How many releases the client with the most has made from one split."""
        return self._most[rounds]

    def check(self, first: int, ledgers: Sequence[Ledger]) -> None:
        """Raise if rows were evaluated in a round for which no draw was accounted for."""
        for round, one in enumerate(ledgers, first):
            if one.gradients + one.hessian_vectors and not self._has_draws[round]:
                raise RuntimeError(
                    f"{self._algorithm.name} evaluated rows in round {round}, and no draw is "
                    "accounted for: epsilon would be wrong. This is a bug."
                )

    def compute_epsilon(self, rounds: int) -> float:
        """Epsilon after this many rounds; infinite without noise."""
        if self._most[rounds] == 0:
            return 0.0
        if self._algorithm.noise is None:
            return float("inf")
        found = accounting().rdp.compute_epsilon(
            self._orders, self._largest[rounds], self._algorithm.delta
        )
        return float(found[0])

    def event(self, kind: DrawKind, rows: int, averages: int) -> DPObject:
        """A draw from some rows and the averages over it, as an event of dp-accounting."""
        events, noise = accounting(), self._algorithm.noise
        assert noise is not None
        one = events.GaussianDpEvent(float(noise))
        several = one if averages == 1 else events.SelfComposedDpEvent(one, averages)
        if kind.size is None or rows <= kind.size:
            return several
        return events.SampledWithoutReplacementDpEvent(rows, kind.size, several)

    def _table(self, kind: DrawKind, draws: np.ndarray) -> np.ndarray:
        """[clients, averages, orders] the divergence of one draw, where there was any."""
        table = np.zeros((draws.shape[1], MOST_AVERAGES + 1, len(self._orders)))
        if self._algorithm.noise is None:
            return table
        split = self._population.splits.index(kind.split)
        rows = rounded_down(np.asarray(self._population.counts)[split], MOST_SIZES)
        for averages in np.flatnonzero(draws.sum(axis=(0, 1))[1:]) + 1:
            for size in np.unique(rows[rows > 0]):
                event = self.event(kind, int(size), int(averages))
                table[rows == size, averages] = divergences(event, True)
        return table


def rounded_down(numbers: np.ndarray, most: int) -> np.ndarray:
    """The numbers, rounded down to at most ``most`` different ones.

    >>> rounded_down(np.array([7, 2, 5, 3]), 2).tolist()
    [5, 2, 5, 2]
    """
    different = np.unique(numbers)
    if different.size > most:
        different = different[np.linspace(0, different.size, most, endpoint=False).astype(int)]
    return different[np.searchsorted(different, numbers, side="right") - 1]


def row_spending(
    program: Program, algorithm: RowPrivate, state: Tree, key: Key, rounds: int
) -> RowSpending | None:
    """What a run with private rows will spend; None if it has no delta or clips nothing.

    The arguments are those of :func:`rookery.runner.accountant.spending`.
    """
    if algorithm.delta is None or algorithm.clip is None:
        return None
    if not program.population.has_rows:
        raise ValueError(
            "the epsilon of a run with private rows needs the number of rows of every client, and "
            "this population has none. Pass a population with rows, or delta=None."
        )
    accounting()  # a missing package is reported before the work
    found = RowSpending(algorithm, program.population)
    blank, arrays = without_rows(program), numbers_to_arrays(algorithm)
    per_round = program.population.n_clients * MOST_DRAWS * (MOST_AVERAGES + 1)
    step = max(1, min(rounds, MOST_COUNTS // per_round))
    for first in range(0, rounds, step):
        kinds, draws = _draws(blank, arrays, state, key, jnp.int32(first), step)
        found.add(kinds, np.asarray(draws, np.int64)[: rounds - first])
    return found


@eqx.filter_jit  # runs that differ in numbers and seeds share one program
def _draws(
    program: Program, algorithm: RowPrivate, state: Tree, key: Key, first: jax.Array, rounds: int
) -> tuple[list[DrawKind], jax.Array]:
    """The kinds of draws, and [rounds, clients, kinds, averages] how many each client makes."""
    kinds: list[DrawKind] = []
    nobody = jnp.zeros(program.population.n_clients, bool)

    def all_rounds(unknown: jax.Array) -> jax.Array:
        shown = jax.tree.map(lambda leaf: unknown_like(leaf, unknown), state)

        def one(round: jax.Array) -> jax.Array:
            scout = ScoutFederation(program, round, nobody, unknown)
            own = jax.random.fold_in(key, round)
            fed = RowPrivateFederation(scout, algorithm, own, count=scout.evaluate)
            algorithm.algorithm.round(fed, program.problem, shown, own)
            kinds.extend(kind for kind in fed.kinds if kind not in kinds)
            return fed.draws

        return lax.map(one, first + jnp.arange(rounds, dtype=jnp.int32))

    if depends_on_unknown(all_rounds):
        raise ValueError(
            f"{algorithm.name}: how often clients draw rows depends on what was computed from "
            "them, so it would tell about them. Choose fixed numbers, or pass delta=None."
        )
    return kinds, all_rounds(jnp.zeros(()))
