"""Single-level problems: ordinary federated learning, a mean of the clients' losses."""

from collections.abc import Callable

import equinox as eqx

from rookery.problem import oracles, validation
from rookery.types import Loss, Sample, Scalar, Tree


class SingleLevel(eqx.Module):
    """min over w of  mean over clients of  f_i(w),  f_i the client's mean of ``loss(w, example)``.

    Args:
        loss: of one example.
        split: the split of a client's data that it is averaged over.

    >>> import jax.numpy as jnp
    >>> from rookery.problem.sample import Rows
    >>> problem = SingleLevel(lambda w, row: (w - row) ** 2 / 2)
    >>> float(problem.gradient(jnp.array(3.0), Rows(jnp.array([0.0, 2.0]))))
    2.0
    """

    loss: Loss
    split: str = eqx.field(static=True, default="train", kw_only=True)

    def __check_init__(self):
        validation.check_function("loss", self.loss)

    @property
    def variables(self) -> tuple[str]:
        """w alone."""
        return ("w",)

    @property
    def splits(self) -> tuple[str, ...]:
        """The split of the loss."""
        return (self.split,)

    def check(self, start: tuple[Tree, ...], example: Callable[[str], Tree]) -> None:
        """Raise unless there is one variable and the loss returns one number at it."""
        validation.check_start(self, start)
        validation.check_scalar_loss("loss", self.loss, start, example(self.split))

    def value(self, w: Tree, sample: Sample) -> Scalar:
        """The mean loss."""
        return oracles.value(self.loss, (w,), sample)

    def gradient(self, w: Tree, sample: Sample) -> Tree:
        """The gradient of the mean loss."""
        return oracles.gradient(self.loss, (w,), 0, sample)

    def value_and_gradient(self, w: Tree, sample: Sample) -> tuple[Scalar, Tree]:
        """Both in one pass over the rows."""
        return oracles.value_and_gradient(self.loss, (w,), 0, sample)
