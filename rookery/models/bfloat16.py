"""Models computed in bfloat16, with parameters that stay as they are."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from rookery.types import Tree


def with_bfloat16(fn: Callable[..., Tree]) -> Callable[..., Tree]:
    """The same function computed in bfloat16, half the bytes and the fast units of GPUs and TPUs.

    Floating-point arguments are rounded to bfloat16, and results come back in the widest type
    among the arguments. Parameters and gradients of them keep their types, so steps of an optimiser
    are as fine as ever, and messages as large. A number of bfloat16 has 8 significant bits, about
    0.4 %; wrap the network, and compute the loss from its outputs in full.

    >>> def network(w, x):
    ...     return jnp.dot(w, x)
    >>> w, x = jnp.array([1.0, 2.0**-10], "float32"), jnp.array([1.0, 1.0], "float32")
    >>> with_bfloat16(network)(w, x).item(), network(w, x).item()
    (1.0, 1.0009765625)
    """

    @functools.wraps(fn)
    def rounded(*args: Tree, **named: Tree) -> Tree:
        types = [leaf.dtype for leaf in jax.tree.leaves((args, named)) if _is_floating(leaf)]
        if not types:
            raise TypeError("with_bfloat16: the function was called without floating-point arrays.")
        widest = functools.reduce(jnp.promote_types, types)
        args, named = _cast((args, named), jnp.bfloat16)
        return _cast(fn(*args, **named), widest)

    return rounded


def _is_floating(leaf: Tree) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)


def _cast(tree: Tree, dtype: DTypeLike) -> Tree:
    return jax.tree.map(lambda a: jnp.asarray(a, dtype) if _is_floating(a) else a, tree)
