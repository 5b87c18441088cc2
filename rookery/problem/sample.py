"""A sample of rows in memory, for tests and for data that the server holds."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree, Shaped

from rookery.loss import Batch
from rookery.samples import (
    ROW_KEYS,
    AllPairs,
    OneBatch,
    check_batch,
    first_row_shape,
    keys_for,
    need_key,
)
from rookery.types import Key, Sample, Tree


class Rows(eqx.Module):
    """All the given rows, with equal weights.

    >>> import jax.numpy as jnp
    >>> sample = Rows(jnp.array([1.0, 2.0, 6.0]))
    >>> float(sample.average(lambda rows, weights: jnp.dot(weights, rows)))
    3.0

    Args:
        rows: pytree of arrays with one row per example.
        key: for losses with a parameter named ``key``, which need one.
    """

    rows: PyTree[Shaped[Array | np.ndarray, "rows ..."]]
    key: Key | None = None

    @property
    def count(self) -> int:
        """The number of rows."""
        return jax.tree.leaves(self.rows)[0].shape[0]

    def average(self, fn: Callable[[Tree, Float[Array, " rows"]], Tree], /) -> Tree:
        """``fn`` of all rows with equal weights."""
        return fn(self.rows, jnp.full((self.count,), 1 / self.count))

    def average_with_keys(self, fn: Callable[[Tree, Float[Array, " rows"], Key], Tree], /) -> Tree:
        """The same with one key per row."""
        keys = keys_for(need_key(self.key), ROW_KEYS, jnp.arange(self.count, dtype=jnp.uint32))
        return fn(self.rows, jnp.full((self.count,), 1 / self.count), keys)

    def pairs(self) -> Sample:
        """All pairs of different rows."""

        def rows(index: Array) -> Tree:
            return jax.tree.map(lambda a: jnp.asarray(a)[index], self.rows)

        count = jnp.asarray(self.count, jnp.int32)
        return AllPairs(rows, count, self.count, self.key, lambda *_, **__: None)

    def batch(self) -> Sample:
        """All rows together."""
        check_batch(self.count)
        batch = Batch(self.rows, jnp.full((self.count,), 1 / self.count))
        return OneBatch(batch, self.key, lambda *_: None)

    def row_shape(self) -> Tree:
        """Of one of the rows."""
        return first_row_shape(self.rows)

    def charge(self, *, gradients: int = 0, hessian_vectors: int = 0) -> None:
        """Nothing: evaluations at the server are not billed."""
