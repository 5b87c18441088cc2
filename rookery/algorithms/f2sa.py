"""F2SA: bilevel optimisation by gradients alone, with inner problems solved in an inner loop.

J. Kwon, D. Kwon, S. Wright, R. Nowak. A fully first-order method for stochastic bilevel
optimization. ICML 2023, arXiv:2301.10945; with the symmetric difference of F2SA-p (L. Chen, J. Li,
E. M. Chayti, J. Zhang, ICLR 2026, arXiv:2509.02937) for p = 2 as the default.

    paper       code                    meaning
    x           x                       outer variable
    y, z        above, below            minimisers of g + f / σ, and of g - f / σ (or of g)
    λ           sigma                   the penalty
    ξ           outer_lr                step rule of x
    α, γ        inner_lr                step rules of y and z
    T           inner_rounds            inner steps per round

    T times     above = above - α (g_y + f_y / σ),  below = below - γ (g_y - f_y / σ)
    then        x = x - ξ h,  h = (f_x(above) + f_x(below)) / 2 + σ/2 (g_x(above) - g_x(below))

The method for a single machine, its gradients computed as means over clients; no client takes a
local step. :class:`MemFBO` moves all three at once, with local steps. No second derivative is
evaluated, unless ``inner_lr`` is not given: its size is then found by Hessian-vector products
(:class:`Curvature`). Cost of a round: T + 1 exchanges, x and both inner variables down, these or x
up.

Departures from the paper: one-sided differences are ``symmetric=False``; the inner objective is
scaled, g + f / σ instead of f + σ g, so that inner steps need not shrink as σ grows.
"""

from dataclasses import KW_ONLY
from typing import NamedTuple

import equinox as eqx
import jax

from rookery import check
from rookery.algorithms.shared.auto import DoG
from rookery.algorithms.shared.block_steps import AbstractBlockSteps
from rookery.algorithms.shared.blocks import descend, draw_samples
from rookery.algorithms.shared.penalty_view import PenaltyView
from rookery.algorithms.shared.step_rule import StepRule, check_step_rules, each_rule, step_rule
from rookery.algorithms.shared.views import Blocks
from rookery.problem.bilevel import Bilevel
from rookery.problem.constraints import projected
from rookery.program.algorithm import check_kind
from rookery.program.federation import AbstractFederation, Client
from rookery.types import Converted, Count, Key, Sample, Tree


def outer_rule(value: object) -> Converted:
    """Field converter: "auto" is a :class:`DoG` that sets out faster.

    x may move further in a round than elsewhere, since the inner variables do not lag behind it:
    they take T steps before it moves again.
    """
    is_auto = isinstance(value, str) and value == "auto"
    return DoG(first=0.5, growth=2.0) if is_auto else step_rule(value)


class F2SAState(NamedTuple):
    """x, both inner variables, and the states of their step rules."""

    x: Tree
    above: Tree
    below: Tree
    opts: tuple[Tree, ...]


class F2SA(AbstractBlockSteps):
    """Inner steps of both perturbed problems, then one outer step.

    Args:
        outer_lr: step rule of x; "auto" is ``DoG(first=0.5, growth=2.0)``.
        inner_lr: of the two inner variables, or a tuple with one each.
        inner_rounds: T, inner steps per round.
        penalty: σ, and whether the difference is symmetric.

    >>> F2SA(outer_lr=0.1, inner_lr=0.2, penalty=PenaltyView(sigma=30.0)).inner_rounds
    10
    """

    _: KW_ONLY
    outer_lr: StepRule = eqx.field(converter=outer_rule, default="auto")
    inner_rounds: int = 10
    penalty: PenaltyView = eqx.field(default_factory=PenaltyView)

    def __check_init__(self):
        check.count("inner_rounds", self.inner_rounds)
        check_step_rules("inner_lr", self.inner_lr, n_blocks=2, may_be_auto=True)

    def check(self, problem: Bilevel, n_clients: int) -> None:
        """Raise unless the problem is bilevel and a cohort can be drawn."""
        check_kind(self, problem, Bilevel)
        self.penalty.check(problem)
        self.clients.check(n_clients)

    def seen_as(self) -> PenaltyView:
        """The penalty."""
        return self.penalty

    def init(self, problem: Bilevel, x: Tree, y: Tree) -> F2SAState:
        """Both inner variables start at y."""
        blocks = x, y, y
        return F2SAState(*blocks, self.first_opts(problem, blocks))

    def round(
        self, fed: AbstractFederation, problem: Bilevel, state: F2SAState, key: Key
    ) -> F2SAState:
        """T exchanges for the inner variables, one for x."""
        outer_key, inner_key = jax.random.split(key)
        x_rule, *inner_rules = each_rule(self.outer_lr, self.inner_lr, 3)
        blocks = state.x, state.above, state.below
        x_opt, *inner_opts = self.measured(fed, problem, state.opts, blocks, key)
        x, settings = fed.cache(state.x), {"problem": problem, "algorithm": self}
        settings["round"] = fed.round

        def gather(step, inner, key):
            who, sample_key = jax.random.split(key)
            at = fed.broadcast(fed.sample(self.clients, who), x, inner)  # -- down  x once, y, z
            return fed.map(step, *at, key=sample_key, **settings)

        def inner_step(t, carry):
            inner, opts = carry
            d = fed.mean(gather(inner_maps, inner, jax.random.fold_in(inner_key, t)))  # up both
            return descend(tuple(inner_rules), d, opts, inner, fed.round)

        first = (state.above, state.below), tuple(inner_opts)
        (above, below), inner_opts = fed.repeat(self.inner_rounds, inner_step, first)
        with fed.outer():
            h = fed.mean(gather(outer_map, (above, below), outer_key))  # ---- up    h
        (new,), (x_opt,) = descend((x_rule,), (h,), (x_opt,), (state.x,), fed.round)
        return F2SAState(projected(problem, "x", new), above, below, (x_opt, *inner_opts))

    def solution(self, state: F2SAState) -> tuple[Tree, ...]:
        """x, and y at no penalty."""
        return self.penalty.solution((state.x, state.above), (state.below,))


def inner_maps(
    client: Client, x: Tree, inner: Blocks, *, problem: Bilevel, algorithm: F2SA, round: Count
) -> Blocks:
    """The gradients of both perturbed inner problems."""
    view, samples = _drawn(client, problem, algorithm, round)
    return view.inner_maps(problem, (x, *inner), samples)


def outer_map(
    client: Client, x: Tree, inner: Blocks, *, problem: Bilevel, algorithm: F2SA, round: Count
) -> Tree:
    """The client's estimate of the hypergradient."""
    view, samples = _drawn(client, problem, algorithm, round)
    return view.outer_map(problem, (x, *inner), samples)


def _drawn(
    client: Client, problem: Bilevel, algorithm: F2SA, round: Count
) -> tuple[PenaltyView, tuple[Sample, ...]]:
    """The view of this round, and a sample of each split that it needs."""
    view = algorithm.penalty.at(round)
    return view, draw_samples(client, problem, view, algorithm.batch_size, client.key)
