"""Mean-semideviation of a phase-retrieval loss: three nested levels (FedMSA, arXiv:2306.01648).

With  U(x; a, b) = (b - (a'x)^2)^2  and means over all clients' rows,
    layer 0   x -> (x, E U),
    layer 1   (x, y) -> (y, E max(0, U - y)^2),
    layer 2   (s, t) -> s + weight sqrt(t + delta).
The gradient is exact. The solution is computed by Newton's method, as there is no closed form.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import DTypeLike

from rookery import check
from rookery.problem.composition import Composition
from rookery.problem.zoo.client_draws import check_dtype


class MeanSemideviation(eqx.Module):
    """The measurements of all clients, and the constants of the objective.

    Attributes:
        a: the measuring vectors.
        b: the measured squares.
        truth: the vector that was measured.
        weight: weight of the semideviation against the mean.
        delta: a small constant that keeps the square root smooth.

    >>> zoo = mean_semideviation(rows=50, size=2)
    >>> (x,) = zoo.solution()
    >>> bool(abs(zoo.gradient(x)).max() < 1e-10)
    True
    """

    a: Float[np.ndarray, "clients rows size"]
    b: Float[np.ndarray, "clients rows"]
    truth: Float[np.ndarray, " size"]
    weight: float = 0.1
    delta: float = 0.1

    @property
    def problem(self) -> Composition:
        """The three layers, averaged over the same rows; estimates of their values start at 0."""
        layers = (_loss_level, _deviation_level, _Risk(self.weight, self.delta))
        number = np.zeros((), self.a.dtype)
        starts = (np.zeros(self.a.shape[-1], self.a.dtype), number), (number, number)
        return Composition(layers, starts=starts)

    @property
    def data(self) -> dict[str, np.ndarray]:
        """Per field, an array [clients, rows, ...]."""
        return {"a": self.a, "b": self.b}

    @property
    def start(self) -> tuple[np.ndarray]:
        """0.1 in every coordinate, FedMSA's start; at zero the gradient vanishes."""
        return (np.full(self.a.shape[-1], 0.1, self.a.dtype),)

    def gradient(self, x: Float[np.ndarray, " size"]) -> Float[np.ndarray, " size"]:
        """The exact gradient, by the adjoints of the levels from the last to the first."""
        U, U_x, _ = self._losses(x)
        over = np.maximum(0, U - U.mean())
        t_adjoint = self.weight / (2 * np.sqrt(np.mean(over**2) + self.delta))
        x_adjoint = t_adjoint * np.mean(2 * over[:, None] * U_x, 0)
        y_adjoint = 1 - 2 * t_adjoint * over.mean()
        return x_adjoint + y_adjoint * U_x.mean(0)

    def solution(self) -> tuple[np.ndarray]:
        """(x*,) by Newton's method from the truth, to rounding; -x* is a minimiser as well."""
        x = self.truth.astype(np.float64)
        for _ in range(20):
            hessian = self._hessian(x)
            if not np.isfinite(hessian).all() or np.linalg.matrix_rank(hessian) < x.size:
                raise ValueError(
                    f"mean_semideviation: {self.b.size} rows in all do not determine a solution of "
                    f"{x.size} numbers. Raise rows, or lower size."
                )
            x = x - np.linalg.solve(hessian, self.gradient(x))
        return (x,)

    def _losses(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """U of every row, its gradients, and its second derivatives in a'x."""
        a = self.a.astype(np.float64).reshape(-1, self.a.shape[-1])
        b = self.b.astype(np.float64).ravel()
        r = a @ x
        return (b - r**2) ** 2, (-4 * r * (b - r**2))[:, None] * a, 12 * r**2 - 4 * b

    def _hessian(self, x: np.ndarray) -> np.ndarray:
        a = self.a.astype(np.float64).reshape(-1, self.a.shape[-1])
        U, U_x, U_rr = self._losses(x)
        n, over, spread = U.size, np.maximum(0, U - U.mean()), U_x - U_x.mean(0)
        active = spread[over > 0]
        mean_hessian = a.T @ (U_rr[:, None] * a) / n
        t_x = 2 * over @ spread / n
        t_xx = 2 * (active.T @ active / n + a.T @ ((over * U_rr)[:, None] * a) / n)
        t_xx -= 2 * over.mean() * mean_hessian
        root = np.sqrt(np.mean(over**2) + self.delta)
        risk = t_xx / (2 * root) - np.outer(t_x, t_x) / (4 * root**3)
        return mean_hessian + self.weight * risk


def _loss(x, row):
    return (row["b"] - (row["a"] @ x) ** 2) ** 2


def _loss_level(x, row):
    return x, _loss(x, row)


def _deviation_level(z, row):
    x, y = z
    return y, jnp.maximum(0, _loss(x, row) - y) ** 2


class _Risk(eqx.Module):
    weight: float
    delta: float

    def __call__(self, z, row):
        s, t = z
        weight, delta = (jnp.asarray(value, s.dtype) for value in (self.weight, self.delta))
        return s + weight * jnp.sqrt(t + delta)


def mean_semideviation(
    *,
    n_clients: int = 2,
    rows: int = 500,
    size: int = 10,
    weight: float = 0.1,
    delta: float = 0.1,
    label_noise: float = 0.001,
    heterogeneity: float = 1.0,
    seed: int = 0,
    dtype: DTypeLike = np.float64,
) -> MeanSemideviation:
    """A random instance, by default of the size of FedMSA's experiment.

    The paper's "covariance with N(0, 1) entries" M is not a covariance matrix; the authors' sampler
    draws from N(0, Sigma) with  Sigma = (M' M)^(1/2),  and so does this one.

    Args:
        n_clients: number of clients.
        rows: measurements per client.
        size: length of x.
        weight: lambda, the weight of the semideviation against the mean.
        delta: a small constant that keeps the square root smooth.
        label_noise: standard deviation of the noise on the measured squares.
        heterogeneity: from 0, all clients with the same rows, to 1, rows drawn independently.
        seed: seed of the random numbers.
        dtype: data type of the arrays.

    >>> mean_semideviation(rows=50, size=2).data["a"].shape
    (2, 50, 2)
    """
    for name, value in (("n_clients", n_clients), ("rows", rows), ("size", size)):
        check.count(name, value)
    check.count("seed", seed, least=0)
    check.not_negative("weight", weight)
    check.positive("delta", delta)
    check.not_negative("label_noise", label_noise)
    check_dtype(dtype)
    if not 0 <= check.not_negative("heterogeneity", heterogeneity) <= 1:
        raise ValueError(f"heterogeneity must be between 0 and 1, got {heterogeneity}.")
    rng = np.random.default_rng(seed)

    def draw(*shape):
        """Standard normal in every client, for any heterogeneity."""
        common, own = rng.normal(size=(1, *shape)), rng.normal(size=(n_clients, *shape))
        return np.sqrt(1 - heterogeneity**2) * common + heterogeneity * own

    _, values, basis = np.linalg.svd(rng.normal(size=(size, size)))
    truth = rng.normal(size=size)
    a = draw(rows, size) @ (np.sqrt(values)[:, None] * basis)
    b = (a @ truth) ** 2 + label_noise * draw(rows)
    return MeanSemideviation(a.astype(dtype), b.astype(dtype), truth, weight, delta)
