"""What methods for the blocks of any view have in common: their checks, and their solution."""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx

from rookery.algorithms.shared.curvature import check_blocks
from rookery.algorithms.shared.step_rule import (
    StepRule,
    StepRules,
    check_keeping,
    check_not_mixed,
    check_step_rule,
    check_step_rules,
)
from rookery.algorithms.shared.views import AbstractView, view_of
from rookery.program.algorithm import SampledAlgorithm
from rookery.types import Problem, Tree


class AbstractOnView(SampledAlgorithm):
    """A method whose ``view`` tells how the problem is seen as blocks; by its class if None."""

    is_local: ClassVar[bool] = False
    """Whether the clients take the steps, and not the server."""

    view: eqx.AbstractVar[AbstractView | None]
    outer_lr: eqx.AbstractVar[StepRule]
    inner_lr: eqx.AbstractVar[StepRules]

    def __check_init__(self):
        place = "local" if self.is_local else "server"
        check_step_rule("outer_lr", self.outer_lr, place, may_be_auto=True)
        check_step_rules("inner_lr", self.inner_lr, place=place, may_be_auto=True)
        if self.is_local:
            check_keeping(self.name, self.clients, self.outer_lr, self.inner_lr)
            check_not_mixed(self.name, self.outer_lr, self.inner_lr)

    def check(self, problem: Problem, n_clients: int) -> None:
        """Raise unless the problem has blocks and the settings fit them and the clients."""
        view, place = view_of(problem, self.view), "local" if self.is_local else "server"
        others = view.n_blocks(problem) - 1
        check_step_rules("inner_lr", self.inner_lr, others, place, may_be_auto=True)
        check_blocks("inner_lr", self.inner_lr, problem, view)
        self.clients.check(n_clients)

    def check_start(
        self, problem: Problem, start: tuple[Tree, ...], example: Callable[[str], Tree]
    ) -> None:
        """Raise unless the view's initial values have the shapes that the problem has."""
        view_of(problem, self.view).check_start(problem, start, example)

    def solution(self, state: Any) -> tuple[Tree, ...]:  # a subclass has its own
        """The problem's own variables, as the view has them."""
        if self.view is None:
            return state.variables
        return self.view.solution(state.variables, state.added)
