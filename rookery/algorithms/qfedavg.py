"""q-FedAvg: clients with larger losses count more.

T. Li, M. Sanjabi, A. Beirami, V. Smith. Fair resource allocation in federated learning.
ICLR 2020, arXiv:1905.10497.

    paper   code            meaning
    w, w̄    w, centre       the client's and the server's model
    q       q               0 is FedAvg; the larger, the more equal the clients' losses
    F_k     loss            the client's loss on all its rows, at w̄
    L       1 / lr          Lipschitz constant, one over the local step size
    Δ_k     push            F_k^q D,   D = L (w̄ - w_k),   w_k the model after the local steps
    h_k     weight          q F_k^(q-1) |D|² + L F_k^q

The server's step is  w̄ - Σ Δ_k / Σ h_k,  or with a ``server_lr`` a step along that quotient. Cost
of a round: 1 exchange, w down, w and a number up.
Departures from the paper: both sums are weighted means, in which the clients' weights take the
place of drawing clients by weight; 1e-10 is added to losses, as in the released code, since
0^(q-1) is not finite.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.shared.model import AbstractLocalSGD, ModelState, gradient_steps
from rookery.algorithms.shared.schedule import number
from rookery.algorithms.shared.statistics import follows_batches
from rookery.algorithms.shared.step_rule import Optimiser, check_divisor, check_size, move, size_of
from rookery.problem.constraints import projected
from rookery.problem.single_level import SingleLevel
from rookery.program.federation import AbstractFederation, Client
from rookery.types import Count, Key, Problem, Tree


class QFedAvg(AbstractLocalSGD):
    """Local gradient steps, combined with weights that grow with the clients' losses.

    Losses must not be negative.

    >>> import rookery as rk
    >>> rk.QFedAvg(lr=0.1, q=0.2, local_steps=5).q
    0.2

    Args:
        q: how much larger losses count; 0 is FedAvg.
    """

    kind: ClassVar[type] = SingleLevel

    _: KW_ONLY
    q: float = eqx.field(converter=number)

    def __check_init__(self):
        check.not_negative("q", self.q)
        check_size("QFedAvg", "lr", self.lr, "It stands for 1 / L in Δ_k and h_k.", "local")
        check_divisor("QFedAvg", "lr", self.lr)

    def check_start(
        self, problem: Problem, start: tuple[Tree, ...], example: Callable[[str], Tree]
    ) -> None:
        """Raise if the weights by losses would spoil running statistics in the model."""
        super().check_start(problem, start, example)
        if jnp.any(jnp.asarray(self.q) > 0) and follows_batches(problem, start[0], example):
            raise ValueError(
                f"the model has running statistics of BatchNorm, and q-FedAvg with q={self.q} "
                "moves them by weights that depend on the losses: they would not become the mean "
                "over batches and clients. Freeze them (batch_norm.by_statistics), or use q=0."
            )

    def round(
        self, fed: AbstractFederation, problem: SingleLevel, state: ModelState, key: Key
    ) -> ModelState:
        """One exchange: Δ_k and h_k of the cohort; a step by the quotient of their means."""
        both, state = self.mean_of(fair_push, fed, problem, state, key)  # -- down  w  up  Δ, h
        push, weight = both
        if self.server_lr is None:
            w, opt = tree.axpy(-1 / weight, push, state.w), state.opt
        else:
            push = tree.scale(1 / weight, push)
            w, opt = move(self.server_lr, push, state.opt, state.w, fed.round)
        return state._replace(w=projected(problem, "w", w), opt=opt)

    def remedy(self) -> str:
        """Losses of the right sign, or a smaller step."""
        return (
            "q-FedAvg takes powers of the losses, so check that none is negative; otherwise use a "
            "smaller step size."
        )


def fair_push(
    client: Client, centre: Tree, *, problem: SingleLevel, algorithm: QFedAvg, round: Count
) -> tuple[tuple[Tree, jax.Array], Tree]:
    """Δ_k and h_k, and the empty state of a step size."""
    w, opt = gradient_steps(client, centre, problem=problem, algorithm=algorithm, round=round)
    loss = problem.value(centre, client.draw(problem.split, None, client.key)) + 1e-10
    assert not isinstance(algorithm.lr, Optimiser), "QFedAvg refuses it"
    # L is the same for all clients, also when a step size is shared out over their steps
    L, q = (
        jnp.asarray(value).astype(loss.dtype)
        for value in (1 / size_of(algorithm.lr, round), algorithm.q)
    )
    D = tree.scale(L, tree.sub(centre, w))
    push = tree.scale(loss**q, D)
    return (push, q * loss ** (q - 1) * tree.dot(D, D) + L * loss**q), opt
