"""Locate values of a state that are not finite."""

import jax
import jax.numpy as jnp

from rookery.program.polling import InFlight
from rookery.types import Tree


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
        and not bool(jnp.all(jnp.isfinite(leaf)))
    ]
