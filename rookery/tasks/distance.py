"""How far an iterate is from a known solution, and how large the outer gradient is there."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np


class Distance(eqx.Module):
    """The distances of the problem's variables from the solution.

    Args:
        names: of the variables, such as x and y.
        solution: one array per variable.
    """

    names: tuple[str, ...] = eqx.field(static=True)
    solution: tuple[np.ndarray | jax.Array, ...]

    def __call__(self, *variables: jax.Array) -> dict[str, jax.Array]:
        """``distance_`` and its name for each variable."""
        named = zip(self.names, variables, self.solution, strict=True)
        return {f"distance_{name}": distance(value, exact) for name, value, exact in named}


def distance(value: jax.Array, exact: np.ndarray | jax.Array) -> jax.Array:
    """The Euclidean distance, in the precision of the value."""
    return jnp.linalg.norm(value - jnp.asarray(exact).astype(value.dtype))


class GradientNorm(eqx.Module):
    """The size of an outer gradient that is known and affine in x.

    Args:
        slope: its matrix.
        zero: its value at x = 0.
    """

    slope: np.ndarray | jax.Array
    zero: np.ndarray | jax.Array

    def __call__(self, x: jax.Array, *_) -> dict[str, jax.Array]:
        """``gradient_norm``, the Euclidean norm."""
        slope, zero = (jnp.asarray(a).astype(x.dtype) for a in (self.slope, self.zero))
        return {"gradient_norm": jnp.linalg.norm(slope @ x + zero)}
