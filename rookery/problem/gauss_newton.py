"""Gauss-Newton products: an inner Hessian that is never indefinite.

The inner loss of a network is  ℓ(z(y)) + penalty(y),  z its outputs and ℓ convex in them. Its
Hessian is

    J' ℓ_zz J  +  Σ_k ℓ_zk (z_k)_yy  +  penalty_yy,     J = z_y

of which the second term makes it indefinite, and lets the adjoint v grow along negative curvature.
Without that term it is the Gauss-Newton matrix, the Hessian of the loss whose outputs are linear in
y around the point: positive semidefinite, and positive definite with a ridge.
"""

from collections.abc import Callable

import equinox as eqx
import jax

from rookery import tree
from rookery.loss import AbstractOver, wants_key
from rookery.types import Scalar, Tree


class GaussNewton(eqx.Module):
    """The inner loss  loss(outputs(x, y, row), row) + penalty(x, y, row),  in three parts.

    As the ``inner`` loss of a bilevel problem its values, gradients and cross derivatives are
    exact. Products with the inner Hessian leave out the second derivatives of the outputs, whatever
    the algorithm. **The bias:** v solves another system, so the hypergradient is exact only where
    the outputs are linear in y, or where the loss is flat in them, as it is where a network fits
    its rows. Unlike damping and a bound on v, it needs no number.

    Args:
        outputs: of x, y and one row, such as the logits of a network.
        loss: of the outputs and the row; convex in the outputs.
        penalty: of x, y and the row, convex in y; None is none. It is not linearised.

    >>> import jax.numpy as jnp
    >>> import rookery as rk
    >>> from rookery.problem.sample import Rows
    >>> def outputs(x, y, row):
    ...     return jnp.tanh(y * row)
    >>> def square(z, row):
    ...     return (z - 1) ** 2 / 2
    >>> at = jnp.array(0.0), jnp.array(-1.0), jnp.array(1.0), Rows(jnp.array([1.0]))
    >>> def inner(x, y, row):
    ...     return square(outputs(x, y, row), row)
    >>> for one in (inner, GaussNewton(outputs, square)):  # 0.18 is the square of tanh'(-1)
    ...     print(round(float(rk.Bilevel(inner, one).inner_hvp(*at)), 2))
    -0.95
    0.18
    """

    outputs: Callable[[Tree, Tree, Tree], Tree]
    loss: Callable[[Tree, Tree], Scalar]
    penalty: Callable[[Tree, Tree, Tree], Scalar] | None = None

    def __check_init__(self):
        for name in ("outputs", "loss", "penalty"):
            value = getattr(self, name)
            if value is None and name == "penalty":
                continue
            if not callable(value):
                raise TypeError(f"GaussNewton: {name} must be a function, got {value!r}.")
            if isinstance(value, AbstractOver):
                raise TypeError(
                    f"GaussNewton: {name} is a function of one row, got {type(value).__name__}."
                )
            if wants_key(value):
                raise TypeError(
                    f"GaussNewton: {name} has a parameter named key, but the outputs are "
                    "linearised without one. Use an inner loss that is a plain function."
                )

    def __call__(self, x: Tree, y: Tree, row: Tree) -> Scalar:
        """The loss of one row."""
        return self._penalised(self.outputs(x, y, row), x, y, row)

    def linearised(self, x: Tree, at: Tree, y: Tree, row: Tree) -> Scalar:
        """The loss of one row with outputs that are linear in y around ``at``."""
        moved = tree.sub(y, at)
        z, change = jax.jvp(lambda y: self.outputs(x, y, row), (at,), (moved,))
        return self._penalised(tree.add(z, change), x, y, row)

    def _penalised(self, z: Tree, x: Tree, y: Tree, row: Tree) -> Scalar:
        loss = self.loss(z, row)
        return loss if self.penalty is None else loss + self.penalty(x, y, row)


def check_outermost(inner: object) -> None:
    """Raise if a wrapper hides a :class:`GaussNewton` loss, whose products would then be exact."""
    if isinstance(inner, AbstractOver) and isinstance(inner.loss, GaussNewton):
        raise TypeError(
            f"inner is {type(inner).__name__} of a GaussNewton loss, which is a loss of one row. "
            "Give GaussNewton itself, or a plain function to the wrapper."
        )
