"""A conditional problem with a closed form, that of its plug-in included.

Row j of client i has the example ξ = (A, b) and draws η = N that average to zero:
    inner  (A + N) w,    outer  1/2 |u - b|².
The plug-in of m draws adds  1/(2m) mean |N w|²  to the objective, so it has a solution of its own.
"""

from typing import Unpack

import equinox as eqx
import numpy as np
from jaxtyping import Float

from rookery.problem.conditional import Conditional
from rookery.problem.zoo.client_draws import ClientDraws, ClientSettings
from rookery.signature import expands


class ConditionalQuadratic(eqx.Module):
    """The matrices of all clients, stacked as [clients, rows, ...], and the closed forms.

    Attributes:
        A: of the examples.
        b: likewise.
        N: the draws of every row.
        m_in: draws per evaluation; None means all.

    >>> zoo = conditional_quadratic(n_clients=3, m_in=2)
    >>> (w,) = zoo.solution()
    >>> (biased,) = zoo.plug_in_solution()
    >>> bool(abs(zoo.gradient(w)).max() < 1e-12), bool(abs(w - biased).max() > 1e-3)
    (True, True)
    """

    A: Float[np.ndarray, "clients rows size size"]
    b: Float[np.ndarray, "clients rows size"]
    N: Float[np.ndarray, "clients rows draws size size"]
    m_in: int | None = eqx.field(static=True, default=None)

    @property
    def data(self) -> dict[str, np.ndarray]:
        """Per field, an array [clients, rows, ...]."""
        return {"A": self.A, "b": self.b, "draws": self.N}

    @property
    def problem(self) -> Conditional:
        """The two levels."""
        return Conditional(_inner, _outer, m_in=self.m_in)

    @property
    def start(self) -> tuple[np.ndarray]:
        """Zeros for w."""
        return (np.zeros(self.b.shape[-1], self.b.dtype),)

    def gradient(self, w: Float[np.ndarray, " size"]) -> Float[np.ndarray, " size"]:
        """The exact gradient."""
        H, k = self._exact()
        return H @ w - k

    def plug_in_gradient(self, w: Float[np.ndarray, " size"]) -> Float[np.ndarray, " size"]:
        """The mean of the gradients of the plug-in: biased by  mean N'N w / m_in."""
        return self.gradient(w) + self._bias() @ w

    def solution(self) -> tuple[Float[np.ndarray, " size"]]:
        """(w*,)."""
        return (np.linalg.solve(*self._exact()),)

    def plug_in_solution(self) -> tuple[Float[np.ndarray, " size"]]:
        """Where steps along the plug-in end in the mean."""
        H, k = self._exact()
        return (np.linalg.solve(H + self._bias(), k),)

    def _exact(self) -> tuple[np.ndarray, np.ndarray]:
        A, b = self.A.astype(np.float64), self.b.astype(np.float64)
        H = np.einsum("crki,crkj->ij", A, A)
        return H / (rows := b[..., 0].size), np.einsum("crki,crk->i", A, b) / rows

    def _bias(self) -> np.ndarray:
        N = self.N.astype(np.float64)
        if self.m_in is None or self.m_in >= N.shape[2]:
            return np.zeros(N.shape[-2:])
        squares = np.einsum("crnki,crnkj->ij", N, N) / N[..., 0, 0].size
        return squares / self.m_in


def _inner(w, example, draw):
    return (example["A"] + draw) @ w


def _outer(u, example):
    difference = u - example["b"]
    return difference @ difference / 2


@expands(ClientDraws)
def conditional_quadratic(
    *,
    size: int = 3,
    draws: int = 8,
    spread: float = 1.0,
    m_in: int | None = None,
    **clients: Unpack[ClientSettings],
) -> ConditionalQuadratic:
    """A random instance whose clients differ in A and b.

    Args:
        size: length of w.
        draws: inner draws of every row.
        spread: standard deviation of the draws' entries.
        m_in: draws per evaluation; None means all of a row.
        **clients: how the clients are drawn, see :class:`ClientDraws`.

    >>> conditional_quadratic(n_clients=2, size=2, draws=5).data["draws"].shape
    (2, 1, 5, 2, 2)
    """
    draw = ClientDraws(**clients)
    A = np.eye(size) + 0.3 * draw(size, size)
    b = draw(size)
    N = spread * draw(draws, size, size, noise=0.0)
    N = N - N.mean(2, keepdims=True)
    return ConditionalQuadratic(
        A.astype(draw.dtype), b.astype(draw.dtype), N.astype(draw.dtype), m_in
    )
