"""Per-FedAvg: FedAvg on the loss after one step of adaptation.

A. Fallah, A. Mokhtari, A. Ozdaglar. Personalized federated learning with theoretical guarantees: a
model-agnostic meta-learning approach. NeurIPS 2020, arXiv:2002.07948.

    paper       code            meaning
    w           w               the model that clients adapt
    α           adapt_lr        step size of the adaptation, which belongs to the problem
    β           lr              step rule of the local steps
    τ           local_steps     local steps between two averages
    D, D', D''  three draws     batches for the adaptation, the adapted gradient and the Hessian
    FO, HF      hessian         first-order and Hessian-free variants

A local step subtracts  β (I - α Hess f(w; D'')) grad f(w - α grad f(w; D); D').  Cost of a round: 1
exchange, w down and w up; per local step and row one gradient on each of D and D', and on D'' one
Hessian-vector product (two gradients if Hessian-free, nothing if first-order). Departures from the
paper: none. ComFedL takes the Hessian on D itself; with whole batches the two are the same.
"""

from dataclasses import KW_ONLY
from typing import ClassVar

import equinox as eqx
import jax

from rookery.algorithms.shared import local
from rookery.algorithms.shared.meta_hessian import AbstractHessian, ExactHessian, meta_gradient
from rookery.algorithms.shared.model import AbstractLocalSGD, ModelState
from rookery.problem.constraints import projection
from rookery.problem.meta import Meta
from rookery.program.federation import AbstractFederation, Client
from rookery.types import Count, Key, Tree


class PerFedAvg(AbstractLocalSGD):
    """Local steps along the gradient of the adapted loss; the models are averaged.

    Each of the three batches of a local step has ``batch_size`` rows.

    >>> import rookery as rk
    >>> rk.PerFedAvg(lr=0.1, local_steps=2, hessian=rk.parts.FirstOrder()).hessian
    FirstOrder()

    Args:
        hessian: :class:`ExactHessian`, :class:`FirstOrder` or :class:`HessianFree`.
    """

    kind: ClassVar[type] = Meta

    _: KW_ONLY
    hessian: AbstractHessian = eqx.field(default_factory=ExactHessian)

    def round(
        self, fed: AbstractFederation, problem: Meta, state: ModelState, key: Key
    ) -> ModelState:
        """One exchange: local steps from w, and the mean of the models."""
        return self.to_mean_of(adapted_steps, fed, problem, state, key)  # down  w  up  w


def adapted_steps(
    client: Client, w: Tree, opt: Tree = None, *, problem: Meta, algorithm: PerFedAvg, round: Count
) -> tuple[Tree, Tree]:
    """The client's model after its local steps, and the state of its rule."""
    splits = (problem.inner_split, problem.outer_split, problem.inner_split)  # of D, D', D''

    def gradient(w, key):
        keys = jax.random.split(key, 3)
        batches = (client.draw(splits[i], algorithm.batch_size, keys[i]) for i in range(3))
        return meta_gradient(problem, algorithm.hessian, w, *batches)[1]

    rule, steps = algorithm.lr, algorithm.local_steps
    how = {"project": projection(problem, "w"), "round": round, "opt": opt}
    return local.plain_steps(client, gradient, w, rule, steps, client.key, **how)
