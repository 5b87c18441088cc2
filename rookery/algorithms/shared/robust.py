"""What the methods for the worst mixture of clients have in common: w descends, λ ascends."""

from dataclasses import KW_ONLY
from typing import ClassVar

import equinox as eqx

from rookery.algorithms.shared.model import RobustState
from rookery.algorithms.shared.simplex import PROJECTED
from rookery.algorithms.shared.step_rule import Size, StepRule, check_size, size_of, step_rule
from rookery.program.algorithm import BatchedAlgorithm
from rookery.types import Count, Number, Tree


class AbstractRobustModel(BatchedAlgorithm):
    """Steps of a model w, and projected steps of ascent of the clients' weights λ.

    Args:
        lr: step rule of w.
        ascent_lr: step size of λ, a number or a schedule; no optimiser, since λ is projected.
    """

    projects: ClassVar[bool] = True

    _: KW_ONLY
    lr: StepRule = eqx.field(converter=step_rule)
    ascent_lr: Size = eqx.field(converter=step_rule)

    def __check_init__(self):
        check_size(type(self).__name__, "ascent_lr", self.ascent_lr, PROJECTED)

    def ascent_size(self, round: Count) -> Number:
        """The size of λ's step in a round."""
        return size_of(self.ascent_lr, round)

    def solution(self, state: RobustState) -> tuple[Tree]:
        """(w,)."""
        return (state.w,)
