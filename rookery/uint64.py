"""Exact counters inside compiled programs, where integers have 32 bits by default.

A counter is two words and counts to 2^64. Several counters lie side by side in one array of low and
one of high words, so that adding to all of them is a handful of operations.

>>> import jax.numpy as jnp
>>> read(plus(zeros(2), products((3_000_000_000, 1), jnp.uint32(2), most=2)))
[6000000000, 2]
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Integer, UInt32

_WORD = 2**32


class Counters(NamedTuple):
    """Counters of one shape."""

    low: UInt32[Array, "..."]
    high: UInt32[Array, "..."]


def zeros(*shape: int) -> Counters:
    """Counters at zero."""
    word = jnp.zeros(shape, jnp.uint32)
    return Counters(word, word)


def plus(a: Counters, b: Counters) -> Counters:
    """The sums."""
    low = a.low + b.low
    return Counters(low, a.high + b.high + (low < b.low).astype(jnp.uint32))


def products(sizes: Sequence[int], times: Integer[Array, ""], most: int) -> Counters:
    """One number times each of several others.

    Args:
        sizes: known when tracing.
        times: may be traced; not negative.
        most: a bound on ``times``, known when tracing.
    """
    times = times.astype(jnp.uint32)
    if max(sizes) * most < _WORD:
        low = times * np.array(sizes, np.uint32)
        return Counters(low, jnp.zeros_like(low))
    total = zeros(len(sizes))
    for shift in range(0, 64, 16):  # long multiplication, in digits of 16 bits
        digits = np.array([(size >> shift) & 0xFFFF for size in sizes], np.uint32)
        total = plus(total, _shifted((times & 0xFFFF) * digits, shift))
        total = plus(total, _shifted((times >> 16) * digits, shift + 16))
    return total


def total(counters: Counters) -> Counters:
    """The sums along the first axis."""

    def add(a: tuple, b: tuple) -> Counters:
        return plus(Counters(*a), Counters(*b))

    zero = jnp.uint32(0)
    return Counters(*lax.reduce(tuple(counters), (zero, zero), add, (0,)))


def read(counters: Counters) -> list:
    """The values as Python integers, in nested lists of the counters' shape."""
    low, high = (np.asarray(word).astype(np.uint64) for word in counters)
    return (low + np.uint64(_WORD) * high).tolist()


def as_floats(counters: Counters) -> Float[Array, "..."]:
    """The values as numbers that may be rounded.

    >>> as_floats(products((3, 1), jnp.uint32(2), most=2)).tolist()
    [6.0, 2.0]
    """
    low, high = (word.astype(float) for word in counters)
    return low + float(_WORD) * high


def _shifted(numbers: jax.Array, shift: int) -> Counters:
    """The numbers times 2^shift."""
    zero = jnp.zeros_like(numbers)
    return {
        0: Counters(numbers, zero),
        16: Counters(numbers << 16, numbers >> 16),
        32: Counters(zero, numbers),
        48: Counters(zero, numbers << 16),
        64: Counters(zero, zero),  # beyond what a counter holds
    }[shift]
