"""FedAvg: local gradient steps and an average, the plain baseline of single-level problems.

B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas. Communication-efficient learning of
deep networks from decentralized data. AISTATS 2017, arXiv:1602.05629.

    paper   code            meaning
    w       w               the model
    η       lr              step rule of the local steps
    n_k/n   -               weights of the clients: those of the population, equal or by rows
    E, B    local_steps     local steps between two averages; the paper counts epochs of batches
    C       clients         who takes part in an exchange

Cost of a round: 1 exchange, w down and w up. With several local steps and heterogeneous clients it
converges to a biased point, not to the minimiser. Departures from the paper: batches are drawn with
replacement, and steps are counted, not epochs; with a ``server_lr`` the server does not take the
mean of the models, but a step towards it. With ``own="norm"`` it is FedBN: the leaves below that
name stay on the clients (:mod:`rookery.algorithms.shared.own_leaves`).
"""

from typing import ClassVar

from rookery.algorithms.shared.model import ModelState, gradient_steps
from rookery.algorithms.shared.own_leaves import AbstractOwnLeaves
from rookery.problem.single_level import SingleLevel
from rookery.program.federation import AbstractFederation
from rookery.types import Key


class FedAvg(AbstractOwnLeaves):
    """Local gradient steps; the models are averaged by the clients' weights.

    >>> import rookery as rk
    >>> rk.FedAvg(lr=0.1, local_steps=5, clients=10, batch_size=32).local_steps
    5
    """

    kind: ClassVar[type] = SingleLevel

    def round(
        self, fed: AbstractFederation, problem: SingleLevel, state: ModelState, key: Key
    ) -> ModelState:
        """One exchange."""
        return self.to_mean_of(gradient_steps, fed, problem, state, key)  # down  w  up  w
