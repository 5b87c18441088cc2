"""Locate values that are not finite, in initial values and in states."""

import jax
import jax.numpy as jnp
import numpy as np

from rookery.program.polling import InFlight
from rookery.types import Tree


def check_start(start: Tree) -> tuple[Tree, ...]:
    """The initial values as arrays, or an error that says which of them cannot be used.

    >>> check_start(([0.0, 1.0],))[0][1].dtype.kind
    'f'
    >>> check_start((1.0, float("nan")))
    Traceback (most recent call last):
        ...
    ValueError: start[1] is nan. Initial values must be finite.
    """
    if not isinstance(start, tuple | list):
        raise TypeError(
            "start must be a tuple with one entry per variable of the problem, as (x, y); got "
            f"{type(start).__name__}. A single variable is written (x,)."
        )
    arrays = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(tuple(start))[0]:
        arrays.append(_start_array(f"start{jax.tree_util.keystr(path)}", leaf))
    return jax.tree.unflatten(jax.tree.structure(tuple(start)), arrays)


def _start_array(name: str, leaf: object) -> jax.Array:
    if callable(leaf):
        raise TypeError(
            f"{name} is a function, {getattr(leaf, '__name__', leaf)}, as Equinox modules hold "
            "them. Pass the arrays alone, with equinox.partition(module, equinox.is_array), and "
            "put the module together again in the loss with equinox.combine."
        )
    try:
        host = np.asarray(leaf)
        array = jnp.asarray(leaf)  # pyright: ignore[reportArgumentType] (checked here)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be an array of numbers, got {leaf!r}.") from error
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(
            f"{name} is of type {array.dtype}, and variables must be floating-point to be "
            "differentiated. Convert it, as in np.asarray(x, float)."
        )
    where = np.argwhere(~np.isfinite(host.astype(float)))
    if len(where):
        index = tuple(int(i) for i in where[0])
        at = f"{name} is {host[index]}" + (f" at index {list(index)}" if index else "")
        raise ValueError(f"{at}. Initial values must be finite.")
    return array


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
