"""Bilevel problems: minimise an outer loss at the minimiser of an inner loss."""

from collections.abc import Callable

import equinox as eqx
import jax

from rookery.problem import oracles
from rookery.types import Loss, Sample, Tree


class Bilevel(eqx.Module):
    """min over x of  mean outer(x, y*(x))  where  y*(x) = argmin over y of  mean inner(x, y).

    Both losses take ``(x, y, example)`` and give one number; ``x``, ``y`` and the example are any
    pytrees. Means run over the examples of a client, then over clients. The inner loss must be
    strongly convex in ``y``. With v solving  inner_yy v = outer_y,  the hypergradient is
    outer_x - inner_xy v.

    Args:
        outer: loss of the outer level.
        inner: loss of the inner level.
        outer_split: which part of a client's data the outer loss is averaged over.
        inner_split: the same for the inner loss.
    """

    outer: Loss
    inner: Loss
    outer_split: str = eqx.field(static=True, default="validation")
    inner_split: str = eqx.field(static=True, default="train")

    def __check_init__(self):
        for name in ("outer", "inner"):
            if not callable(getattr(self, name)):
                raise TypeError(f"{name} must be a function, got {getattr(self, name)!r}.")

    def check(self, variables: tuple[Tree, Tree], example: Callable[[str], Tree]) -> None:
        """Raise unless both losses give one number at ``variables`` for an example of a split."""
        oracles.check_scalar_loss("outer", self.outer, variables, example(self.outer_split))
        oracles.check_scalar_loss("inner", self.inner, variables, example(self.inner_split))

    def outer_value(self, x: Tree, y: Tree, sample: Sample) -> jax.Array:
        """The mean outer loss, f."""
        return oracles.value(self.outer, (x, y), sample)

    def inner_value(self, x: Tree, y: Tree, sample: Sample) -> jax.Array:
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
