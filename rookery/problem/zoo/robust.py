"""Robust and meta-learning problems (ComFedL, arXiv:2106.11264) with exact gradients.

Only QuadraticLosses has a closed form; Newton's method with exact Hessians solves the others.
"""

import abc
from typing import Unpack

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Float
from numpy.linalg import norm

from rookery.problem.composition import LocalComposition
from rookery.problem.meta import Meta
from rookery.problem.single_level import SingleLevel
from rookery.problem.zoo.client_draws import ClientDraws, ClientSettings
from rookery.signature import expands


class _AbstractQuadratics(eqx.Module):
    """Clients with f_i(w) = 1/2 w' H_i w - b_i' w + c_i."""

    H: Float[np.ndarray, "clients rows size size"]
    b: Float[np.ndarray, "clients rows size"]
    c: Float[np.ndarray, "clients rows"]

    @property
    @abc.abstractmethod
    def problem(self) -> SingleLevel | LocalComposition:
        """What is minimised."""

    @property
    def data(self) -> dict[str, np.ndarray]:
        """Per field, an array [clients, rows, ...]."""
        return {"H": self.H, "b": self.b, "c": self.c}

    @property
    def start(self) -> tuple[np.ndarray]:
        """Zeros for w."""
        return (np.zeros(self.b.shape[-1], self.b.dtype),)

    def losses(self, w: Float[np.ndarray, " size"]) -> Float[np.ndarray, " clients"]:
        """f_i(w) of every client."""
        H, b, c = map(_means, (self.H, self.b, self.c))
        return (H @ w) @ w / 2 - b @ w + c

    def gradients(self, w: Float[np.ndarray, " size"]) -> Float[np.ndarray, "clients size"]:
        """grad f_i(w) of every client."""
        return _means(self.H) @ w - _means(self.b)


class QuadraticLosses(_AbstractQuadratics):
    """Mean over clients of f_i(w) = 1/2 w' H_i w - b_i' w + c_i: a single-level problem.

    >>> zoo = quadratic_losses(n_clients=3)
    >>> (w,) = zoo.solution()
    >>> bool(abs(zoo.gradient(w)).max() < 1e-12)
    True
    """

    @property
    def problem(self) -> SingleLevel:
        """The loss of one row."""
        return SingleLevel(_quadratic)

    def gradient(self, w: Float[np.ndarray, " size"]) -> Float[np.ndarray, " size"]:
        """The exact gradient of the mean."""
        return self.gradients(w).mean(0)

    def solution(self) -> tuple[np.ndarray]:
        """(w*,)."""
        return (np.linalg.solve(_means(self.H).mean(0), _means(self.b).mean(0)),)


class RobustQuadratic(_AbstractQuadratics):
    """Mean over clients of exp(f_i(w) / gamma),  f_i(w) = 1/2 w' H_i w - b_i' w + c_i.

    The minimiser also minimises  gamma log mean exp(f_i / gamma),  the maximum over client weights
    r of the weighted loss minus gamma KL(r | equal weights).

    >>> zoo = robust_quadratic(n_clients=3)
    >>> (w,) = zoo.solution()
    >>> bool(abs(zoo.gradient(w)).max() < 1e-10)
    True
    """

    gamma: float = 1.0

    @property
    def problem(self) -> LocalComposition:
        """The client's loss inside, the exponential outside, on the same rows."""
        return LocalComposition(_quadratic, Partial(_exponential, self.gamma))

    @property
    def plain(self) -> QuadraticLosses:
        """The same clients without the exponential: f_i alone."""
        return QuadraticLosses(self.H, self.b, self.c)

    def weights(self, w: Float[np.ndarray, " size"]) -> Float[np.ndarray, " clients"]:
        """The worst-case client weights at w: proportional to exp(f_i / gamma), summing to one."""
        exponent = self.losses(w) / self.gamma
        weights = np.exp(exponent - exponent.max())
        return weights / weights.sum()

    def gradient(self, w: Float[np.ndarray, " size"]) -> Float[np.ndarray, " size"]:
        """The exact gradient of the mean of exp(f_i / gamma)."""
        return np.exp(self.losses(w) / self.gamma).mean() / self.gamma * self._log_derivatives(w)[0]

    def solution(self) -> tuple[np.ndarray]:
        """(w*,), the minimiser of the logarithm, which is convex and cannot overflow."""
        return (_newton(self._log_derivatives, np.zeros(self.b.shape[-1])),)

    def _log_derivatives(self, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        H, r = _means(self.H), self.weights(w)
        g = self.gradients(w)
        spread = g - r @ g
        return r @ g, np.tensordot(r, H, 1) + spread.T @ (r[:, None] * spread) / self.gamma


class CubicMAML(eqx.Module):
    """Mean over clients of f_i(w - lr grad f_i(w)),  f_i(w) = w' A_i w / 2 + b_i' w + sum w^3 / 6.

    With lr = adaptation_lr. Cubes are unbounded: the solution is the local minimiser near zero.

    >>> zoo = cubic_maml(n_clients=3)
    >>> (w,) = zoo.solution()
    >>> bool(abs(zoo.gradient(w)).max() < 1e-12)
    True
    """

    A: Float[np.ndarray, "clients rows size size"]
    b: Float[np.ndarray, "clients rows size"]
    adaptation_lr: float = 0.1

    @property
    def problem(self) -> Meta:
        """The loss of one row, and the step size of the adaptation."""
        return Meta(_cubic, adapt_lr=self.adaptation_lr)

    @property
    def composition(self) -> LocalComposition:
        """The same problem as a composition: the adaptation inside, the client's loss outside."""
        return LocalComposition(Partial(_adapted, self.adaptation_lr), _cubic)

    @property
    def data(self) -> dict[str, np.ndarray]:
        """Per field, an array [clients, rows, ...]."""
        return {"A": self.A, "b": self.b}

    @property
    def start(self) -> tuple[np.ndarray]:
        """Zeros for w."""
        return (np.zeros(self.b.shape[-1], self.b.dtype),)

    def losses(self, w: Float[np.ndarray, " size"]) -> Float[np.ndarray, " clients"]:
        """f_i of every client at the adapted w."""
        A, b, lr = _means(self.A), _means(self.b), self.adaptation_lr
        u = w - lr * (A @ w + b + w**2 / 2)
        return np.einsum("ij,ijk,ik->i", u, A, u) / 2 + np.sum(b * u, 1) + np.sum(u**3, 1) / 6

    def gradients(self, w: Float[np.ndarray, " size"]) -> Float[np.ndarray, "clients size"]:
        """(I - lr Hess f_i(w)) grad f_i(adapted w) of every client."""
        A, b, lr = _means(self.A), _means(self.b), self.adaptation_lr
        u = w - lr * (A @ w + b + w**2 / 2)
        g = np.einsum("ijk,ik->ij", A, u) + b + u**2 / 2
        return g - lr * (np.einsum("ijk,ik->ij", A, g) + w * g)

    def gradient(self, w: Float[np.ndarray, " size"]) -> Float[np.ndarray, " size"]:
        """The exact gradient, mean of (I - lr Hess f_i(w)) grad f_i(adapted w)."""
        return self._derivatives(w)[0]

    def solution(self) -> tuple[np.ndarray]:
        """(w*,)."""
        return (_newton(self._derivatives, np.zeros(self.b.shape[-1])),)

    def _derivatives(self, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        A, b, lr, eye = _means(self.A), _means(self.b), self.adaptation_lr, np.eye(w.size)
        adapted = w - lr * (A @ w + b + w**2 / 2)
        J = eye - lr * (A + np.diag(w))
        g = np.einsum("ijk,ik->ij", A, adapted) + b + adapted**2 / 2
        hessian = J @ (A + adapted[:, :, None] * eye) @ J - lr * g[:, :, None] * eye
        return np.einsum("ijk,ik->ij", J, g).mean(0), hessian.mean(0)


def _quadratic(w, row):
    return w @ row["H"] @ w / 2 - row["b"] @ w + row["c"]


def _exponential(gamma, u, row):
    return jnp.exp(u / jnp.asarray(gamma, u.dtype))


def _adapted(lr, w, row):
    return w - jnp.asarray(lr, w.dtype) * (row["A"] @ w + row["b"] + w**2 / 2)


def _cubic(w, row):
    return w @ row["A"] @ w / 2 + row["b"] @ w + jnp.sum(w**3) / 6


def _means(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64).mean(1)


def _newton(derivatives, w: np.ndarray) -> np.ndarray:
    """A root of the gradient; a step that does not shrink it is halved."""
    for _ in range(100):
        gradient, hessian = derivatives(w)
        step = np.linalg.solve(hessian, gradient)
        while norm(derivatives(w - step)[0]) > norm(gradient):
            step = step / 2
        if np.array_equal(w - step, w):
            break
        w = w - step
    return w


@expands(ClientDraws)
def robust_quadratic(
    *,
    size: int = 4,
    gamma: float = 1.0,
    **clients: Unpack[ClientSettings],
) -> RobustQuadratic:
    """A random instance; every f_i is zero at its minimiser, at a distance of about 1 from zero.

    Args:
        size: length of w.
        gamma: the smaller, the more the worst client counts.
        **clients: how the clients are drawn, see :class:`ClientDraws`.

    >>> robust_quadratic(n_clients=3).data["H"].shape
    (3, 1, 4, 4)
    """
    draw = ClientDraws(**clients)
    H, centre = _matrix_and_vector(draw, size, scale=1 / np.sqrt(size))
    b = np.einsum("...jk,...k->...j", H, centre)
    c = np.repeat(np.sum(b.mean(1) * centre.mean(1), -1)[:, None] / 2, draw.rows, axis=1)
    H, b, c = (a.astype(draw.dtype) for a in (H, b, c))
    return RobustQuadratic(H, b, c, gamma)


@expands(ClientDraws)
def quadratic_losses(*, size: int = 4, **clients: Unpack[ClientSettings]) -> QuadraticLosses:
    """The clients of :func:`robust_quadratic` without the exponential.

    >>> quadratic_losses(n_clients=3, size=2).losses(np.zeros(2)).shape
    (3,)
    """
    return robust_quadratic(size=size, **clients).plain


@expands(ClientDraws)
def cubic_maml(
    *, size: int = 4, adaptation_lr: float = 0.1, **clients: Unpack[ClientSettings]
) -> CubicMAML:
    """A random instance whose b_i are small enough for a minimiser to exist.

    Arguments as those of :func:`robust_quadratic`, and the step size of the adaptation.

    >>> cubic_maml(n_clients=3, size=2).data["A"].shape
    (3, 1, 2, 2)
    """
    draw = ClientDraws(**clients)
    A, b = _matrix_and_vector(draw, size, scale=0.3)
    return CubicMAML(A.astype(draw.dtype), b.astype(draw.dtype), adaptation_lr)


def _matrix_and_vector(draw: ClientDraws, size: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """For each client a positive definite matrix, and rows that average to its vector."""
    factor = draw.common_and_own(size, size)
    matrix = np.eye(size) + factor @ factor.swapaxes(-1, -2) / size
    vector = draw.rows_around(scale * draw.common_and_own(size))
    return np.repeat(matrix, draw.rows, axis=1), vector
