"""Arithmetic on pytrees: parameters, gradients, anything whose leaves are arrays.

Scalars are cast to the type of the leaf they meet, so float32 parameters stay float32 whatever
precision the step sizes have.
"""

import functools
import math
import operator
import reprlib
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool

from rookery.types import Key, Tree


def add(a: Tree, b: Tree) -> Tree:
    """The sum a + b.

    >>> add({"w": jnp.ones(2)}, {"w": jnp.ones(2)})["w"].tolist()
    [2.0, 2.0]
    """
    return _map(operator.add, a, b)


def sub(a: Tree, b: Tree) -> Tree:
    """The difference a - b.

    >>> sub(jnp.array([3.0]), jnp.array([1.0])).tolist()
    [2.0]
    """
    return _map(operator.sub, a, b)


def scale(scalar: ArrayLike, a: Tree) -> Tree:
    """The product scalar * a.

    >>> scale(0.5, (jnp.array([2.0]), jnp.array(4.0)))[1].item()
    2.0
    """
    return jax.tree.map(lambda leaf: jnp.asarray(scalar).astype(leaf.dtype) * leaf, a)


def axpy(scalar: ArrayLike, a: Tree, b: Tree) -> Tree:
    """The combination scalar * a + b.

    >>> axpy(-0.1, jnp.array([10.0]), jnp.array([3.0])).tolist()  # a gradient step
    [2.0]
    """
    return _map(lambda u, w: jnp.asarray(scalar).astype(w.dtype) * u + w, a, b)


def shapes(a: Tree) -> tuple[object, list[tuple[int, ...]]]:
    """The structure of a tree and the shapes of its leaves, to compare with those of another.

    >>> shapes((1.0, 2.0)) == shapes((jnp.ones(()), jnp.ones(2)))
    False
    """
    return jax.tree.structure(a), [jnp.shape(leaf) for leaf in jax.tree.leaves(a)]


def as_arrays(a: Tree) -> Tree:
    """The same tree with arrays for leaves; None stays None.

    >>> as_arrays((1.0, None))[1] is None
    True
    """
    try:
        return jax.tree.map(jnp.asarray, a)
    except (TypeError, OverflowError) as error:
        raise TypeError(f"expected arrays of numbers, got {reprlib.repr(a)}: {error}") from error


def zeros_like(a: Tree) -> Tree:
    """Zeros of the same structure, shapes and types.

    >>> zeros_like({"w": jnp.ones(2)})["w"].tolist()
    [0.0, 0.0]
    """
    return jax.tree.map(jnp.zeros_like, a)


def dot(a: Tree, b: Tree) -> Array:
    """The inner product of two trees.

    >>> dot((jnp.array([1.0, 2.0]),), (jnp.array([3.0, 4.0]),)).item()
    11.0
    """
    products = jax.tree.leaves(_map(lambda u, w: jnp.sum(u * w), a, b))
    if not products:
        raise ValueError("the inner product of trees without arrays is not defined.")
    return functools.reduce(operator.add, products)


def norm(a: Tree) -> Array:
    """The Euclidean norm of all leaves together.

    >>> norm((jnp.array([3.0]), jnp.array(4.0))).item()
    5.0
    """
    return jnp.sqrt(dot(a, a))


def where(condition: Bool[Array, "..."] | bool, a: Tree, b: Tree) -> Tree:
    """Leafwise choice; the condition broadcasts from the left.

    >>> where(jnp.array([True, False]), jnp.ones((2, 2)), jnp.zeros((2, 2))).tolist()
    [[1.0, 1.0], [0.0, 0.0]]
    """

    def choose(u, w):
        shape = jnp.shape(condition) + (1,) * (jnp.ndim(u) - jnp.ndim(condition))
        return jnp.where(jnp.reshape(condition, shape), u, w)

    return _map(choose, a, b)


def size(a: Tree) -> int:
    """How many numbers the tree holds.

    >>> size((jnp.zeros((2, 3)), 1.0))
    7
    """
    return sum(math.prod(jnp.shape(leaf)) for leaf in jax.tree.leaves(a))


def nbytes(a: Tree) -> int:
    """How many bytes the tree's arrays take in a message.

    >>> nbytes(jnp.zeros(3, "float32"))
    12
    """

    def of(leaf):
        if isinstance(leaf, jax.Array):  # much faster, and the common case
            return leaf.size * leaf.dtype.itemsize
        return math.prod(jnp.shape(leaf)) * jnp.result_type(leaf).itemsize

    return sum(of(leaf) for leaf in jax.tree.leaves(a))


def blocks(array: ArrayLike, size: int = 1 << 16) -> Iterator[np.ndarray]:
    """The entries of an array in flat pieces, for sums over a large one without another copy.

    >>> [len(block) for block in blocks(np.zeros((3, 2)), size=4)]
    [4, 2]
    """
    flat = np.asarray(array).reshape(-1)
    for begin in range(0, flat.size, size):
        yield flat[begin : begin + size]


def all_finite(a: Tree) -> Bool[Array, ""]:
    """Whether no floating-point leaf holds a NaN or an infinity.

    >>> bool(all_finite((jnp.ones(2), jnp.array(jnp.nan))))
    False
    """
    leaves = [x for x in jax.tree.leaves(a) if jnp.issubdtype(jnp.result_type(x), jnp.inexact)]
    checks = [jnp.all(jnp.isfinite(leaf)) for leaf in leaves]
    return functools.reduce(jnp.logical_and, checks, jnp.array(True))


def is_finite(a: Tree) -> bool:
    """The same of arrays that are not traced, block by block: a large one is not copied.

    >>> is_finite((jnp.ones(2), jnp.array(jnp.nan)))
    False
    """
    leaves = [x for x in jax.tree.leaves(a) if jnp.issubdtype(jnp.result_type(x), jnp.inexact)]
    return all(bool(np.isfinite(block).all()) for leaf in leaves for block in blocks(leaf))


def random_normal(key: Key, like: Tree) -> Tree:
    """Standard normal leaves of the shapes and types of ``like``.

    >>> random_normal(jax.random.key(0), {"w": jnp.zeros(3)})["w"].shape
    (3,)
    """
    leaves, structure = jax.tree.flatten(like)
    keys = jax.random.split(key, len(leaves))
    # drawn flat: XLA unrolls loops over a short last axis, which takes seconds to compile
    drawn = [
        jax.random.normal(k, (leaf.size,), leaf.dtype).reshape(leaf.shape)
        for k, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, drawn)


def _map(fn: Callable, a: Tree, b: Tree) -> Tree:
    try:
        return jax.tree.map(fn, a, b)
    except (ValueError, TypeError) as error:
        if jax.tree.structure(a) == jax.tree.structure(b):
            raise
        raise ValueError(
            "the two trees have different structures: "
            f"{jax.tree.structure(a)} and {jax.tree.structure(b)}."
        ) from error
