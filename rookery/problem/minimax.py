"""Minimax problems: minimise over x the maximum over y."""

from rookery.problem import oracles
from rookery.problem.splits import AbstractOneLoss
from rookery.types import Sample, Scalar, Tree


class Minimax(AbstractOneLoss):
    """min over x of  max over y of  mean loss(x, y), strongly concave in y.

    The loss takes ``(x, y, example)``. It is the bilevel problem with inner = -outer, whose
    indirect term vanishes at the maximiser: the gradient of the maximum is loss_x(x, y*(x)).

    Args:
        loss: the payoff.
        split: the split of a client's data that it is averaged over.
        project: the sets of x and y, see :class:`Constrained`.

    >>> import jax.numpy as jnp
    >>> from rookery.problem.sample import Rows
    >>> problem = Minimax(lambda x, y, row: x * y - y**2 / 2 + row * x)
    >>> x, y, rows = jnp.array(1.0), jnp.array(3.0), Rows(jnp.array([0.0, 2.0]))
    >>> float(problem.grad_x(x, y, rows)), float(problem.grad_y(x, y, rows))
    (4.0, -2.0)
    """

    @property
    def variables(self) -> tuple[str, str]:
        """x and y."""
        return "x", "y"

    def value(self, x: Tree, y: Tree, sample: Sample) -> Scalar:
        """The mean loss."""
        return oracles.value(self.loss, (x, y), sample)

    def grad_x(self, x: Tree, y: Tree, sample: Sample) -> Tree:
        """The gradient in the minimising variable."""
        return oracles.gradient(self.loss, (x, y), 0, sample)

    def grad_y(self, x: Tree, y: Tree, sample: Sample) -> Tree:
        """The gradient in the maximising variable."""
        return oracles.gradient(self.loss, (x, y), 1, sample)
