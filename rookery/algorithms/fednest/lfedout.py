"""LFedOut: one outer round in one exchange, each client along its own hypergradient (algorithm 5).

The clients solve for the adjoint on their own data. The mean of their hypergradients is not the
hypergradient of the means: where clients differ, so does the point that LFedOut comes to rest at.
"""

import abc
from collections.abc import Callable
from dataclasses import KW_ONLY

import equinox as eqx
import jax

from rookery import check
from rookery.algorithms.shared import local
from rookery.algorithms.shared.adjoint import own_piece
from rookery.algorithms.shared.interface import AbstractOuter
from rookery.algorithms.shared.levels import TwoLevel
from rookery.algorithms.shared.lipschitz import (
    Lipschitz,
    PowerIteration,
    check_lipschitz,
    own_lipschitz,
)
from rookery.algorithms.shared.system import (
    LocalSystem,
    product_of_series,
    sum_of_series,
)
from rookery.problem.bilevel import Bilevel
from rookery.problem.composition import Composition
from rookery.problem.minimax import Minimax
from rookery.program.federation import Client
from rookery.rng import below
from rookery.types import Key, Tree


class AbstractLocalAdjoint(eqx.Module):
    """An estimator of a client's own adjoint."""

    terms: eqx.AbstractVar[int]
    lipschitz: eqx.AbstractVar[Lipschitz]

    @abc.abstractmethod
    def solve(self, system: LocalSystem, L: jax.Array, call_key: Key, key: Key) -> Tree:
        """The estimate v; ``call_key`` is the same for all local steps of a call."""


class LocalNeumann(AbstractLocalAdjoint):
    """The paper's estimator: one product whose length a client draws once a call.

    Args:
        terms: N.
        lipschitz: L, or how each client estimates its own, at every call and without an exchange.
    """

    _: KW_ONLY
    terms: int = 5
    lipschitz: Lipschitz = eqx.field(converter=local.number, default_factory=PowerIteration)

    def __check_init__(self):
        check.count("LocalNeumann.terms", self.terms)
        check_lipschitz("LocalNeumann.lipschitz", self.lipschitz)

    def solve(self, system, L, call_key, key):
        """The product of N' factors."""
        hops = below(call_key, (), self.terms)  # N'
        return product_of_series(system, self.terms, hops, L, key)


class LocalNeumannSum(AbstractLocalAdjoint):
    """The truncated series itself: N products, N + 1 terms, no randomness in the length.

    Args:
        terms: N.
        lipschitz: L, or how each client estimates its own, at every call and without an exchange.
    """

    _: KW_ONLY
    terms: int = 5
    lipschitz: Lipschitz = eqx.field(converter=local.number, default_factory=PowerIteration)

    def __check_init__(self):
        check.count("LocalNeumannSum.terms", self.terms)
        check_lipschitz("LocalNeumannSum.lipschitz", self.lipschitz)

    def solve(self, system, L, call_key, key):
        """The sum of the terms 0 to N."""
        return sum_of_series(system, self.terms, L, key)


class LFedOut(AbstractOuter):
    """One exchange gives a new x.

    Args:
        lr: α, of every local step, or of the whole call (:class:`PerCall`).
        local_steps: τ, one number or one per client.
        adjoint: how a client estimates its own inverse Hessian times its own outer gradient.
    """

    _: KW_ONLY
    lr: local.LearningRate = eqx.field(converter=local.number)
    local_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)
    adjoint: AbstractLocalAdjoint = eqx.field(default_factory=LocalNeumannSum)

    def __check_init__(self):
        local.check_learning_rate("LFedOut.lr", self.lr)
        local.check_local_steps("LFedOut.local_steps", self.local_steps)

    def __call__(self, fed, problem, sampling, x, y, L, key):
        """The outer variable x after one round, and L untouched."""
        who, local_key = jax.random.split(key)
        settings = {"problem": problem, "batch_size": sampling.batch_size, "lfedout": self}
        cohort = fed.sample(sampling.clients, who)
        x, y = fed.broadcast(cohort, x, y)  # -------------------------------- down  x, y
        x_i = fed.map(local_outer_steps, x, y, key=local_key, **settings)
        with fed.outer():
            return fed.mean(x_i), L  # --------------------------------------- up    x

    def check(self, problem, n_clients):
        """Numbers of local steps must fit the clients."""
        local.check_local_steps("LFedOut.local_steps", self.local_steps, n_clients)


def local_outer_steps(
    client: Client, x: Tree, y: Tree, *, problem: TwoLevel, batch_size: int | None, lfedout: LFedOut
) -> Tree:
    """x_{i,ν+1} = x_{i,ν} - α_i h_i(x_{i,ν}, y)  with the client's own adjoint at x_{i,ν}."""
    return own_outer_steps(client, problem, x, y, batch_size, lfedout, client.key)


def own_outer_steps(
    client: Client,
    problem: TwoLevel,
    x: Tree,
    y: Tree,
    batch_size: int | None,
    lfedout: LFedOut,
    key: Key,
) -> Tree:
    """The client's outer variable after its local steps from x."""
    steps_key, adjoint_key = jax.random.split(key)
    adjoint = own_adjoint(client, problem, x, y, batch_size, lfedout.adjoint, adjoint_key)

    def hypergradient(x_i, key):
        adjoint_key, piece_key = jax.random.split(key)
        v = adjoint(x_i, adjoint_key)
        return own_piece(client, problem, x_i, y, v, batch_size, piece_key)

    return local.plain_steps(client, hypergradient, x, lfedout.lr, lfedout.local_steps, steps_key)


def own_adjoint(
    client: Client,
    problem: TwoLevel,
    x: Tree,
    y: Tree,
    batch_size: int | None,
    estimator: AbstractLocalAdjoint,
    key: Key,
) -> Callable[[Tree, Key], Tree]:
    """What gives the client's own v at (x_i, y); L and what else lasts for a call is set at x."""
    match problem:
        case Minimax():
            return lambda x_i, key: None
        case Composition():
            return lambda x_i, key: LocalSystem(client, problem, x_i, y, batch_size).right_side(key)
        case Bilevel():
            L_key, call_key = jax.random.split(key)
            L = own_lipschitz(client, problem, x, y, estimator.lipschitz, batch_size, L_key)
            return lambda x_i, key: estimator.solve(
                LocalSystem(client, problem, x_i, y, batch_size), L, call_key, key
            )
