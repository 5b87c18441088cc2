"""X-risks: losses that compare every row of one set with all rows of another one."""

from collections.abc import Callable

import equinox as eqx
import jax
from jaxtyping import Array, Float

from rookery import check
from rookery.loss import Batch
from rookery.problem import validation
from rookery.problem.splits import AbstractOneVariable
from rookery.types import Sample, Scalar, Tree

Scores = Float[Array, " rows"]


class XRisk(AbstractOneVariable):
    """min over w of  mean over z in P of  outer( mean over z' in N of  loss(h_w(z), h_w(z')) ).

    P and N are the rows of all clients in two splits, and h is a score: AUC and partial AUC, NDCG
    and p-norm push, contrastive losses. A client's mean counts by its weight, in P and in N. No
    client alone has the gradient, as the mean over N is inside ``outer`` and over all clients.

    Args:
        score: ``score(w, row)``, one number.
        loss: ``loss(first, second)`` of the scores of a row of P and of a row of N.
        outer: φ, of one number.
        negative_score: the score of rows of N, if it is another function.
        most_positives: rows of P that the largest client has. What is kept for each of them, and
            what clients tell each other, has this size.
        most_negatives: the same of N.
        positive_split: the split of a client's data that is its part of P.
        negative_split: the same of N.
        project: the set of w, see :class:`Constrained`.

    >>> import jax.numpy as jnp
    >>> from rookery.problem.sample import Rows
    >>> problem = XRisk(lambda w, row: w * row, lambda s, t: (1 - s + t) ** 2, jnp.sqrt,
    ...                 most_positives=1, most_negatives=2)
    >>> positive, negative = Rows(jnp.array([3.0])), Rows(jnp.array([1.0, 0.0]))
    >>> round(float(problem.value(jnp.array(1.0), positive, negative)), 3)  # sqrt((1 + 4) / 2)
    1.581
    """

    score: Callable[[Tree, Tree], Scalar]
    loss: Callable[[Scalar, Scalar], Scalar]
    outer: Callable[[Scalar], Scalar]
    negative_score: Callable[[Tree, Tree], Scalar] | None = eqx.field(default=None, kw_only=True)
    most_positives: int = eqx.field(static=True, kw_only=True)
    most_negatives: int = eqx.field(static=True, kw_only=True)
    positive_split: str = eqx.field(static=True, default="train", kw_only=True)
    negative_split: str = eqx.field(static=True, default="train", kw_only=True)

    def __check_init__(self):
        for name in ("score", "loss", "outer"):
            validation.check_function(name, getattr(self, name))
        if self.negative_score is not None:
            validation.check_function("negative_score", self.negative_score)
        check.count("most_positives", self.most_positives)
        check.count("most_negatives", self.most_negatives)

    @property
    def splits(self) -> tuple[str, ...]:
        """Those of P and N, each once."""
        return tuple(dict.fromkeys((self.positive_split, self.negative_split)))

    def check(self, start: tuple[Tree, ...], example: Callable[[str], Tree]) -> None:
        """Raise unless the scores, the loss and φ are numbers."""
        validation.check_start(self, start)
        validation.check_scalar_loss("score", self.score, start, example(self.positive_split))
        other, row = self._negative_score, example(self.negative_split)
        validation.check_scalar_loss("negative_score", other, start, row)
        number = jax.eval_shape(self.score, start[0], example(self.positive_split))
        validation.check_scalar_loss("loss", self.loss, (number,), number)
        validation.check_scalar_loss("outer", lambda u, _: self.outer(u), (number,), number)

    def positive_scores(self, w: Tree, rows: Tree) -> Scores:
        """h of rows of P."""
        return jax.vmap(lambda row: self.score(w, row))(rows)

    def negative_scores(self, w: Tree, rows: Tree) -> Scores:
        """h of rows of N."""
        return jax.vmap(lambda row: self._negative_score(w, row))(rows)

    def losses(self, positive: Scores, negative: Scores) -> Float[Array, "p n"]:
        """The loss of every pair of scores."""
        of_one = jax.vmap(self.loss, in_axes=(None, 0))
        return jax.vmap(of_one, in_axes=(0, None))(positive, negative)

    def slopes(self, u: Scores) -> Scores:
        """φ' of every number."""
        return jax.vmap(jax.grad(self.outer))(u)

    def value(self, w: Tree, positives: Sample, negatives: Sample) -> Scalar:
        """The risk of the rows of two samples, all pairs of them."""
        first, second = as_batch(positives), as_batch(negatives)
        return self._value(w, first, second)

    def gradient(self, w: Tree, positives: Sample, negatives: Sample) -> Tree:
        """The gradient of :meth:`value`."""
        positives.charge(gradients=1)
        negatives.charge(gradients=1)
        return jax.grad(self._value)(w, as_batch(positives), as_batch(negatives))

    @property
    def _negative_score(self) -> Callable[[Tree, Tree], Scalar]:
        return self.score if self.negative_score is None else self.negative_score

    def _value(self, w: Tree, first: Batch, second: Batch) -> Scalar:
        pairs = self.losses(
            self.positive_scores(w, first.rows), self.negative_scores(w, second.rows)
        )
        u = pairs @ second.weights.astype(pairs.dtype)
        return first.weights.astype(u.dtype) @ jax.vmap(self.outer)(u)


def as_batch(sample: Sample) -> Batch:
    """All rows of a sample along a first axis, and their weights."""
    return jax.tree.map(lambda a: a[0], sample.batch().average(lambda batch, _: batch))
