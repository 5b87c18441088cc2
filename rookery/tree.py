"""Arithmetic on pytrees.

Scalars are cast to the type of the leaf they meet, so float32 parameters stay float32 whatever
precision the step sizes have.
"""

import functools
import math
import operator

import jax
import jax.numpy as jnp

from rookery.types import Tree


def add(a: Tree, b: Tree) -> Tree:
    """The sum a + b."""
    return jax.tree.map(operator.add, a, b)


def sub(a: Tree, b: Tree) -> Tree:
    """The difference a - b."""
    return jax.tree.map(operator.sub, a, b)


def scale(scalar, a: Tree) -> Tree:
    """The product scalar * a."""
    return jax.tree.map(lambda leaf: jnp.asarray(scalar).astype(leaf.dtype) * leaf, a)


def axpy(scalar, a: Tree, b: Tree) -> Tree:
    """The combination scalar * a + b."""
    return jax.tree.map(lambda u, w: jnp.asarray(scalar).astype(w.dtype) * u + w, a, b)


def as_arrays(a: Tree) -> Tree:
    """The same tree with arrays for leaves; None stays None."""
    return jax.tree.map(jnp.asarray, a)


def zeros_like(a: Tree) -> Tree:
    """Zeros of the same structure, shapes and types."""
    return jax.tree.map(jnp.zeros_like, a)


def dot(a: Tree, b: Tree) -> jax.Array:
    """The inner product of two trees."""
    products = jax.tree.leaves(jax.tree.map(lambda u, w: jnp.sum(u * w), a, b))
    return functools.reduce(operator.add, products)


def norm(a: Tree) -> jax.Array:
    """The Euclidean norm of all leaves together."""
    return jnp.sqrt(dot(a, a))


def where(condition, a: Tree, b: Tree) -> Tree:
    """Leafwise choice; the condition broadcasts from the left."""

    def choose(u, w):
        shape = jnp.shape(condition) + (1,) * (jnp.ndim(u) - jnp.ndim(condition))
        return jnp.where(jnp.reshape(condition, shape), u, w)

    return jax.tree.map(choose, a, b)


def size(a: Tree) -> int:
    """How many numbers the tree holds."""
    return sum(math.prod(jnp.shape(leaf)) for leaf in jax.tree.leaves(a))


def nbytes(a: Tree) -> int:
    """How many bytes the tree's arrays take on a wire."""

    def of(leaf):
        if isinstance(leaf, jax.Array):  # far quicker, and most are
            return leaf.size * leaf.dtype.itemsize
        return math.prod(jnp.shape(leaf)) * jnp.result_type(leaf).itemsize

    return sum(of(leaf) for leaf in jax.tree.leaves(a))


def all_finite(a: Tree) -> jax.Array:
    """Whether no inexact leaf holds a NaN or an infinity."""
    leaves = [x for x in jax.tree.leaves(a) if jnp.issubdtype(jnp.result_type(x), jnp.inexact)]
    checks = [jnp.all(jnp.isfinite(leaf)) for leaf in leaves]
    return functools.reduce(jnp.logical_and, checks, jnp.array(True))


def random_normal(key: jax.Array, like: Tree) -> Tree:
    """Standard normal leaves of the shapes and types of ``like``."""
    leaves, structure = jax.tree.flatten(like)
    keys = jax.random.split(key, len(leaves))
    drawn = [
        jax.random.normal(k, leaf.shape, leaf.dtype) for k, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, drawn)
