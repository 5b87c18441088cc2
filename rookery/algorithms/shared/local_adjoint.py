"""A client's own adjoint: the Neumann series of its own inner Hessian, without exchanges."""

import abc
from collections.abc import Callable

import jax

from rookery.algorithms.shared.lipschitz import NeumannSettings, own_lipschitz
from rookery.algorithms.shared.system import LocalSystem, product_of_series, sum_of_series
from rookery.problem.bilevel import Bilevel
from rookery.problem.composition import Composition
from rookery.problem.minimax import Minimax
from rookery.rng import below
from rookery.types import Key, Tree


class AbstractLocalAdjoint(NeumannSettings):
    """An estimator of a client's own adjoint.

    Without a given L every client estimates its own, at every call and without an exchange.
    """

    @abc.abstractmethod
    def solve(self, system: LocalSystem, L: jax.Array, call_key: Key, key: Key) -> Tree:
        """The estimate v; ``call_key`` is the same for all local steps of a call."""


class LocalNeumann(AbstractLocalAdjoint):
    """The paper's estimator: one product whose length a client draws once a call.

    >>> LocalNeumann(terms=3, lipschitz=5.0).terms
    3
    """

    def solve(self, system, L, call_key, key):
        """The product of N' factors."""
        hops = below(call_key, (), self.terms)  # N'
        return product_of_series(system, self.terms, hops, L, key)


class LocalNeumannSum(AbstractLocalAdjoint):
    """The truncated series itself: N products, N + 1 terms, no randomness in the length.

    >>> LocalNeumannSum(terms=3).lipschitz.iterations
    20
    """

    def solve(self, system, L, call_key, key):
        """The sum of the terms 0 to N."""
        return sum_of_series(system, self.terms, L, key)


def own_adjoint(
    at: LocalSystem, estimator: AbstractLocalAdjoint, key: Key
) -> Callable[[Tree, Key], Tree]:
    """A function that gives the client's own v at (x_i, y); L is estimated once, at x."""
    match at.problem:
        case Minimax():
            return lambda x_i, key: None
        case Composition():
            return lambda x_i, key: at.moved_to(x_i).right_side(key)
        case Bilevel():
            L_key, call_key = jax.random.split(key)
            L = own_lipschitz(at, estimator.lipschitz, L_key)
            return lambda x_i, key: estimator.solve(at.moved_to(x_i), L, call_key, key)
