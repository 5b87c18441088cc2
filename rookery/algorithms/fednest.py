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

Cost of a round: 2 T + N' + 3 exchanges with FedIHGP (N' hops drawn), 2 T + N + 3 with FedIHGPSum,
and one more in a round that estimates L. Departures from the paper: FedIHGPSum is the default,
since a random length is noise that no batch size removes; the first local step is taken without its
two cancelling gradients. Here are bilevel problems.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import _check
from rookery._types import Key, Tree
from rookery.algorithms.parts import local
from rookery.algorithms.parts.fedihgp import AbstractIHGP, FedIHGPSum, fedihgp
from rookery.algorithms.parts.fedinn import FedInn
from rookery.algorithms.parts.fedout import FedOut
from rookery.algorithms.parts.lipschitz import lipschitz
from rookery.problem.bilevel import Bilevel
from rookery.program.algorithm import AbstractAlgorithm
from rookery.program.cohort import AbstractParticipation, participation
from rookery.program.federation import AbstractFederation


class FedNestState(NamedTuple):
    """The iterates, and L as last estimated."""

    x: Tree
    y: Tree
    lipschitz: jax.Array


class FedNest(AbstractAlgorithm):
    """Alternates drift-free inner rounds with one step along the global hypergradient.

    Args:
        outer_lr: α, of every local step, or of the whole call (:class:`PerCall`).
        inner_lr: β, likewise.
        inner_rounds: T.
        inner_steps: τ of FedInn, one number or one per client.
        outer_steps: τ of FedOut, likewise.
        ihgp: how the inverse Hessian times the outer gradient is estimated.
        clients: how many take part in an exchange, a rule that draws them, or None for everyone.
        batch_size: rows per stochastic evaluation on a client; None is all its rows.
        anchor_batch: rows for FedInn's global gradient; None is all.
    """

    outer_lr: local.LearningRate = eqx.field(converter=local.learning_rate)
    inner_lr: local.LearningRate = eqx.field(converter=local.learning_rate)
    inner_rounds: int = 1
    inner_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)
    outer_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)
    ihgp: AbstractIHGP = eqx.field(default_factory=FedIHGPSum)
    clients: AbstractParticipation = eqx.field(converter=participation, default=None)
    batch_size: int | None = None
    anchor_batch: int | None = None

    def __check_init__(self):
        local.check_learning_rate("outer_lr", self.outer_lr)
        local.check_learning_rate("inner_lr", self.inner_lr)
        _check.count("inner_rounds", self.inner_rounds)
        local.check_local_steps("inner_steps", self.inner_steps)
        local.check_local_steps("outer_steps", self.outer_steps)
        for name in ("batch_size", "anchor_batch"):
            if getattr(self, name) is not None:
                _check.count(name, getattr(self, name))

    def check(self, problem: Bilevel, n_clients: int) -> None:
        """Raise unless the problem is bilevel and there are enough clients."""
        if not isinstance(problem, Bilevel):
            raise TypeError(f"FedNest solves Bilevel problems, got {type(problem).__name__}.")
        self.clients.check(n_clients)
        local.check_local_steps("inner_steps", self.inner_steps, n_clients)
        local.check_local_steps("outer_steps", self.outer_steps, n_clients)

    def init(self, problem: Bilevel, x: Tree, y: Tree) -> FedNestState:
        """The given iterates; L is set in round 0."""
        return FedNestState(x, y, jnp.zeros((), jnp.result_type(*jax.tree.leaves(y))))

    def round(
        self, fed: AbstractFederation, problem: Bilevel, state: FedNestState, key: Key
    ) -> FedNestState:
        """T calls of FedInn, then FedIHGP, then FedOut."""
        x, y, L = state
        inner_key, lipschitz_key, ihgp_key, outer_key = jax.random.split(key, 4)
        fedinn = FedInn(
            self.inner_lr, self.inner_steps, self.clients, self.batch_size, self.anchor_batch
        )
        fedout = FedOut(self.outer_lr, self.outer_steps, self.clients, self.batch_size)
        sampling = (self.clients, self.batch_size)

        def inner_round(t, y):
            return fedinn(fed, problem, x, y, jax.random.fold_in(inner_key, t))

        y = fed.repeat(self.inner_rounds, inner_round, y)
        L = lipschitz(fed, problem, x, y, self.ihgp.lipschitz, L, *sampling, lipschitz_key)
        v = fedihgp(fed, problem, x, y, self.ihgp, L, *sampling, ihgp_key)
        x = fedout(fed, problem, x, y, v, outer_key)
        return FedNestState(x, y, L)

    def solution(self, state: FedNestState) -> tuple[Tree, Tree]:
        """(x, y)."""
        return state.x, state.y
