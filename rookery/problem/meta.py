"""Meta-learning: initial parameters that one gradient step adapts to any client."""

from collections.abc import Callable

import equinox as eqx

from rookery import check, tree
from rookery.problem import oracles, validation
from rookery.problem.splits import AbstractOneVariable, AbstractTwoSplits
from rookery.types import Loss, Sample, Scalar, Tree


class Meta(AbstractOneVariable, AbstractTwoSplits):
    """min over w of  mean over clients of  f_i( w - adapt_lr grad f_i(w) ).

    f_i is the client's mean of ``loss(w, example)``. As a :class:`LocalComposition` its inner map
    would need one gradient per example; here every level is a gradient of a mean, and the Hessian
    appears only in products with one vector.

    Args:
        loss: of one example.
        adapt_lr: step size of the adaptation.
        inner_split: the split of a client's data that it adapts with.
        outer_split: the split that the loss after adaptation is averaged over.

    >>> import jax.numpy as jnp
    >>> from rookery.problem.sample import Rows
    >>> problem = Meta(lambda w, row: (w - row) ** 2 / 2, adapt_lr=0.5)
    >>> rows = Rows(jnp.array([0.0, 2.0]))
    >>> float(problem.adapt(jnp.array(3.0), rows))
    2.0
    >>> float(problem.gradient(jnp.array(3.0), rows, rows))
    0.5
    """

    loss: Loss
    adapt_lr: float = eqx.field(converter=float, kw_only=True)
    inner_split: str = eqx.field(static=True, default="train", kw_only=True)
    outer_split: str = eqx.field(static=True, default="train", kw_only=True)

    def __check_init__(self):
        validation.check_function("loss", self.loss)
        check.not_negative("adapt_lr", self.adapt_lr)

    def check(self, start: tuple[Tree, ...], example: Callable[[str], Tree]) -> None:
        """Raise unless there is one variable and the loss returns one number at it."""
        validation.check_start(self, start)
        for split in self.splits:
            validation.check_scalar_loss("loss", self.loss, start, example(split))

    def adapt(self, w: Tree, sample: Sample) -> Tree:
        """The adapted w, after one gradient step on a sample."""
        return tree.axpy(-self.adapt_lr, self.loss_gradient(w, sample), w)

    def value(self, w: Tree, inner_sample: Sample, outer_sample: Sample) -> Scalar:
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

        The Hessian is that of ``hessian_sample``, or of the inner sample if there is none.
        """
        _, g = self.adapted_value_and_gradient(w, inner_sample, outer_sample)
        return self.pull_back(w, g, inner_sample if hessian_sample is None else hessian_sample)

    # ---- the two halves of the gradient, for algorithms that replace the second

    def adapted_value_and_gradient(
        self, w: Tree, inner_sample: Sample, outer_sample: Sample
    ) -> tuple[Scalar, Tree]:
        """The loss and its gradient grad f at the adapted w."""
        return self.loss_value_and_gradient(self.adapt(w, inner_sample), outer_sample)

    def pull_back(self, w: Tree, g: Tree, sample: Sample) -> Tree:
        """From a gradient at the adapted w to one at w: (I - a Hess f(w)) g."""
        return tree.axpy(-self.adapt_lr, self.loss_hvp(w, g, sample), g)

    # ---- the loss itself, without adaptation

    def loss_gradient(self, w: Tree, sample: Sample) -> Tree:
        """The gradient grad f(w)."""
        return oracles.gradient(self.loss, (w,), 0, sample)

    def loss_value_and_gradient(self, w: Tree, sample: Sample) -> tuple[Scalar, Tree]:
        """f(w) and grad f(w) in one pass over the rows."""
        return oracles.value_and_gradient(self.loss, (w,), 0, sample)

    def loss_hvp(self, w: Tree, vector: Tree, sample: Sample) -> Tree:
        """The Hessian of f at w, times ``vector``."""
        return oracles.second_derivative(self.loss, (w,), 0, 0, vector, sample)
