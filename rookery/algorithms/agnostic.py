"""Agnostic federated learning: the mixture of clients that is worst is learned along.

M. Mohri, G. Sivek, A. T. Suresh. Agnostic federated learning. ICML 2019, arXiv:1902.00146.

    paper       code            meaning
    w           w               the model
    λ           shares          weights of the clients in the simplex
    γ_w, γ_λ    lr, ascent_lr   step sizes
    L_k         losses          the clients' losses

w - γ_w Σ λ_k grad L_k(w)  and, at the old w,  the projection of  λ + γ_λ L(w)  to the simplex. Cost
of a round: 1 exchange with all clients, w down, w and a number up. Departures from the paper: the
output is the last iterate, not the mean of all; λ ranges over the whole simplex, begins equal and
takes the place of the population's weights in the run's rule of aggregation.
"""

from dataclasses import KW_ONLY

import equinox as eqx
import jax

from rookery import check, tree
from rookery.algorithms.shared import local, simplex
from rookery.algorithms.shared.model import RobustState, check_single_level
from rookery.problem.single_level import SingleLevel
from rookery.program.algorithm import AbstractAlgorithm
from rookery.program.federation import AbstractFederation, Client
from rookery.program.memory import Probabilities
from rookery.program.participation import Everyone
from rookery.types import Key, Tree


class AgnosticFL(AbstractAlgorithm):
    """One step of descent in w and one of projected ascent in λ, along all clients' gradients.

    Args:
        lr: γ_w.
        ascent_lr: γ_λ.
        batch_size: rows per evaluation; None is all.
    """

    _: KW_ONLY
    lr: float = eqx.field(converter=local.number)
    ascent_lr: float = eqx.field(converter=local.number)
    batch_size: int | None = None

    def __check_init__(self):
        check.positive("lr", self.lr)
        check.positive("ascent_lr", self.ascent_lr)
        if self.batch_size is not None:
            check.count("batch_size", self.batch_size)

    def check(self, problem: SingleLevel, n_clients: int) -> None:
        """Raise unless the problem is single-level."""
        check_single_level("AgnosticFL", problem)

    def init(self, problem: SingleLevel, w: Tree) -> RobustState:
        """The given model; λ is equal for all."""
        return RobustState(w, Probabilities())

    def round(
        self, fed: AbstractFederation, problem: SingleLevel, state: RobustState, key: Key
    ) -> RobustState:
        """One exchange."""
        lam = state.shares.values
        everyone = fed.sample(Everyone(), key)
        w = fed.broadcast(everyone, state.w)  # ------------------------------ down  w
        both = fed.map(loss_and_gradient, w, key=key, problem=problem, algorithm=self)
        losses, gradients = fed.stack(both)  # ------------------------------- up    f_i, grad f_i
        descent = fed.aggregate(gradients, lam)
        ascent = self.ascent_lr * losses.astype(float)
        return RobustState(
            w=tree.axpy(-self.lr, descent, state.w),
            shares=Probabilities(simplex.project(lam + ascent)),
        )

    def solution(self, state: RobustState) -> tuple[Tree]:
        """(w,)."""
        return (state.w,)


def loss_and_gradient(
    client: Client, w: Tree, *, problem: SingleLevel, algorithm: AgnosticFL
) -> tuple[jax.Array, Tree]:
    """The client's loss and its gradient, on one sample."""
    sample = client.draw(problem.split, algorithm.batch_size, client.key)
    return problem.value_and_gradient(w, sample)
