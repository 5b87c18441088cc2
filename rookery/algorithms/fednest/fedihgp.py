"""FedIHGP: the adjoint by the Neumann series of the mean inner Hessian (FedNest, algorithm 3).

    g_yy^{-1} = (1/L) Σ_n (I - g_yy / L)^n ,   L at least half the largest eigenvalue of g_yy,

one exchange per hop, each with a fresh cohort and fresh samples unless ``fresh`` is False.
"""

import jax

from rookery.algorithms.shared.adjoint import AbstractAdjoint
from rookery.algorithms.shared.lipschitz import NeumannSettings, lipschitz
from rookery.algorithms.shared.system import (
    GlobalSystem,
    OneSampleSystem,
    product_of_series,
    sum_of_series,
)
from rookery.algorithms.shared.two_level import NestedState
from rookery.rng import below
from rookery.types import Key


class AbstractIHGP(NeumannSettings, AbstractAdjoint):
    """An adjoint by the Neumann series of the mean inner Hessian."""

    def current_lipschitz(
        self, system: GlobalSystem | OneSampleSystem, L: jax.Array, key: Key
    ) -> jax.Array:
        """L of this round."""
        x, y = system.point.value
        return lipschitz(system.context, NestedState(x, y, L), self.lipschitz, key)


class FedIHGP(AbstractIHGP):
    """The paper's estimator: one product of random length, unbiased for the first N terms.

    p_0 = (N/L) f_y, then N' hops with N' uniform on 0..N-1. It costs N' + 1 exchanges.

    >>> FedIHGP(terms=4, lipschitz=5.0).terms
    4
    """

    def solve(self, system, L, key):
        """p_{N'}, and L."""
        lipschitz_key, length_key, series_key = jax.random.split(key, 3)
        L = self.current_lipschitz(system, L, lipschitz_key)
        hops = below(length_key, (), self.terms)  # N'
        return product_of_series(system, self.terms, hops, L, series_key), L


class FedIHGPSum(AbstractIHGP):
    """The truncated series itself: N hops, N + 1 terms, no randomness in the length.

    It costs N + 1 exchanges.

    >>> FedIHGPSum(terms=4).lipschitz.every
    10
    """

    def solve(self, system, L, key):
        """The sum of the terms 0 to N, and L."""
        lipschitz_key, series_key = jax.random.split(key)
        L = self.current_lipschitz(system, L, lipschitz_key)
        return sum_of_series(system, self.terms, L, series_key), L
