"""BOME: the inner problem as a constraint, whose multiplier is found in closed form.

B. Liu, M. Ye, S. Wright, P. Stone, Q. Liu. BOME! Bilevel optimization made easy: a simple
first-order approach. NeurIPS 2022, arXiv:2209.08709.

    paper           code            meaning
    v, θ            x, y            outer and inner variable
    θ^(T)           y_T             y after T steps on g
    q^              -               g(x, y) - g(x, y_T), the constraint; y_T counts as a constant
    λ               multiplier      max(η |∇q^|² - <∇f, ∇q^>, 0) / |∇q^|²
    ξ               lr              step of x and y
    α               inner_lr        step of the T inner steps
    η               barrier         how fast the constraint is pulled to zero
    T               inner_rounds

    T times     y_T = y_T - α g_y(x, y_T),  from y
    then        (x, y) = (x, y) - ξ (∇f + λ ∇q^),   ∇q^ = (g_x(x, y) - g_x(x, y_T),  g_y(x, y))

The method for a single machine; with several clients all gradients are means over them, and the
inner products are taken at the server. Cost of a round: T + 1 exchanges. The last one has f_x, f_y,
∇q^ up, so twice x and y. No second derivative is evaluated.
"""

from dataclasses import KW_ONLY
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.shared.blocks import draw_levels
from rookery.algorithms.shared.schedule import number
from rookery.algorithms.shared.step_rule import (
    StepRule,
    check_step_rule,
    first_opt,
    move,
    step_rule,
)
from rookery.algorithms.shared.views import Blocks
from rookery.problem.bilevel import Bilevel
from rookery.problem.constraints import projected
from rookery.program.algorithm import SampledAlgorithm, check_kind
from rookery.program.federation import AbstractFederation, Client
from rookery.types import BatchSize, Key, Tree


class BOMEState(NamedTuple):
    """The iterates, and the state of the step rule of both."""

    x: Tree
    y: Tree
    opt: Tree


class BOME(SampledAlgorithm):
    """Descends on f along directions that also lower the inner loss.

    Args:
        lr: ξ, step rule of x and y together.
        inner_lr: α, a step rule whose state, if any, is reset in every round.
        inner_rounds: T, inner steps per round.
        barrier: η.

    >>> BOME(lr=0.05, inner_lr=0.2, inner_rounds=10).barrier
    0.5
    """

    projects: ClassVar[bool] = True

    _: KW_ONLY
    lr: StepRule = eqx.field(converter=step_rule)
    inner_lr: StepRule = eqx.field(converter=step_rule)
    inner_rounds: int = 10
    barrier: float = eqx.field(converter=number, default=0.5)

    def __check_init__(self):
        check_step_rule("lr", self.lr)
        check_step_rule("inner_lr", self.inner_lr)
        check.count("inner_rounds", self.inner_rounds)
        check.positive("barrier", self.barrier)

    def check(self, problem: Bilevel, n_clients: int) -> None:
        """Raise unless the problem is bilevel and a cohort can be drawn."""
        check_kind(self, problem, Bilevel)
        self.clients.check(n_clients)

    def init(self, problem: Bilevel, x: Tree, y: Tree) -> BOMEState:
        """The given variables."""
        return BOMEState(x, y, first_opt(self.lr, (x, y)))

    def round(
        self, fed: AbstractFederation, problem: Bilevel, state: BOMEState, key: Key
    ) -> BOMEState:
        """T exchanges for y_T, one for the directions."""
        outer_key, inner_key = jax.random.split(key)
        at = fed.cache((state.x, state.y))
        settings = {"problem": problem, "batch_size": self.batch_size}

        def gather(step, y_T, key):
            who, sample_key = jax.random.split(key)
            there = fed.broadcast(fed.sample(self.clients, who), at, y_T)  # - down  x, y once, y_T
            return fed.map(step, *there, key=sample_key, **settings)

        def inner_step(t, carry):
            y_T, opt = carry
            g = fed.mean(gather(inner_gradient, y_T, jax.random.fold_in(inner_key, t)))  # up g_y
            return move(self.inner_lr, g, opt, y_T, fed.round)

        first = state.y, first_opt(self.inner_lr, state.y)
        y_T, _ = fed.repeat(self.inner_rounds, inner_step, first)
        with fed.outer():
            f, q = fed.mean(gather(directions, y_T, outer_key))  # ---------- up    ∇f, ∇q^
        squared = tree.dot(q, q)
        needed = jnp.maximum(self.barrier * squared - tree.dot(f, q), 0)
        multiplier = jnp.where(squared > 0, needed / jnp.where(squared > 0, squared, 1), 0)
        along = tree.axpy(multiplier, q, f)
        (x, y), opt = move(self.lr, along, state.opt, (state.x, state.y), fed.round)
        return BOMEState(projected(problem, "x", x), y, opt)

    def solution(self, state: BOMEState) -> tuple[Tree, ...]:
        """(x, y)."""
        return state.x, state.y


def inner_gradient(
    client: Client, at: Blocks, y_T: Tree, *, problem: Bilevel, batch_size: BatchSize
) -> Tree:
    """g_y(x, y_T)."""
    sample = client.draw(problem.inner_split, batch_size, client.key)
    return problem.inner_grad_y(at[0], y_T, sample)


def directions(
    client: Client, at: Blocks, y_T: Tree, *, problem: Bilevel, batch_size: BatchSize
) -> tuple[Blocks, Blocks]:
    """∇f and ∇q^, both as (in x, in y)."""
    x, y = at
    outer, inner = draw_levels(client, problem, batch_size)
    f = problem.outer_grad_x(x, y, outer), problem.outer_grad_y(x, y, outer)
    rise = tree.sub(problem.inner_grad_x(x, y, inner), problem.inner_grad_x(x, y_T, inner))
    return f, (rise, problem.inner_grad_y(x, y, inner))
