"""FedNest: federated bilevel, minimax and compositional optimisation.

D. A. Tarzanagh, M. Li, C. Thrampoulidis, S. Oymak. ICML 2022, arXiv:2205.02215.

    paper   code                            meaning
    x, y    x, y                            outer and inner variable
    α, β    outer_lr, inner_lr              step sizes
    T       inner_rounds                    FedInn calls per round
    τ       inner_steps, outer_steps        local steps between two averages
    N       ihgp.terms                      length of the Neumann series
    ℓ_g,1   ihgp.lipschitz                  largest eigenvalue of the inner Hessian
    S       clients                         who takes part in an exchange

Cost of a round in exchanges, N' the hops drawn by FedIHGP:

                FedIHGP         FedIHGPSum      minimax     composition of two layers
    FedNest     2 T + N' + 3    2 T + N + 3     2 T + 2     2 T + 3
    FedNestSGD  T + N' + 3      T + N + 3       T + 2       T + 3

and one more in a round that estimates L. Departures from the paper: FedIHGPSum is the default,
since a random length is noise that no batch size removes; the first local step is taken without its
two cancelling gradients; in a composition v is the mean of f_y (the paper's N = 1).
"""

from dataclasses import KW_ONLY

import equinox as eqx

from rookery import tree
from rookery.algorithms.fednest.fedihgp import FedIHGPSum
from rookery.algorithms.fednest.fedinn import FedInn, FedInnSGD
from rookery.algorithms.fednest.fedout import FedOut
from rookery.algorithms.nested import AbstractNested, Nested
from rookery.algorithms.shared import local
from rookery.algorithms.shared.adjoint import AbstractAdjoint
from rookery.program.participation import AbstractParticipation, participation
from rookery.types import Tree


class FedNest(AbstractNested):
    """Alternates drift-free inner rounds with one step along the global hypergradient.

    Args:
        outer_lr: α, of every local step, or of the whole call (:class:`PerCall`).
        inner_lr: β, likewise.
        inner_rounds: T.
        inner_steps: τ of FedInn, one number or one per client.
        outer_steps: τ of FedOut, likewise.
        ihgp: how the inverse Hessian times the outer gradient is estimated; bilevel only.
        clients: how many take part in an exchange, a rule that draws them, or None for everyone.
        batch_size: rows per stochastic evaluation on a client; None is all its rows.
        anchor_batch: rows for FedInn's global gradient; None is all.
        inner_start: initial y, in compositions only, where the start is x alone.
    """

    _: KW_ONLY
    outer_lr: local.LearningRate = eqx.field(converter=local.number)
    inner_lr: local.LearningRate = eqx.field(converter=local.number)
    inner_rounds: int = 1
    inner_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)
    outer_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)
    ihgp: AbstractAdjoint = eqx.field(default_factory=FedIHGPSum)
    clients: AbstractParticipation = eqx.field(converter=participation, default=None)
    batch_size: int | None = None
    anchor_batch: int | None = None
    inner_start: Tree = eqx.field(converter=tree.as_arrays, default=None)

    def parts(self) -> Nested:
        """FedInn, T times, and FedOut with FedIHGP."""
        return Nested(
            inner=FedInn(
                lr=self.inner_lr, local_steps=self.inner_steps, anchor_batch=self.anchor_batch
            ),
            outer=FedOut(lr=self.outer_lr, local_steps=self.outer_steps, adjoint=self.ihgp),
            inner_rounds=self.inner_rounds,
            clients=self.clients,
            batch_size=self.batch_size,
            inner_start=self.inner_start,
        )


class FedNestSGD(AbstractNested):
    """FedNest with plain local steps inside: an exchange less per inner round, and a biased y.

    Args:
        outer_lr: α, of every local step, or of the whole call (:class:`PerCall`).
        inner_lr: β, likewise.
        inner_rounds: T.
        inner_steps: τ of FedInnSGD, one number or one per client.
        outer_steps: τ of FedOut, likewise.
        ihgp: how the inverse Hessian times the outer gradient is estimated; bilevel only.
        clients: how many take part in an exchange, a rule that draws them, or None for everyone.
        batch_size: rows per stochastic evaluation on a client; None is all its rows.
        inner_start: initial y, in compositions only, where the start is x alone.
    """

    _: KW_ONLY
    outer_lr: local.LearningRate = eqx.field(converter=local.number)
    inner_lr: local.LearningRate = eqx.field(converter=local.number)
    inner_rounds: int = 1
    inner_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)
    outer_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)
    ihgp: AbstractAdjoint = eqx.field(default_factory=FedIHGPSum)
    clients: AbstractParticipation = eqx.field(converter=participation, default=None)
    batch_size: int | None = None
    inner_start: Tree = eqx.field(converter=tree.as_arrays, default=None)

    def parts(self) -> Nested:
        """FedInnSGD, T times, and FedOut with FedIHGP."""
        return Nested(
            inner=FedInnSGD(lr=self.inner_lr, local_steps=self.inner_steps),
            outer=FedOut(lr=self.outer_lr, local_steps=self.outer_steps, adjoint=self.ihgp),
            inner_rounds=self.inner_rounds,
            clients=self.clients,
            batch_size=self.batch_size,
            inner_start=self.inner_start,
        )
