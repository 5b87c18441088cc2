"""What the server's methods for blocks have in common: all step at once, each by its own rule."""

from dataclasses import KW_ONLY
from typing import ClassVar, Protocol

import equinox as eqx
import jax

from rookery.algorithms.shared.auto import Curvature, DoG
from rookery.algorithms.shared.blocks import descend
from rookery.algorithms.shared.curvature import first_states, measured_blocks
from rookery.algorithms.shared.step_rule import (
    StepRule,
    StepRules,
    check_step_rule,
    check_step_rules,
    each_rule,
    first_opt,
    inner_rules,
    step_rule,
)
from rookery.algorithms.shared.views import AbstractView, Blocks, view_of
from rookery.problem.bilevel import Bilevel
from rookery.program.algorithm import SampledAlgorithm, check_kind
from rookery.program.federation import AbstractFederation
from rookery.types import Count, Key, Problem, Tree


class HasLevels(Protocol):
    """A state with x and y among its parts."""

    @property
    def x(self) -> Tree:
        """The outer variable."""
        ...

    @property
    def y(self) -> Tree:
        """The inner variable."""
        ...


class AbstractBlockSteps(SampledAlgorithm):
    """Steps of the server on blocks, of which x is the first.

    Args:
        outer_lr: step rule of x.
        inner_lr: of all other blocks, one for all or a tuple with one each.
    """

    projects: ClassVar[bool] = True
    is_followed: ClassVar[bool] = True
    """Whether directions tell if steps are too long, so that measured sizes follow them."""

    _: KW_ONLY
    outer_lr: StepRule = eqx.field(converter=step_rule, default_factory=DoG)
    inner_lr: StepRules = eqx.field(converter=inner_rules, default_factory=Curvature)

    def __check_init__(self):
        check_step_rule("outer_lr", self.outer_lr, may_be_auto=True)
        check_step_rules("inner_lr", self.inner_lr, may_be_auto=True)

    def first_opts(self, problem: Problem, blocks: Blocks) -> tuple[Tree, ...]:
        """The states of the rules of all blocks before the first step."""
        rules = each_rule(self.outer_lr, self.inner_lr, len(blocks))
        view = view_of(problem, self.seen_as())
        opts = tuple(map(first_opt, rules, blocks))
        return first_states(view, rules, opts, blocks, is_followed=self.is_followed)

    def seen_as(self) -> AbstractView | None:
        """The view whose blocks step; that of the problem's class if None."""
        return None

    def measured(
        self,
        fed: AbstractFederation,
        problem: Problem,
        opts: tuple[Tree, ...],
        blocks: Blocks,
        key: Key,
    ) -> tuple[Tree, ...]:
        """The states of the rules, with sizes for this round where they are measured."""
        rules = each_rule(self.outer_lr, self.inner_lr, len(blocks))
        how = {"clients": self.clients, "batch_size": self.batch_size}
        key = jax.random.fold_in(key, 4)  # no round splits its key into more
        return measured_blocks(fed, problem, self.seen_as(), rules, opts, blocks, key, **how)

    def step(
        self, direction: Blocks, opts: tuple[Tree, ...], blocks: Blocks, round: Count
    ) -> tuple[Blocks, tuple[Tree, ...]]:
        """The blocks after a step of each against its direction, and the states of the rules."""
        rules = each_rule(self.outer_lr, self.inner_lr, len(blocks))
        return descend(rules, direction, opts, blocks, round)


class AbstractBilevelSteps(AbstractBlockSteps):
    """Steps of the server on x, y and v of a bilevel problem."""

    def __check_init__(self):
        check_step_rules("inner_lr", self.inner_lr, n_blocks=2, may_be_auto=True)

    def check(self, problem: Bilevel, n_clients: int) -> None:
        """Raise unless the problem is bilevel and a cohort can be drawn."""
        check_kind(self, problem, Bilevel)
        self.clients.check(n_clients)

    def solution(self, state: HasLevels) -> tuple[Tree, ...]:
        """(x, y)."""
        return state.x, state.y
