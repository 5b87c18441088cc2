"""The family that FedNest and FedMBO belong to: some inner rounds, then one outer step.

Any inner solver goes with any outer step. :class:`FedNest` and :class:`FedMBO` are written out in
files of their own; other papers are functions that return a configured ``Nested``.

    inner       FedInn, FedInnSGD, ServerSGD
    outer       FedOut(adjoint), LFedOut(local adjoint), ServerStep(hypergradient)
    adjoint     FedIHGP, FedIHGPSum, FederatedCG; each of them is also a hypergradient, as are PHE
                and PHESum; LocalNeumann and LocalNeumannSum are local adjoints

Cost of a round: T times the inner part's exchanges, plus the outer part's.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Literal, Unpack

import jax

from rookery import check
from rookery.algorithms.shared import local
from rookery.algorithms.shared.context import Context
from rookery.algorithms.shared.curvature import measured_for
from rookery.algorithms.shared.levels import TwoLevel
from rookery.algorithms.shared.server import ServerSGD, ServerStep
from rookery.algorithms.shared.step_rule import StepRule, inner_rule, step_rule
from rookery.algorithms.shared.two_level import (
    AbstractHypergradient,
    AbstractInner,
    AbstractOuter,
    Opts,
    State,
    TwoLevelAlgorithm,
    TwoLevelSettings,
)
from rookery.program.federation import AbstractFederation
from rookery.program.memory import check_rule
from rookery.signature import expands
from rookery.types import Key, Tree


class Nested(TwoLevelAlgorithm):
    """Alternates calls of an inner solver with one outer step.

    Args:
        inner: the inner solver.
        outer: the outer step.
        inner_rounds: T, calls of the inner solver per round.

    >>> import rookery as rk
    >>> inner = rk.parts.FedInn(lr=0.1, local_steps=5)
    >>> Nested(inner=inner, outer=rk.parts.LFedOut(lr=0.05), inner_rounds=2).inner_rounds
    2
    """

    _: KW_ONLY
    inner: AbstractInner
    outer: AbstractOuter
    inner_rounds: int = 1

    def __check_init__(self):
        check.count("inner_rounds", self.inner_rounds)
        check.typed("inner", self.inner, AbstractInner)
        check.typed("outer", self.outer, AbstractOuter)
        if self.inner.is_keeping or self.outer.is_keeping:
            check_rule(f"{self.name} with keep=True", self.clients)

    def check(self, problem: TwoLevel, n_clients: int) -> None:
        """Raise unless the problem has two levels and all parts fit it and the clients."""
        self.check_problem(problem, n_clients)
        self.inner.check(n_clients)
        self.outer.check(problem, n_clients)

    def first_opts(self, x: Tree, y: Tree) -> Opts:
        """What the two parts carry from round to round."""
        own = self.inner.first_opt(y), self.outer.first_opt(x)
        return Opts(*own, self.outer.first_memory(y))

    @property
    def is_alone(self) -> bool:
        """Whether clients take several steps by themselves."""
        return any(getattr(part, "local_steps", 1) != 1 for part in (self.inner, self.outer))

    def round(self, fed: AbstractFederation, problem: TwoLevel, state: State, key: Key) -> State:
        """T calls of the inner solver, then the outer step."""
        context = Context(fed, problem, self.clients, self.batch_size)
        inner_key, outer_key = jax.random.split(key)
        of_rule = self.inner.rule, self.outer
        opts, outer = measured_for(context, *of_rule, state, key, is_alone=self.is_alone)

        def inner_round(t, carry):
            y, opt = carry
            return self.inner(context, state.x, y, opt, jax.random.fold_in(inner_key, t))

        y, opt = fed.repeat(self.inner_rounds, inner_round, (state.y, opts.inner))
        state = state._replace(y=y, opts=opts._replace(inner=opt))
        return outer(context, state, outer_key)


class LocalRoundsSettings(TwoLevelSettings, total=False):
    """The settings of :func:`local_rounds`."""

    outer_lr: StepRule | Literal["auto"]
    inner_lr: StepRule | Literal["auto"]
    inner_rounds: int
    inner_steps: local.LocalSteps
    outer_steps: local.LocalSteps


@expands(TwoLevelAlgorithm)
def local_rounds(
    label: str,
    inner: Callable[..., AbstractInner],
    outer: Callable[..., AbstractOuter],
    /,
    *,
    outer_lr: StepRule | Literal["auto"] = "auto",
    inner_lr: StepRule | Literal["auto"] = "auto",
    inner_rounds: int = 1,
    inner_steps: local.LocalSteps = 1,
    outer_steps: local.LocalSteps = 1,
    **shared: Unpack[TwoLevelSettings],
) -> Nested:
    """T rounds of local inner steps, then one round of local outer steps, as ``label``."""
    rules = {"outer_lr": step_rule(outer_lr), "inner_lr": inner_rule(inner_lr)}
    local.check_settings(rules, may_be_auto=True)
    local.check_settings({"inner_steps": inner_steps, "outer_steps": outer_steps})
    return Nested(
        label=label,
        inner=inner(lr=inner_lr, local_steps=inner_steps),
        outer=outer(lr=outer_lr, local_steps=outer_steps),
        inner_rounds=inner_rounds,
        **shared,
    )


class ServerStepsSettings(TwoLevelSettings, total=False):
    """The settings of :func:`server_steps`."""

    outer_lr: StepRule | Literal["auto"]
    inner_lr: StepRule | Literal["auto"]
    inner_rounds: int


@expands(TwoLevelAlgorithm)
def server_steps(
    label: str,
    adjoint: AbstractHypergradient,
    /,
    *,
    outer_lr: StepRule | Literal["auto"] = 0.01,
    inner_lr: StepRule | Literal["auto"] = 0.1,
    inner_rounds: int = 10,
    **shared: Unpack[TwoLevelSettings],
) -> Nested:
    """T steps of :class:`ServerSGD`, then one :class:`ServerStep`, as the algorithm ``label``."""
    rules = {"outer_lr": step_rule(outer_lr), "inner_lr": inner_rule(inner_lr)}
    local.check_settings(rules, place="server", may_be_auto=True)
    return Nested(
        label=label,
        inner=ServerSGD(lr=inner_lr),
        outer=ServerStep(lr=outer_lr, hypergradient=adjoint),
        inner_rounds=inner_rounds,
        **shared,
    )
