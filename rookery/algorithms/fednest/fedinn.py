"""FedInn: one inner round of local steps, drift-free or plain (FedNest, algorithms 4 and 6).

In FedInn, q is the global gradient at y. It corrects every local step, so the zero of the mean
inner gradient stays a fixed point, whatever the clients' own zeros are. With an optimiser that is
not linear in the direction, such as Adam, it is still a fixed point, but on the way there the mean
of the clients' steps is no longer the step along the mean direction. FedInnSGD saves the
exchange for q and pays with a bias that grows with the number of local steps.
"""

from dataclasses import KW_ONLY
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.fednest.local_part import AbstractLocalPart
from rookery.algorithms.shared import levels, local
from rookery.algorithms.shared.auto import Curvature, ServerOpts
from rookery.algorithms.shared.context import Context
from rookery.algorithms.shared.levels import TwoLevel
from rookery.algorithms.shared.local import LocalPlan, LocalSteps
from rookery.algorithms.shared.server import inner_gradient
from rookery.algorithms.shared.step_rule import (
    StepRule,
    check_curvature,
    direction_of,
    inner_rule,
    observed,
)
from rookery.algorithms.shared.system import LocalSystem
from rookery.algorithms.shared.two_level import AbstractInner
from rookery.problem.constraints import projected, projection
from rookery.program.federation import Client
from rookery.types import BatchSize, Count, Key, Tree


def fedinn(
    context: Context,
    x: Tree,
    y: Tree,
    opt: Tree,
    key: Key,
    *,
    lr: StepRule,
    steps: LocalSteps,
    anchor_batch: int | None,
    dealt: bool = False,
) -> tuple[Tree, Tree]:
    """Two exchanges with one cohort: the global gradient q at y, then local steps along it.

    ``opt`` is what the clients keep of their optimisers' states, if anything.
    """
    who, anchor_key, local_key = jax.random.split(key, 3)
    fed, cohort, start = context.fed, context.sample(who), y
    x, y = fed.broadcast(cohort, x, y)  # ----------------------------------- down  x, y
    if dealt:
        q_i, at_y = context.map(dealt_gradients, x, y, key=local_key)
        q = fed.mean(q_i)  # ------------------------------------------------ up    q
        opt = observed(lr, q, opt, start)
        q = fed.broadcast(cohort, q)  # ------------------------------------- down  q
        how = {"key": local_key, "lr": lr, "steps": steps}  # the key deals the same batches
        y_i, opt = context.map_steps(cohort, opt, dealt_inner_steps, x, y, q, at_y, **how)
        y = fed.mean(y_i, around=y)  # -------------------------------------- up    y
        return projected(context.problem, "y", y), opt
    q_i = context.map(inner_gradient, x, y, key=anchor_key, batch_size=anchor_batch)
    q = fed.mean(q_i)  # ---------------------------------------------------- up    q
    opt = observed(lr, q, opt, start)
    q = fed.broadcast(cohort, q)  # ----------------------------------------- down  q
    how = {"key": local_key, "lr": lr, "steps": steps}
    y_i, opt = context.map_steps(cohort, opt, corrected_inner_steps, x, y, q, **how)
    y = fed.mean(y_i, around=y)  # ------------------------------------------ up    y
    return projected(context.problem, "y", y), opt


def fedinn_sgd(
    context: Context, x: Tree, y: Tree, opt: Tree, key: Key, *, lr: StepRule, steps: LocalSteps
) -> tuple[Tree, Tree]:
    """One exchange: the mean of the clients' plain local steps."""
    who, local_key = jax.random.split(key)
    fed, cohort, start = context.fed, context.sample(who), y
    x, y = fed.broadcast(cohort, x, y)  # ----------------------------------- down  x, y
    how = {"key": local_key, "lr": lr, "steps": steps}
    y_i, opt = context.map_steps(cohort, opt, plain_inner_steps, x, y, **how)
    y = fed.mean(y_i, around=y)  # ------------------------------------------ up    y
    if isinstance(opt, ServerOpts):
        opt = observed(lr, direction_of(lr, opt.opts, start, y), opt, start)
    return projected(context.problem, "y", y), opt


def corrected_inner_steps(
    client: Client, x: Tree, y: Tree, q: Tree, opt: Tree = None, *, plan: LocalPlan, round: Count
) -> tuple[Tree, Tree]:
    """y_{i,ν+1} = y_{i,ν} - β_i [ G_i(y_{i,ν}; ζ) - G_i(y; ζ) + q ]."""
    at = LocalSystem(client, plan.problem, x, y, plan.batch_size)
    at = at.prepared_for(local.most_steps(plan.steps) - 1)
    gradient = partial(levels.inner_gradient, at.problem, x)
    how = {"rule": plan.lr, "steps": plan.steps, "round": round, "opt": opt}
    how["project"] = projection(plan.problem, "y")
    drift = local.drift_on_draws(client, at.inner_sample, gradient, y)
    return local.corrected_steps(client, drift, y, q, **how)


def dealt_gradients(
    client: Client, x: Tree, y: Tree, *, problem: TwoLevel, batch_size: BatchSize
) -> tuple[Tree, Tree]:
    """q_i, the gradient of all rows, and G_i(y; b) of every dealt batch b along a first axis."""
    at = LocalSystem(client, problem, x, y, batch_size).prepared_for(None)
    deal = at.dealt_inner_rows(client.key)

    def one(b, carry):
        total, each = carry
        g = levels.inner_gradient(at.problem, x, y, deal.sample(b))
        each = jax.tree.map(lambda rows, new: rows.at[b].set(new), each, g)
        return tree.axpy(deal.fraction(b), g, total), each

    n = deal.batches
    each = jax.tree.map(lambda leaf: jnp.zeros((n, *leaf.shape), leaf.dtype), y)
    return client.repeat(n, one, (tree.zeros_like(y), each))


def dealt_inner_steps(
    client: Client,
    x: Tree,
    y: Tree,
    q: Tree,
    at_y: Tree,
    opt: Tree = None,
    *,
    plan: LocalPlan,
    round: Count,
) -> tuple[Tree, Tree]:
    """y_{i,ν+1} = y_{i,ν} - β_i [ G_i(y_{i,ν}; b) - G_i(y; b) + q ],  b the next dealt batch."""
    at = LocalSystem(client, plan.problem, x, y, plan.batch_size).prepared_for(None)
    gradient = partial(levels.inner_gradient, at.problem, x)
    how = {"rule": plan.lr, "steps": plan.steps, "round": round, "opt": opt}
    how["project"] = projection(plan.problem, "y")
    drift = local.drift_on_deal(at.dealt_inner_rows(client.key), gradient, at_y)
    return local.corrected_steps(client, drift, y, q, **how)


def plain_inner_steps(
    client: Client, x: Tree, y: Tree, opt: Tree = None, *, plan: LocalPlan, round: Count
) -> tuple[Tree, Tree]:
    """y_{i,ν+1} = y_{i,ν} - β_i G_i(y_{i,ν}; ζ)."""
    at = LocalSystem(client, plan.problem, x, y, plan.batch_size)
    return own_inner_steps(at, plan, client.key, round, opt)


def own_inner_steps(
    at: LocalSystem, plan: LocalPlan, key: Key, round: Count, opt: Tree
) -> tuple[Tree, Tree]:
    """The client's inner variable after its plain local steps from y, and its rule's state."""
    at = at.prepared_for(local.most_steps(plan.steps))

    def gradient(y_i, key):
        return levels.inner_gradient(at.problem, at.x, y_i, at.inner_sample(key))

    how = {"rule": plan.lr, "steps": plan.steps, "round": round, "opt": opt}
    how["project"] = projection(plan.problem, "y")
    return local.plain_steps(at.client, gradient, at.y, key=key, **how)


def check_dealt(dealt: bool, anchor_batch: int | None) -> None:
    """Raise unless ``dealt`` is a truth value that suits the rows of the gradient q."""
    if not isinstance(dealt, bool):
        raise TypeError(f"dealt must be True or False, got {dealt!r}.")
    if dealt and anchor_batch is not None:
        raise ValueError(
            f"dealt=True takes the gradient q from all rows, got anchor_batch={anchor_batch}. "
            "Leave anchor_batch out."
        )


class FedInn(AbstractLocalPart, AbstractInner):
    """:func:`fedinn` as a part: two exchanges give a new y.

    Args:
        lr: β, the rule of every local step, or a size for the whole call (:class:`PerCall`).
        local_steps: τ, one number or one per client.
        anchor_batch: rows of the gradient q; None means all.
        dealt: whether a client deals its rows into batches once a call and takes them in turn,
            instead of drawing new rows in every local step. Then its gradient at y is computed
            once for each batch, and their mean is its share of q: about half of the work. With
            full batches both are equal.

    >>> FedInn(lr=0.1, local_steps=5).local_steps
    5
    """

    _: KW_ONLY
    lr: StepRule = eqx.field(converter=inner_rule, default_factory=Curvature)
    anchor_batch: int | None = None
    dealt: bool = False

    def __check_init__(self):
        check_curvature("FedInn.lr", self.lr)
        if self.anchor_batch is not None:
            check.count("anchor_batch", self.anchor_batch)
        check_dealt(self.dealt, self.anchor_batch)

    @property
    def rule(self):
        """β."""
        return self.lr

    def __call__(self, context, x, y, opt, key):
        """The inner variable y after one round, and what the clients keep."""
        how = {"anchor_batch": self.anchor_batch, "dealt": self.dealt}
        return fedinn(context, x, y, opt, key, lr=self.lr, steps=self.local_steps, **how)

    def check(self, n_clients):
        """Numbers of local steps must fit the clients."""
        self.check_steps(n_clients)


class FedInnSGD(AbstractLocalPart, AbstractInner):
    """:func:`fedinn_sgd` as a part: one exchange gives a new y.

    Args:
        lr: β, the rule of every local step, or a size for the whole call (:class:`PerCall`).
        local_steps: τ, one number or one per client.

    >>> FedInnSGD(lr=0.1, local_steps=[1, 2, 3]).local_steps
    (1, 2, 3)
    """

    _: KW_ONLY
    lr: StepRule = eqx.field(converter=inner_rule, default_factory=Curvature)

    def __check_init__(self):
        check_curvature("FedInnSGD.lr", self.lr)

    @property
    def rule(self):
        """β."""
        return self.lr

    def __call__(self, context, x, y, opt, key):
        """The inner variable y after one round, and what the clients keep."""
        return fedinn_sgd(context, x, y, opt, key, lr=self.lr, steps=self.local_steps)

    def check(self, n_clients):
        """Numbers of local steps must fit the clients."""
        self.check_steps(n_clients)
