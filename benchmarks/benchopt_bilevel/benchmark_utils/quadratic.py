"""A bilevel problem of quadratics, with its full-batch derivatives in closed form in NumPy."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np


class Quadratic:
    """Two means of quadratics of z and x.

    Args:
        seed: of the coefficients.
    """

    n_inner, n_outer, p, d = 6, 4, 3, 2

    def __init__(self, seed: int = 0):
        rng = np.random.default_rng(seed)

        def parts(n: int) -> tuple[np.ndarray, ...]:
            a = rng.normal(size=(n, self.p, self.p))
            hessian = np.einsum("nij,nkj->nik", a, a) / self.p + np.eye(self.p)
            return hessian, rng.normal(size=(n, self.d, self.p)), rng.normal(size=(n, self.p))

        self.inner, self.outer = parts(self.n_inner), parts(self.n_outer)

    def function(self, which: str) -> Callable[..., jax.Array]:
        """The inner or outer function of a mini-batch, in JAX."""
        arrays = self.inner if which == "inner" else self.outer

        def f(z: jax.Array, x: jax.Array, start: int = 0, batch_size: int = 1) -> jax.Array:
            h, c, b = (
                jax.lax.dynamic_slice_in_dim(jnp.asarray(a), start, batch_size) for a in arrays
            )
            value = 0.5 * jnp.einsum("i,nij,j->n", z, h, z) + jnp.einsum("i,nij,j->n", x, c, z)
            return jnp.mean(value + b @ z) + (0.5 * jnp.sum(x**2) if which == "outer" else 0)

        return f

    def g_z(self, z: np.ndarray, x: np.ndarray) -> np.ndarray:
        """The inner gradient in z."""
        h, c, b = (a.mean(0) for a in self.inner)
        return h @ z + c.T @ x + b

    def g_x(self, z: np.ndarray, x: np.ndarray) -> np.ndarray:
        """The inner gradient in x."""
        return self.inner[1].mean(0) @ z

    def hessian(self, z: np.ndarray, x: np.ndarray) -> np.ndarray:
        """The inner Hessian in z."""
        return self.inner[0].mean(0)

    def cross(self, z: np.ndarray, x: np.ndarray, v: np.ndarray) -> np.ndarray:
        """The mixed second derivatives of the inner function times v."""
        return self.inner[1].mean(0) @ v

    def f_z(self, z: np.ndarray, x: np.ndarray) -> np.ndarray:
        """The outer gradient in z."""
        h, c, b = (a.mean(0) for a in self.outer)
        return h @ z + c.T @ x + b

    def f_x(self, z: np.ndarray, x: np.ndarray) -> np.ndarray:
        """The outer gradient in x."""
        return self.outer[1].mean(0) @ z + x

    def metrics(self, z: np.ndarray, x: np.ndarray) -> dict[str, float]:
        """The squared norm of the hypergradient at x, and of the error of z."""
        best = z - np.linalg.solve(self.hessian(z, x), self.g_z(z, x))
        v = np.linalg.solve(self.hessian(best, x), self.f_z(best, x))
        gradient = self.f_x(best, x) - self.cross(best, x, v)
        return {
            "value": float(gradient @ gradient),
            "inner_distance": float(np.sum((z - best) ** 2)),
        }
