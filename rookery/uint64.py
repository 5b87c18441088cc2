"""Exact counters inside compiled programs, where integers have 32 bits by default.

A counter is a uint32 array (low, high): it counts to 2^64.

>>> import jax.numpy as jnp
>>> read(add(zero(), 3_000_000_000, jnp.uint32(2), most=2))
6000000000
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Integer, UInt32, UInt64

_WORD = 2**32


def zero() -> UInt32[Array, "2"]:
    """A counter at zero."""
    return jnp.zeros(2, jnp.uint32)


def add(
    counter: UInt32[Array, "2"], size: int, times: Integer[Array, ""], most: int
) -> UInt32[Array, "2"]:
    """The counter plus ``size * times``.

    Args:
        counter: the counter.
        size: known when tracing.
        times: may be traced; not negative.
        most: a bound on ``times``, known when tracing.
    """
    times = times.astype(jnp.uint32)
    if size * most < _WORD:
        return _plus(counter, jnp.uint32(size) * times, jnp.uint32(0))
    for shift in range(0, 64, 16):  # long multiplication, in digits of 16 bits
        digit = jnp.uint32((size >> shift) & 0xFFFF)
        counter = _plus_shifted(counter, digit * (times & 0xFFFF), shift)
        counter = _plus_shifted(counter, digit * (times >> 16), shift + 16)
    return counter


def add_all(counter: UInt32[Array, "2"], counters: UInt32[Array, "some 2"]) -> UInt32[Array, "2"]:
    """The counter plus the sum of fewer than 65,536 others."""
    numbers = counters[:, 0]
    low = jnp.sum(numbers & 0xFFFF, dtype=jnp.uint32)
    high = jnp.sum(numbers >> 16, dtype=jnp.uint32)
    counter = _plus(_plus(counter, low, jnp.uint32(0)), high << 16, high >> 16)
    return counter.at[1].add(jnp.sum(counters[:, 1], dtype=jnp.uint32))


def read(counter: np.ndarray | jax.Array) -> int:
    """The value as a Python integer."""
    low, high = np.asarray(counter).tolist()
    return low + _WORD * high


def read_all(counters: UInt32[np.ndarray, "some 2"]) -> UInt64[np.ndarray, " some"]:
    """The values of several counters.

    >>> read_all(np.array([[5, 0], [0, 1]], np.uint32)).tolist()
    [5, 4294967296]
    """
    low, high = counters.astype(np.uint64).T
    return low + np.uint64(_WORD) * high


def _plus(counter: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    total = counter[0] + low
    carry = (total < low).astype(jnp.uint32)
    return jnp.stack([total, counter[1] + high + carry])


def _plus_shifted(counter: jax.Array, number: jax.Array, shift: int) -> jax.Array:
    zero = jnp.uint32(0)
    low, high = {
        0: (number, zero),
        16: (number << 16, number >> 16),
        32: (zero, number),
        48: (zero, number << 16),
        64: (zero, zero),  # beyond what a counter holds
    }[shift]
    return _plus(counter, low, high)
