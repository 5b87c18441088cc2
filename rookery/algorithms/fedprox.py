"""FedProx: local steps that a proximal term holds near the server's model.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith. Federated optimization in
heterogeneous networks. MLSys 2020, arXiv:1812.06127.

    paper   code            meaning
    w, w^t  w, centre       the client's and the server's model
    μ       mu              strength of the proximal term
    η       lr              step size
    γ_k     local_steps     how exactly a client solves its problem, here in steps

A client descends on  f_i(w) + μ/2 |w - w^t|².  With μ = 0 it is FedAvg. Cost of a round: 1
exchange, w down and w up. Departures from the paper: clients are averaged by the population's
weights; the paper draws them by weight (``Weighted``) and averages them as equals.
"""

from dataclasses import KW_ONLY

import equinox as eqx
import jax

from rookery import check, tree
from rookery.algorithms.shared import local
from rookery.algorithms.shared.model import ModelState, check_single_level
from rookery.problem.single_level import SingleLevel
from rookery.program.algorithm import AbstractAlgorithm
from rookery.program.federation import AbstractFederation, Client
from rookery.program.participation import AbstractParticipation, participation
from rookery.types import Key, Tree


class FedProx(AbstractAlgorithm):
    """Local steps on the client's loss and a proximal term; the models are averaged.

    Args:
        lr: η, of every local step, or of the whole round (:class:`PerCall`).
        mu: μ.
        local_steps: one number or one per client.
        clients: how many take part in an exchange, a rule that draws them, or None for everyone.
        batch_size: rows per local step; None is all.
    """

    _: KW_ONLY
    lr: local.LearningRate = eqx.field(converter=local.number)
    mu: float = eqx.field(converter=local.number)
    local_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)
    clients: AbstractParticipation = eqx.field(converter=participation, default=None)
    batch_size: int | None = None

    def __check_init__(self):
        local.check_fields(self)
        check.not_negative("mu", self.mu)

    def check(self, problem: SingleLevel, n_clients: int) -> None:
        """Raise unless the problem is single-level and the settings fit the clients."""
        check_single_level("FedProx", problem)
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
        own = fed.map(proximal_steps, w, key=local_key, problem=problem, algorithm=self)
        return ModelState(fed.mean(own))  # ---------------------------------- up    w

    def solution(self, state: ModelState) -> tuple[Tree]:
        """(w,)."""
        return (state.w,)


def proximal_steps(
    client: Client, centre: Tree, *, problem: SingleLevel, algorithm: FedProx
) -> Tree:
    """The client's model after its local steps from ``centre``."""

    def gradient(w, key):
        sample = client.draw(problem.split, algorithm.batch_size, key)
        return tree.axpy(algorithm.mu, tree.sub(w, centre), problem.gradient(w, sample))

    lr, steps = algorithm.lr, algorithm.local_steps
    return local.plain_steps(client, gradient, centre, lr, steps, client.key)
