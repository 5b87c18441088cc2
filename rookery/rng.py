"""Random numbers that compile fast.

``jax.random.randint`` draws twice as many bits to be exact for very large ranges; in a program with
dozens of draws that is a third of the compile time.

JAX writes its generator, Threefry, as a loop of its own wherever a key is split or used, and XLA
compiles every one of these loops again. :func:`quick` gives a key with the same bits whose
generator is a function that XLA does not inline, and so generates code for once.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.extend.random
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata
from jaxtyping import Array, Int32, Integer, UInt32

from rookery.types import Key

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


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


def distinct(key: Key, size: int, n: int | Integer[Array, ""]) -> Int32[Array, " size"]:
    """``size`` different integers (int32) below n, every set equally likely: Floyd's algorithm.

    >>> sorted(distinct(jax.random.key(0), 3, 3).tolist())
    [0, 1, 2]

    Args:
        key: random key.
        size: how many.
        n: at least ``size``; may be traced.
    """
    last = jnp.asarray(n, jnp.int32) - size + jnp.arange(size, dtype=jnp.int32)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(size, dtype=jnp.int32))
    drawn = jax.vmap(below, (0, None, 0))(keys, (), last + 1)

    def add(i: int | jax.Array, chosen: jax.Array) -> jax.Array:
        # a number drawn before makes room for the newest candidate
        pick = jnp.where(jnp.any(chosen == drawn[i]), last[i], drawn[i])
        return chosen.at[i].set(pick)

    return lax.fori_loop(0, size, add, jnp.full(size, -1, jnp.int32))


def quick(key: Key) -> Key:
    """A key that gives the same random numbers and compiles faster on a CPU.

    Other generators than JAX's default, and other processors, are left as they are.

    >>> key = jax.random.key(0)
    >>> bool(jnp.all(jax.random.bits(quick(key), (5,)) == jax.random.bits(key, (5,))))
    True
    """
    is_usual = str(jax.random.key_impl(key)) == "threefry2x32"
    is_usual &= getattr(jax.config, "jax_threefry_partitionable")  # noqa: B009, of no known type
    if not is_usual or jax.default_backend() != "cpu":
        return key
    return jax.random.wrap_key_data(jax.random.key_data(key), impl=_QUICK)


def _threefry(
    key: UInt32[Array, "2"], count: UInt32[Array, "..."]
) -> tuple[UInt32[Array, "..."], UInt32[Array, "..."]]:
    """Two words for every count: Threefry-2x32 with 20 rounds, of the pair (0, count)."""
    # functions of lax, since the operators of arrays take several times as long to trace
    add, xor = lax.add, lax.bitwise_xor
    fill = functools.cache(functools.partial(lax.full_like, count))
    first, second = (
        lax.broadcast(lax.index_in_dim(key, i, keepdims=False), count.shape) for i in (0, 1)
    )
    keys = (first, second, xor(xor(first, second), fill(_PARITY)))
    x, y = first, add(count, second)
    for group in range(5):
        for by in _ROTATIONS[group % 2]:
            x = add(x, y)
            up, down = lax.shift_left(y, fill(by)), lax.shift_right_logical(y, fill(32 - by))
            y = xor(x, lax.bitwise_or(up, down))
        x = add(x, keys[(group + 1) % 3])
        y = add(y, add(keys[(group + 2) % 3], fill(group + 1)))
    return x, y


def _compiled_once(fn: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Ask XLA not to inline a function: equal functions then share one machine code."""
    jitted = jax.jit(fn)

    def call(*arguments: jax.Array) -> jax.Array:
        with set_xla_metadata(inlineable="false"):
            return jitted(*arguments)

    return call


@_compiled_once
def _keys(key: jax.Array, count: jax.Array) -> jax.Array:
    """Both words, along a new last axis."""
    shape = (*count.shape, 2)
    x, y = _threefry(key, lax.broadcast_in_dim(count, shape, tuple(range(count.ndim))))
    which = lax.broadcasted_iota(jnp.int32, shape, count.ndim)
    return lax.select(lax.eq(which, lax.full_like(which, 0)), x, y)


@_compiled_once
def _words(key: jax.Array, count: jax.Array) -> jax.Array:
    return lax.bitwise_xor(*_threefry(key, count))


@_compiled_once
def _long_words(key: jax.Array, count: jax.Array) -> jax.Array:
    x, y = (lax.convert_element_type(word, jnp.uint64) for word in _threefry(key, count))
    return lax.bitwise_or(lax.shift_left(x, lax.full_like(x, 32)), y)


def _counts(shape: tuple[int, ...]) -> jax.Array:
    return lax.reshape(lax.iota(jnp.uint32, math.prod(shape)), shape)


def _seed(seed: jax.Array) -> jax.Array:
    return jax.random.key_data(jax.random.key(seed, impl="threefry2x32"))


def _split(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return _keys(key, _counts(shape))


def _fold_in(key: jax.Array, data: int | jax.Array) -> jax.Array:
    return _keys(key, jnp.asarray(data).astype(jnp.uint32))


def _random_bits(key: jax.Array, bit_width: int, shape: tuple[int, ...]) -> jax.Array:
    if math.prod(shape) >= 2**32:  # a count has two words
        usual = jax.random.wrap_key_data(key, impl="threefry2x32")
        return jax.random.bits(usual, shape, f"uint{bit_width}")
    if bit_width == 64:
        return _long_words(key, _counts(shape))
    return lax.convert_element_type(_words(key, _counts(shape)), np.dtype(f"uint{bit_width}"))


_QUICK = jax.extend.random.define_prng_impl(
    key_shape=(2,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="threefry2x32 compiled once",
    tag="fry1",
)
