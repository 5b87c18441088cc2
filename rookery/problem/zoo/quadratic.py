"""A heterogeneous quadratic bilevel problem whose solution and hypergradient are known exactly.

Client i has
    inner  1/2 y' H_i y - y' (B_i x + c_i),
    outer  1/2 (y - d_i)' Q_i (y - d_i) + r_i' x + (m0 / 2) |x|^2 + x' E_i y.
Everything below follows from the clients' mean matrices.
"""

from typing import Unpack

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import DTypeLike

from rookery import check
from rookery.problem.bilevel import Bilevel
from rookery.problem.zoo.client_draws import ClientDraws, ClientSettings
from rookery.signature import expands


class QuadraticBilevel(eqx.Module):
    """The matrices of all clients, stacked as [clients, rows, ...], and the closed forms.

    The rows of a client average to the client's matrices, so noisy rows make mini-batches noisy and
    leave the full-batch problem unchanged.

    >>> zoo = quadratic_bilevel(n_clients=3)
    >>> x, y = zoo.solution()
    >>> bool(abs(zoo.hypergradient(x)).max() < 1e-12)
    True
    """

    H: Float[np.ndarray, "clients rows y y"]
    B: Float[np.ndarray, "clients rows y x"]
    c: Float[np.ndarray, "clients rows y"]
    Q: Float[np.ndarray, "clients rows y y"]
    d: Float[np.ndarray, "clients rows y"]
    r: Float[np.ndarray, "clients rows x"]
    E: Float[np.ndarray, "clients rows x y"]
    m0: float = 1.0

    @property
    def problem(self) -> Bilevel:
        """The losses, both averaged over the same rows."""
        return Bilevel(_Outer(self.m0), _inner, outer_split="train", inner_split="train")

    @property
    def data(self) -> dict[str, np.ndarray]:
        """Per field, an array [clients, rows, ...]."""
        return {name: getattr(self, name) for name in ("H", "B", "c", "Q", "d", "r", "E")}

    @property
    def start(self) -> tuple[np.ndarray, np.ndarray]:
        """Zeros for x and y."""
        p, q = self.B.shape[-1], self.B.shape[-2]
        return np.zeros(p, self.B.dtype), np.zeros(q, self.B.dtype)

    def inner_solution(self, x: Float[np.ndarray, " x"]) -> Float[np.ndarray, " y"]:
        """The inner solution y*(x)."""
        m = self._means()
        return np.linalg.solve(m["H"], m["B"] @ x + m["c"])

    def adjoint(
        self, x: Float[np.ndarray, " x"], y: Float[np.ndarray, " y"]
    ) -> Float[np.ndarray, " y"]:
        """The vector v with  H v = outer_y(x, y)."""
        m = self._means()
        Q, d = self.Q.astype(np.float64), self.d.astype(np.float64)
        Qd = np.einsum("...ij,...j->...i", Q, d).mean((0, 1))
        return np.linalg.solve(m["H"], m["Q"] @ y - Qd + m["E"].T @ x)

    def hypergradient(self, x: Float[np.ndarray, " x"]) -> Float[np.ndarray, " x"]:
        """The exact gradient of the outer loss at y*(x)."""
        m, y = self._means(), self.inner_solution(x)
        return m["r"] + self.m0 * x + m["E"] @ y + m["B"].T @ self.adjoint(x, y)

    def affine_hypergradient(self) -> tuple[Float[np.ndarray, "x x"], Float[np.ndarray, " x"]]:
        """The matrix A and the vector b of the hypergradient, which is A x + b."""
        p = self.B.shape[-1]
        zero = self.hypergradient(np.zeros(p))
        return np.stack([self.hypergradient(e) - zero for e in np.eye(p)], axis=1), zero

    def solution(self) -> tuple[Float[np.ndarray, " x"], Float[np.ndarray, " y"]]:
        """(x*, y*), where the hypergradient is zero."""
        slope, zero = self.affine_hypergradient()
        x = np.linalg.solve(slope, -zero)
        return x, self.inner_solution(x)

    def _means(self) -> dict[str, np.ndarray]:
        return {name: a.astype(np.float64).mean((0, 1)) for name, a in self.data.items()}


class _Outer(eqx.Module):
    m0: float

    def __call__(self, x, y, row):
        e = y - row["d"]
        m0 = jnp.asarray(self.m0, x.dtype)
        return e @ row["Q"] @ e / 2 + row["r"] @ x + m0 * (x @ x) / 2 + x @ row["E"] @ y


def _inner(x, y, row):
    return y @ row["H"] @ y / 2 - y @ (row["B"] @ x + row["c"])


@expands(ClientDraws)
def quadratic_bilevel(
    *,
    x_size: int = 3,
    y_size: int = 4,
    condition: float = 4.0,
    cross: float = 0.2,
    **clients: Unpack[ClientSettings],
) -> QuadraticBilevel:
    """A random instance.

    Args:
        x_size: length of x.
        y_size: length of y.
        condition: largest over smallest eigenvalue of every client's inner Hessian.
        cross: size of the coupling x' E y in the outer loss.
        **clients: how the clients are drawn, see :class:`ClientDraws`.

    >>> quadratic_bilevel(n_clients=3, x_size=2).data["B"].shape
    (3, 1, 4, 2)
    """
    check.count("x_size", x_size)
    check.count("y_size", y_size)
    check.positive("condition", condition)
    check.not_negative("cross", cross)
    chosen = ClientDraws(**clients)
    heterogeneity, rows, noise = chosen.heterogeneity, chosen.rows, chosen.noise
    if not 0 <= heterogeneity <= 1:
        raise ValueError(
            f"heterogeneity must be between 0 and 1, got {heterogeneity}: beyond 1 a client's "
            "inner Hessian may be indefinite."
        )
    rng = np.random.default_rng(chosen.seed)
    p, q, m = x_size, y_size, chosen.n_clients

    def mix(draw):
        """A common part and a part of each client's own."""
        common = draw(())
        return common + heterogeneity * (draw((m,)) - common)

    def spd(low, high):
        def draw(shape):
            basis = np.linalg.qr(rng.normal(size=(*shape, q, q)))[0]
            values = np.broadcast_to(np.linspace(low, high, q), (*shape, q))
            return np.einsum("...ij,...j,...kj->...ik", basis, values, basis)

        return draw

    fields = {
        "H": mix(spd(1.0, condition)),
        "B": mix(lambda s: rng.normal(size=(*s, q, p))),
        "c": mix(lambda s: rng.normal(size=(*s, q))),
        "Q": mix(spd(0.5, 1.5)),
        "d": mix(lambda s: rng.normal(size=(*s, q))),
        "r": mix(lambda s: rng.normal(size=(*s, p))),
        "E": mix(lambda s: cross * rng.normal(size=(*s, p, q))),
    }

    def with_rows(name, array):
        repeated = np.repeat(array[:, None], rows, axis=1)
        if rows > 1 and noise > 0 and name not in ("H", "Q"):  # curvature stays positive
            jitter = noise * rng.normal(size=repeated.shape)
            repeated = repeated + jitter - jitter.mean(1, keepdims=True)
        return repeated.astype(chosen.dtype)

    arrays = {name: with_rows(name, a) for name, a in fields.items()}
    return QuadraticBilevel(**arrays, m0=1.0)


def scalar_bilevel(dtype: DTypeLike = np.float64) -> QuadraticBilevel:
    """Two clients with scalar x and y: x* = -3/10, y* = 2/5, v* = -3/10.

    >>> [round(float(v[0]), 12) for v in scalar_bilevel().solution()]
    [-0.3, 0.4]
    """

    def column(*values):
        return np.array(values, dtype).reshape(2, 1)

    def square(*values):
        return column(*values).reshape(2, 1, 1, 1)

    def vector(*values):
        return column(*values).reshape(2, 1, 1)

    return QuadraticBilevel(
        H=square(1, 3), B=square(1, -3), c=vector(0, 1), Q=square(1, 1), d=vector(1, 1),
        r=vector(0, 0), E=square(0, 0), m0=1.0,
    )  # fmt: skip
