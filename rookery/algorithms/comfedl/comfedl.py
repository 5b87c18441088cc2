"""ComFedL: local steps on compositions whose two levels are the client's own.

F. Huang, J. Li. Compositional federated learning: applications in distributionally robust averaging
and meta learning. 2021, arXiv:2106.11264.

    paper       code                    meaning
    w, w̄        w                       a client's model, and the server's
    f^i, g^i    problem                 inner and outer function of a client
    η           lr                      rule of the local steps
    τ           local_steps             local steps between two averages
    b, b_1      batch_size,             rows for the inner and for the outer function
                outer_batch_size
    γ           gamma                   how much the worst client counts: the smaller, the more
    η again     adapt_lr                step size a of the adaptation, which belongs to the problem
    C_s         clients                 who takes part in an exchange

A local step subtracts  η u,  where, with B and B~ independent batches,

    problem           gamma  u
    LocalComposition  -      J f_B(w)' grad g_B~(f_B(w))                     general, eq. (11)
    Meta              -      (I - a Hess f_B(w)) grad f_B~(v)                MAML, eq. (7)
    SingleLevel       yes    weight(f_B(w)) grad f_B(w)                      DRFL, eq. (6)
    Meta              yes    weight(f_B~(v)) (I - a Hess f_B(w)) grad f_B~(v)  DAMAML, eq. (10)

v = w - a grad f_B(w) is the adapted model, and weight is exp(f / γ) / γ in the paper; see
``weighting.py``. The paper's special version, for an outer function that depends on no example, is
``shared_batch``.

    weighting                           exchanges   down        up
    none, PrintedWeights                1           w           w
    ShiftedWeights, NormalisedWeights   2           w, number   number, w
    NormalisedWeights(stale_scalar)     1           w, number   w, number
      in its first round                2           w, number   number, w, number

per client that takes part. Work of a local step, with b rows inside and b_1 outside:

    LocalComposition    b + b_1 gradients
    Meta                b + b_1 gradients, b Hessian-vector products (``hessian`` says otherwise)
    SingleLevel         b gradients

A level costs losses, which are not counted, and on a Meta problem, whose losses are those after
adaptation, one gradient per row of every client of the cohort: all its rows unless the weighting
has a batch_size. The first round of a stale level costs this twice.

Departures from the paper: weights are normalised by default, since those printed overflow; for
others see the weightings. The losses of a level are taken on all rows of a client.
"""

from dataclasses import KW_ONLY
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import tree
from rookery.algorithms.comfedl.weighting import AbstractWeighting, NormalisedWeights
from rookery.algorithms.shared import local
from rookery.algorithms.shared.auto import DoG, ServerOpts
from rookery.algorithms.shared.curvature import along, bounded
from rookery.algorithms.shared.meta_hessian import AbstractHessian, ExactHessian, meta_gradient
from rookery.algorithms.shared.model import check_server_rule, move_to_mean
from rookery.algorithms.shared.schedule import number
from rookery.algorithms.shared.step_rule import (
    StepRule,
    check_keeping,
    check_no_curvature,
    direction_of,
    first_opt,
    is_auto,
    kept_opt,
    observed,
    step_rule,
)
from rookery.problem.composition import LocalComposition
from rookery.problem.constraints import projected, projection
from rookery.problem.meta import Meta
from rookery.problem.single_level import SingleLevel
from rookery.program.algorithm import SMALLER_STEP, SampledAlgorithm
from rookery.program.federation import AbstractFederation, Client, Placed, Step
from rookery.types import Count, Key, Problem, Sample, Tree

Solved = SingleLevel | Meta | LocalComposition
"""The problems of ComFedL."""


class ComFedLState(NamedTuple):
    """The model, what the weighting keeps from round to round, and the states of the step rules.

    ``opt`` is that of the server's, ``own_opt`` what the clients keep of their own, if anything.
    """

    w: Tree
    kept: Tree
    opt: Tree = ()
    own_opt: Tree = ()


class ComFedL(SampledAlgorithm):
    """Local steps along the client's composed gradient; the models are averaged.

    ``batch_size`` is b, rows of the inner function per local step.

    >>> import rookery as rk
    >>> rk.ComFedL(lr=0.01, local_steps=5, gamma=0.5, clients=10).gamma
    0.5

    Args:
        lr: η, the rule of every local step, or a size for the whole round (:class:`PerCall`). An
            optimiser such as Adam takes out the scale of a client's gradient, and with it what
            ``gamma`` does to the client's weight within the round.
        local_steps: τ, one number or one per client.
        server_lr: step rule of the server, which takes  w - (mean of the clients' models)  for a
            gradient; None makes the mean the new model.
        gamma: γ of distributionally robust learning, on SingleLevel and Meta problems; None, on
            LocalComposition and Meta problems, counts all clients alike. ``inf`` does so too, on
            SingleLevel problems as well, where the steps are then those of FedAvg; it needs
            NormalisedWeights, since the others divide the step by γ.
        weighting: :class:`NormalisedWeights`, :class:`ShiftedWeights` or :class:`PrintedWeights`;
            with a gamma only. NormalisedWeights if not given.
        hessian: how the Hessian is treated, on Meta problems only; :class:`ExactHessian` if not
            given.
        outer_batch_size: b_1, rows of the outer function per local step; None means ``batch_size``.
        shared_batch: whether one batch serves both functions, as in the paper's special version.
            It is exact for an outer function that does not depend on examples, and biased for
            others. Both functions must then use the same split.
    """

    projects: ClassVar[bool] = True

    _: KW_ONLY
    lr: StepRule = eqx.field(converter=step_rule, default_factory=DoG)
    local_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)
    gamma: float | None = eqx.field(converter=number, default=None)
    weighting: AbstractWeighting | None = None
    hessian: AbstractHessian | None = None
    outer_batch_size: int | None = None
    shared_batch: bool = False
    server_lr: StepRule | None = eqx.field(converter=step_rule, default=None)

    def __check_init__(self):
        local.check_fields(self, except_for=("server_lr",), may_be_auto=True)
        check_no_curvature("ComFedL", "lr", self.lr)
        check_server_rule(self.server_lr)
        check_keeping(self.name, self.clients, self.lr)
        if self.gamma is not None:
            self.weights.check_gamma(self.gamma)
        elif self.weighting is not None:
            raise ValueError("weighting says how gamma is used; give a gamma, or no weighting.")
        if self.shared_batch and self.outer_batch_size is not None:
            raise ValueError("a shared batch has batch_size rows; leave out outer_batch_size.")

    def check(self, problem: Problem, n_clients: int) -> None:
        """Raise unless the problem, with or without gamma, is one of the four in the table."""
        local.check_fields(self, n_clients, except_for=("server_lr",), may_be_auto=True)
        self.clients.check(n_clients)
        match problem:
            case SingleLevel() | LocalComposition() if self.hessian is not None:
                raise ValueError(
                    f"hessian is for Meta problems; leave it out on a {type(problem).__name__}."
                )
            case SingleLevel() if self.gamma is None:
                raise ValueError(
                    "a SingleLevel problem has no composition unless a gamma makes it robust. Give "
                    "ComFedL a gamma, or use FedAvg."
                )
            case SingleLevel() if self.shared_batch or self.outer_batch_size is not None:
                raise ValueError(
                    "on a SingleLevel problem only the inner function takes rows; leave out "
                    "outer_batch_size and shared_batch."
                )
            case LocalComposition() if self.gamma is not None:
                raise ValueError(
                    "a LocalComposition has its outer function already. Leave out gamma, or, to "
                    "be robust in a loss, make it a SingleLevel or a Meta problem."
                )
            case Meta() | LocalComposition() if (
                self.shared_batch and problem.inner_split != problem.outer_split
            ):
                raise ValueError(
                    "a shared batch comes from one split, and the problem has two: "
                    f"{problem.inner_split!r} inside, {problem.outer_split!r} outside."
                )
            case SingleLevel() | LocalComposition() | Meta():
                return
        raise TypeError(
            "ComFedL solves LocalComposition, Meta and SingleLevel problems, got "
            f"{type(problem).__name__}."
        )

    def init(self, problem: Solved, w: Tree) -> ComFedLState:
        """The given model; no optimiser has taken a step."""
        kept = None if self.gamma is None else self.weights.init(w)
        return ComFedLState(w, kept, first_opt(self.server_lr, w), kept_opt(self.lr, w))

    def round(
        self, fed: AbstractFederation, problem: Solved, state: ComFedLState, key: Key
    ) -> ComFedLState:
        """One exchange, or two if the weighting needs the losses of this round first."""
        who, local_key = jax.random.split(key)
        settings = {"key": local_key, "problem": problem, "algorithm": self}
        cohort = fed.sample(self.clients, who)
        w, opt = fed.broadcast(cohort, state.w), state.own_opt  # ------------ down  w
        if self.gamma is None:
            opt = self._bounded(fed, composed_curvature, (w,), opt, settings)
            opt = self._first_size(fed, composed_direction, (w,), opt, state.w, settings)
            own, opt = local.map_steps(fed, cohort, opt, composed_steps, w, **settings)
            mean = fed.mean(own, around=w)  # -------------------------------- up    w
            return self._server_step(fed, problem, state._replace(own_opt=opt), mean)

        def losses():
            return fed.map(first_loss, w, **settings)

        level, kept = self.weights.level(fed, cohort, losses, self.gamma, state.kept)
        level = fed.broadcast(cohort, level)  # ------------------------------ down  level, if any
        opt = self._bounded(fed, weighted_curvature, (w, level), opt, settings)
        opt = self._first_size(fed, weighted_direction, (w, level), opt, state.w, settings)
        both, opt = local.map_steps(fed, cohort, opt, weighted_steps, w, level, **settings)
        mean, report = fed.mean(both, around=(w, None))  # ------------------- up    w, any report
        kept = self.weights.after(report, self.gamma, kept)
        return self._server_step(fed, problem, state._replace(kept=kept, own_opt=opt), mean)

    def solution(self, state: ComFedLState) -> tuple[Tree]:
        """(w,)."""
        return (state.w,)

    def remedy(self) -> str:
        """What the weighting advises."""
        if self.gamma is None:
            return SMALLER_STEP
        return self.weights.remedy()

    def _server_step(self, fed, problem: Solved, state: ComFedLState, mean: Tree) -> ComFedLState:
        """The state after the server's step towards the mean of the clients' models."""
        w, opt = move_to_mean(self.server_lr, mean, state.opt, state.w, fed.round)
        w, own = projected(problem, "w", w), state.own_opt
        if isinstance(own, ServerOpts):
            own = observed(self.lr, direction_of(self.lr, own.opts, state.w, mean), own, w)
        return state._replace(w=w, opt=opt, own_opt=own)

    def _bounded(
        self, fed, step: Step, values: tuple[Placed, ...], opt: Tree, settings: dict
    ) -> Tree:
        """The state of a rule that finds its size, with the curvature of the clients' directions.

        A weight grows with the loss, and so does this curvature.
        """
        key = jax.random.fold_in(settings["key"], 2**32 - 2)
        how = {"is_alone": self.local_steps != 1, "settings": {**settings, "key": key}}
        return bounded(fed, self.lr, opt, step, values, **how)

    def _first_size(
        self, fed, step: Step, values: tuple[Placed, ...], opt: Tree, w: Tree, settings: dict
    ) -> Tree:
        """The state of a rule that finds its size, which round 0 asks the clients' directions for.

        Later rounds know the directions of the round before.
        """
        if not is_auto(self.lr):
            return opt

        def first(opt):
            key = jax.random.fold_in(settings["key"], 2**32 - 1)
            u_i = fed.map(step, *values, **{**settings, "key": key})
            return observed(self.lr, fed.mean(u_i), opt, w)  # ---------------- up    u

        return fed.when(jnp.asarray(fed.round) == 0, first, opt)

    @property
    def weights(self) -> AbstractWeighting:
        """The weighting in use with a gamma."""
        return NormalisedWeights() if self.weighting is None else self.weighting

    @property
    def product(self) -> AbstractHessian:
        """How the Hessian of a Meta problem is treated."""
        return ExactHessian() if self.hessian is None else self.hessian

    def batches(
        self, client: Client, problem: Meta | LocalComposition, key: Key
    ) -> tuple[Sample, Sample]:
        """B for the inner and B~ for the outer function."""
        inner_key, outer_key = jax.random.split(key)
        inner = client.draw(problem.inner_split, self.batch_size, inner_key)
        if self.shared_batch:
            return inner, inner
        size = self.batch_size if self.outer_batch_size is None else self.outer_batch_size
        return inner, client.draw(problem.outer_split, size, outer_key)


def composed_steps(
    client: Client,
    w: Tree,
    opt: Tree | None = None,
    *,
    problem: Meta | LocalComposition,
    algorithm: ComFedL,
    round: Count,
) -> tuple[Tree, Tree]:
    """The client's model after local steps along its composed gradient, and its rule's state."""

    def direction(w, key):
        return _composed(client, problem, algorithm, w, key)

    rule, steps = algorithm.lr, algorithm.local_steps
    how = {"project": projection(problem, "w"), "round": round, "opt": opt}
    return local.plain_steps(client, direction, w, rule, steps, client.key, **how)


def weighted_steps(
    client: Client,
    w: Tree,
    level: jax.Array | None,
    opt: Tree | None = None,
    *,
    problem: SingleLevel | Meta,
    algorithm: ComFedL,
    round: Count,
) -> tuple[tuple[Tree, jax.Array | None], Tree]:
    """The client's model after local steps along its weighted gradient, and what it reports.

    The last is the state of its step rule.
    """
    weights = algorithm.weights
    gamma = algorithm.gamma
    assert gamma is not None

    def ask():
        return first_loss(client, w, problem=problem, algorithm=algorithm)

    def direction(w, key):
        return _weighted(client, problem, algorithm, w, level, key)

    rule, steps = algorithm.lr, algorithm.local_steps
    report = weights.report(ask, level, gamma)
    how = {"project": projection(problem, "w"), "round": round, "opt": opt}
    own, opt = local.plain_steps(client, direction, w, rule, steps, client.key, **how)
    return (own, report), opt


def composed_direction(
    client: Client, w: Tree, *, problem: Meta | LocalComposition, algorithm: ComFedL
) -> Tree:
    """The client's direction u at the model that it was sent."""
    return _composed(client, problem, algorithm, w, client.key)


def weighted_direction(
    client: Client,
    w: Tree,
    level: jax.Array | None,
    *,
    problem: SingleLevel | Meta,
    algorithm: ComFedL,
) -> Tree:
    """The same with the client's weight."""
    return _weighted(client, problem, algorithm, w, level, client.key)


def composed_curvature(
    client: Client, w: Tree, *, problem: Meta | LocalComposition, algorithm: ComFedL
) -> jax.Array:
    """The largest curvature of that direction."""

    def direction(w):
        return _composed(client, problem, algorithm, w, client.key)

    return along(client, direction, w, jax.random.fold_in(client.key, 1))


def weighted_curvature(
    client: Client,
    w: Tree,
    level: jax.Array | None,
    *,
    problem: SingleLevel | Meta,
    algorithm: ComFedL,
) -> jax.Array:
    """The same with the client's weight."""

    def direction(w):
        return _weighted(client, problem, algorithm, w, level, client.key)

    return along(client, direction, w, jax.random.fold_in(client.key, 1))


def _composed(
    client: Client, problem: Meta | LocalComposition, algorithm: ComFedL, w: Tree, key: Key
) -> Tree:
    if isinstance(problem, Meta):
        return value_and_gradient(client, problem, algorithm, w, key)[1]
    return problem.gradient(w, *algorithm.batches(client, problem, key))


def _weighted(
    client: Client,
    problem: SingleLevel | Meta,
    algorithm: ComFedL,
    w: Tree,
    level: jax.Array | None,
    key: Key,
) -> Tree:
    value, gradient = value_and_gradient(client, problem, algorithm, w, key)
    assert algorithm.gamma is not None
    return tree.scale(algorithm.weights.weight(value, level, algorithm.gamma), gradient)


def value_and_gradient(
    client: Client, problem: SingleLevel | Meta, algorithm: ComFedL, w: Tree, key: Key
) -> tuple[jax.Array, Tree]:
    """The loss on a batch, after adaptation if the problem has any, and its gradient."""
    if isinstance(problem, Meta):
        inner, outer = algorithm.batches(client, problem, key)
        return meta_gradient(problem, algorithm.product, w, inner, outer, inner)
    return problem.value_and_gradient(w, client.draw(problem.split, algorithm.batch_size, key))


def first_loss(
    client: Client, w: Tree, *, problem: SingleLevel | Meta, algorithm: ComFedL
) -> jax.Array:
    """The client's loss at the model that it was sent, after adaptation on Meta problems."""
    size = algorithm.weights.batch_size
    # local steps fold in their number, which never reaches 2**32 - 1
    inner_key, outer_key = jax.random.split(jax.random.fold_in(client.key, 2**32 - 1))
    if isinstance(problem, Meta):
        inner = client.draw(problem.inner_split, size, inner_key)
        return problem.value(w, inner, client.draw(problem.outer_split, size, outer_key))
    return problem.value(w, client.draw(problem.split, size, inner_key))
