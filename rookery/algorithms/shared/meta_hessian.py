"""The gradient of a meta-learning problem, and three ways to treat the Hessian in it.

    (I - a Hess f(w; D'')) g,   g = grad f(w - a grad f(w; D); D')

A. Fallah, A. Mokhtari, A. Ozdaglar. Personalized federated learning with theoretical guarantees: a
model-agnostic meta-learning approach. NeurIPS 2020, arXiv:2002.07948.

    way             Hess f(w; D'') g                                    billed, per row of D''
    ExactHessian    the derivative of grad f in the direction g         1 Hessian-vector product
    FirstOrder      left out                                            nothing
    HessianFree     [grad f(w + ε g) - grad f(w - ε g)] / (2 ε)         2 gradients
"""

import abc
from dataclasses import KW_ONLY

import equinox as eqx
import jax

from rookery import check, tree
from rookery.algorithms.shared.schedule import number
from rookery.problem.meta import Meta
from rookery.types import Sample, Tree


class AbstractHessian(eqx.Module):
    """How the Hessian of a meta-learning problem is treated."""

    @abc.abstractmethod
    def __call__(self, problem: Meta, w: Tree, g: Tree, sample: Sample) -> Tree:
        """(I - a Hess f(w)) g, or an approximation of it."""


class ExactHessian(AbstractHessian):
    """One exact Hessian-vector product, by automatic differentiation.

    >>> import rookery as rk
    >>> rk.PerFedAvg(lr=0.1, hessian=ExactHessian()).hessian
    ExactHessian()
    """

    def __call__(self, problem, w, g, sample):
        """g - a Hess f(w) g."""
        return problem.pull_back(w, g, sample)


class FirstOrder(AbstractHessian):
    """Drops the Hessian: cheapest, and biased by about adapt_lr times its norm.

    >>> import rookery as rk
    >>> rk.PerFedAvg(lr=0.1, hessian=FirstOrder()).hessian
    FirstOrder()
    """

    def __call__(self, problem, w, g, sample):
        """g itself."""
        return g


class HessianFree(AbstractHessian):
    """Central differences of gradients.

    >>> HessianFree(epsilon=1e-4).epsilon
    0.0001

    Args:
        epsilon: the step, as a multiple of g. The error falls with its square until rounding
            dominates, early in float32.
    """

    _: KW_ONLY
    epsilon: float = eqx.field(converter=number, default=1e-3)

    def __check_init__(self):
        check.positive("HessianFree.epsilon", self.epsilon)

    def __call__(self, problem, w, g, sample):
        """g minus a times a difference of gradients."""
        above = problem.loss_gradient(tree.axpy(self.epsilon, g, w), sample)
        below = problem.loss_gradient(tree.axpy(-self.epsilon, g, w), sample)
        factor = -problem.adapt_lr / (2 * self.epsilon)
        return tree.axpy(factor, tree.sub(above, below), g)


def meta_gradient(
    problem: Meta, hessian: AbstractHessian, w: Tree, inner: Sample, outer: Sample, third: Sample
) -> tuple[jax.Array, Tree]:
    """The loss after adaptation, and its gradient in w.

    Args:
        problem: of the loss f and the adaptation step a.
        hessian: how to multiply with the Hessian.
        w: where.
        inner: D, what w adapts to.
        outer: D', what the adapted w is judged by.
        third: D'', what the Hessian is taken on.
    """
    value, g = problem.adapted_value_and_gradient(w, inner, outer)
    return value, hessian(problem, w, g, third)
