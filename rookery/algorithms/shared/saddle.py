"""What the server's methods for minimax problems have in common: steps along mean gradients.

    method          round                                                       exchanges
    GDA             x - α f_x(x, y),  y + β f_y(x, y)                           1
    AlternatingGDA  y+ = y + β f_y(x, y),  x - α f_x(x, y+)                     2
    Extragradient   the step of GDA from (x, y), with gradients taken at the    2
                    point that GDA would have moved to

With one client these are the centralised methods; with all clients taking part, whole batches and
weights in proportion to the clients' rows they are the same methods run in parallel. Fewer clients
or smaller batches make them stochastic.
"""

from dataclasses import KW_ONLY
from typing import NamedTuple

import equinox as eqx

from rookery import check, tree
from rookery.algorithms.shared import local
from rookery.problem.minimax import Minimax
from rookery.program.algorithm import SampledAlgorithm, check_kind
from rookery.types import Tree


class SaddleState(NamedTuple):
    """The iterates."""

    x: Tree
    y: Tree


class AbstractDescentAscent(SampledAlgorithm):
    """Steps of the server on a minimax problem; a subclass says how a round is made up.

    Args:
        outer_lr: α, step size of x.
        inner_lr: β, step size of y.
    """

    _: KW_ONLY
    outer_lr: float = eqx.field(converter=local.number)
    inner_lr: float = eqx.field(converter=local.number)

    def __check_init__(self):
        check.positive("outer_lr", self.outer_lr)
        check.positive("inner_lr", self.inner_lr)

    def check(self, problem: Minimax, n_clients: int) -> None:
        """Raise unless the problem is minimax and there are enough clients."""
        check_kind(self, problem, Minimax)
        self.clients.check(n_clients)

    def init(self, problem: Minimax, x: Tree, y: Tree) -> SaddleState:
        """The given iterates."""
        return SaddleState(x, y)

    def solution(self, state: SaddleState) -> tuple[Tree, Tree]:
        """(x, y)."""
        return state.x, state.y

    def step(self, field: tuple[Tree, Tree], pair: SaddleState) -> SaddleState:
        """The pair after one step against a value of the saddle field."""
        back_x, back_y = field
        return SaddleState(
            tree.axpy(-self.outer_lr, back_x, pair.x), tree.axpy(-self.inner_lr, back_y, pair.y)
        )
