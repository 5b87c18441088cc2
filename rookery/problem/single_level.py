"""Single-level problems: the mean of the clients' losses, as ordinary federated learning has it."""

from collections.abc import Callable

import equinox as eqx
import jax

from rookery.problem import oracles
from rookery.types import Loss, Sample, Tree


class SingleLevel(eqx.Module):
    """min over w of  mean over clients of  f_i(w),  f_i the client's mean of ``loss(w, example)``.

    Args:
        loss: of one example.
        split: which part of a client's data it is averaged over.
    """

    loss: Loss
    split: str = eqx.field(static=True, default="train")

    def __check_init__(self):
        if not callable(self.loss):
            raise TypeError(f"loss must be a function, got {self.loss!r}.")

    def check(self, variables: tuple[Tree], example: Callable[[str], Tree]) -> None:
        """Raise unless there is one variable and the loss gives one number at it."""
        oracles.check_one_variable("a single-level problem", variables)
        oracles.check_scalar_loss("loss", self.loss, variables, example(self.split))

    def value(self, w: Tree, sample: Sample) -> jax.Array:
        """The mean loss."""
        return oracles.value(self.loss, (w,), sample)

    def gradient(self, w: Tree, sample: Sample) -> Tree:
        """Its gradient."""
        return oracles.gradient(self.loss, (w,), 0, sample)

    def value_and_gradient(self, w: Tree, sample: Sample) -> tuple[jax.Array, Tree]:
        """Both in one pass over the rows."""
        return oracles.value_and_gradient(self.loss, (w,), 0, sample)
