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
2 T + 1, LFedNestNonAlt 1. Where clients differ, all three converge to a biased point, a zero of the
mean of local hypergradients. Departures from the paper: LocalNeumannSum is the default;
algorithm 5 needs f_y(x_ν, y) where it prints f_x(y_ν, y).
"""

from dataclasses import KW_ONLY
from functools import partial
from typing import Unpack

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery.algorithms.fednest.fedinn import FedInn, FedInnSGD, own_inner_steps
from rookery.algorithms.fednest.local_part import AbstractLocalPart
from rookery.algorithms.nested import LocalRoundsSettings, Nested, local_rounds
from rookery.algorithms.shared import local
from rookery.algorithms.shared.adjoint import own_piece
from rookery.algorithms.shared.auto import ServerOpts
from rookery.algorithms.shared.context import Context
from rookery.algorithms.shared.levels import TwoLevel
from rookery.algorithms.shared.local import LocalPlan
from rookery.algorithms.shared.local_adjoint import (
    AbstractLocalAdjoint,
    LocalNeumannSum,
    own_adjoint,
)
from rookery.algorithms.shared.step_rule import (
    StepRule,
    check_keeping,
    direction_of,
    is_auto,
    kept_opts,
    observed,
    opts_to_keep,
    starting_opts,
    step_rule,
)
from rookery.algorithms.shared.system import LocalSystem
from rookery.algorithms.shared.two_level import (
    AbstractOuter,
    Opts,
    State,
    TwoLevelAlgorithm,
)
from rookery.problem.constraints import projected, projection
from rookery.program.federation import AbstractFederation, Client, Placed
from rookery.signature import expands
from rookery.types import BatchSize, Count, Key, Tree


class LFedOut(AbstractLocalPart, AbstractOuter):
    """One outer round in one exchange, each client along its own hypergradient (algorithm 5).

    The mean of the clients' hypergradients is not the hypergradient of the means: where clients
    differ, LFedOut converges to a biased point.

    Args:
        lr: α, the rule of every local step, or a size for the whole call (:class:`PerCall`).
        local_steps: τ, one number or one per client.
        adjoint: how a client estimates its own inverse Hessian times its own outer gradient.

    >>> LFedOut(lr=0.1, local_steps=3).adjoint.terms
    5
    """

    _: KW_ONLY
    adjoint: AbstractLocalAdjoint = eqx.field(default_factory=LocalNeumannSum)

    def __call__(self, context, state, key):
        """The state with the x of one round."""
        who, local_key = jax.random.split(key)
        fed, cohort = context.fed, context.sample(who)
        x, y = fed.broadcast(cohort, state.x, state.y)  # -------------------- down  x, y
        how = {"key": local_key, "lr": self.lr, "steps": self.local_steps, "adjoint": self.adjoint}
        opt = self._first_size(context, x, y, state, local_key)
        x_i, opt = context.map_steps(cohort, opt, local_outer_steps, x, y, **how)
        with fed.outer():
            x = fed.mean(x_i, around=x)  # ----------------------------------- up    x
        x = projected(context.problem, "x", x)
        if isinstance(opt, ServerOpts):
            opt = observed(self.lr, direction_of(self.lr, opt.opts, state.x, x), opt, x)
        return state._replace(x=x, opts=state.opts._replace(outer=opt))

    def _first_size(self, context: Context, x: Placed, y: Placed, state: State, key: Key) -> Tree:
        """The state of a rule that finds its size; round 0 asks for the clients' directions."""
        if not is_auto(self.lr):
            return state.opts.outer
        fed = context.fed

        def first(opt):
            how = {"key": jax.random.fold_in(key, 1), "adjoint": self.adjoint}
            h = fed.mean(context.map(local_direction, x, y, **how))  # -------- up    h_i
            return observed(self.lr, h, opt, state.x)

        return fed.when(jnp.asarray(fed.round) == 0, first, state.opts.outer)

    def check(self, problem, n_clients):
        """Numbers of local steps must fit the clients."""
        self.check_steps(n_clients)


def local_outer_steps(
    client: Client,
    x: Tree,
    y: Tree,
    opt: Tree = None,
    *,
    plan: LocalPlan,
    adjoint: AbstractLocalAdjoint,
    round: Count,
) -> tuple[Tree, Tree]:
    """x_{i,ν+1} = x_{i,ν} - α_i h_i(x_{i,ν}, y)  with the client's own adjoint at x_{i,ν}."""
    at = LocalSystem(client, plan.problem, x, y, plan.batch_size)
    return own_outer_steps(at, plan, adjoint, client.key, round, opt)


def local_direction(
    client: Client,
    x: Tree,
    y: Tree,
    *,
    problem: TwoLevel,
    batch_size: BatchSize,
    adjoint: AbstractLocalAdjoint,
) -> Tree:
    """The client's own hypergradient at (x, y)."""
    at, (adjoint_key, key) = (
        LocalSystem(client, problem, x, y, batch_size),
        jax.random.split(client.key),
    )
    first_key, piece_key = jax.random.split(key)
    return own_piece(at, own_adjoint(at, adjoint, adjoint_key)(x, first_key), piece_key)


def own_outer_steps(
    at: LocalSystem, plan: LocalPlan, how: AbstractLocalAdjoint, key: Key, round: Count, opt: Tree
) -> tuple[Tree, Tree]:
    """The client's outer variable after its local steps from x, and its rule's state."""
    steps_key, adjoint_key = jax.random.split(key)
    adjoint = own_adjoint(at, how, adjoint_key)

    def hypergradient(x_i, key):
        adjoint_key, piece_key = jax.random.split(key)
        v = adjoint(x_i, adjoint_key)
        return own_piece(at.moved_to(x_i), v, piece_key)

    lr, steps = plan.lr, plan.steps
    rest = {"project": projection(plan.problem, "x"), "round": round, "opt": opt}
    return local.plain_steps(at.client, hypergradient, at.x, lr, steps, steps_key, **rest)


@expands(local_rounds)
def LFedNest(
    *,
    adjoint: AbstractLocalAdjoint | None = None,
    **settings: Unpack[LocalRoundsSettings],
) -> Nested:
    """Alternates plain local inner rounds with one round of local outer steps.

    The settings are those of :class:`FedNest`, with FedInnSGD (algorithm 6) inside and LFedOut
    (algorithm 5) outside; ``adjoint`` is how a client estimates its own adjoint, bilevel only.

    >>> LFedNest(outer_lr=0.05, inner_lr=0.1, inner_steps=5).name
    'LFedNest'
    """
    outer = partial(LFedOut, adjoint=adjoint or LocalNeumannSum())
    return local_rounds("LFedNest", FedInnSGD, outer, **settings)


@expands(local_rounds)
def LFedNestSVRG(
    *,
    adjoint: AbstractLocalAdjoint | None = None,
    anchor_batch: int | None = None,
    **settings: Unpack[LocalRoundsSettings],
) -> Nested:
    """LFedNest with FedNest's drift-free inner rounds.

    The settings are those of :func:`LFedNest`; ``anchor_batch`` is the rows of FedInn's global
    gradient, None for all.

    >>> LFedNestSVRG(outer_lr=0.05, inner_lr=0.1, anchor_batch=64).name
    'LFedNestSVRG'
    """
    outer = partial(LFedOut, adjoint=adjoint or LocalNeumannSum())
    inner = partial(FedInn, anchor_batch=anchor_batch)
    return local_rounds("LFedNestSVRG", inner, outer, **settings)


class LFedNestNonAlt(TwoLevelAlgorithm):
    """Both levels in one exchange: a client's outer steps start from its own inner steps.

    Args:
        outer_lr: α, the rule of every local step, or a size for the whole call (:class:`PerCall`).
        inner_lr: β, likewise.
        inner_steps: T τ, all inner steps of a round, one number or one per client.
        outer_steps: τ of the outer steps, likewise.
        adjoint: how a client estimates its own adjoint; bilevel only.

    >>> LFedNestNonAlt(outer_lr=0.05, inner_lr=0.1, inner_steps=10).inner_steps
    10
    """

    _: KW_ONLY
    outer_lr: StepRule = eqx.field(converter=step_rule)
    inner_lr: StepRule = eqx.field(converter=step_rule)
    inner_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)
    outer_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)
    adjoint: AbstractLocalAdjoint = eqx.field(default_factory=LocalNeumannSum)

    def __check_init__(self):
        local.check_fields(self)
        check_keeping(self.name, self.clients, self.inner_lr, self.outer_lr)

    def check(self, problem: TwoLevel, n_clients: int) -> None:
        """Raise unless the problem has two levels and the settings fit the clients."""
        self.check_problem(problem, n_clients)
        local.check_fields(self, n_clients)

    @property
    def is_alone(self) -> bool:
        """All steps are the clients'."""
        return True

    def first_opts(self, x: Tree, y: Tree) -> Opts:
        """What the clients keep of both optimisers' states together, if anything."""
        return Opts(kept_opts((self.inner_lr, self.outer_lr), (y, x)), ())

    def round(self, fed: AbstractFederation, problem: TwoLevel, state: State, key: Key) -> State:
        """One exchange, with all the work on the clients."""
        who, local_key = jax.random.split(key)
        cohort = fed.sample(self.clients, who)
        x, y = fed.broadcast(cohort, state.x, state.y)  # -------------------- down  x, y
        how, kept = {"key": local_key, "problem": problem, "algorithm": self}, state.opts.inner
        both, kept = local.map_steps(fed, cohort, kept, joint_steps, x, y, **how)
        with fed.outer():
            x, y = fed.mean(both, around=(x, y))  # -------------------------- up    x, y
        x, y = projected(problem, "x", x), projected(problem, "y", y)
        return state._replace(x=x, y=y, opts=Opts(kept, ()))


def joint_steps(
    client: Client,
    x: Tree,
    y: Tree,
    kept: tuple[Tree, Tree] | None = None,
    *,
    problem: TwoLevel,
    algorithm: LFedNestNonAlt,
    round: Count,
) -> tuple[tuple[Tree, Tree], tuple[Tree, ...]]:
    """The client's own y_i by plain steps, then its own x_i at that y_i; and what it keeps."""
    inner_key, outer_key = jax.random.split(client.key)
    rules, batch_size = (algorithm.inner_lr, algorithm.outer_lr), algorithm.batch_size
    y_opt, x_opt = starting_opts(rules, (y, x), kept)
    at = LocalSystem(client, problem, x, y, batch_size)
    inner = LocalPlan(problem, batch_size, algorithm.inner_lr, algorithm.inner_steps)
    y_i, y_opt = own_inner_steps(at, inner, inner_key, round, y_opt)
    at = LocalSystem(client, problem, x, projected(problem, "y", y_i), batch_size)
    outer = LocalPlan(problem, batch_size, algorithm.outer_lr, algorithm.outer_steps)
    x_i, x_opt = own_outer_steps(at, outer, algorithm.adjoint, outer_key, round, x_opt)
    return (x_i, y_i), opts_to_keep(rules, (y_opt, x_opt))
