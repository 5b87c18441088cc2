"""APHE: the hypergradient of anarchic clients (algorithm 2).

One chain of products for all clients gives the adjoint v; then every client that starts a job is
sent v and answers, at its own pace, with its piece  H_i = f_x - g_xy v  at the values that it
received.

                        v, with U hops                          recovers of the inverse, in the mean
    APHESum             (1/L) Σ_{n=0..U} (I - g_yy/L)^n f_y     all but (I - g_yy/L)^(U+1)
    APHERandom          (N/L) (I - g_yy/L)^N' f_y, N' < N       all but (I - g_yy/L)^N
    APHEPaper           (U/L) (I - g_yy/L)^U f_y                less than 1/e of every component

The paper's form has a fixed length. On an eigenvalue s L it gives  U s (1 - s)^U  of the inverse,
at most (U / (U + 1))^(U + 1) whatever s, and nothing as U grows.
"""

import abc

import equinox as eqx
import jax

from rookery import check
from rookery.algorithms.shared.lipschitz import Lipschitz, PowerIteration, check_lipschitz
from rookery.algorithms.shared.schedule import number
from rookery.algorithms.shared.system import AbstractSystem, product_of_series, sum_of_series
from rookery.rng import below
from rookery.types import Key, Tree


class AbstractAPHE(eqx.Module):
    """A way to solve for the adjoint by hops.

    Args:
        terms: U, or N; None is the number of clients, as in the paper.
        lipschitz: L, or how to estimate it.
    """

    terms: int | None = eqx.field(default=None, kw_only=True)
    lipschitz: Lipschitz = eqx.field(converter=number, default_factory=PowerIteration, kw_only=True)

    @abc.abstractmethod
    def solve(self, system: AbstractSystem, n_clients: int, L: jax.Array, key: Key) -> Tree:
        """The adjoint v."""

    def __check_init__(self):
        name = type(self).__name__
        if self.terms is not None:
            check.count(f"{name}.terms", self.terms)
        check_lipschitz(f"{name}.lipschitz", self.lipschitz)

    def length(self, n_clients: int) -> int:
        """``terms`` as a number."""
        return n_clients if self.terms is None else self.terms


class APHESum(AbstractAPHE):
    """The truncated series: U hops, U + 1 terms.

    >>> APHESum(terms=10, lipschitz=5.0).length(n_clients=100)
    10
    """

    def solve(self, system, n_clients, L, key):
        """The sum of the terms 0 to U."""
        return sum_of_series(system, self.length(n_clients), L, key)


class APHERandom(AbstractAPHE):
    """One product whose length is drawn uniformly from 0 to N - 1, as FedNest's and FedMBO's.

    >>> APHERandom(lipschitz=5.0).length(n_clients=100)
    100
    """

    def solve(self, system, n_clients, L, key):
        """The product of N' factors."""
        length_key, key = jax.random.split(key)
        N = self.length(n_clients)
        return product_of_series(system, N, below(length_key, (), N), L, key)


class APHEPaper(AbstractAPHE):
    """Fixed-length product exactly as printed; biased even as U grows (see the top of this file).

    >>> APHEPaper(terms=10, lipschitz=5.0).terms
    10
    """

    def solve(self, system, n_clients, L, key):
        """The product of U factors."""
        U = self.length(n_clients)
        return product_of_series(system, U, U, L, key)
