"""Single-level problems: ordinary federated learning, a mean of the clients' losses."""

from rookery.problem import oracles
from rookery.problem.splits import AbstractOneLoss, AbstractOneVariable
from rookery.types import Sample, Scalar, Tree


class SingleLevel(AbstractOneVariable, AbstractOneLoss):
    """min over w of  mean over clients of  f_i(w),  f_i the client's mean of ``loss(w, example)``.

    Args:
        loss: of one example.
        split: the split of a client's data that it is averaged over.
        project: the set of w, see :class:`Constrained`.

    >>> import jax.numpy as jnp
    >>> from rookery.problem.sample import Rows
    >>> problem = SingleLevel(lambda w, row: (w - row) ** 2 / 2)
    >>> float(problem.gradient(jnp.array(3.0), Rows(jnp.array([0.0, 2.0]))))
    2.0
    """

    def value(self, w: Tree, sample: Sample) -> Scalar:
        """The mean loss."""
        return oracles.value(self.loss, (w,), sample)

    def gradient(self, w: Tree, sample: Sample) -> Tree:
        """The gradient of the mean loss."""
        return oracles.gradient(self.loss, (w,), 0, sample)

    def value_and_gradient(self, w: Tree, sample: Sample) -> tuple[Scalar, Tree]:
        """Both in one pass over the rows."""
        return oracles.value_and_gradient(self.loss, (w,), 0, sample)
