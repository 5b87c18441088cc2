"""FedProx: local steps that a proximal term holds near the server's model.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith. Federated optimization in
heterogeneous networks. MLSys 2020, arXiv:1812.06127.

    paper   code            meaning
    w, w^t  w, centre       the client's and the server's model
    μ       mu              strength of the proximal term
    η       lr              step rule of the local steps
    γ_k     local_steps     how exactly a client solves its problem, here in steps

A client descends on  f_i(w) + μ/2 |w - w^t|².  With μ = 0 it is FedAvg. Cost of a round: 1
exchange, w down and w up. Departures from the paper: clients are averaged by the population's
weights; the paper draws them by weight (``Weighted``) and averages them as equals.
"""

from dataclasses import KW_ONLY
from typing import ClassVar

import equinox as eqx

from rookery import check, tree
from rookery.algorithms.shared import local
from rookery.algorithms.shared.model import ModelState
from rookery.algorithms.shared.own_leaves import AbstractOwnLeaves
from rookery.algorithms.shared.schedule import number
from rookery.problem.constraints import projection
from rookery.problem.single_level import SingleLevel
from rookery.program.federation import AbstractFederation, Client
from rookery.types import Count, Key, Tree


class FedProx(AbstractOwnLeaves):
    """Local steps on the client's loss and a proximal term; the models are averaged.

    >>> import rookery as rk
    >>> rk.FedProx(lr=0.1, mu=0.5, local_steps=5).mu
    0.5

    Args:
        mu: μ.
    """

    kind: ClassVar[type] = SingleLevel

    _: KW_ONLY
    mu: float = eqx.field(converter=number)

    def __check_init__(self):
        check.not_negative("mu", self.mu)

    def round(
        self, fed: AbstractFederation, problem: SingleLevel, state: ModelState, key: Key
    ) -> ModelState:
        """One exchange: local steps from w, and the mean of the models."""
        return self.to_mean_of(proximal_steps, fed, problem, state, key)  # down  w  up  w


def proximal_steps(
    client: Client,
    centre: Tree,
    opt: Tree | None = None,
    *,
    problem: SingleLevel,
    algorithm: FedProx,
    round: Count,
) -> tuple[Tree, Tree]:
    """The client's model after its local steps from ``centre``, and the state of its rule."""

    def gradient(w, key):
        sample = client.draw(problem.split, algorithm.batch_size, key)
        return tree.axpy(algorithm.mu, tree.sub(w, centre), problem.gradient(w, sample))

    rule, steps = algorithm.lr, algorithm.local_steps
    how = {"project": projection(problem, "w"), "round": round, "opt": opt}
    return local.plain_steps(client, gradient, centre, rule, steps, client.key, **how)
