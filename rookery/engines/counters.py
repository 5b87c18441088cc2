"""Exact counters inside compiled programs, where integers have 32 bits unless told otherwise.

A counter is four limbs of 16 bits, least first, in a uint32 array of length 4: it counts to 2^64.
"""

import jax
import jax.numpy as jnp
import numpy as np

_LIMBS = 4
_MASK = 0xFFFF


def zero() -> jax.Array:
    """A counter at zero."""
    return jnp.zeros(_LIMBS, jnp.uint32)


def add(counter: jax.Array, size: int, times: jax.Array) -> jax.Array:
    """The counter plus ``size * times``: a size known when tracing, a count that may be traced."""
    times = times.astype(jnp.uint32)
    halves = (times & _MASK, times >> 16)
    limbs = list(counter)
    for j in range(_LIMBS):
        digit = jnp.uint32((size >> (16 * j)) & _MASK)
        for shift, half in enumerate(halves):
            product = digit * half  # below 2^32
            for k, part in ((j + shift, product & _MASK), (j + shift + 1, product >> 16)):
                if k < _LIMBS:
                    limbs[k] = limbs[k] + part
    return _carried(limbs)


def add_all(counter: jax.Array, numbers: jax.Array) -> jax.Array:
    """The counter plus the sum of an array of uint32 numbers, none of which may wrap around."""
    low = jnp.sum(numbers & _MASK, dtype=jnp.uint32)
    high = jnp.sum(numbers >> 16, dtype=jnp.uint32)
    return add(add(counter, 1, low), 1 << 16, high)


def read(counter: np.ndarray | jax.Array) -> int:
    """The value of one counter as a Python integer."""
    return sum(int(limb) << (16 * j) for j, limb in enumerate(np.asarray(counter)))


def _carried(limbs: list[jax.Array]) -> jax.Array:
    carry = jnp.uint32(0)
    out = []
    for limb in limbs:
        total = limb + carry
        out.append(total & _MASK)
        carry = total >> 16
    return jnp.stack(out)
