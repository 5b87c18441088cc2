"""AlternatingGDA: gradient ascent in y, then descent in x at the new y, by steps of the server.

J. Yang, N. Kiyavash, N. He. Global convergence and variance-reduced optimization for a class of
nonconvex-nonconcave minimax problems. NeurIPS 2020, arXiv:2002.09621.

    paper   code                    meaning
    x, y    x, y                    minimising and maximising variable
    τ₁, τ₂  outer_lr, inner_lr      step sizes α and β

A round is  y+ = y + β f_y(x, y),  x - α f_x(x, y+),  and costs 2 exchanges. Departures from the
paper: y moves first, as in all nested methods here, which is the paper's sequence started half a
step earlier; every exchange has clients and samples of its own.
"""

import jax

from rookery.algorithms.shared.context import Context
from rookery.algorithms.shared.field import ascent_field, descent_field, mean_field
from rookery.algorithms.shared.saddle import AbstractDescentAscent, SaddleState
from rookery.algorithms.shared.step_rule import move
from rookery.problem.constraints import projected
from rookery.problem.minimax import Minimax
from rookery.program.federation import AbstractFederation
from rookery.types import Key


class AlternatingGDA(AbstractDescentAscent):
    """First y moves, then x along its mean gradient at the new y.

    >>> AlternatingGDA(outer_lr=0.05, inner_lr=0.1, clients=10).name
    'AlternatingGDA'
    """

    def round(
        self, fed: AbstractFederation, problem: Minimax, state: SaddleState, key: Key
    ) -> SaddleState:
        """Two exchanges: f_y, then f_x."""
        y_key, x_key = jax.random.split(key)
        context = Context(fed, problem, self.clients, self.batch_size)
        x, y, (x_opt, y_opt) = state
        back_y = mean_field(context, ascent_field, (x, y), y_key)
        y, y_opt = move(self.inner_lr, back_y, y_opt, y, fed.round)
        y = projected(problem, "y", y)
        back_x = mean_field(context, descent_field, (x, y), x_key)
        x, x_opt = move(self.outer_lr, back_x, x_opt, x, fed.round)
        return SaddleState(projected(problem, "x", x), y, (x_opt, y_opt))
