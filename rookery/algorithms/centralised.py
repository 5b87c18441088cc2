"""Methods for one pool of data: AID, StocBiO, ALSET and TTSA.

With one client that holds all data these are the centralised methods. With all clients taking part,
whole batches, a given L and weights in proportion to the clients' rows every mean is that of the
pool, and they are the same methods run in parallel; fewer clients and smaller batches are further
sources of noise. No client takes a local step.

AID and StocBiO: K. Ji, J. Yang, Y. Liang. Bilevel optimization: convergence analysis and enhanced
design. ICML 2021, arXiv:2010.07962. ALSET: T. Chen, Y. Sun, W. Yin. Closing the gap: tighter
analysis of alternating stochastic gradient methods for bilevel problems. NeurIPS 2021,
arXiv:2106.13781; it is BSA (S. Ghadimi, M. Wang, arXiv:1802.02246) with a fixed number of inner
steps. TTSA: M. Hong, H.-T. Wai, Z. Wang, Z. Yang. A two-timescale framework for bilevel
optimization. SIAM J. Optim. 2023, arXiv:2007.05170.

    papers  code                    meaning
    x, y    x, y                    outer and inner variable
    α, β    outer_lr, inner_lr      step sizes
    D, T    inner_rounds            inner steps per round
    Q, N    terms, adjoint          length of the Neumann series, or how else v is found
    η       adjoint_lr              step of StocBiO's series, 1/L in the others
    K       horizon                 rounds that ALSET's step sizes are made for

    method      v                                   step sizes of round k           exchanges
    AID         conjugate gradients, or the sum     α, β                            T + N + 2
    StocBiO     η Σ_n Π (I - η g_yy) f_y, 0..Q      α, β                            T + Q + 2
    ALSET       one product of random length N'     α / √K, β / √K                  T + N' + 2
    TTSA        the same                            α / (k+1)^3/5, β / (k+1)^2/5    1 + N' + 2

and one more in a round that estimates L. On minimax problems there is no v, and a round makes
T + 1; on compositions T + 2. Departures from the papers: conjugate gradients start from zero in
every round, not from the last v; StocBiO's batches are of one size, and f_x has rows of its own;
ALSET's β is chosen by hand, since its theorem's multiple of α needs constants that nobody knows;
TTSA's sizes fall with the round, so that nobody needs to know the last one.
"""

import math
from dataclasses import KW_ONLY

import equinox as eqx

from rookery import check, tree
from rookery.algorithms.fednest.fedihgp import FedIHGP, FedIHGPSum
from rookery.algorithms.nested import AbstractNested, Nested
from rookery.algorithms.parts.federatedcg import FederatedCG
from rookery.algorithms.shared import local
from rookery.algorithms.shared.adjoint import AbstractAdjoint
from rookery.algorithms.shared.lipschitz import Lipschitz, PowerIteration
from rookery.algorithms.shared.schedule import PowerDecay, Rate
from rookery.algorithms.shared.server import ServerSGD, ServerStep
from rookery.program.participation import AbstractParticipation, participation
from rookery.types import Tree


class AID(AbstractNested):
    """Gradient steps inside, then a step along the hypergradient of an approximate adjoint.

    Args:
        outer_lr: α.
        inner_lr: β.
        inner_rounds: T.
        adjoint: how v is found: :class:`FederatedCG`, or :class:`FedIHGPSum` for a Neumann series.
        clients: how many take part in an exchange, a rule that draws them, or None for everyone.
        batch_size: rows per evaluation on a client; None is all its rows.
        inner_start: initial y, in compositions only, where the start is x alone.
    """

    _: KW_ONLY
    outer_lr: float = eqx.field(converter=local.number, default=0.01)
    inner_lr: float = eqx.field(converter=local.number, default=0.1)
    inner_rounds: int = 10
    adjoint: AbstractAdjoint = eqx.field(default_factory=lambda: FederatedCG(iterations=10))
    clients: AbstractParticipation = eqx.field(converter=participation, default=None)
    batch_size: int | None = None
    inner_start: Tree = eqx.field(converter=tree.as_arrays, default=None)

    def parts(self) -> Nested:
        """The server's steps, with the given adjoint."""
        return _of_server(self, self.inner_lr, self.outer_lr, self.inner_rounds, self.adjoint)


class StocBiO(AbstractNested):
    """Stochastic steps inside, and a Neumann series whose every product has a batch of its own.

    Args:
        outer_lr: α.
        inner_lr: β.
        inner_rounds: T.
        terms: Q.
        adjoint_lr: η, below 2 over the largest eigenvalue of the inner Hessian.
        clients: how many take part in an exchange, a rule that draws them, or None for everyone.
        batch_size: rows per evaluation on a client; None is all its rows.
        inner_start: initial y, in compositions only, where the start is x alone.
    """

    _: KW_ONLY
    outer_lr: float = eqx.field(converter=local.number, default=0.01)
    inner_lr: float = eqx.field(converter=local.number, default=0.1)
    inner_rounds: int = 10
    terms: int = 10
    adjoint_lr: float = eqx.field(converter=local.number, default=0.1)
    clients: AbstractParticipation = eqx.field(converter=participation, default=None)
    batch_size: int | None = None
    inner_start: Tree = eqx.field(converter=tree.as_arrays, default=None)

    def __check_init__(self):
        check.positive("adjoint_lr", self.adjoint_lr)

    def parts(self) -> Nested:
        """The server's steps, with the series of step η."""
        adjoint = FedIHGPSum(terms=self.terms, lipschitz=1 / self.adjoint_lr)
        return _of_server(self, self.inner_lr, self.outer_lr, self.inner_rounds, adjoint)


class ALSET(AbstractNested):
    """Stochastic steps inside, a product of random length outside, and sizes made for K rounds.

    Args:
        outer_lr: α; a step has the size α / √K.
        inner_lr: β; a step has the size β / √K.
        horizon: K, the rounds that the run is going to have.
        inner_rounds: T.
        terms: N.
        lipschitz: L, or how to estimate it.
        clients: how many take part in an exchange, a rule that draws them, or None for everyone.
        batch_size: rows per evaluation on a client; None is all its rows.
        inner_start: initial y, in compositions only, where the start is x alone.
    """

    _: KW_ONLY
    outer_lr: float = eqx.field(converter=local.number)
    inner_lr: float = eqx.field(converter=local.number)
    horizon: int
    inner_rounds: int = 10
    terms: int = 10
    lipschitz: Lipschitz = eqx.field(default_factory=PowerIteration)
    clients: AbstractParticipation = eqx.field(converter=participation, default=None)
    batch_size: int | None = None
    inner_start: Tree = eqx.field(converter=tree.as_arrays, default=None)

    def __check_init__(self):
        check.count("horizon", self.horizon)
        check.positive("outer_lr", self.outer_lr)
        check.positive("inner_lr", self.inner_lr)

    def parts(self) -> Nested:
        """The server's steps, with FedIHGP."""
        inner_lr, outer_lr = (lr / math.sqrt(self.horizon) for lr in (self.inner_lr, self.outer_lr))
        adjoint = FedIHGP(terms=self.terms, lipschitz=self.lipschitz)
        return _of_server(self, inner_lr, outer_lr, self.inner_rounds, adjoint)


class TTSA(AbstractNested):
    """One stochastic step inside and one outside, whose sizes fall at two speeds.

    Args:
        outer_lr: α, the outer size of round 0.
        inner_lr: β, the inner size of round 0.
        terms: N.
        lipschitz: L, or how to estimate it.
        clients: how many take part in an exchange, a rule that draws them, or None for everyone.
        batch_size: rows per evaluation on a client; None is all its rows.
        inner_start: initial y, in compositions only, where the start is x alone.
    """

    _: KW_ONLY
    outer_lr: float = eqx.field(converter=local.number)
    inner_lr: float = eqx.field(converter=local.number)
    terms: int = 10
    lipschitz: Lipschitz = eqx.field(default_factory=PowerIteration)
    clients: AbstractParticipation = eqx.field(converter=participation, default=None)
    batch_size: int | None = None
    inner_start: Tree = eqx.field(converter=tree.as_arrays, default=None)

    def parts(self) -> Nested:
        """The server's steps, the inner ones falling more slowly."""
        inner_lr, outer_lr = PowerDecay(self.inner_lr, 2 / 5), PowerDecay(self.outer_lr, 3 / 5)
        return _of_server(
            self, inner_lr, outer_lr, 1, FedIHGP(terms=self.terms, lipschitz=self.lipschitz)
        )


def _of_server(
    algorithm: AID | StocBiO | ALSET | TTSA,
    inner_lr: Rate,
    outer_lr: Rate,
    inner_rounds: int,
    adjoint: AbstractAdjoint,
) -> Nested:
    return Nested(
        inner=ServerSGD(lr=inner_lr),
        outer=ServerStep(lr=outer_lr, hypergradient=adjoint),
        inner_rounds=inner_rounds,
        clients=algorithm.clients,
        batch_size=algorithm.batch_size,
        inner_start=algorithm.inner_start,
    )
