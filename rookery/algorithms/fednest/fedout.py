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
from rookery.algorithms.shared.interface import AbstractOuter
from rookery.algorithms.shared.levels import TwoLevel
from rookery.program.federation import Client
from rookery.types import Tree


class FedOut(AbstractOuter):
    """The adjoint, and then two exchanges with one cohort, give a new x.

    Args:
        lr: α, of every local step, or of the whole call (:class:`PerCall`).
        local_steps: τ, one number or one per client.
        adjoint: how the inverse Hessian times the outer gradient is estimated.
    """

    _: KW_ONLY
    lr: local.LearningRate = eqx.field(converter=local.number)
    local_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)
    adjoint: AbstractAdjoint = eqx.field(default_factory=FedIHGPSum)

    def __check_init__(self):
        local.check_learning_rate("FedOut.lr", self.lr)
        local.check_local_steps("FedOut.local_steps", self.local_steps)

    def __call__(self, fed, problem, sampling, x, y, L, key):
        """The outer variable x after one round, and L."""
        who, adjoint_key, hyper_key, local_key = jax.random.split(key, 4)
        v, L = self.adjoint.estimate(fed, problem, sampling, x, y, L, adjoint_key)
        cohort = fed.sample(sampling.clients, who)
        x, y, v = fed.broadcast(cohort, x, y, v)  # -------------------------- down  x, y, v
        h = mean_hypergradient(fed, problem, sampling, x, y, v, hyper_key)  #  up    h
        h = fed.broadcast(cohort, h)  # -------------------------------------- down  h
        settings = {"problem": problem, "batch_size": sampling.batch_size, "fedout": self}
        x_i = fed.map(corrected_outer_steps, x, y, h, key=local_key, **settings)
        with fed.outer():
            return fed.mean(x_i), L  # --------------------------------------- up    x

    def check(self, problem, n_clients):
        """Numbers of local steps must fit the clients, and the adjoint the problem."""
        local.check_local_steps("FedOut.local_steps", self.local_steps, n_clients)
        self.adjoint.check(problem, n_clients)


def corrected_outer_steps(
    client: Client,
    x: Tree,
    y: Tree,
    h: Tree,
    *,
    problem: TwoLevel,
    batch_size: int | None,
    fedout: FedOut,
) -> Tree:
    """x_{i,ν+1} = x_{i,ν} - α_i [ f_x(x_{i,ν}, y; ξ) - f_x(x, y; ξ) + h ]."""
    return local.corrected_steps(
        client,
        draw=lambda key: client.draw(levels.outer_split(problem), batch_size, key),
        gradient=lambda x_i, sample: levels.outer_gradient_x(problem, x_i, y, sample),
        anchor=x,
        correction=h,
        lr=fedout.lr,
        steps=fedout.local_steps,
    )
