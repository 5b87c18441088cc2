"""Types that several packages share: trees, keys, losses, samples and problems."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import jax
from jaxtyping import Array, Float, PyTree

Tree = PyTree
"""A pytree of arrays: parameters, gradients, rows of data."""

Key = jax.Array
"""A typed JAX random key."""

Scalar = Float[Array, ""]
"""One floating-point number."""

Number = float | int | jax.Array
"""One number, of Python or in an array, which may be traced."""

Count = int | jax.Array
"""The same of a whole number: a round, a number of steps, a client."""

BatchSize = int | None | Mapping[str, int | None]
"""Rows per evaluation on a client, None for all of them; or one such number for each split."""

Loss = Callable[..., Scalar]
"""A scalar loss of the problem's variables and, last, of one example."""


AnyProblem = Any
"""A problem of the class that an algorithm or a part asks for: subclasses narrow it."""

Converted = Any
"""What a field converter returns: its annotation would be the type of the field."""


@runtime_checkable
class Sample(Protocol):
    """A handle to some rows of data, drawn once and usable at several points.

    Two oracles called with the same handle see the same rows and the same keys, as variance
    reduction needs. Draw another handle for fresh ones.
    """

    def average(self, fn: Callable[[Tree, Float[Array, " rows"]], Tree], /) -> Tree:
        """Sum of ``fn(rows, weights)`` over the blocks of the sample; all weights sum to one."""
        ...

    def average_with_keys(self, fn: Callable[[Tree, Float[Array, " rows"], Key], Tree], /) -> Tree:
        """The same of ``fn(rows, weights, keys)``, with one random key per row and draw."""
        ...

    def pairs(self) -> "Sample":
        """A sample whose rows are pairs of different rows, :class:`rookery.loss.Pair`."""
        ...

    def batch(self) -> "Sample":
        """A sample of one row: all rows together, a :class:`rookery.loss.Batch`."""
        ...

    def row_shape(self) -> Tree:
        """The shape and type of one row, as ``jax.ShapeDtypeStruct``; no number of any row."""
        ...

    def charge(self, *, gradients: int = 0, hessian_vectors: int = 0) -> None:
        """Bill this many evaluations on every row of the sample."""
        ...


@runtime_checkable
class Problem(Protocol):
    """What the runner and the engines need of a problem, whatever its class.

    The classes of :mod:`rookery.problem` have it; an algorithm asks for one of them by name. A
    problem of your own needs these three and an algorithm that knows it.
    """

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of its variables, in the order of the initial values."""
        ...

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits of the clients' data that it reads, each once."""
        ...

    def check(self, start: tuple[Tree, ...], example: Callable[[str], Tree], /) -> None:
        """Raise unless the initial values suit it and its losses suit one row of each split."""
        ...
