"""Derivatives of the mean of a loss over the examples of a sample, matrix-free.

Every oracle takes a :class:`~rookery.types.Sample` handle last. The mean over a sample is linear
in its examples, so a sample too large for memory is summed block by block, and clients of unequal
size need no padding. An example is a row, or what :mod:`rookery.loss` makes of rows.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rookery.loss import average, examples
from rookery.types import Loss, Sample, Scalar, Tree

Each = Callable[..., Tree]
"""A function of the variables: the loss of every example of a block."""


def value(loss: Loss, point: tuple[Tree, ...], sample: Sample) -> Scalar:
    """The mean loss at a point.

    >>> from rookery.problem.sample import Rows
    >>> float(value(lambda w, row: w * row, (jnp.array(2.0),), Rows(jnp.array([0.0, 3.0]))))
    3.0
    """
    return average(loss, sample, lambda each, weights: _mean(each, point, weights))


def gradient(loss: Loss, point: tuple[Tree, ...], wrt: int, sample: Sample) -> Tree:
    """The gradient of the mean loss in its ``wrt``-th variable.

    >>> from rookery.problem.sample import Rows
    >>> float(gradient(lambda w, row: w * row, (jnp.array(2.0),), 0, Rows(jnp.array([0.0, 3.0]))))
    1.5
    """
    examples(loss, sample).charge(gradients=1)
    return average(loss, sample, lambda each, weights: _gradient(each, wrt, weights)(*point))


def value_and_gradient(
    loss: Loss, point: tuple[Tree, ...], wrt: int, sample: Sample
) -> tuple[Scalar, Tree]:
    """The mean loss and its gradient in one pass over the same rows."""
    examples(loss, sample).charge(gradients=1)

    def block(each, weights):
        def at(variable):
            return _mean(each, (*point[:wrt], variable, *point[wrt + 1 :]), weights)

        return jax.value_and_grad(at)(point[wrt])

    return average(loss, sample, block)


def second_derivative(
    loss: Loss, point: tuple[Tree, ...], wrt: int, along: int, vector: Tree, sample: Sample
) -> Tree:
    """How the gradient in variable ``wrt`` changes when variable ``along`` moves by ``vector``.

    With ``wrt == along`` this is a Hessian-vector product, otherwise a cross-derivative product.

    >>> from rookery.problem.sample import Rows
    >>> point, v, rows = (jnp.array(2.0), jnp.array(5.0)), jnp.array(1.0), Rows(jnp.array([3.0]))
    >>> float(second_derivative(lambda x, y, row: x * y**2, point, 0, 1, v, rows))
    10.0
    """
    examples(loss, sample).charge(hessian_vectors=1)

    def block(each, weights):
        def gradient_at(moved):
            moved_point = (*point[:along], moved, *point[along + 1 :])
            return _gradient(each, wrt, weights)(*moved_point)

        return jax.jvp(gradient_at, (point[along],), (vector,))[1]

    return average(loss, sample, block)


def gradients(loss: Loss, point: tuple[Tree, ...], sample: Sample) -> tuple[Tree, ...]:
    """The gradients of the mean loss in all its variables, which share their passes over the rows.

    >>> from rookery.problem.sample import Rows
    >>> point, rows = (jnp.array(2.0), jnp.array(5.0)), Rows(jnp.array([0.0, 3.0]))
    >>> [float(g) for g in gradients(lambda x, y, row: x * y * row, point, rows)]
    [7.5, 3.0]
    """
    examples(loss, sample).charge(gradients=len(point))
    every = tuple(range(len(point)))

    def block(each, weights):
        return jax.grad(lambda *at: _mean(each, at, weights), argnums=every)(*point)

    return average(loss, sample, block)


def gradient_and_products(
    loss: Loss, point: tuple[Tree, Tree], vector: Tree, sample: Sample
) -> tuple[Tree, Tree, Tree]:
    """g_y, g_xy v and g_yy v of a loss of (x, y), by one derivative of both gradients along v.

    Passes over the rows are shared where :func:`gradient` and :func:`second_derivative` would make
    them again; all three are billed.

    >>> from rookery.problem.sample import Rows
    >>> point, v, rows = (jnp.array(2.0), jnp.array(5.0)), jnp.array(1.0), Rows(jnp.array([3.0]))
    >>> found = gradient_and_products(lambda x, y, row: x * y**2, point, v, rows)
    >>> [float(value) for value in found]
    [20.0, 10.0, 4.0]
    """
    examples(loss, sample).charge(gradients=1, hessian_vectors=2)
    x, y = point

    def block(each, weights):
        def gradients_at(moved):
            return jax.grad(lambda *at: _mean(each, at, weights), argnums=(0, 1))(x, moved)

        (_, g_y), (g_xy, g_yy) = jax.jvp(gradients_at, (y,), (vector,))
        return g_y, g_xy, g_yy

    return average(loss, sample, block)


def map_value(fn: Callable[..., Tree], point: tuple[Tree, ...], sample: Sample) -> Tree:
    """The mean of a map whose value is any pytree.

    >>> from rookery.problem.sample import Rows
    >>> map_value(lambda w, row: w * row, (jnp.ones(2),), Rows(jnp.array([0.0, 3.0]))).tolist()
    [1.5, 1.5]
    """
    return average(fn, sample, lambda each, weights: _mean(each, point, weights))


def map_vjp(fn: Callable[..., Tree], point: Tree, cotangent: Tree, sample: Sample) -> Tree:
    """The transposed Jacobian of the mean map, times ``cotangent``.

    >>> from rookery.problem.sample import Rows
    >>> rows = Rows(jnp.array([0.0, 3.0]))
    >>> map_vjp(lambda w, row: w * row, jnp.ones(2), jnp.array([1.0, 2.0]), rows).tolist()
    [1.5, 3.0]
    """
    examples(fn, sample).charge(gradients=1)

    def block(each, weights):
        return jax.vjp(lambda z: _mean(each, (z,), weights), point)[1](cotangent)[0]

    return average(fn, sample, block)


def _mean(each: Each, point: tuple[Tree, ...], weights: Float[Array, " examples"]) -> Tree:
    return jax.tree.map(
        lambda leaf: jnp.tensordot(weights.astype(leaf.dtype), leaf, 1), each(*point)
    )


def _gradient(each: Each, wrt: int, weights: Float[Array, " examples"]) -> Callable[..., Tree]:
    return jax.grad(lambda *point: _mean(each, point, weights), argnums=wrt)
