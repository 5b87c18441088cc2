"""Divergence: values that are not finite, or have grown out of scale."""

import jax
import jax.numpy as jnp
import numpy as np

from rookery import tree
from rookery.program.polling import InFlight
from rookery.types import Tree

GROWTH_LIMIT = 1e8
"""A solution this many times as large as its start has diverged.

Neighbouring numbers of single precision are 8 apart at 1e8: nothing of the start's scale is left.
"""


def not_finite_in_state(state: Tree) -> list[str]:
    """The entries of a state with a value that is not finite; asynchronous work is left out.

    >>> not_finite_in_state({"x": jnp.ones(2), "y": jnp.array([1.0, jnp.inf])})
    ["['y']"]
    """
    leaves = jax.tree_util.tree_flatten_with_path(
        state, is_leaf=lambda node: isinstance(node, InFlight)
    )[0]
    return [
        jax.tree_util.keystr(path).removeprefix(".") or "the state"
        for path, leaf in leaves
        if not isinstance(leaf, InFlight)
        and jnp.issubdtype(leaf.dtype, jnp.inexact)
        and not tree.is_finite(leaf)
    ]


def size_of(solution: tuple[Tree, ...]) -> float:
    """The largest absolute entry.

    >>> size_of((np.zeros(2), {"w": np.array([-30.0, 2.0])}))
    30.0
    """

    def largest(leaf: jax.Array) -> float:
        found = [np.max(np.abs(block)) for block in tree.blocks(leaf)]
        return float(np.max(found, initial=0.0))

    return max(map(largest, jax.tree.leaves(solution)))
