"""Derivatives of the mean of a per-example loss, without ever forming a matrix.

Every oracle takes a :class:`~rookery.types.Sample` handle last. The mean over a sample is linear
in its rows, so a sample too large for memory is summed block by block, and clients of unequal
size need no padding.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from rookery.types import Loss, Sample, Tree


def value(loss: Loss, point: tuple[Tree, ...], sample: Sample) -> jax.Array:
    """The mean loss at a point."""
    return sample.average(lambda rows, weights: _mean(loss, point, rows, weights))


def gradient(loss: Loss, point: tuple[Tree, ...], wrt: int, sample: Sample) -> Tree:
    """The gradient of the mean loss in its ``wrt``-th variable."""
    sample.charge(gradients=1)
    return sample.average(lambda rows, weights: _gradient(loss, wrt, rows, weights)(*point))


def value_and_gradient(
    loss: Loss, point: tuple[Tree, ...], wrt: int, sample: Sample
) -> tuple[jax.Array, Tree]:
    """The mean loss and its gradient in one pass over the same rows."""
    sample.charge(gradients=1)

    def block(rows, weights):
        def at(variable):
            return _mean(loss, (*point[:wrt], variable, *point[wrt + 1 :]), rows, weights)

        return jax.value_and_grad(at)(point[wrt])

    return sample.average(block)


def second_derivative(
    loss: Loss, point: tuple[Tree, ...], wrt: int, along: int, vector: Tree, sample: Sample
) -> Tree:
    """How the gradient in variable ``wrt`` changes when variable ``along`` moves by ``vector``.

    With ``wrt == along`` this is a Hessian-vector product, otherwise a cross-derivative product.
    """
    sample.charge(hessian_vectors=1)

    def block(rows, weights):
        def gradient_at(moved):
            moved_point = (*point[:along], moved, *point[along + 1 :])
            return _gradient(loss, wrt, rows, weights)(*moved_point)

        return jax.jvp(gradient_at, (point[along],), (vector,))[1]

    return sample.average(block)


def map_value(fn: Callable[..., Tree], point: tuple[Tree, ...], sample: Sample) -> Tree:
    """The mean of a map with any pytree as its value."""
    return sample.average(lambda rows, weights: _mean(fn, point, rows, weights))


def map_vjp(fn: Callable[..., Tree], point: Tree, cotangent: Tree, sample: Sample) -> Tree:
    """The transposed Jacobian of the mean map, times ``cotangent``."""
    sample.charge(gradients=1)

    def block(rows, weights):
        return jax.vjp(lambda z: _mean(fn, (z,), rows, weights), point)[1](cotangent)[0]

    return sample.average(block)


def _mean(fn: Callable[..., Tree], point: tuple[Tree, ...], rows: Tree, weights: jax.Array) -> Tree:
    each = jax.vmap(lambda row: fn(*point, row))(rows)
    return jax.tree.map(lambda leaf: jnp.tensordot(weights.astype(leaf.dtype), leaf, 1), each)


def _gradient(loss: Loss, wrt: int, rows: Tree, weights: jax.Array) -> Callable[..., Tree]:
    return jax.grad(lambda *point: _mean(loss, point, rows, weights), argnums=wrt)


def check_one_variable(what: str, variables: tuple[Tree, ...]) -> None:
    """Raise unless a problem of one variable was given one initial value."""
    if len(variables) != 1:
        raise ValueError(f"{what} has one variable, got {len(variables)} initial values.")


def check_scalar_loss(name: str, loss: Loss, point: tuple[Tree, ...], example: Tree) -> None:
    """Raise unless ``loss(*point, example)`` is one floating-point number."""
    if not callable(loss):
        raise TypeError(f"{name} must be a function, got {loss!r}.")
    try:
        out = jax.eval_shape(loss, *point, example)
    except Exception as error:
        raise ValueError(
            f"{name} cannot be evaluated on one example.\n"
            f"  variables: {describe(point)}\n  example:   {describe(example)}\n"
            f"  {type(error).__name__}: {error}\n"
            "A loss takes the problem's variables and then one example, a single row of the data."
        ) from error
    shape = getattr(out, "shape", None)
    if shape != () or not jnp.issubdtype(out.dtype, jnp.floating):
        raise ValueError(
            f"{name} must give one floating-point number per example, got {describe(out)}. "
            "The mean over examples is taken for you; sum or average what is left over one example."
        )


def check_map(name: str, fn: Callable[..., Tree], point: Tree, example: Tree) -> Tree:
    """Shape and type of ``fn(point, example)``; raise unless all of it is floating-point."""
    try:
        out = jax.eval_shape(fn, point, example)
    except Exception as error:
        raise ValueError(
            f"{name} cannot take {describe(point)} and one example {describe(example)}.\n"
            f"  {type(error).__name__}: {error}"
        ) from error
    if not all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(out)):
        raise ValueError(f"{name} must give floating-point values, got {describe(out)}.")
    return out


def check_like(name: str, value: Tree, what: str, want: Tree) -> None:
    """Raise unless ``value`` has the structure and the shapes of ``want``."""
    got = jax.eval_shape(lambda tree: jax.tree.map(jnp.asarray, tree), value)
    if jax.tree.structure(got) != jax.tree.structure(want) or any(
        a.shape != b.shape for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    ):
        raise ValueError(
            f"{name} must be shaped like {what} {describe(want)}, got {describe(value)}."
        )


def describe(tree: Tree) -> str:
    """Shapes and types of a pytree in one line."""
    return str(jax.tree.map(lambda a: f"{jnp.result_type(a)}{list(jnp.shape(a))}", tree))
