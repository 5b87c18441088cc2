"""Names for the kinds of values that cross module borders."""

from collections.abc import Callable
from typing import Any, Protocol

import jax

Tree = Any
"""A pytree of arrays: parameters, gradients, rows of data."""

Key = jax.Array
"""A typed JAX random key."""

Loss = Callable[..., jax.Array]
"""A scalar loss of the problem's variables and, last, of one example."""


class Sample(Protocol):
    """A handle to some rows of data, drawn once and usable at several points.

    Two oracles called with the same handle see the same rows. That is what variance reduction
    needs. Fresh rows are had by drawing another handle.
    """

    def average(self, fn: Callable[[Tree, jax.Array], Tree], /) -> Tree:
        """Sum of ``fn(rows, weights)`` over the blocks of the sample; all weights sum to one."""
        ...

    def charge(self, *, gradients: int = 0, hessian_vectors: int = 0) -> None:
        """Note that so many evaluations were made on every row of the sample."""
        ...
