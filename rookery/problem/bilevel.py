"""Bilevel problems: minimise an outer loss at the minimiser of an inner loss."""

from collections.abc import Callable

import equinox as eqx

from rookery.problem import oracles, validation
from rookery.problem.constraints import projections
from rookery.problem.splits import AbstractTwoSplits
from rookery.types import Loss, Sample, Scalar, Tree


class Bilevel(AbstractTwoSplits):
    """min over x of  mean outer(x, y*(x))  where  y*(x) = argmin over y of  mean inner(x, y).

    Both losses take ``(x, y, example)`` and return one number; ``x``, ``y`` and the example are any
    pytrees. Means run over the examples of a client, then over clients. The inner loss must be
    strongly convex in ``y``. With v solving  inner_yy v = outer_y,  the hypergradient is
    outer_x - inner_xy v.

    Args:
        outer: loss of the outer level.
        inner: loss of the inner level.
        outer_split: the split of a client's data that the outer loss is averaged over.
        inner_split: the split that the inner loss is averaged over.
        project: the set of x, see :class:`Constrained`; y is free.

    >>> import jax.numpy as jnp
    >>> from rookery.problem.sample import Rows
    >>> problem = Bilevel(
    ...     outer=lambda x, y, row: (y - row) ** 2 / 2,
    ...     inner=lambda x, y, row: (y - x) ** 2 / 2,
    ... )
    >>> x, y, rows = jnp.array(1.0), jnp.array(3.0), Rows(jnp.array([0.0, 2.0]))
    >>> float(problem.outer_grad_y(x, y, rows)), float(problem.inner_grad_y(x, y, rows))
    (2.0, 2.0)
    """

    outer: Loss
    inner: Loss
    outer_split: str = eqx.field(static=True, default="validation", kw_only=True)
    inner_split: str = eqx.field(static=True, default="train", kw_only=True)

    def __check_init__(self):
        validation.check_function("outer", self.outer)
        validation.check_function("inner", self.inner)
        if "y" in projections(self):
            raise ValueError(
                "project has 'y'. The hypergradient of a Bilevel problem needs a free inner "
                "variable: constrain x alone, or write the constraint of y as a penalty."
            )

    @property
    def variables(self) -> tuple[str, str]:
        """x and y."""
        return "x", "y"

    def check(self, start: tuple[Tree, ...], example: Callable[[str], Tree]) -> None:
        """Raise unless both losses return one number at ``start`` for an example of their split."""
        validation.check_start(self, start)
        validation.check_scalar_loss("outer", self.outer, start, example(self.outer_split))
        validation.check_scalar_loss("inner", self.inner, start, example(self.inner_split))

    def outer_value(self, x: Tree, y: Tree, sample: Sample) -> Scalar:
        """The mean outer loss, f."""
        return oracles.value(self.outer, (x, y), sample)

    def inner_value(self, x: Tree, y: Tree, sample: Sample) -> Scalar:
        """The mean inner loss, g."""
        return oracles.value(self.inner, (x, y), sample)

    def outer_grad_x(self, x: Tree, y: Tree, sample: Sample) -> Tree:
        """f_x."""
        return oracles.gradient(self.outer, (x, y), 0, sample)

    def outer_grad_y(self, x: Tree, y: Tree, sample: Sample) -> Tree:
        """f_y."""
        return oracles.gradient(self.outer, (x, y), 1, sample)

    def inner_grad_x(self, x: Tree, y: Tree, sample: Sample) -> Tree:
        """g_x, needed by penalty methods only."""
        return oracles.gradient(self.inner, (x, y), 0, sample)

    def inner_grad_y(self, x: Tree, y: Tree, sample: Sample) -> Tree:
        """g_y."""
        return oracles.gradient(self.inner, (x, y), 1, sample)

    def inner_hvp(self, x: Tree, y: Tree, v: Tree, sample: Sample) -> Tree:
        """g_yy v, of the shape of y."""
        return oracles.second_derivative(self.inner, (x, y), 1, 1, v, sample)

    def inner_cross(self, x: Tree, y: Tree, v: Tree, sample: Sample) -> Tree:
        """g_xy v, of the shape of x."""
        return oracles.second_derivative(self.inner, (x, y), 0, 1, v, sample)
