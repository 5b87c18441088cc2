"""How a client's reply is compressed on its way up.

    codec                   sends per leaf                              mean of what arrives
    StochasticRounding(b)   b bits an entry, and a scale                the leaf itself
    RandK(k)                k entries, and the seed of their places     the leaf itself
    TopK(k)                 the k largest entries, and their places     not the leaf: biased
    BFloat16()              16 bits an entry                            the leaf, rounded

A reply is encoded on the client and decoded at the server, before the mean. What is encoded is a
tree of arrays, and the ledger bills their bytes, places and scales included. Leaves are encoded
apart: a scale that fits one block of variables would be wrong for another.

Unbiased codecs add noise in proportion to the reply, which does not vanish at a solution where
clients differ. Error feedback (EF-SOBA, ``FedPAQ(error_feedback=True)``) sends what earlier
messages left out, and then a biased codec is the better one.
"""

import abc
import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt8

from rookery import check
from rookery.types import Key, Tree


class AbstractCodec(eqx.Module):
    """Encodes a tree of floating-point arrays, leaf by leaf."""

    @abc.abstractmethod
    def encode_leaf(self, leaf: Float[Array, " n"], key: Key) -> Tree:
        """What is sent for a flat leaf."""

    @abc.abstractmethod
    def decode_leaf(self, sent: Tree, n: int) -> Float[Array, " n"]:
        """The flat leaf of n entries, as the server reads it."""

    def encode(self, value: Tree, key: Key) -> tuple[Tree, ...]:
        """What is sent for a tree: one entry per leaf."""
        leaves = jax.tree.leaves(value)
        keys = jax.random.split(key, len(leaves))
        return tuple(self.encode_leaf(leaf.ravel(), keys[i]) for i, leaf in enumerate(leaves))

    def decode(self, sent: tuple[Tree, ...], like: Tree) -> Tree:
        """The tree that a message stands for, of the shapes and types of ``like``."""
        leaves, structure = jax.tree.flatten(like)
        read = [
            self.decode_leaf(part, leaf.size).reshape(leaf.shape).astype(leaf.dtype)
            for part, leaf in zip(sent, leaves, strict=True)
        ]
        return jax.tree.unflatten(structure, read)


class StochasticRounding(AbstractCodec):
    """Every entry on a grid of 2^(bits-1) - 1 steps on either side of zero, rounded at random.

    The grid of a leaf ends at its largest entry. An entry is rounded up with the probability that
    keeps its mean. (QSGD: D. Alistarh et al., NeurIPS 2017, arXiv:1610.02132.)

    Args:
        bits: of an entry, sign included, 2 to 8.

    >>> import jax, jax.numpy as jnp
    >>> w = jnp.array([1.0, -0.5, 0.0], jnp.float32)
    >>> sent = StochasticRounding(4).encode(w, jax.random.key(0))
    >>> sum(leaf.nbytes for leaf in jax.tree.leaves(sent))  # two bytes of entries and the scale
    6
    """

    bits: int = 8

    def __check_init__(self):
        check.count("StochasticRounding.bits", self.bits, least=2)
        if self.bits > 8:
            raise ValueError(f"StochasticRounding.bits must be 2 to 8, got {self.bits}.")

    @property
    def _steps(self) -> int:
        return 2 ** (self.bits - 1) - 1

    def encode_leaf(self, leaf, key):
        """The packed entries, and the largest magnitude."""
        scale = jnp.max(jnp.abs(leaf), initial=0.0)
        inside = leaf / jnp.where(scale > 0, scale, jnp.ones_like(scale)) * self._steps
        steps = jnp.floor(inside + jax.random.uniform(key, leaf.shape, leaf.dtype))
        entries = (jnp.clip(steps, -self._steps, self._steps) + self._steps).astype(jnp.uint8)
        return _packed(entries, self.bits), scale

    def decode_leaf(self, sent, n):
        """The entries on the grid."""
        packed, scale = sent
        steps = _unpacked(packed, self.bits, n).astype(scale.dtype) - self._steps
        return steps * (scale / self._steps)


class RandK(AbstractCodec):
    """Some entries at random places, scaled up so that the mean is the leaf itself.

    The places follow from a seed, which is sent instead of them.

    Args:
        k: how many entries of a leaf, or, below 1, which fraction; at least one.

    >>> import jax, jax.numpy as jnp
    >>> codec, w = RandK(0.5), jnp.array([1.0, 1.0])
    >>> sorted(codec.decode(codec.encode(w, jax.random.key(0)), w).tolist())
    [0.0, 2.0]
    """

    k: float = eqx.field(static=True)

    def __check_init__(self):
        _check_k("RandK.k", self.k)

    def encode_leaf(self, leaf, key):
        """The entries, and the seed of their places."""
        n = leaf.shape[0]
        places = _random_places(key, _count(self.k, n), n)
        return leaf[places], jax.random.key_data(key)

    def decode_leaf(self, sent, n):
        """The entries times n / k at their places, and zeros."""
        values, seed = sent
        places = _random_places(jax.random.wrap_key_data(seed), values.shape[0], n)
        return jnp.zeros(n, values.dtype).at[places].set(values * (n / values.shape[0]))


class TopK(AbstractCodec):
    """The entries of largest magnitude. Biased: use it with error feedback.

    Args:
        k: how many entries of a leaf, or, below 1, which fraction; at least one.

    >>> import jax, jax.numpy as jnp
    >>> codec, w = TopK(1), jnp.array([1.0, -3.0, 2.0])
    >>> codec.decode(codec.encode(w, jax.random.key(0)), w).tolist()
    [0.0, -3.0, 0.0]
    """

    k: float = eqx.field(static=True)

    def __check_init__(self):
        _check_k("TopK.k", self.k)

    def encode_leaf(self, leaf, key):
        """The entries and their places, in the smallest type that holds them."""
        n = leaf.shape[0]
        _, places = jax.lax.top_k(jnp.abs(leaf), _count(self.k, n))
        return leaf[places], places.astype(_place_type(n))

    def decode_leaf(self, sent, n):
        """The entries at their places, and zeros."""
        values, places = sent
        return jnp.zeros(n, values.dtype).at[places.astype(jnp.int32)].set(values)


class BFloat16(AbstractCodec):
    """Every entry rounded to bfloat16: the range of float32 with 8 bits of precision.

    >>> import jax, jax.numpy as jnp
    >>> BFloat16().encode(jnp.ones(3), jax.random.key(0))[0].nbytes
    6
    """

    def encode_leaf(self, leaf, key):
        """The rounded entries."""
        return leaf.astype(jnp.bfloat16)

    def decode_leaf(self, sent, n):
        """The same, in the type of the leaf."""
        return sent


def _check_k(name: str, k: float) -> None:
    if isinstance(k, int) or k >= 1:
        check.count(name, k)
    else:
        check.fraction(name, k)


def _count(k: float, n: int) -> int:
    return min(n, int(k) if k >= 1 else max(1, round(k * n)))


def _place_type(n: int) -> jnp.dtype:
    return jnp.dtype(
        next(t for t in (jnp.uint8, jnp.uint16, jnp.uint32) if n - 1 <= jnp.iinfo(t).max)
    )


def _random_places(key: Key, k: int, n: int) -> jax.Array:
    return jax.random.permutation(key, n)[:k]


def _packed(entries: UInt8[Array, " n"], bits: int) -> UInt8[Array, " bytes"]:
    shifts = jnp.arange(bits, dtype=jnp.uint8)
    return jnp.packbits((entries[:, None] >> shifts[None, :]) & jnp.uint8(1))


def _unpacked(packed: UInt8[Array, " bytes"], bits: int, n: int) -> UInt8[Array, " n"]:
    places = (jnp.uint8(1) << jnp.arange(bits, dtype=jnp.uint8))[None, :]
    each = jnp.unpackbits(packed, count=n * bits).reshape(n, bits)
    return jnp.sum(each * places, axis=1, dtype=jnp.uint8)


def message_bytes(codec: AbstractCodec, like: Tree) -> int:
    """How many bytes a reply shaped like a tree has after encoding.

    >>> import jax.numpy as jnp
    >>> message_bytes(TopK(2), jnp.zeros(1000, jnp.float32))  # two values, two places of 16 bits
    12
    """
    sent = jax.eval_shape(
        lambda: codec.encode(jax.tree.map(jnp.zeros_like, like), jax.random.key(0))
    )
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(sent))
