"""FedOut: one outer round along the global hypergradient (FedNest, algorithm 2).

h is the global hypergradient. Local steps correct the direct part f_x only; where f does not
depend on x directly, every local step is h itself.
"""

import dataclasses
from dataclasses import KW_ONLY

import equinox as eqx
import jax

from rookery.algorithms.fednest.fedihgp import FedIHGPSum
from rookery.algorithms.fednest.local_part import AbstractLocalPart
from rookery.algorithms.shared import levels, local
from rookery.algorithms.shared.adjoint import AbstractAdjoint, mean_hypergradient
from rookery.algorithms.shared.context import Context
from rookery.algorithms.shared.local import LocalPlan, LocalSteps
from rookery.algorithms.shared.step_rule import StepRule, observed
from rookery.algorithms.shared.system import LocalSystem
from rookery.algorithms.shared.two_level import AbstractOuter
from rookery.problem.constraints import projected, projection
from rookery.program.federation import Client
from rookery.types import Count, Key, Tree


def fedout(
    context: Context,
    x: Tree,
    y: Tree,
    v: Tree,
    opt: Tree,
    keys: tuple[Key, Key, Key],
    *,
    lr: StepRule,
    steps: LocalSteps,
) -> tuple[Tree, Tree]:
    """Two exchanges with one cohort: the hypergradient h at (x, y, v), then local steps along it.

    ``opt`` is what the clients keep of their optimisers' states, if anything; the keys are those of
    the cohort, of h and of the local steps.
    """
    who, hyper_key, local_key = keys
    fed, cohort, state_x = context.fed, context.sample(who), x
    x, y, v = fed.broadcast(cohort, x, y, v)  # ----------------------------- down  x, y, v
    h = mean_hypergradient(context, x, y, v, hyper_key)  # ------------------ up    h
    opt = observed(lr, h, opt, state_x)
    h = fed.broadcast(cohort, h)  # ----------------------------------------- down  h
    how = {"key": local_key, "lr": lr, "steps": steps}
    x_i, opt = context.map_steps(cohort, opt, corrected_outer_steps, x, y, h, **how)
    with fed.outer():
        x = fed.mean(x_i, around=x)  # --------------------------------------- up    x
    return projected(context.problem, "x", x), opt


def corrected_outer_steps(
    client: Client, x: Tree, y: Tree, h: Tree, opt: Tree = None, *, plan: LocalPlan, round: Count
) -> tuple[Tree, Tree]:
    """x_{i,ν+1} = x_{i,ν} - α_i [ f_x(x_{i,ν}, y; ξ) - f_x(x, y; ξ) + h ]."""
    at = LocalSystem(client, plan.problem, x, y, plan.batch_size)

    def gradient(x_i, sample):
        return levels.outer_gradient_x(plan.problem, x_i, y, sample)

    how = {"rule": plan.lr, "steps": plan.steps, "round": round, "opt": opt}
    how["project"] = projection(plan.problem, "x")
    drift = local.drift_on_draws(client, at.outer_sample, gradient, x)
    return local.corrected_steps(client, drift, x, h, **how)


class FedOut(AbstractLocalPart, AbstractOuter):
    """An adjoint and :func:`fedout` as a part.

    Args:
        lr: α, the rule of every local step, or a size for the whole call (:class:`PerCall`).
        local_steps: τ, one number or one per client.
        adjoint: how the inverse Hessian times the outer gradient is estimated.

    >>> FedOut(lr=0.1).adjoint.terms
    5
    """

    _: KW_ONLY
    adjoint: AbstractAdjoint = eqx.field(default_factory=FedIHGPSum)

    def __call__(self, context, state, key):
        """The state with the x of one round."""
        who, adjoint_key, hyper_key, local_key = jax.random.split(key, 4)
        v, L, memory = self.adjoint.estimate_from(context, state, adjoint_key)
        keys, how = (who, hyper_key, local_key), {"lr": self.lr, "steps": self.local_steps}
        x, opt = fedout(context, state.x, state.y, v, state.opts.outer, keys, **how)
        opts = state.opts._replace(outer=opt, adjoint=memory)
        return state._replace(x=x, lipschitz=L, opts=opts)

    def first_memory(self, y):
        """What the adjoint remembers."""
        return self.adjoint.first_memory(y)

    def with_lipschitz(self, L):
        """The part whose adjoint has a measured L."""
        return dataclasses.replace(self, adjoint=self.adjoint.with_lipschitz(L))

    def check(self, problem, n_clients):
        """Numbers of local steps must fit the clients, and the adjoint the problem."""
        self.check_steps(n_clients)
        self.adjoint.check(problem, n_clients)
