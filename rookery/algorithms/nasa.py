"""NASA: compositions by nested averaged stochastic approximation, steps of the server.

S. Ghadimi, A. Ruszczynski, M. Wang. A single timescale stochastic approximation method for nested
stochastic optimization. 2018, arXiv:1812.01094. Two layers.

    paper   code            meaning
    x       x               the variable
    u       z               the followed value of the inner layer
    z       d               the averaged gradient
    τ_k     lr              one step size t for all three sequences
    β       proximity       B, which divides the step of x
    a, b    gradient_share, value_share     shares of a new gradient and of a new value, over t

A round moves  x <- x - (t / B) d,  then at the new x
d <- (1 - a t) d + a t J_0(x)' J_1(z_1)',  z_1 <- (1 - b t) z_1 + b t F_0(x).

On a population of one client this is the centralised method. With several, every mean is taken
where it belongs, inside, so heterogeneous clients add no bias; it takes more exchanges: 2.
"""

from dataclasses import KW_ONLY
from typing import NamedTuple

import equinox as eqx
import jax

from rookery import check, tree
from rookery.algorithms.shared.chain import own_gradient
from rookery.algorithms.shared.composed import (
    AbstractCompositional,
    check_share,
    mixed,
)
from rookery.algorithms.shared.schedule import number
from rookery.algorithms.shared.step_rule import Size, check_size, size_of, step_rule
from rookery.algorithms.shared.views import initial_values
from rookery.problem.composition import Composition
from rookery.problem.constraints import projected, projections
from rookery.program.algorithm import check_kind
from rookery.program.federation import AbstractFederation, Client
from rookery.types import BatchSize, Key, Tree


class AveragedState(NamedTuple):
    """x, the followed value z_1, and the averaged gradient."""

    x: Tree
    z: Tree
    d: Tree


class NASA(AbstractCompositional):
    """Averages the gradient as well as the value, with one step size for all three sequences.

    Args:
        lr: t, a number or a schedule; the paper's is one over the root of the number of rounds. It
            is no optimiser, since it is also the share of new values; d is momentum already.
        proximity: B, which divides the step of x.
        gradient_share: a, the share of a new gradient is a t.
        value_share: b, the share of a new value is b t.

    >>> NASA(lr=0.1, clients=10, batch_size=32).name
    'NASA'
    """

    _: KW_ONLY
    lr: Size = eqx.field(converter=step_rule)
    proximity: float = eqx.field(converter=number, default=1.0)
    gradient_share: float = eqx.field(converter=number, default=1.0)
    value_share: float = eqx.field(converter=number, default=1.0)

    def __check_init__(self):
        why = "It is also the share of a new value and of a new gradient, which is NASA's momentum."
        check_size("NASA", "lr", self.lr, why)
        for name in ("proximity", "gradient_share", "value_share"):
            check.positive(name, getattr(self, name))
        for name in ("gradient_share", "value_share"):
            check_share(f"{name} times lr", self.lr, getattr(self, name))

    def check(self, problem: Composition, n_clients: int) -> None:
        """Raise unless the problem is a composition of two layers."""
        check_kind(self, problem, Composition)
        if len(problem.layers) != 2:
            raise ValueError(
                f"NASA solves compositions of two layers, got {len(problem.layers)} layers."
            )
        initial_values(problem)
        self.clients.check(n_clients)

    def init(self, problem: Composition, x: Tree) -> AveragedState:
        """x as given, the value as the problem says, and no gradient yet."""
        return AveragedState(x, initial_values(problem)[0], tree.zeros_like(x))

    def round(
        self, fed: AbstractFederation, problem: Composition, state: AveragedState, key: Key
    ) -> AveragedState:
        """Two exchanges: the outer gradient at z, then the inner layer at the new x."""
        x, z, d = state
        keys = jax.random.split(key, 4)
        settings = {"problem": problem, "batch_size": self.batch_size}
        t = size_of(self.lr, fed.round)
        if projections(problem):  # towards the projected point, as in the paper
            x = mixed(t, projected(problem, "x", tree.axpy(-1 / self.proximity, d, x)), x)
        else:
            x = tree.axpy(-t / self.proximity, d, x)

        cohort = fed.sample(self.clients, keys[0])
        at = fed.broadcast(cohort, z)  # ------------------------------------ down  z
        a = fed.mean(fed.map(own_gradient, at, key=keys[1], **settings))  # - up    ∇F_1(z)

        cohort = fed.sample(self.clients, keys[2])
        at, along = fed.broadcast(cohort, x, a)  # -------------------------- down  x, a
        both = fed.map(own_value_and_pullback, at, along, key=keys[3], **settings)
        value, g = fed.mean(both)  # ---------------------------------------- up    F_0(x), J_0' a
        return AveragedState(
            x, mixed(self.value_share * t, value, z), mixed(self.gradient_share * t, g, d)
        )


def own_value_and_pullback(
    client: Client, x: Tree, a: Tree, *, problem: Composition, batch_size: BatchSize
) -> tuple[Tree, Tree]:
    """F_0(x; ξ) and J_0(x; ξ)' a."""
    sample = client.draw(problem.split, batch_size, client.key)
    return problem.layer(0, x, sample), problem.layer_vjp(0, x, a, sample)
