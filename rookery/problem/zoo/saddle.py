"""Heterogeneous quadratic saddle problems with a closed form.

Client i has
    loss  -[ 1/2 y' D_i y - b_i' y + y' A_i x ] + 1/2 x' R_i x,
to be minimised in x and maximised in y. FedNest's problem (arXiv:2205.02215, section 4.3) is the
case where all clients share their curvature, D_i = I and R_i = ridge I.
"""

from typing import Unpack

import equinox as eqx
import numpy as np
from jaxtyping import Float
from numpy.typing import DTypeLike

from rookery import check
from rookery.problem.minimax import Minimax
from rookery.problem.zoo.client_draws import ClientDraws, ClientSettings, check_dtype
from rookery.signature import expands


class QuadraticSaddle(eqx.Module):
    """The matrices of all clients, stacked as [clients, rows, ...], and the closed forms.

    >>> zoo = saddle(n_clients=3)
    >>> x, y = zoo.solution()
    >>> bool(abs(zoo.gradient(x)).max() < 1e-12)
    True
    """

    D: Float[np.ndarray, "clients rows y y"]
    A: Float[np.ndarray, "clients rows y x"]
    b: Float[np.ndarray, "clients rows y"]
    R: Float[np.ndarray, "clients rows x x"]

    @property
    def problem(self) -> Minimax:
        """The payoff, averaged over the clients' rows."""
        return Minimax(_loss)

    @property
    def data(self) -> dict[str, np.ndarray]:
        """Per field, an array [clients, rows, ...]."""
        return {"D": self.D, "A": self.A, "b": self.b, "R": self.R}

    @property
    def start(self) -> tuple[np.ndarray, np.ndarray]:
        """Tens for x and y, FedNest's start; zero would be its solution."""
        q, p = self.A.shape[-2:]
        return np.full(p, 10, self.A.dtype), np.full(q, 10, self.A.dtype)

    def inner_solution(self, x: Float[np.ndarray, " x"]) -> Float[np.ndarray, " y"]:
        """The maximiser y*(x)."""
        m = self._means()
        return np.linalg.solve(m["D"], m["b"] - m["A"] @ x)

    def gradient(self, x: Float[np.ndarray, " x"]) -> Float[np.ndarray, " x"]:
        """The exact gradient of the maximum over y."""
        m = self._means()
        return m["R"] @ x - m["A"].T @ self.inner_solution(x)

    def solution(self) -> tuple[Float[np.ndarray, " x"], Float[np.ndarray, " y"]]:
        """(x*, y*) with  (R + A' D^-1 A) x* = A' D^-1 b."""
        m = self._means()
        AtD = np.linalg.solve(m["D"], m["A"]).T
        x = np.linalg.solve(m["R"] + AtD @ m["A"], AtD @ m["b"])
        return x, self.inner_solution(x)

    def _means(self) -> dict[str, np.ndarray]:
        return {name: a.astype(np.float64).mean((0, 1)) for name, a in self.data.items()}


def _loss(x, y, row):
    return -(y @ row["D"] @ y / 2 - row["b"] @ y + y @ row["A"] @ x) + x @ row["R"] @ x / 2


@expands(ClientDraws)
def saddle(
    *,
    x_size: int = 3,
    y_size: int = 4,
    scale: float = 1.0,
    ridge: float = 1.0,
    curvature: float = 0.0,
    **clients: Unpack[ClientSettings],
) -> QuadraticSaddle:
    """A random instance whose clients differ in A_i and b_i and, if it is curved, in D_i and R_i.

    FedNest and LFedNest differ only on curved problems: if all clients share their curvature, their
    iterates are the same.

    Args:
        x_size: length of x.
        y_size: length of y.
        scale: standard deviation of b_i.
        ridge: least curvature in x; the least curvature in y is 1.
        curvature: size of the curvature beyond the least, in which clients differ.
        **clients: how the clients are drawn, see :class:`ClientDraws`.

    >>> saddle(n_clients=3, x_size=2).data["A"].shape
    (3, 1, 4, 2)
    """
    check.count("x_size", x_size)
    check.count("y_size", y_size)
    check.not_negative("scale", scale)
    check.not_negative("ridge", ridge)
    check.not_negative("curvature", curvature)
    draw = ClientDraws(**clients)

    def positive(size):
        factor = draw(size, size, noise=0.0)  # noisy factors would change the mean curvature
        return curvature * np.einsum("...ij,...kj->...ik", factor, factor) / size

    return QuadraticSaddle(
        D=(np.eye(y_size) + positive(y_size)).astype(draw.dtype),
        A=draw(y_size, x_size).astype(draw.dtype),
        b=(scale * draw(y_size)).astype(draw.dtype),
        R=(ridge * np.eye(x_size) + positive(x_size)).astype(draw.dtype),
    )


def fednest_saddle(
    *,
    n_clients: int = 1000,
    size: int = 10,
    scale: float = 1.0,
    ridge: float = 10.0,
    coupling: float = 0.1,
    seed: int = 0,
    dtype: DTypeLike = np.float64,
) -> QuadraticSaddle:
    """The instance of FedNest's paper: A_i = t_i I, and b_i that sum to zero, so x* = y* = 0.

    Args:
        n_clients: number of clients.
        size: length of x and of y.
        scale: standard deviation s of the b_i before their mean is subtracted.
        ridge: lambda, the curvature in x.
        coupling: t_i is uniform between 0 and this.
        seed: seed of the random numbers.
        dtype: data type of the arrays.

    >>> x, y = fednest_saddle(n_clients=20, size=2).solution()
    >>> bool(abs(x).max() < 1e-15 and abs(y).max() < 1e-15)
    True
    """
    check.count("n_clients", n_clients)
    check.count("size", size)
    check.count("seed", seed, least=0)
    check.not_negative("scale", scale)
    check.not_negative("ridge", ridge)
    check.not_negative("coupling", coupling)
    check_dtype(dtype)
    rng = np.random.default_rng(seed)
    b = scale * rng.normal(size=(n_clients, 1, size))
    t = rng.uniform(0, coupling, size=(n_clients, 1, 1, 1))
    every = np.ones((n_clients, 1, 1, 1))
    return QuadraticSaddle(
        D=(every * np.eye(size)).astype(dtype),
        A=(t * np.eye(size)).astype(dtype),
        b=(b - b.mean(0)).astype(dtype),
        R=(every * ridge * np.eye(size)).astype(dtype),
    )
