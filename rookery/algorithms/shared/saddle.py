"""What the server's methods for minimax problems have in common: steps along mean gradients.

    method          round                                                       exchanges
    GDA             x - α f_x(x, y),  y + β f_y(x, y)                           1
    AlternatingGDA  y+ = y + β f_y(x, y),  x - α f_x(x, y+)                     2
    Extragradient   the step of GDA from (x, y), with gradients taken at the    2
                    point that GDA would have moved to

With one client these are the centralised methods; with all clients taking part, whole batches and
weights in proportion to the clients' rows they are the same methods run in parallel. Fewer clients
or smaller batches make them stochastic. An optimiser takes f_x and -f_y for gradients.
"""

from dataclasses import KW_ONLY
from typing import ClassVar, NamedTuple

import equinox as eqx

from rookery.algorithms.shared.local import check_fields
from rookery.algorithms.shared.step_rule import StepRule, first_opt, move, step_rule
from rookery.problem.constraints import projected
from rookery.problem.minimax import Minimax
from rookery.program.algorithm import SampledAlgorithm, check_kind
from rookery.types import Count, Tree


class SaddleState(NamedTuple):
    """The iterates, and the states of their step rules: the server's, or what the clients keep."""

    x: Tree
    y: Tree
    opts: Tree = ()


class AbstractDescentAscent(SampledAlgorithm):
    """Steps of the server on a minimax problem; a subclass says how a round is made up.

    Args:
        outer_lr: α, step rule of x.
        inner_lr: β, step rule of y.
    """

    projects: ClassVar[bool] = True

    _: KW_ONLY
    outer_lr: StepRule = eqx.field(converter=step_rule)
    inner_lr: StepRule = eqx.field(converter=step_rule)

    def __check_init__(self):
        check_fields(self, place="server")

    def check(self, problem: Minimax, n_clients: int) -> None:
        """Raise unless the problem is minimax and there are enough clients."""
        check_kind(self, problem, Minimax)
        self.clients.check(n_clients)

    def init(self, problem: Minimax, x: Tree, y: Tree) -> SaddleState:
        """The given iterates; no optimiser has taken a step."""
        return SaddleState(x, y, (first_opt(self.outer_lr, x), first_opt(self.inner_lr, y)))

    def solution(self, state: SaddleState) -> tuple[Tree, Tree]:
        """(x, y)."""
        return state.x, state.y

    def step(
        self, problem: Minimax, field: tuple[Tree, Tree], state: SaddleState, round: Count
    ) -> SaddleState:
        """The state after one step of both variables against a value of the saddle field."""
        (back_x, back_y), (x, y, (x_opt, y_opt)) = field, state
        x, x_opt = move(self.outer_lr, back_x, x_opt, x, round)
        y, y_opt = move(self.inner_lr, back_y, y_opt, y, round)
        x, y = projected(problem, "x", x), projected(problem, "y", y)
        return SaddleState(x, y, (x_opt, y_opt))
