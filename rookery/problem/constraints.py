"""Constraints: the set that a variable stays in, given by the projection onto it."""

import functools
from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from rookery.tree import shapes
from rookery.types import Problem, Tree

Projection = Callable[[Tree], Tree]
"""The nearest point of a set. It is idempotent: a point of the set stays where it is."""


class Constrained(eqx.Module):
    """A problem whose variables may be constrained.

    Args:
        project: the projection of a variable onto its set, by the variable's name, such as
            ``{"x": optax.projections.projection_simplex}``; for a problem with one variable the
            function alone. Algorithms apply it to every new value of the server and before every
            local step of a client; one that cannot keep a variable in its set refuses the problem.

    >>> import rookery as rk
    >>> def loss(w, row):
    ...     return (w - row) ** 2
    >>> problem = rk.SingleLevel(loss, project=abs)  # the same field, in every problem
    >>> list(problem.projections)
    ['w']
    """

    project: Projection | Mapping[str, Projection] | None = eqx.field(default=None, kw_only=True)

    def __check_init__(self):
        _ = self.projections

    @property
    def projections(self) -> dict[str, Projection]:
        """The projections by the names of their variables."""
        return projections(self)  # pyright: ignore[reportArgumentType]  # a subclass is a Problem


def projections(problem: Problem) -> dict[str, Projection]:
    """The projections of a problem by the names of their variables.

    >>> import rookery as rk
    >>> list(projections(rk.SingleLevel(lambda w, row: w * row, project=abs)))
    ['w']
    """
    given = problem.project if isinstance(problem, Constrained) else None
    if given is None:
        return {}
    names = problem.variables
    if not isinstance(given, Mapping):
        first, *others = names
        if others or not callable(given):
            raise TypeError(
                f"project must map names of variables ({', '.join(names)}) to functions, such as "
                f"{{{first!r}: optax.projections.projection_simplex}}, got {given!r}."
            )
        return {first: given}
    for name, function in given.items():
        if name not in names:
            raise ValueError(f"project has {name!r}; the variables are {', '.join(names)}.")
        if not callable(function):
            raise TypeError(f"project[{name!r}] must be a function, got {function!r}.")
    return dict(given)


def projected(problem: Problem, name: str, value: Tree) -> Tree:
    """A variable's value within its set; the value itself if it has none.

    >>> import jax.numpy as jnp
    >>> import rookery as rk
    >>> problem = rk.SingleLevel(lambda w, row: w * row, project=lambda w: jnp.clip(w, 0, 1))
    >>> float(projected(problem, "w", jnp.array(3.0)))
    1.0
    """
    project = projections(problem).get(name)
    return value if project is None else _applied(project, value)


def projection(problem: Problem, name: str) -> Projection:
    """:func:`projected` as a function of the value alone.

    >>> import rookery as rk
    >>> projection(rk.SingleLevel(lambda w, row: w * row), "w")(3.0)
    3.0
    """
    return functools.partial(projected, problem, name)


def all_projected(problem: Problem, values: tuple[Tree, ...]) -> tuple[Tree, ...]:
    """The values of all variables, each within its set."""
    return tuple(map(functools.partial(projected, problem), problem.variables, values))


def check_projections(problem: Problem, start: tuple[Tree, ...]) -> None:
    """Raise unless every projection keeps shapes, is idempotent, and leaves its start in place."""
    every = projections(problem)
    for name, value in zip(problem.variables, start, strict=True):
        if name not in every or not _is_known(value):
            continue
        value = jax.tree.map(jnp.asarray, value)
        moved = _applied(every[name], value)
        if not _are_close(moved, value):
            raise ValueError(
                f"the start of {name} is outside its set: project[{name!r}] moves it. Start from "
                "the projection of it."
            )
        rng = np.random.default_rng(0)
        for distance in (1.0, 100.0):
            once = _applied(every[name], _moved(value, distance, rng))
            if not _are_close(_applied(every[name], once), once):
                raise ValueError(
                    f"project[{name!r}] is no projection: applied twice it gives another point "
                    "than once. A penalty or a proximal step belongs into the optimiser "
                    "(rk.parts.proximal_sgd)."
                )


def check_apart(
    problem: Problem, name: str, value: Tree, split: Callable[[Tree], tuple[Tree, Tree]], why: str
) -> None:
    """Raise unless a variable's set is a product of a set for each of two parts of the variable.

    Args:
        problem: the problem.
        name: of the variable.
        value: where the variable starts.
        split: into the two parts, each with None in place of the other.
        why: a sentence on who needs it.
    """
    project = projections(problem).get(name)
    if project is None or not _is_known(value):
        return
    value = jax.tree.map(jnp.asarray, value)
    far = _moved(value, 100.0, np.random.default_rng(0))
    (a, b), (far_a, far_b) = split(value), split(far)
    both = split(_applied(project, far))
    alone = (
        split(_applied(project, eqx.combine(far_a, b)))[0],
        split(_applied(project, eqx.combine(a, far_b)))[1],
    )
    if not _are_close(both, alone):
        raise ValueError(
            f"project[{name!r}] moves one part of {name} by the values of another. {why}"
        )


def _moved(value: Tree, distance: float, rng: np.random.Generator) -> Tree:
    """A point in a random direction, most likely outside the set."""

    def step(leaf):
        return leaf + jnp.asarray(distance * rng.normal(size=leaf.shape), leaf.dtype)

    return jax.tree.map(step, value)


def _applied(project: Projection, value: Tree) -> Tree:
    """The function's value by JAX's usual rules of promotion, in the precision of ``value``."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        out = project(value)
    wanted, got = shapes(value), shapes(out)
    if got != wanted:
        raise ValueError(
            f"a projection must return what it is given, changed in value only: wanted {wanted}, "
            f"got {got}."
        )
    return jax.tree.map(lambda new, old: jnp.asarray(new).astype(old.dtype), out, value)


def _is_known(value: Tree) -> bool:
    return not any(
        isinstance(leaf, Tracer | jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(value)
    )


def _are_close(a: Tree, b: Tree) -> bool:
    def close(u, w):
        tolerance = 100 * float(jnp.finfo(u.dtype).eps) * max(1.0, float(jnp.max(jnp.abs(w))))
        return bool(jnp.max(jnp.abs(u - w)) <= tolerance)

    return all(map(close, jax.tree.leaves(a), jax.tree.leaves(b)))
