"""A client's own adjoint, from its own inner Hessian and without exchanges."""

import abc
from collections.abc import Callable
from dataclasses import KW_ONLY

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check
from rookery.algorithms.shared.lipschitz import NeumannSettings, own_lipschitz
from rookery.algorithms.shared.system import (
    LocalSystem,
    conjugate_gradients,
    product_of_series,
    sum_of_series,
)
from rookery.problem.bilevel import AbstractBilevel
from rookery.problem.composition import Composition
from rookery.problem.minimax import Minimax
from rookery.rng import below
from rookery.types import Key, Tree


class AbstractLocalAdjoint(eqx.Module):
    """An estimator of a client's own adjoint."""

    @abc.abstractmethod
    def own_lipschitz(self, at: LocalSystem, key: Key) -> jax.Array:
        """L of the client's own inner Hessian, for estimators that need it."""

    @abc.abstractmethod
    def solve(self, system: LocalSystem, L: jax.Array, call_key: Key, key: Key) -> Tree:
        """The estimate v; ``call_key`` is the same for all local steps of a call."""


class AbstractLocalSeries(NeumannSettings, AbstractLocalAdjoint):
    """A Neumann series.

    Without a given L every client estimates its own, at every call and without an exchange.
    """

    def own_lipschitz(self, at, key):
        """Given, or estimated."""
        return own_lipschitz(at, self.lipschitz, key)


class LocalNeumann(AbstractLocalSeries):
    """The paper's estimator: one product whose length a client draws once a call.

    >>> LocalNeumann(terms=3, lipschitz=5.0).terms
    3
    """

    def solve(self, system, L, call_key, key):
        """The product of N' factors."""
        hops = below(call_key, (), self.terms)  # N'
        return product_of_series(system, self.terms, hops, L, key)


class LocalNeumannSum(AbstractLocalSeries):
    """The truncated series itself: N products, N + 1 terms, no randomness in the length.

    >>> LocalNeumannSum(terms=3).lipschitz.iterations
    20
    """

    def solve(self, system, L, call_key, key):
        """The sum of the terms 0 to N."""
        return sum_of_series(system, self.terms, L, key)


class LocalCG(AbstractLocalAdjoint):
    """Conjugate gradients on one sample of the client's rows; they need no L.

    On a client products cost no exchange, and all of them are with the Hessian of one sample, so
    that directions stay conjugate with mini-batches too. v then solves the system of that sample.

    Args:
        iterations: Hessian-vector products; as many as y has numbers give v exactly.

    >>> LocalCG(iterations=3).iterations
    3
    """

    _: KW_ONLY
    iterations: int = 10

    def __check_init__(self):
        check.count("LocalCG.iterations", self.iterations)

    def own_lipschitz(self, at, key):
        """Not needed."""
        return jnp.zeros(())

    def solve(self, system, L, call_key, key):
        """The last iterate."""
        start_key, product_key = jax.random.split(key)
        r = system.right_side(start_key)
        return conjugate_gradients(system, r, self.iterations, lambda k: product_key)


def own_adjoint(
    at: LocalSystem, estimator: AbstractLocalAdjoint, key: Key
) -> Callable[[Tree, Key], Tree]:
    """A function that gives the client's own v at (x_i, y); L is estimated once, at x."""
    match at.problem:
        case Minimax():
            return lambda x_i, key: None
        case Composition():
            return lambda x_i, key: at.moved_to(x_i).right_side(key)
        case AbstractBilevel():
            L_key, call_key = jax.random.split(key)
            L = estimator.own_lipschitz(at, L_key)
            return lambda x_i, key: estimator.solve(at.moved_to(x_i), L, call_key, key)
