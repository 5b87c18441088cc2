"""FedOut: one outer round along the global hypergradient (FedNest, algorithm 2).

h is the global hypergradient. Local steps correct the direct part f_x only; where f does not
depend on x directly, every local step is h itself.
"""

from dataclasses import KW_ONLY

import equinox as eqx
import jax

from rookery.algorithms.fednest.fedihgp import FedIHGPSum
from rookery.algorithms.shared import levels, local
from rookery.algorithms.shared.adjoint import AbstractAdjoint, mean_hypergradient
from rookery.algorithms.shared.context import Context
from rookery.algorithms.shared.levels import TwoLevel
from rookery.algorithms.shared.two_level import AbstractOuter
from rookery.program.federation import Client
from rookery.types import Key, Tree


def fedout(
    context: Context,
    x: Tree,
    y: Tree,
    v: Tree,
    keys: tuple[Key, Key, Key],
    *,
    lr: local.LearningRate,
    local_steps: local.LocalSteps,
) -> Tree:
    """Two exchanges with one cohort: the hypergradient h at (x, y, v), then local steps along it.

    The keys are those of the cohort, of h and of the local steps.
    """
    who, hyper_key, local_key = keys
    fed, cohort = context.fed, context.sample(who)
    x, y, v = fed.broadcast(cohort, x, y, v)  # ----------------------------- down  x, y, v
    h = mean_hypergradient(context, x, y, v, hyper_key)  # ------------------ up    h
    h = fed.broadcast(cohort, h)  # ----------------------------------------- down  h
    x_i = context.map(corrected_outer_steps, x, y, h, key=local_key, lr=lr, steps=local_steps)
    with fed.outer():
        return fed.mean(x_i)  # --------------------------------------------- up    x


def corrected_outer_steps(
    client: Client,
    x: Tree,
    y: Tree,
    h: Tree,
    *,
    problem: TwoLevel,
    batch_size: int | None,
    lr: local.LearningRate,
    steps: local.LocalSteps,
) -> Tree:
    """x_{i,ν+1} = x_{i,ν} - α_i [ f_x(x_{i,ν}, y; ξ) - f_x(x, y; ξ) + h ]."""
    return local.corrected_steps(
        client,
        draw=lambda key: client.draw(levels.outer_split(problem), batch_size, key),
        gradient=lambda x_i, sample: levels.outer_gradient_x(problem, x_i, y, sample),
        anchor=x,
        correction=h,
        lr=lr,
        steps=steps,
    )


class FedOut(AbstractOuter):
    """An adjoint and :func:`fedout` as a part.

    Args:
        lr: α, of every local step, or of the whole call (:class:`PerCall`).
        local_steps: τ, one number or one per client.
        adjoint: how the inverse Hessian times the outer gradient is estimated.

    >>> FedOut(lr=0.1).adjoint.terms
    5
    """

    _: KW_ONLY
    lr: local.LearningRate = eqx.field(converter=local.number)
    local_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)
    adjoint: AbstractAdjoint = eqx.field(default_factory=FedIHGPSum)

    def __check_init__(self):
        local.check_learning_rate("FedOut.lr", self.lr)
        local.check_local_steps("FedOut.local_steps", self.local_steps)

    def __call__(self, context, state, key):
        """The state with the x of one round."""
        who, adjoint_key, hyper_key, local_key = jax.random.split(key, 4)
        v, L = self.adjoint.estimate(context, state, adjoint_key)
        x, y, keys = state.x, state.y, (who, hyper_key, local_key)
        x = fedout(context, x, y, v, keys, lr=self.lr, local_steps=self.local_steps)
        return state._replace(x=x, lipschitz=L)

    def check(self, problem, n_clients):
        """Numbers of local steps must fit the clients, and the adjoint the problem."""
        local.check_local_steps("FedOut.local_steps", self.local_steps, n_clients)
        self.adjoint.check(problem, n_clients)
