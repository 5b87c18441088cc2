"""FBO-AggITD: the hypergradient is built while y moves, by iterative differentiation.

P. Xiao, K. Ji. Communication-efficient federated hypergradient computation via aggregated iterative
differentiation. ICML 2023, arXiv:2302.04969. Reconstructed from its abstract and from the equations
as others quote them; the full text was not at hand.

    paper   code            meaning
    x, y    x, y            outer and inner variable
    r       r               f_y after products with (I - λ g_yy)
    λ       inner_lr        inner step size
    α       outer_lr        step rule of the server
    T       inner_rounds    inner steps per round
    Q       begin           in which of them r starts, uniform on 0 .. T - 1

    t < Q       y = y - λ g_y(x, y)
    t = Q       r = f_y(x, y),  then the same step of y
    t > Q       r = r - λ g_yy(x, y) r,  then the same step of y; both in one exchange
    then        x = x - α h,  h = f_x(x, y) - λ T g_xy(x, y) r

AID methods have N more exchanges for a Neumann series after the T of y; here r walks along. At the
inner solution the mean over Q is the Neumann series of T terms with L = 1 / λ. The products belong
to the y of their step, so clients keep nothing.

Cost of a round: T + 1 exchanges; x goes down once, y in every exchange, r from step Q + 1 on.
Departures from the paper: the server takes the outer step; the paper has local outer steps, with
one exchange more.
"""

from dataclasses import KW_ONLY
from typing import ClassVar

import equinox as eqx
import jax

from rookery import check, tree
from rookery.algorithms.shared.blocks import draw_levels
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
from rookery.algorithms.shared.views import Blocks
from rookery.algorithms.soba import SOBAState
from rookery.problem.bilevel import Bilevel
from rookery.problem.constraints import projected
from rookery.program.algorithm import SampledAlgorithm, check_kind
from rookery.program.federation import AbstractFederation, Client
from rookery.rng import below
from rookery.types import BatchSize, Key, Number, Tree


class AggITD(SampledAlgorithm):
    """Inner steps of the server along which the hypergradient is built.

    Args:
        outer_lr: α, step rule of x.
        inner_lr: λ, a number or a schedule; below 2 over the largest eigenvalue of g_yy.
        inner_rounds: T, inner steps per round.

    >>> AggITD(outer_lr=0.05, inner_lr=0.1, inner_rounds=10).inner_rounds
    10
    """

    projects: ClassVar[bool] = True

    _: KW_ONLY
    outer_lr: StepRule = eqx.field(converter=step_rule)
    inner_lr: Size = eqx.field(converter=step_rule)
    inner_rounds: int = 10

    def __check_init__(self):
        check_step_rule("outer_lr", self.outer_lr)
        check_size("AggITD", "inner_lr", self.inner_lr, "It is differentiated through.")
        check.count("inner_rounds", self.inner_rounds)

    def check(self, problem: Bilevel, n_clients: int) -> None:
        """Raise unless the problem is bilevel and a cohort can be drawn."""
        check_kind(self, problem, Bilevel)
        self.clients.check(n_clients)

    def init(self, problem: Bilevel, x: Tree, y: Tree) -> SOBAState:
        """The given variables; v is the last r."""
        return SOBAState(x, y, tree.zeros_like(y), (first_opt(self.outer_lr, x),))

    def round(
        self, fed: AbstractFederation, problem: Bilevel, state: SOBAState, key: Key
    ) -> SOBAState:
        """T exchanges for y and r, one for x."""
        length_key, step_key, outer_key = jax.random.split(key, 3)
        lr, T = size_of(self.inner_lr, fed.round), self.inner_rounds
        begin = below(length_key, (), T)  # Q
        x, settings = fed.cache(state.x), {"problem": problem, "batch_size": self.batch_size}

        def gather(step, value, key):
            who, sample_key = jax.random.split(key)
            at = fed.broadcast(fed.sample(self.clients, who), x, value)  # --- down  x once, y, r
            return fed.mean(fed.map(step, *at, key=sample_key, **settings))

        def before(t, y):
            return tree.axpy(-lr, gather(inner_gradient, y, jax.random.fold_in(step_key, t)), y)

        def after(t, carry):
            y, r = carry
            key = jax.random.fold_in(step_key, begin + 1 + t)
            g, Hr = gather(gradient_and_product, (y, r), key)  # ------------- up    g_y, g_yy r
            return tree.axpy(-lr, g, y), tree.axpy(-lr, Hr, r)

        y = fed.repeat(begin, before, state.y)  # ---------------------------- up    g_y
        g, r = gather(both_gradients, y, jax.random.fold_in(step_key, begin))  # up  g_y, f_y
        y, r = fed.repeat(T - 1 - begin, after, (tree.axpy(-lr, g, y), r))
        with fed.outer():
            settings["factor"] = lr * T
            h = gather(hypergradient, (y, r), outer_key)  # ------------------ up    h
        new, opt = move(self.outer_lr, h, state.opts[0], state.x, fed.round)
        return SOBAState(projected(problem, "x", new), y, r, (opt,))

    def solution(self, state: SOBAState) -> tuple[Tree, ...]:
        """(x, y)."""
        return state.x, state.y


def inner_gradient(
    client: Client, x: Tree, y: Tree, *, problem: Bilevel, batch_size: BatchSize
) -> Tree:
    """g_y."""
    return problem.inner_grad_y(x, y, client.draw(problem.inner_split, batch_size, client.key))


def both_gradients(
    client: Client, x: Tree, y: Tree, *, problem: Bilevel, batch_size: BatchSize
) -> Blocks:
    """g_y and f_y."""
    outer, inner = draw_levels(client, problem, batch_size)
    return problem.inner_grad_y(x, y, inner), problem.outer_grad_y(x, y, outer)


def gradient_and_product(
    client: Client, x: Tree, at: Blocks, *, problem: Bilevel, batch_size: BatchSize
) -> Blocks:
    """g_y and g_yy r, on independent rows."""
    y, r = at
    gradient_key, product_key = jax.random.split(client.key)
    sample = client.draw(problem.inner_split, batch_size, gradient_key)
    other = client.draw(problem.inner_split, batch_size, product_key)
    return problem.inner_grad_y(x, y, sample), problem.inner_hvp(x, y, r, other)


def hypergradient(
    client: Client,
    x: Tree,
    at: Blocks,
    *,
    problem: Bilevel,
    batch_size: BatchSize,
    factor: Number,
) -> Tree:
    """f_x - λ T g_xy r."""
    y, r = at
    outer, inner = draw_levels(client, problem, batch_size)
    indirect = problem.inner_cross(x, y, r, inner)
    return tree.axpy(-factor, indirect, problem.outer_grad_x(x, y, outer))
