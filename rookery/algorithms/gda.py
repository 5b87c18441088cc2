"""GDA: gradient descent in x and ascent in y at once, by steps of the server.

As old as saddle problems.

    papers  code                    meaning
    x, y    x, y                    minimising and maximising variable
    τ₁, τ₂  outer_lr, inner_lr      step sizes α and β

A round is  x - α f_x(x, y),  y + β f_y(x, y),  and costs 1 exchange. On a bilinear payoff it moves
away from the saddle point, whatever the step sizes.
"""

from rookery.algorithms.shared.context import Context
from rookery.algorithms.shared.field import mean_field, saddle_field
from rookery.algorithms.shared.saddle import AbstractDescentAscent, SaddleState
from rookery.problem.minimax import Minimax
from rookery.program.federation import AbstractFederation
from rookery.types import Key


class GDA(AbstractDescentAscent):
    """Both variables move along their mean gradients at the old pair.

    >>> GDA(outer_lr=0.05, inner_lr=0.1, clients=10, batch_size=32).name
    'GDA'
    """

    def round(
        self, fed: AbstractFederation, problem: Minimax, state: SaddleState, key: Key
    ) -> SaddleState:
        """One exchange."""
        context = Context(fed, problem, self.clients, self.batch_size)
        field = mean_field(context, saddle_field, (state.x, state.y), key)
        return self.step(problem, field, state, fed.round)
