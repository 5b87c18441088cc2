"""SCGD: stochastic compositional gradient descent, by steps of the server.

M. Wang, E. X. Fang, H. Liu. Stochastic compositional gradient descent: algorithms for minimizing
compositions of expected-value functions. 2014, arXiv:1411.3803, which has two layers, N = 1.

    paper   code            meaning
    x       x               the variable
    y_k     z               the followed values z_1 .. z_N between the layers F_0 .. F_N
    α_k     outer_lr        step rule of x
    β_k     inner_lr        share b of a new value

A round follows  z_{n+1} <- (1 - b) z_{n+1} + b F_n(z_n),  from the first layer to the last, then
moves  x <- x - a J_0(x)' J_1(z_1)' .. J_N(z_N)'.

On a population of one client this is the centralised method. With several, every mean is taken
where it belongs, inside, so heterogeneous clients add no bias; it takes more exchanges: 2 N + 1.
With everyone taking part, p the size of x and s that of z_1 .. z_N together, each client is sent
p + 2 s and sends p + 2 s.
"""

from dataclasses import KW_ONLY

import equinox as eqx
import jax

from rookery.algorithms.shared.chain import backward, forward
from rookery.algorithms.shared.composed import (
    AbstractCompositional,
    TrackedState,
    check_share,
    mixed,
)
from rookery.algorithms.shared.step_rule import (
    Size,
    StepRule,
    check_size,
    check_step_rule,
    first_opt,
    move,
    size_of,
    step_rule,
)
from rookery.algorithms.shared.views import initial_values
from rookery.problem.composition import Composition
from rookery.problem.constraints import projected
from rookery.program.algorithm import check_kind
from rookery.program.federation import AbstractFederation
from rookery.types import Key, Tree


class SCGD(AbstractCompositional):
    """Follows the values between the layers by moving averages; x steps along their product.

    Every exchange has a fresh cohort and fresh samples, as a product of means needs.

    Args:
        outer_lr: of x; the paper's is a :class:`PowerDecay` with exponent 3/4.
        inner_lr: b, the share of a new value, at most 1; the paper's has exponent 1/2.

    >>> SCGD(outer_lr=0.05, inner_lr=0.5, clients=10, batch_size=32).name
    'SCGD'
    """

    _: KW_ONLY
    outer_lr: StepRule = eqx.field(converter=step_rule)
    inner_lr: Size = eqx.field(converter=step_rule)

    def __check_init__(self):
        check_step_rule("outer_lr", self.outer_lr)
        check_size("SCGD", "inner_lr", self.inner_lr, "It is the share of a new value in a mean.")
        check_share("inner_lr", self.inner_lr)

    def check(self, problem: Composition, n_clients: int) -> None:
        """Raise unless the problem is a composition that says where values start."""
        check_kind(self, problem, Composition)
        initial_values(problem)
        self.clients.check(n_clients)

    def init(self, problem: Composition, x: Tree) -> TrackedState:
        """x as given, the values as the problem says; no optimiser has taken a step."""
        return TrackedState(x, initial_values(problem), first_opt(self.outer_lr, x))

    def round(
        self, fed: AbstractFederation, problem: Composition, state: TrackedState, key: Key
    ) -> TrackedState:
        """The values from the first layer to the last, then the product from the last back."""
        N, share = len(problem.layers) - 1, size_of(self.inner_lr, fed.round)
        pairs = [jax.random.split(k) for k in jax.random.split(key, 2 * N + 1)]
        draws = [(fed.sample(self.clients, who), sample_key) for who, sample_key in pairs]

        def follow(n, value):
            return mixed(share, value, state.z[n])

        z = forward(fed, problem, draws[:N], state.x, self.batch_size, follow)
        g = backward(fed, problem, draws[N:], z, self.batch_size)[0]
        x, opt = move(self.outer_lr, g, state.opt, state.x, fed.round)
        x = projected(problem, "x", x)
        return TrackedState(x, tuple(value.value for value in z[1:]), opt)
