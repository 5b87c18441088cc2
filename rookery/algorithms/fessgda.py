"""FESS-GDA: local descent-ascent whose server holds x near a smoothed copy of itself.

W. Shen, M. Huang, J. Zhang, C. Shen. Stochastic smoothed gradient descent ascent for federated
minimax optimization. AISTATS 2024, arXiv:2311.00944.

    paper           code                        meaning
    x, y            u, the blocks               minimising and maximising variable
    η_x,l, η_y,l    outer_lr, inner_lr          local step sizes
    η_x,g, η_y,g    outer_server_lr, inner_server_lr    the server's
    K               local_steps
    p               smoothing                   strength of the pull to z
    z, β            opts, beta                  the smoothed x, and how fast it follows

    client      K times  x_i = x_i - η_x,l f_x,  y_i = y_i + η_y,l f_y,  both at the old pair
    server      x+ = x + η_x,g (mean x_i - x) - η_x,l η_x,g K p (x - z)
                y+ = y + η_y,g (mean y_i - y),  projected onto its set
                z+ = z + β (x+ - z)

Where plain descent-ascent cycles, this ends. With p = 0 or β = 1 it is local descent-ascent with
server steps. z never travels. Cost of a round: 1 exchange, x and y down and up. Departure from the
paper: a client's last step is projected with the mean, not by itself.
"""

from dataclasses import KW_ONLY
from typing import ClassVar

import equinox as eqx

from rookery import check, tree
from rookery.algorithms.shared.local_blocks import (
    AbstractLocalBlocks,
    LocalBlocksState,
    LocalSteps,
)
from rookery.algorithms.shared.schedule import number
from rookery.algorithms.shared.step_rule import Optimiser, check_size, size_of
from rookery.algorithms.shared.views import Blocks
from rookery.problem.minimax import Minimax
from rookery.program.algorithm import check_kind
from rookery.program.federation import AbstractFederation
from rookery.types import Key, Problem, Tree


class FESSGDA(AbstractLocalBlocks):
    """Local descent-ascent, smoothed at the server.

    Args:
        outer_lr: η_x,l, a number or a schedule.
        inner_lr: η_y,l, a step rule.
        outer_server_lr: η_x,g.
        inner_server_lr: η_y,g.
        smoothing: p; twice the smoothness of f if it is not concave enough in y, or 0.
        beta: β, above 0 and at most 1.

    >>> FESSGDA(outer_lr=0.05, inner_lr=0.05, smoothing=2.0, beta=0.02, local_steps=5).beta
    0.02
    """

    sends_iterates: ClassVar[bool] = True

    _: KW_ONLY
    outer_server_lr: float = eqx.field(converter=number, default=1.0)
    inner_server_lr: float = eqx.field(converter=number, default=1.0)
    smoothing: float = eqx.field(converter=number)
    beta: float = eqx.field(converter=number)

    def __check_init__(self):
        check_size("FESSGDA", "outer_lr", self.outer_lr, "The pull to z has its size.", "local")
        check.positive("outer_server_lr", self.outer_server_lr)
        check.positive("inner_server_lr", self.inner_server_lr)
        check.not_negative("smoothing", self.smoothing)
        check.fraction("beta", self.beta)
        check.count("local_steps", self.local_steps)
        if self.estimator.is_averaged:
            raise ValueError(
                f"FESSGDA averages no estimate, got {type(self.estimator).__name__}. Leave "
                "estimator out."
            )

    def check(self, problem: Problem, n_clients: int) -> None:
        """Raise unless the problem is minimax and the settings fit the clients."""
        check_kind(self, problem, Minimax)
        super().check(problem, n_clients)

    def first_opts(self, problem: Problem, u: Blocks) -> tuple[Tree, ...]:
        """What the server keeps for itself: z, which starts at x."""
        return (u[0],)

    def reply(self, steps: LocalSteps) -> Blocks:
        """The variables after the last step."""
        return steps.w

    def round(
        self, fed: AbstractFederation, problem: Problem, state: LocalBlocksState, key: Key
    ) -> LocalBlocksState:
        """One exchange, and the server's smoothed step."""
        mean = self.mean_reply(fed, problem, state, key)  # ------------------ down and up  x, y
        mean_x, mean_y = mean.reply
        (x, y), (z,) = state.variables, state.opts
        assert not isinstance(self.outer_lr, Optimiser), "check_size refuses it"
        assert isinstance(self.local_steps, int), "checked at construction"
        size = size_of(self.outer_lr, fed.round, self.local_steps)
        way = size * self.outer_server_lr * self.local_steps
        moved = tree.axpy(self.outer_server_lr, tree.sub(mean_x, x), x)
        new_x = tree.axpy(-way * self.smoothing, tree.sub(x, z), moved)
        new_y = tree.axpy(self.inner_server_lr, tree.sub(mean_y, y), y)
        variables, added = self.inside(problem, (new_x, new_y))
        z = tree.axpy(self.beta, tree.sub(variables[0], z), z)
        return LocalBlocksState(variables, added, (), (z,), mean.own, mean.feedback)
