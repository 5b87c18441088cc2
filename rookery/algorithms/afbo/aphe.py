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

import jax

from rookery.algorithms.shared.lipschitz import NeumannSettings
from rookery.algorithms.shared.system import AbstractSystem, product_of_series, sum_of_series
from rookery.rng import below
from rookery.types import Key, Tree


class AbstractAPHE(NeumannSettings):
    """A way to solve for the adjoint by hops.

    Args:
        terms: U, or N. The default is that of every series in this library, 5. The paper takes the
            number of clients; but what a series leaves out depends on the condition of g_yy, not on
            who computes it, and a round whose hops and cohorts grow with the number of clients
            costs its square.
        lipschitz: L, or how to estimate it.
    """

    @abc.abstractmethod
    def solve(self, system: AbstractSystem, L: jax.Array, key: Key) -> Tree:
        """The adjoint v."""


class APHESum(AbstractAPHE):
    """The truncated series: U hops, U + 1 terms.

    >>> APHESum().terms
    5
    """

    def solve(self, system, L, key):
        """The sum of the terms 0 to U."""
        return sum_of_series(system, self.terms, L, key)


class APHERandom(AbstractAPHE):
    """One product whose length is drawn uniformly from 0 to N - 1, as FedNest's and FedMBO's.

    >>> APHERandom(terms=10, lipschitz=5.0).terms
    10
    """

    def solve(self, system, L, key):
        """The product of N' factors."""
        length_key, key = jax.random.split(key)
        hops = below(length_key, (), self.terms)  # N'
        return product_of_series(system, self.terms, hops, L, key)


class APHEPaper(AbstractAPHE):
    """Fixed-length product exactly as printed; biased even as U grows (see the top of this file).

    >>> APHEPaper(terms=10, lipschitz=5.0).terms
    10
    """

    def solve(self, system, L, key):
        """The product of U factors."""
        return product_of_series(system, self.terms, self.terms, L, key)
