"""Extragradient: the step of GDA, with the gradients one step ahead.

G. M. Korpelevich. The extragradient method for finding saddle points and other problems. 1976.

    paper   code                    meaning
    x, y    x, y                    minimising and maximising variable
    α       outer_lr, inner_lr      step sizes α and β, here one for each variable

A round takes GDA's step from (x, y), but along the gradients at the point that GDA would have moved
to, and costs 2 exchanges. On a bilinear payoff it converges where GDA moves away. Departures from
the paper: every exchange has clients and samples of its own, so the two gradients of a stochastic
round are independent. Looking ahead leaves no trace in an optimiser's state: both steps of a round
start from the state that the last round left, and the second one's is kept.
"""

import jax

from rookery.algorithms.shared.context import Context
from rookery.algorithms.shared.field import mean_field, saddle_field
from rookery.algorithms.shared.saddle import AbstractDescentAscent, SaddleState
from rookery.problem.minimax import Minimax
from rookery.program.federation import AbstractFederation
from rookery.types import Key


class Extragradient(AbstractDescentAscent):
    """Looks one step ahead, and steps from the old pair along the gradients found there.

    >>> Extragradient(outer_lr=0.05, inner_lr=0.1, clients=10).name
    'Extragradient'
    """

    def round(
        self, fed: AbstractFederation, problem: Minimax, state: SaddleState, key: Key
    ) -> SaddleState:
        """Two exchanges: the gradients here, then those ahead."""
        here_key, ahead_key = jax.random.split(key)
        context = Context(fed, problem, self.clients, self.batch_size)
        here = mean_field(context, saddle_field, (state.x, state.y), here_key)
        ahead = self.step(problem, here, state, fed.round)
        there = mean_field(context, saddle_field, (ahead.x, ahead.y), ahead_key)
        return self.step(problem, there, state, fed.round)
