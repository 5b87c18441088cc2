"""Graphs of agents: doubly stochastic mixing matrices W for decentralised methods.

Row i has the weights that agent i gives to the agents' messages. Rows that sum to one preserve
equal messages; columns that sum to one preserve the mean over agents.
"""

import abc
from collections.abc import Iterable

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery.types import Tree

CLOSE = 1e-6
"""How far from one a row or a column of a given matrix may sum."""


class AbstractMixing(eqx.Module):
    """A graph with weights on its edges."""

    @abc.abstractmethod
    def matrix(self, n_clients: int) -> jax.Array:
        """W, [clients, clients]."""

    @abc.abstractmethod
    def check(self, n_clients: int) -> None:
        """Raise unless W fits the number of clients."""

    def __call__(self, messages: Tree, n_clients: int) -> Tree:
        """What each agent receives, Σ_j W_ij times the j-th row: one row per agent."""
        W = self.matrix(n_clients)
        return jax.tree.map(lambda rows: jnp.tensordot(W.astype(rows.dtype), rows, 1), messages)


class RingGraph(AbstractMixing):
    """Two neighbours each, in the order of ids; lazy Metropolis weights: 1/4, 1/4, itself 1/2.

    >>> RingGraph().matrix(4)[0].tolist()
    [0.5, 0.25, 0.0, 0.25]
    """

    def matrix(self, n_clients):
        """The matrix W."""
        itself = jnp.eye(n_clients)
        return itself / 2 + (jnp.roll(itself, 1, axis=0) + jnp.roll(itself, -1, axis=0)) / 4

    def check(self, n_clients):
        """Always fits."""


class CompleteGraph(AbstractMixing):
    """All agents are neighbours: W is 1/m throughout, so each receives the mean.

    >>> CompleteGraph().matrix(2).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """

    def matrix(self, n_clients):
        """The matrix W."""
        return jnp.full((n_clients, n_clients), 1 / n_clients)

    def check(self, n_clients):
        """Always fits."""


def _rows(value: Iterable[Iterable[float]]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(float(entry) for entry in row) for row in value)


class MixingMatrix(AbstractMixing):
    """A given W.

    Args:
        rows: one row per client, of one entry per client, not negative; rows and columns sum to
            one, and messages reach every agent eventually.

    >>> MixingMatrix([[0.5, 0.5], [0.5, 0.5]]).matrix(2).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """

    rows: tuple[tuple[float, ...], ...] = eqx.field(converter=_rows, static=True)

    def __check_init__(self):
        n = len(self.rows)
        for i, row in enumerate(self.rows):
            if len(row) != n:
                raise ValueError(f"W must be square: it has {n} rows, and row {i} {len(row)}.")
            if min(row) < 0:
                raise ValueError(f"W must not be negative, got {min(row)} in row {i}.")
        for what, lines in (("row", self.rows), ("column", zip(*self.rows, strict=True))):
            for i, line in enumerate(lines):
                if not abs(sum(line) - 1) <= CLOSE:
                    raise ValueError(
                        f"W must be doubly stochastic: {what} {i} sums to {sum(line):.6g}, not 1. "
                        "RingGraph() and CompleteGraph() are."
                    )
        if not _reaches_all(self.rows):
            raise ValueError(
                "W does not mix: messages of some agents never reach some others, or circulate for "
                "ever. Connect the graph and give every agent a weight on itself (W_ii > 0)."
            )

    def matrix(self, n_clients):
        """The matrix W."""
        return jnp.array(self.rows)

    def check(self, n_clients):
        """There must be a row for each client."""
        if len(self.rows) != n_clients:
            raise ValueError(f"W has {len(self.rows)} rows for {n_clients} clients.")


def _reaches_all(rows: tuple[tuple[float, ...], ...]) -> bool:
    """Whether some power of W is positive throughout, so that its powers tend to the mean.

    If any is, that to (n - 1)^2 + 1 is (Wielandt), and all later ones.
    """
    reached, length = jnp.array(rows) > 0, 1
    while length < (len(rows) - 1) ** 2 + 1:
        once = reached.astype(float)
        reached, length = once @ once > 0, 2 * length
    return bool(reached.all())
