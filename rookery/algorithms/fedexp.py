"""FedExP: FedAvg whose server extrapolates, the further the more the clients' changes differ.

D. Jhunjhunwala, S. Wang, G. Joshi. FedExP: speeding up federated averaging via extrapolation.
ICLR 2023, arXiv:2301.09604.

    paper       code        meaning
    w           w           the model
    Δ_i, Δ      change      a client's change w_i - w, and the mean of these
    η_g         -           max(1, mean |Δ_i|² / (2 (|Δ|² + ε)))
    ε           epsilon

    server      w = w + η_g Δ

The solution is the mean of the last two iterates, as in the paper, since the steps oscillate. With
ε = 0 they never settle where clients differ: Δ vanishes at the limit and the Δ_i do not. Identical
clients have η_g = 1. Cost of a round: that of FedAvg and a number up.
"""

from dataclasses import KW_ONLY
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.shared.model import AbstractLocalSGD, ModelState, gradient_steps
from rookery.algorithms.shared.schedule import number
from rookery.problem.constraints import projected
from rookery.problem.single_level import SingleLevel
from rookery.program.federation import AbstractFederation, Client
from rookery.types import Count, Key, Problem, Tree


class FedExP(AbstractLocalSGD):
    """Local steps, and an extrapolated step of the server.

    Args:
        epsilon: ε, above 0.

    >>> FedExP(lr=0.1, epsilon=1e-3, local_steps=20).epsilon
    0.001
    """

    kind: ClassVar[type] = SingleLevel

    _: KW_ONLY
    epsilon: float = eqx.field(converter=number)

    def __check_init__(self):
        check.positive("epsilon", self.epsilon)
        if self.server_lr is not None:
            raise ValueError(
                f"FedExP computes the server's step itself, got server_lr={self.server_lr}. Leave "
                "it out, or use FedAvg."
            )

    def init(self, problem: Problem, w: Tree) -> ModelState:
        """The given model, as both of the last iterates."""
        return super().init(problem, w)._replace(own=w)

    def round(
        self, fed: AbstractFederation, problem: SingleLevel, state: ModelState, key: Key
    ) -> ModelState:
        """One exchange."""
        both, new = self.mean_of(change_and_square, fed, problem, state, key)  # down  w
        change, square = both  # ------------------------------------------------ up  Δ_i, |Δ_i|²
        step = jnp.maximum(1.0, square / (2 * (tree.dot(change, change) + self.epsilon)))
        w = projected(problem, "w", tree.axpy(step, change, state.w))
        return new._replace(w=w, own=state.w)

    def solution(self, state: ModelState) -> tuple[Tree]:
        """(w,), the mean of the last two iterates."""
        return (tree.scale(0.5, tree.add(state.w, state.own)),)


def change_and_square(
    client: Client,
    w: Tree,
    opt: Tree | None = None,
    *,
    problem: SingleLevel,
    algorithm: FedExP,
    round: Count,
) -> tuple[tuple[Tree, Tree], Tree]:
    """Δ_i and |Δ_i|², and the state of the client's rule."""
    own, opt = gradient_steps(client, w, opt, problem=problem, algorithm=algorithm, round=round)
    change = tree.sub(own, w)
    return (change, tree.dot(change, change)), opt
