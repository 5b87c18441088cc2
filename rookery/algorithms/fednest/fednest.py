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

and one more in a round that estimates L. Table 2 of the paper counts N for N'; see
:mod:`rookery.algorithms.fednest.accounting`. Departures from the paper: FedIHGPSum is the default,
since a random length is noise that no batch size removes; the first local step is taken without its
two cancelling gradients; in a composition v is the mean of f_y (the paper's N = 1). Step rules may
be optimisers, on the clients; :mod:`~rookery.algorithms.fednest.fedinn` says what is then lost.
"""

from dataclasses import KW_ONLY
from functools import partial
from typing import Unpack

import equinox as eqx
import jax

from rookery import check
from rookery.algorithms.fednest.fedihgp import FedIHGPSum
from rookery.algorithms.fednest.fedinn import FedInnSGD, check_dealt, fedinn
from rookery.algorithms.fednest.fedout import FedOut, fedout
from rookery.algorithms.nested import LocalRoundsSettings, Nested, local_rounds
from rookery.algorithms.shared import local
from rookery.algorithms.shared.adjoint import AbstractAdjoint
from rookery.algorithms.shared.auto import Curvature, DoG
from rookery.algorithms.shared.context import Context
from rookery.algorithms.shared.curvature import at_least, is_measured, measured_for
from rookery.algorithms.shared.levels import TwoLevel
from rookery.algorithms.shared.step_rule import (
    StepRule,
    check_keeping,
    inner_rule,
    kept_opt,
    step_rule,
)
from rookery.algorithms.shared.two_level import Opts, State, TwoLevelAlgorithm
from rookery.algorithms.shared.warm import WarmSeries
from rookery.program.federation import AbstractFederation
from rookery.signature import expands
from rookery.types import Key, Tree


class FedNest(TwoLevelAlgorithm):
    """Alternates drift-free inner rounds with one step along the global hypergradient.

    Args:
        outer_lr: α, the rule of every local step, or a size for the whole call (:class:`PerCall`).
        inner_lr: β, likewise.
        inner_rounds: T, calls of FedInn per round.
        inner_steps: τ of FedInn, one number or one per client.
        outer_steps: τ of FedOut, likewise.
        ihgp: how the inverse Hessian times the outer gradient is estimated; bilevel only. If None
            it is FedIHGPSum, or WarmSeries if L is measured for the inner steps anyway.
        anchor_batch: rows for FedInn's global gradient; None means all.
        dealt: whether FedInn's local steps take batches in turn that were dealt once a call, which
            saves about half of their work, instead of drawing new rows; see :class:`FedInn`.

    >>> FedNest(outer_lr=0.05, inner_lr=0.1, inner_rounds=2, clients=10, batch_size=32).inner_rounds
    2
    """

    _: KW_ONLY
    outer_lr: StepRule = eqx.field(converter=step_rule, default_factory=DoG)
    inner_lr: StepRule = eqx.field(converter=inner_rule, default_factory=Curvature)
    inner_rounds: int = 1
    inner_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)
    outer_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)
    ihgp: AbstractAdjoint | None = None
    anchor_batch: int | None = None
    dealt: bool = False

    def __check_init__(self):
        check_dealt(self.dealt, self.anchor_batch)
        local.check_fields(self, may_be_auto=True)
        check_keeping(self.name, self.clients, self.inner_lr, self.outer_lr)
        check.count("inner_rounds", self.inner_rounds)
        if self.anchor_batch is not None:
            check.count("anchor_batch", self.anchor_batch)

    def check(self, problem: TwoLevel, n_clients: int) -> None:
        """Raise unless the problem has two levels and the settings fit it and the clients."""
        self.check_problem(problem, n_clients)
        local.check_fields(self, n_clients, may_be_auto=True)
        self.adjoint.check(problem, n_clients)

    @property
    def adjoint(self) -> AbstractAdjoint:
        """``ihgp``, or the one that suits the inner steps."""
        if self.ihgp is not None:
            return self.ihgp
        return WarmSeries() if is_measured(self.inner_lr) else FedIHGPSum()

    def first_opts(self, x: Tree, y: Tree) -> Opts:
        """What the clients keep of their optimisers' states, and the adjoint, if anything."""
        own = kept_opt(self.inner_lr, y), kept_opt(self.outer_lr, x)
        return Opts(*own, self.adjoint.first_memory(y))

    @property
    def is_alone(self) -> bool:
        """Whether clients take several steps by themselves."""
        return self.inner_steps != 1 or self.outer_steps != 1

    def round(self, fed: AbstractFederation, problem: TwoLevel, state: State, key: Key) -> State:
        """T times FedInn; then FedIHGP and FedOut."""
        context = Context(fed, problem, self.clients, self.batch_size)
        inner_key, outer_key = jax.random.split(key)
        who, ihgp_key, hyper_key, local_key = jax.random.split(outer_key, 4)
        anchor = {"anchor_batch": self.anchor_batch, "dealt": self.dealt}
        inner = {"lr": self.inner_lr, "steps": self.inner_steps, **anchor}
        outer = {"lr": self.outer_lr, "steps": self.outer_steps}
        of_rule = self.inner_lr, self.adjoint
        opts, ihgp = measured_for(context, *of_rule, state, key, is_alone=self.is_alone)
        inner_opt, outer_opt, _ = opts

        def inner_round(t, carry):
            (y, opt), t_key = carry, jax.random.fold_in(inner_key, t)
            return fedinn(context, state.x, y, opt, t_key, **inner)

        y, inner_opt = fed.repeat(self.inner_rounds, inner_round, (state.y, inner_opt))  # y^{k+1}
        v, L, memory = ihgp.estimate_from(context, state._replace(y=y), ihgp_key)  # FedIHGP
        inner_opt = at_least(self.inner_lr, inner_opt, L)
        keys = (who, hyper_key, local_key)
        x, outer_opt = fedout(context, state.x, y, v, outer_opt, keys, **outer)  # x^{k+1}
        return state._replace(x=x, y=y, lipschitz=L, opts=Opts(inner_opt, outer_opt, memory))


@expands(local_rounds)
def FedNestSGD(
    *, ihgp: AbstractAdjoint | None = None, **settings: Unpack[LocalRoundsSettings]
) -> Nested:
    """FedNest with plain local steps inside: an exchange less per inner round, and a biased y.

    The settings are those of :class:`FedNest`; the inner solver is FedInnSGD.

    >>> FedNestSGD(outer_lr=0.05, inner_lr=0.1).name
    'FedNestSGD'
    """
    if ihgp is None:
        measures = is_measured(inner_rule(settings.get("inner_lr", "auto")))
        ihgp = WarmSeries() if measures else FedIHGPSum()
    outer = partial(FedOut, adjoint=ihgp)
    return local_rounds("FedNestSGD", FedInnSGD, outer, **settings)
