"""FedAvg: local gradient steps and an average, the plain baseline of single-level problems.

B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas. Communication-efficient learning of
deep networks from decentralized data. AISTATS 2017, arXiv:1602.05629.

    paper   code            meaning
    w       w               the model
    η       lr              step size
    n_k/n   -               weights of the clients: those of the population, equal or by rows
    E, B    local_steps     local steps between two averages; the paper counts epochs of batches
    C       clients         who takes part in an exchange

Cost of a round: 1 exchange, w down and w up. With more than one local step, clients that differ
pull w beside the minimiser. Departures from the paper: batches are drawn with replacement, and
steps are counted, not epochs.
"""

from dataclasses import KW_ONLY

import equinox as eqx
import jax

from rookery.algorithms.shared import local
from rookery.algorithms.shared.model import ModelState, check_single_level, gradient_steps
from rookery.problem.single_level import SingleLevel
from rookery.program.algorithm import AbstractAlgorithm
from rookery.program.federation import AbstractFederation
from rookery.program.participation import AbstractParticipation, participation
from rookery.types import Key, Tree


class FedAvg(AbstractAlgorithm):
    """Local gradient steps; the models are averaged by the clients' weights.

    Args:
        lr: η, of every local step, or of the whole round (:class:`PerCall`).
        local_steps: one number or one per client.
        clients: how many take part in an exchange, a rule that draws them, or None for everyone.
        batch_size: rows per local step; None is all.
    """

    _: KW_ONLY
    lr: local.LearningRate = eqx.field(converter=local.number)
    local_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)
    clients: AbstractParticipation = eqx.field(converter=participation, default=None)
    batch_size: int | None = None

    def __check_init__(self):
        local.check_fields(self)

    def check(self, problem: SingleLevel, n_clients: int) -> None:
        """Raise unless the problem is single-level and the settings fit the clients."""
        check_single_level("FedAvg", problem)
        local.check_fields(self, n_clients)
        self.clients.check(n_clients)

    def init(self, problem: SingleLevel, w: Tree) -> ModelState:
        """The given model."""
        return ModelState(w)

    def round(
        self, fed: AbstractFederation, problem: SingleLevel, state: ModelState, key: Key
    ) -> ModelState:
        """One exchange."""
        who, local_key = jax.random.split(key)
        cohort = fed.sample(self.clients, who)
        w = fed.broadcast(cohort, state.w)  # -------------------------------- down  w
        own = fed.map(gradient_steps, w, key=local_key, problem=problem, algorithm=self)
        return ModelState(fed.mean(own))  # ---------------------------------- up    w

    def solution(self, state: ModelState) -> tuple[Tree]:
        """(w,)."""
        return (state.w,)
