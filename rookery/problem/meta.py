"""Meta-learning: a start from which one gradient step suits every client."""

from collections.abc import Callable

import equinox as eqx
import jax

from rookery import check, tree
from rookery.problem import oracles
from rookery.types import Loss, Sample, Tree


class Meta(eqx.Module):
    """min over w of  mean over clients of  f_i( w - adapt_lr grad f_i(w) ).

    f_i is the client's mean of ``loss(w, example)``. As a :class:`LocalComposition` its inner map
    would need one gradient per example; here every level is a gradient of a mean, and the Hessian
    is met only in a product with one vector.

    Args:
        loss: of one example.
        adapt_lr: step size of the adaptation.
        inner_split: which part of a client's data it adapts with.
        outer_split: which part the adapted w is judged by.
    """

    loss: Loss
    adapt_lr: float = eqx.field(converter=float)
    inner_split: str = eqx.field(static=True, default="train")
    outer_split: str = eqx.field(static=True, default="train")

    def __check_init__(self):
        if not callable(self.loss):
            raise TypeError(f"loss must be a function, got {self.loss!r}.")
        check.not_negative("adapt_lr", self.adapt_lr)

    def check(self, variables: tuple[Tree], example: Callable[[str], Tree]) -> None:
        """Raise unless there is one variable and the loss gives one number at it."""
        oracles.check_one_variable("a meta-learning problem", variables)
        for split in (self.inner_split, self.outer_split):
            oracles.check_scalar_loss("loss", self.loss, variables, example(split))

    def adapt(self, w: Tree, sample: Sample) -> Tree:
        """The adapted w, after one gradient step on a sample."""
        return tree.axpy(-self.adapt_lr, self.loss_gradient(w, sample), w)

    def value(self, w: Tree, inner_sample: Sample, outer_sample: Sample) -> jax.Array:
        """The loss after adaptation."""
        return oracles.value(self.loss, (self.adapt(w, inner_sample),), outer_sample)

    def gradient(
        self,
        w: Tree,
        inner_sample: Sample,
        outer_sample: Sample,
        hessian_sample: Sample | None = None,
    ) -> Tree:
        """(I - a Hess f(w)) grad f(w - a grad f(w)).

        The Hessian is taken on the inner sample if it has none of its own.
        """
        _, g = self.adapted_value_and_gradient(w, inner_sample, outer_sample)
        return self.pull_back(w, g, inner_sample if hessian_sample is None else hessian_sample)

    # ---- the two halves of the gradient, for algorithms that put something in place of the second

    def adapted_value_and_gradient(
        self, w: Tree, inner_sample: Sample, outer_sample: Sample
    ) -> tuple[jax.Array, Tree]:
        """The loss and its gradient grad f at the adapted w."""
        return self.loss_value_and_gradient(self.adapt(w, inner_sample), outer_sample)

    def pull_back(self, w: Tree, g: Tree, sample: Sample) -> Tree:
        """From a gradient at the adapted w to one at w: (I - a Hess f(w)) g."""
        return tree.axpy(-self.adapt_lr, self.loss_hvp(w, g, sample), g)

    # ---- of the loss itself, without adaptation

    def loss_gradient(self, w: Tree, sample: Sample) -> Tree:
        """The gradient grad f(w)."""
        return oracles.gradient(self.loss, (w,), 0, sample)

    def loss_value_and_gradient(self, w: Tree, sample: Sample) -> tuple[jax.Array, Tree]:
        """The numbers f(w) and grad f(w) in one pass over the rows."""
        return oracles.value_and_gradient(self.loss, (w,), 0, sample)

    def loss_hvp(self, w: Tree, vector: Tree, sample: Sample) -> Tree:
        """The Hessian of f at w, times ``vector``."""
        return oracles.second_derivative(self.loss, (w,), 0, 0, vector, sample)
