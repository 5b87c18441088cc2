"""What the server's methods for blocks have in common: all step at once, each by its own rule."""

from dataclasses import KW_ONLY
from typing import ClassVar

import equinox as eqx

from rookery.algorithms.shared.blocks import descend
from rookery.algorithms.shared.step_rule import (
    StepRule,
    StepRules,
    check_step_rule,
    check_step_rules,
    each_rule,
    first_opt,
    step_rule,
    step_rules,
)
from rookery.algorithms.shared.views import Blocks
from rookery.program.algorithm import SampledAlgorithm
from rookery.types import Count, Tree


class AbstractBlockSteps(SampledAlgorithm):
    """Steps of the server on blocks, of which x is the first.

    Args:
        outer_lr: step rule of x.
        inner_lr: of all other blocks, one for all or a tuple with one each.
    """

    projects: ClassVar[bool] = True

    _: KW_ONLY
    outer_lr: StepRule = eqx.field(converter=step_rule)
    inner_lr: StepRules = eqx.field(converter=step_rules)

    def __check_init__(self):
        check_step_rule("outer_lr", self.outer_lr)
        check_step_rules("inner_lr", self.inner_lr)

    def first_opts(self, blocks: Blocks) -> tuple[Tree, ...]:
        """The states of the rules of all blocks before the first step."""
        rules = each_rule(self.outer_lr, self.inner_lr, len(blocks))
        return tuple(map(first_opt, rules, blocks))

    def step(
        self, direction: Blocks, opts: tuple[Tree, ...], blocks: Blocks, round: Count
    ) -> tuple[Blocks, tuple[Tree, ...]]:
        """The blocks after a step of each against its direction, and the states of the rules."""
        rules = each_rule(self.outer_lr, self.inner_lr, len(blocks))
        return descend(rules, direction, opts, blocks, round)
