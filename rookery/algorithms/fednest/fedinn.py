"""FedInn: one inner round of local steps, drift-free or plain (FedNest, algorithms 4 and 6).

In FedInn, q is the global gradient at y. It corrects every local step, so the zero of the mean
inner gradient stays a fixed point, whatever the clients' own zeros are. With an optimiser that is
not linear in the direction, such as Adam, it is still a fixed point, but on the way there the mean
of the clients' steps is no longer the step along the mean direction. FedInnSGD saves the
exchange for q and pays with a bias that grows with the number of local steps.
"""

from dataclasses import KW_ONLY
from functools import partial

import jax

from rookery import check
from rookery.algorithms.fednest.local_part import AbstractLocalPart
from rookery.algorithms.shared import levels, local
from rookery.algorithms.shared.context import Context
from rookery.algorithms.shared.local import LocalPlan, LocalSteps
from rookery.algorithms.shared.server import inner_gradient
from rookery.algorithms.shared.step_rule import StepRule
from rookery.algorithms.shared.system import LocalSystem
from rookery.algorithms.shared.two_level import AbstractInner
from rookery.problem.constraints import projected, projection
from rookery.program.federation import Client
from rookery.types import Count, Key, Tree


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
) -> tuple[Tree, Tree]:
    """Two exchanges with one cohort: the global gradient q at y, then local steps along it.

    ``opt`` is what the clients keep of their optimisers' states, if anything.
    """
    who, anchor_key, local_key = jax.random.split(key, 3)
    fed, cohort = context.fed, context.sample(who)
    x, y = fed.broadcast(cohort, x, y)  # ----------------------------------- down  x, y
    q_i = context.map(inner_gradient, x, y, key=anchor_key, batch_size=anchor_batch)
    q = fed.mean(q_i)  # ---------------------------------------------------- up    q
    q = fed.broadcast(cohort, q)  # ----------------------------------------- down  q
    how = {"key": local_key, "lr": lr, "steps": steps}
    y_i, opt = context.map_steps(cohort, opt, corrected_inner_steps, x, y, q, **how)
    y = fed.mean(y_i)  # ---------------------------------------------------- up    y
    return projected(context.problem, "y", y), opt


def fedinn_sgd(
    context: Context, x: Tree, y: Tree, opt: Tree, key: Key, *, lr: StepRule, steps: LocalSteps
) -> tuple[Tree, Tree]:
    """One exchange: the mean of the clients' plain local steps."""
    who, local_key = jax.random.split(key)
    fed, cohort = context.fed, context.sample(who)
    x, y = fed.broadcast(cohort, x, y)  # ----------------------------------- down  x, y
    how = {"key": local_key, "lr": lr, "steps": steps}
    y_i, opt = context.map_steps(cohort, opt, plain_inner_steps, x, y, **how)
    y = fed.mean(y_i)  # ---------------------------------------------------- up    y
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
    return local.corrected_steps(client, at.inner_sample, gradient, y, q, **how)


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


class FedInn(AbstractLocalPart, AbstractInner):
    """:func:`fedinn` as a part: two exchanges give a new y.

    Args:
        lr: β, the rule of every local step, or a size for the whole call (:class:`PerCall`).
        local_steps: τ, one number or one per client.
        anchor_batch: rows of the gradient q; None is all.

    >>> FedInn(lr=0.1, local_steps=5).local_steps
    5
    """

    _: KW_ONLY
    anchor_batch: int | None = None

    def __check_init__(self):
        if self.anchor_batch is not None:
            check.count("anchor_batch", self.anchor_batch)

    def __call__(self, context, x, y, opt, key):
        """The inner variable y after one round, and what the clients keep."""
        how = {"lr": self.lr, "steps": self.local_steps, "anchor_batch": self.anchor_batch}
        return fedinn(context, x, y, opt, key, **how)

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

    def __call__(self, context, x, y, opt, key):
        """The inner variable y after one round, and what the clients keep."""
        return fedinn_sgd(context, x, y, opt, key, lr=self.lr, steps=self.local_steps)

    def check(self, n_clients):
        """Numbers of local steps must fit the clients."""
        self.check_steps(n_clients)
