"""Checks of a problem before it is solved: its functions, its initial values, one row of data."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from rookery import loss as losses
from rookery.problem.constraints import check_projections
from rookery.tree import shapes
from rookery.types import Loss, Problem, Tree


def check_function(name: str, value: object) -> None:
    """Raise unless ``value`` can be called."""
    if not callable(value):
        raise TypeError(f"{name} must be a function, got {value!r}.")


def check_start(problem: Problem, start: tuple[Tree, ...]) -> None:
    """Raise unless ``start`` has one tree of finite floating-point arrays per variable."""
    names, kind = problem.variables, type(problem).__name__
    if not isinstance(start, tuple | list) or hasattr(start, "_fields"):  # a named tuple is a tree
        raise TypeError(
            f"start must be a tuple with one value per variable of the {kind} problem, "
            f"({', '.join(names)}{',' * (len(names) == 1)}), got {describe(start)}."
            + (" Write start=(value,)." if len(names) == 1 else "")
        )
    if len(start) != len(names):
        raise ValueError(
            f"start must have one value per variable of the {kind} problem: {', '.join(names)}; "
            f"got {len(start)}."
        )
    for name, value in zip(names, start, strict=True):
        leaves = jax.tree_util.tree_leaves_with_path(value)
        if not leaves:
            raise ValueError(f"start has no arrays for {name}, got {value!r}.")
        for path, leaf in leaves:
            _check_leaf(name + jax.tree_util.keystr(path), leaf)
    check_projections(problem, tuple(start))


def _check_leaf(name: str, leaf: Any) -> None:  # Any: the check finds out what it is
    if callable(leaf):
        raise TypeError(
            f"start holds a function at {name}, {getattr(leaf, '__name__', leaf)}, as Equinox "
            "modules do. Take the arrays alone, with equinox.partition(module, equinox.is_array), "
            "and put the module together again in the loss with equinox.combine."
        )
    is_array = isinstance(leaf, np.ndarray | np.generic | jax.Array | jax.ShapeDtypeStruct)
    if not is_array and not isinstance(leaf, int | float | complex):
        raise TypeError(f"start must hold arrays of numbers, got {leaf!r} at {name}.")
    if not jnp.issubdtype(leaf.dtype if is_array else type(leaf), jnp.floating):
        raise TypeError(
            f"start must be floating-point, as it is differentiated; {name} is {describe(leaf)}. "
            "Convert it, with value.astype(float) for example."
        )
    if isinstance(leaf, Tracer | jax.ShapeDtypeStruct):
        return  # the numbers are not known
    values = np.asarray(leaf)
    if not np.isfinite(values).all():
        at = np.argwhere(~np.isfinite(values))[0].tolist()
        raise ValueError(f"start is not finite: {name}{at or ''} is {values[tuple(at)]}.")


def check_scalar_loss(name: str, loss: Loss, point: tuple[Tree, ...], example: Tree) -> None:
    """Raise unless the loss of one example, made of rows like this one, is a floating number."""
    check_function(name, loss)
    example = losses.example(loss, example)
    try:
        out = _shape_of(loss, (*point, example))
    except Exception as error:
        raise ValueError(
            f"{name} cannot be evaluated on one example.\n"
            f"  variables: {describe(tuple(point))}\n  example:   {describe(example)}\n"
            f"  {type(error).__name__}: {error}\n"
            f"A loss takes the problem's variables and then {_example_of(loss)}."
        ) from error
    shape = getattr(out, "shape", None)
    if shape != () or not jnp.issubdtype(out.dtype, jnp.floating):
        raise ValueError(
            f"{name} must return one floating-point number per example, got {describe(out)}. "
            "rookery averages over examples; sum or average what is left over one example."
        )


def check_prepare(name: str, prepare: Callable[[Tree, Tree], Tree], x: Tree, row: Tree) -> None:
    """Raise unless ``prepare`` takes x and one row."""
    try:
        jax.eval_shape(prepare, x, row)
    except Exception as error:
        raise ValueError(
            f"{name} cannot take x {describe(x)} and one row {describe(row)}.\n"
            f"  {type(error).__name__}: {error}\n"
            f"Write {name}(x, row) so that it returns what the losses take in place of the row."
        ) from error


def check_map(name: str, fn: Callable[..., Tree], point: Tree, example: Tree) -> Tree:
    """Shape and type of ``fn(point, example)``; raise unless all of it is floating-point."""
    example = losses.example(fn, example)
    try:
        out = _shape_of(fn, (point, example))
    except Exception as error:
        raise ValueError(
            f"{name} cannot take {describe(point)} and one example {describe(example)}.\n"
            f"  {type(error).__name__}: {error}"
        ) from error
    if not all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(out)):
        raise ValueError(f"{name} must return floating-point values, got {describe(out)}.")
    return out


def _shape_of(
    fn: Callable[..., Tree], arguments: tuple[Tree, ...]
) -> Any:  # of whatever fn returns
    if losses.wants_key(fn):
        return jax.eval_shape(lambda *given: fn(*given, key=jax.random.key(0)), *arguments)
    return jax.eval_shape(fn, *arguments)


def _example_of(loss: Loss) -> str:
    match loss:
        case losses.OverPairs():
            return "two rows of the data"
        case losses.OverBatch():
            return "rows of the data along a first axis and their weights"
        case _:
            return "one example, a single row of the data"


def check_like(name: str, value: Tree, what: str, want: Tree) -> None:
    """Raise unless ``value`` has the structure and the shapes of ``want``."""
    if shapes(value) != shapes(want):
        raise ValueError(
            f"{name} must be shaped like {what} {describe(want)}, got {describe(value)}."
        )


def describe(tree: Tree) -> str:
    """Shapes and types of a pytree in one line.

    >>> import numpy as np
    >>> describe({"w": np.zeros(3, np.float32), "b": "zero"})
    "{'b': 'zero', 'w': 'float32[3]'}"
    """

    def form(leaf: Any) -> str:  # Any: an error may have to describe whatever a user gave
        if not hasattr(leaf, "dtype") and not isinstance(leaf, int | float | complex):
            return str(leaf)
        return f"{getattr(leaf, 'dtype', None) or jnp.result_type(leaf)}{list(np.shape(leaf))}"

    return str(jax.tree.map(form, tree))
