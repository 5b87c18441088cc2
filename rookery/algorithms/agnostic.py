"""Agnostic federated learning: the model for the worst mixture of clients.

M. Mohri, G. Sivek, A. T. Suresh. Agnostic federated learning. ICML 2019, arXiv:1902.00146.

    paper       code            meaning
    w           w               the model
    λ           probabilities   weights of the clients in the simplex
    γ_w, γ_λ    lr, ascent_lr   step rule of w, and step size of λ
    L_k         losses          the clients' losses

A round sets  w <- w - γ_w Σ λ_k grad L_k(w)  and, with the losses at the old w, projects
λ + γ_λ L(w)  onto the simplex. Cost of a round: 1 exchange with all clients, w down, w and a number
up. Departures from the paper: the output is the last iterate, not the mean of all; λ ranges over
the whole simplex, starts uniform and replaces the population's weights in the run's aggregation
rule.
"""

import jax

from rookery.algorithms.shared import simplex
from rookery.algorithms.shared.model import RobustState
from rookery.algorithms.shared.robust import AbstractRobustModel
from rookery.algorithms.shared.step_rule import check_step_rule, first_opt, move
from rookery.problem.constraints import projected
from rookery.problem.single_level import SingleLevel
from rookery.program.algorithm import check_kind
from rookery.program.federation import AbstractFederation, Client
from rookery.program.memory import Probabilities
from rookery.program.participation import Everyone
from rookery.types import Key, Tree


class AgnosticFL(AbstractRobustModel):
    """One step of descent in w and one of projected ascent in λ, along all clients' gradients.

    >>> import rookery as rk
    >>> rk.AgnosticFL(lr=0.1, ascent_lr=0.01).ascent_lr
    0.01

    Args:
        lr: γ_w, the step rule of w.
        ascent_lr: γ_λ, a number or a schedule; no optimiser, since λ is projected.
    """

    def __check_init__(self):
        check_step_rule("lr", self.lr)

    def check(self, problem: SingleLevel, n_clients: int) -> None:
        """Raise unless the problem is single-level."""
        check_kind(self, problem, SingleLevel)

    def init(self, problem: SingleLevel, w: Tree) -> RobustState:
        """The given model; λ is equal for all."""
        return RobustState(w, Probabilities(), first_opt(self.lr, w))

    def round(
        self, fed: AbstractFederation, problem: SingleLevel, state: RobustState, key: Key
    ) -> RobustState:
        """One exchange."""
        lam = state.probabilities.values
        everyone = fed.sample(Everyone(), key)
        w = fed.broadcast(everyone, state.w)  # ------------------------------ down  w
        both = fed.map(loss_and_gradient, w, key=key, problem=problem, algorithm=self)
        losses, gradients = fed.stack(both)  # ------------------------------- up    f_i, grad f_i
        descent = fed.aggregate(gradients, lam)
        ascent = self.ascent_size(fed.round) * losses.astype(float)
        w, opt = move(self.lr, descent, state.opt, state.w, fed.round)
        w = projected(problem, "w", w)
        return RobustState(w, Probabilities(simplex.project(lam + ascent)), opt)


def loss_and_gradient(
    client: Client, w: Tree, *, problem: SingleLevel, algorithm: AgnosticFL
) -> tuple[jax.Array, Tree]:
    """The client's loss and its gradient, on one sample."""
    sample = client.draw(problem.split, algorithm.batch_size, client.key)
    return problem.value_and_gradient(w, sample)
