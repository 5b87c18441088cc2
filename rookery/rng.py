"""Random integers that compile fast.

``jax.random.randint`` draws twice as many bits to be exact for very large ranges; in a program with
dozens of draws that is a third of the compile time.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int32, Integer

from rookery.types import Key


def below(key: Key, shape: tuple[int, ...], n: int | Integer[Array, ""]) -> Int32[Array, "..."]:
    """Integers (int32) uniform on 0..n-1; no probability is off by more than a factor n / 2^32.

    >>> below(jax.random.key(0), (1000,), 6).max().item()
    5

    Args:
        key: random key.
        shape: of the result.
        n: at least 1; may be traced.
    """
    bits = jax.random.bits(key, shape, jnp.uint32)
    return (bits % jnp.asarray(n).astype(jnp.uint32)).astype(jnp.int32)
