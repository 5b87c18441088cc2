"""Minimax problems: minimise in x what is greatest in y."""

from collections.abc import Callable

import equinox as eqx
import jax

from rookery.problem import oracles
from rookery.types import Loss, Sample, Tree


class Minimax(eqx.Module):
    """min over x of  max over y of  mean loss(x, y), strongly concave in y.

    The loss takes ``(x, y, example)``. It is the bilevel problem with inner = -outer, whose
    indirect term vanishes at the maximiser: the gradient of the maximum is loss_x(x, y*(x)).

    Args:
        loss: the payoff.
        split: which part of a client's data it is averaged over.
    """

    loss: Loss
    split: str = eqx.field(static=True, default="train")

    def __check_init__(self):
        if not callable(self.loss):
            raise TypeError(f"loss must be a function, got {self.loss!r}.")

    def check(self, variables: tuple[Tree, Tree], example: Callable[[str], Tree]) -> None:
        """Raise unless the loss gives one number at ``variables``."""
        oracles.check_scalar_loss("loss", self.loss, variables, example(self.split))

    def value(self, x: Tree, y: Tree, sample: Sample) -> jax.Array:
        """The mean loss."""
        return oracles.value(self.loss, (x, y), sample)

    def grad_x(self, x: Tree, y: Tree, sample: Sample) -> Tree:
        """The gradient in the minimising variable."""
        return oracles.gradient(self.loss, (x, y), 0, sample)

    def grad_y(self, x: Tree, y: Tree, sample: Sample) -> Tree:
        """The gradient in the maximising variable."""
        return oracles.gradient(self.loss, (x, y), 1, sample)
