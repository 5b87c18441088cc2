"""A sample of rows in memory, for tests and for data that the server holds."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree, Shaped

from rookery.types import Tree


class Rows(eqx.Module):
    """All the given rows, with equal weights.

    >>> import jax.numpy as jnp
    >>> sample = Rows(jnp.array([1.0, 2.0, 6.0]))
    >>> float(sample.average(lambda rows, weights: jnp.dot(weights, rows)))
    3.0
    """

    rows: PyTree[Shaped[Array | np.ndarray, "rows ..."]]

    def average(self, fn: Callable[[Tree, Float[Array, " rows"]], Tree], /) -> Tree:
        """``fn`` of all rows with equal weights."""
        n = jax.tree.leaves(self.rows)[0].shape[0]
        return fn(self.rows, jnp.full((n,), 1 / n))

    def charge(self, *, gradients: int = 0, hessian_vectors: int = 0) -> None:
        """Nothing: evaluations at the server are not billed."""
