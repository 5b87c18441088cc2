"""Minimax problems: minimise over x the maximum over y."""

from collections.abc import Callable

import equinox as eqx

from rookery.problem import oracles, validation
from rookery.types import Loss, Sample, Scalar, Tree


class Minimax(eqx.Module):
    """min over x of  max over y of  mean loss(x, y), strongly concave in y.

    The loss takes ``(x, y, example)``. It is the bilevel problem with inner = -outer, whose
    indirect term vanishes at the maximiser: the gradient of the maximum is loss_x(x, y*(x)).

    Args:
        loss: the payoff.
        split: the split of a client's data that it is averaged over.

    >>> import jax.numpy as jnp
    >>> from rookery.problem.sample import Rows
    >>> problem = Minimax(lambda x, y, row: x * y - y**2 / 2 + row * x)
    >>> x, y, rows = jnp.array(1.0), jnp.array(3.0), Rows(jnp.array([0.0, 2.0]))
    >>> float(problem.grad_x(x, y, rows)), float(problem.grad_y(x, y, rows))
    (4.0, -2.0)
    """

    loss: Loss
    split: str = eqx.field(static=True, default="train", kw_only=True)

    def __check_init__(self):
        validation.check_function("loss", self.loss)

    @property
    def variables(self) -> tuple[str, str]:
        """x and y."""
        return "x", "y"

    @property
    def splits(self) -> tuple[str, ...]:
        """The split of the loss."""
        return (self.split,)

    def check(self, start: tuple[Tree, ...], example: Callable[[str], Tree]) -> None:
        """Raise unless the loss returns one number at ``start``."""
        validation.check_start(self, start)
        validation.check_scalar_loss("loss", self.loss, start, example(self.split))

    def value(self, x: Tree, y: Tree, sample: Sample) -> Scalar:
        """The mean loss."""
        return oracles.value(self.loss, (x, y), sample)

    def grad_x(self, x: Tree, y: Tree, sample: Sample) -> Tree:
        """The gradient in the minimising variable."""
        return oracles.gradient(self.loss, (x, y), 0, sample)

    def grad_y(self, x: Tree, y: Tree, sample: Sample) -> Tree:
        """The gradient in the maximising variable."""
        return oracles.gradient(self.loss, (x, y), 1, sample)
