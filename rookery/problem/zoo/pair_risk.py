"""A smooth partial AUC of linear scores, with exact derivatives.

Row j of client i has a positive example a and a negative one b, with the scores a'w and b'w:
    mean over a of  λ log( mean over b of  exp( (1 - (a - b)'w)² / 2λ ) ),
both means over all clients. Large λ gives the mean over pairs, small λ the worst b of every a. The
risk is convex; Newton's method solves it, as there is no closed form.
"""

from typing import Unpack

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Float

from rookery import check
from rookery.problem.xrisk import XRisk
from rookery.problem.zoo.client_draws import ClientDraws, ClientSettings
from rookery.signature import expands


class PairRisk(eqx.Module):
    """The examples of all clients, stacked as [clients, rows, size].

    >>> zoo = pair_risk(n_clients=3)
    >>> bool(abs(zoo.gradient(*zoo.solution())).max() < 1e-12)
    True
    """

    a: Float[np.ndarray, "clients rows size"]
    b: Float[np.ndarray, "clients rows size"]
    temperature: float = 1.0

    @property
    def data(self) -> dict[str, np.ndarray]:
        """Per field, an array [clients, rows, size]."""
        return {"a": self.a, "b": self.b}

    @property
    def problem(self) -> XRisk:
        """Positive and negative examples from the same rows."""
        rows = self.a.shape[1]
        return XRisk(
            _positive,
            Partial(_exponential, self.temperature),
            Partial(_logarithm, self.temperature),
            negative_score=_negative,
            most_positives=rows,
            most_negatives=rows,
        )

    @property
    def start(self) -> tuple[np.ndarray]:
        """Zeros for w."""
        return (np.zeros(self.a.shape[-1], self.a.dtype),)

    def gradient(self, w: Float[np.ndarray, " size"]) -> Float[np.ndarray, " size"]:
        """The exact gradient."""
        return self._derivatives(w)[0]

    def solution(self) -> tuple[Float[np.ndarray, " size"]]:
        """(w*,) by Newton's method from zero, to rounding."""
        w = np.zeros(self.a.shape[-1])
        for _ in range(50):
            gradient, hessian = self._derivatives(w)
            w = w - np.linalg.solve(hessian, gradient)
        return (w,)

    def _derivatives(self, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        a, b = (v.astype(np.float64).reshape(-1, v.shape[-1]) for v in (self.a, self.b))
        d = a[:, None] - b[None]
        short = 1 - d @ w
        exponent = short**2 / (2 * self.temperature)
        share = np.exp(exponent - exponent.max(1, keepdims=True))
        share = share / share.sum(1, keepdims=True)
        slope = -short[..., None] * d
        mean = np.einsum("pn,pni->pi", share, slope)
        second = np.einsum("pn,pni,pnj->ij", share, d, d)
        spread = slope - mean[:, None]
        second += np.einsum("pn,pni,pnj->ij", share, spread, spread) / self.temperature
        return mean.mean(0), second / len(a)


def _positive(w, row):
    return row["a"] @ w


def _negative(w, row):
    return row["b"] @ w


def _exponential(temperature, first, second):
    temperature = jnp.asarray(temperature).astype(first.dtype)
    return jnp.exp((1 - (first - second)) ** 2 / (2 * temperature))


def _logarithm(temperature, u):
    return jnp.asarray(temperature).astype(u.dtype) * jnp.log(u)


@expands(ClientDraws)
def pair_risk(
    *, size: int = 2, temperature: float = 2.0, **clients: Unpack[ClientSettings]
) -> PairRisk:
    """A random instance whose clients differ in their examples.

    Args:
        size: length of w.
        temperature: λ.
        **clients: how the clients are drawn, see :class:`ClientDraws`.

    >>> pair_risk(n_clients=2, rows=4, noise=0.1).data["a"].shape
    (2, 4, 2)
    """
    check.positive("temperature", temperature)
    draw = ClientDraws(**clients)
    a, b = 0.5 + 0.5 * draw(size), 0.5 * draw(size)
    return PairRisk(a.astype(draw.dtype), b.astype(draw.dtype), float(temperature))
