"""A number per client in blocks of 32, so that a search looks at few of them.

One pass reduces every block; after that a search reads the blocks of which the reduction says that
they hold what it looks for.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Shaped

SIDE = 32
"""Clients in a block. XLA divides longer reductions into several, with arrays in between."""

LEAST = 16
"""Blocks that are read at a time, at least."""

MOST = 2**18
"""And at most: positions in them are float32 numbers while they are sorted."""


def n_blocks(n: int) -> int:
    """How many blocks ``n`` clients have; the last may be shorter."""
    return -(-n // SIDE)


def blocks_at_once(n: int, usual: int) -> int:
    """How many blocks a search reads at a time that usually looks for ``usual`` clients."""
    return min(n_blocks(n), max(usual, LEAST), MOST)


def by_block(
    values: Shaped[Array, " n"], reduce: Callable[..., jax.Array]
) -> Shaped[Array, " blocks"]:
    """A reduction of each block.

    >>> by_block(jnp.arange(40), jnp.max).tolist()
    [31, 39]
    """
    full = (values.shape[0] - 1) // SIDE * SIDE
    each = reduce(values[:full].reshape(-1, SIDE), axis=1)
    return jnp.append(each, reduce(values[full:]))


def clients_of(
    blocks: Int[Array, " some"], n: int
) -> tuple[Int[Array, " clients"], Bool[Array, " clients"]]:
    """The clients of some blocks, and which of these numbers are clients."""
    columns = jnp.arange(min(SIDE, n), dtype=jnp.int32)
    ids = (blocks[:, None] * SIDE + columns[None]).reshape(-1)
    return jnp.minimum(ids, n - 1), ids < n


def first_true(bits: Bool[Array, " n"], most: int) -> tuple[Int[Array, " most"], Int[Array, ""]]:
    """Where the first ``most`` bits are that are set, and how many these are.

    >>> first_true(jnp.array([False, True, True]), 3)[1]
    Array(2, dtype=int32)
    """
    order = -jnp.arange(bits.shape[0], dtype=jnp.float32)
    values, at = lax.top_k(jnp.where(bits, order, -jnp.inf), most)
    return at.astype(jnp.int32), jnp.sum(values > -jnp.inf, dtype=jnp.int32)


def smallest(values: Float[Array, " n"], k: int) -> tuple[Float[Array, " k"], Int[Array, " k"]]:
    """The k smallest values in ascending order, and where they are."""
    negative, at = lax.top_k(-values, k)
    return -negative, at.astype(jnp.int32)
