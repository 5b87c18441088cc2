"""LFedNest: the light relatives of FedNest, whose clients use hypergradients of their own.

D. A. Tarzanagh, M. Li, C. Thrampoulidis, S. Oymak. ICML 2022, arXiv:2205.02215, algorithms 4 to 6.

    paper   code                            meaning
    x, y    x, y                            outer and inner variable
    α, β    outer_lr, inner_lr              step sizes
    T       inner_rounds                    inner calls per round
    τ       inner_steps, outer_steps        local steps between two averages
    N       adjoint.terms                   length of the Neumann series, on the client
    ℓ_g,1   adjoint.lipschitz               largest eigenvalue of the client's inner Hessian
    S       clients                         who takes part in an exchange

Cost of a round in exchanges, whatever the problem and the adjoint: LFedNest T + 1, LFedNestSVRG
2 T + 1, LFedNestNonAlt 1. Where clients differ, all three come to rest beside the solution, at a
zero of the mean of local hypergradients. Departures from the paper: LocalNeumannSum is the default;
algorithm 5 needs f_y(x_ν, y) where it prints f_x(y_ν, y).
"""

from dataclasses import KW_ONLY

import equinox as eqx
import jax

from rookery import check, tree
from rookery.algorithms.fednest.fedinn import FedInn, FedInnSGD, own_inner_steps
from rookery.algorithms.fednest.lfedout import (
    AbstractLocalAdjoint,
    LFedOut,
    LocalNeumannSum,
    own_outer_steps,
)
from rookery.algorithms.nested import (
    AbstractNested,
    Nested,
    State,
    initial_state,
    solution_of,
)
from rookery.algorithms.shared import local
from rookery.algorithms.shared.levels import TwoLevel, check_two_levels
from rookery.algorithms.shared.lipschitz import REMEDY
from rookery.program.algorithm import AbstractAlgorithm
from rookery.program.federation import AbstractFederation, Client
from rookery.program.participation import AbstractParticipation, participation
from rookery.types import Key, Tree


class LFedNest(AbstractNested):
    """Alternates plain local inner rounds with one round of local outer steps.

    Args:
        outer_lr: α, of every local step, or of the whole call (:class:`PerCall`).
        inner_lr: β, likewise.
        inner_rounds: T.
        inner_steps: τ of FedInnSGD, one number or one per client.
        outer_steps: τ of LFedOut, likewise.
        adjoint: how a client estimates its own adjoint; bilevel only.
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
    adjoint: AbstractLocalAdjoint = eqx.field(default_factory=LocalNeumannSum)
    clients: AbstractParticipation = eqx.field(converter=participation, default=None)
    batch_size: int | None = None
    inner_start: Tree = eqx.field(converter=tree.as_arrays, default=None)

    def parts(self) -> Nested:
        """FedInnSGD, T times, and LFedOut."""
        return Nested(
            inner=FedInnSGD(lr=self.inner_lr, local_steps=self.inner_steps),
            outer=LFedOut(lr=self.outer_lr, local_steps=self.outer_steps, adjoint=self.adjoint),
            inner_rounds=self.inner_rounds,
            clients=self.clients,
            batch_size=self.batch_size,
            inner_start=self.inner_start,
        )


class LFedNestSVRG(AbstractNested):
    """LFedNest with FedNest's drift-free inner rounds.

    Args:
        outer_lr: α, of every local step, or of the whole call (:class:`PerCall`).
        inner_lr: β, likewise.
        inner_rounds: T.
        inner_steps: τ of FedInn, one number or one per client.
        outer_steps: τ of LFedOut, likewise.
        adjoint: how a client estimates its own adjoint; bilevel only.
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
    adjoint: AbstractLocalAdjoint = eqx.field(default_factory=LocalNeumannSum)
    clients: AbstractParticipation = eqx.field(converter=participation, default=None)
    batch_size: int | None = None
    anchor_batch: int | None = None
    inner_start: Tree = eqx.field(converter=tree.as_arrays, default=None)

    def parts(self) -> Nested:
        """FedInn, T times, and LFedOut."""
        return Nested(
            inner=FedInn(
                lr=self.inner_lr, local_steps=self.inner_steps, anchor_batch=self.anchor_batch
            ),
            outer=LFedOut(lr=self.outer_lr, local_steps=self.outer_steps, adjoint=self.adjoint),
            inner_rounds=self.inner_rounds,
            clients=self.clients,
            batch_size=self.batch_size,
            inner_start=self.inner_start,
        )


class LFedNestNonAlt(AbstractAlgorithm):
    """Both levels in one exchange: a client's outer steps follow on its own inner steps.

    Args:
        outer_lr: α, of every local step, or of the whole call (:class:`PerCall`).
        inner_lr: β, likewise.
        inner_steps: T τ, all inner steps of a round, one number or one per client.
        outer_steps: τ of the outer steps, likewise.
        adjoint: how a client estimates its own adjoint; bilevel only.
        clients: how many take part in an exchange, a rule that draws them, or None for everyone.
        batch_size: rows per stochastic evaluation on a client; None is all its rows.
        inner_start: initial y, in compositions only, where the start is x alone.
    """

    _: KW_ONLY
    outer_lr: local.LearningRate = eqx.field(converter=local.number)
    inner_lr: local.LearningRate = eqx.field(converter=local.number)
    inner_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)
    outer_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)
    adjoint: AbstractLocalAdjoint = eqx.field(default_factory=LocalNeumannSum)
    clients: AbstractParticipation = eqx.field(converter=participation, default=None)
    batch_size: int | None = None
    inner_start: Tree = eqx.field(converter=tree.as_arrays, default=None)

    def __check_init__(self):
        local.check_fields(self)
        if self.batch_size is not None:
            check.count("batch_size", self.batch_size)

    def check(self, problem: TwoLevel, n_clients: int) -> None:
        """Raise unless the problem has two levels and the settings fit the clients."""
        check_two_levels("LFedNestNonAlt", problem)
        local.check_fields(self, n_clients)
        self.clients.check(n_clients)

    def init(self, problem: TwoLevel, x: Tree, y: Tree = None) -> State:
        """The given iterates."""
        return initial_state(problem, x, y, self.inner_start)

    def round(self, fed: AbstractFederation, problem: TwoLevel, state: State, key: Key) -> State:
        """One exchange, with all the work on the clients."""
        x, y, L = state
        who, local_key = jax.random.split(key)
        cohort = fed.sample(self.clients, who)
        x, y = fed.broadcast(cohort, x, y)  # -------------------------------- down  x, y
        both = fed.map(joint_steps, x, y, key=local_key, problem=problem, algorithm=self)
        with fed.outer():
            x, y = fed.mean(both)  # ----------------------------------------- up    x, y
        return type(state)(x, y, L)

    def solution(self, state: State) -> tuple[Tree, ...]:
        """(x, y), or (x,) of a composition."""
        return solution_of(state)

    def remedy(self) -> str:
        """A smaller step, or a larger L."""
        return REMEDY


def joint_steps(
    client: Client, x: Tree, y: Tree, *, problem: TwoLevel, algorithm: LFedNestNonAlt
) -> tuple[Tree, Tree]:
    """The client's own y_i by plain steps, and then its own x_i at that y_i."""
    inner_key, outer_key = jax.random.split(client.key)
    rows = algorithm.batch_size
    inner = FedInnSGD(lr=algorithm.inner_lr, local_steps=algorithm.inner_steps)
    outer = LFedOut(
        lr=algorithm.outer_lr, local_steps=algorithm.outer_steps, adjoint=algorithm.adjoint
    )
    y_i = own_inner_steps(client, problem, x, y, rows, inner, inner_key)
    return own_outer_steps(client, problem, x, y_i, rows, outer, outer_key), y_i
