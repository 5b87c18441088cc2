"""A generative toy on which plain descent-ascent spirals outwards: the Dirac GAN.

L. Mescheder, A. Geiger, S. Nowozin. Which training methods for GANs do actually converge?
ICML 2018, arXiv:1801.04406.

The generator puts all its mass on x, the critic is linear, z -> y'z, and client i has samples z:
    loss  y' (z - x) - penalty / 2 |y|²,
to be minimised in x and maximised in y. The saddle point is x* = mean z, y* = 0. Without a penalty
a step of simultaneous descent-ascent with step sizes α, β multiplies the distance
(|x - x*|² / α + |y|² / β)^(1/2) by (1 + α β)^(1/2), from wherever it starts.
"""

from typing import Unpack

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from rookery import check
from rookery.problem.minimax import Minimax
from rookery.problem.zoo.client_draws import ClientDraws, ClientSettings
from rookery.signature import expands


class DiracGAN(eqx.Module):
    """The samples of all clients, stacked as [clients, rows, ...], and the closed forms.

    >>> zoo = dirac_gan(n_clients=3)
    >>> x, y = zoo.solution()
    >>> bool(np.allclose(x, zoo.z.mean((0, 1)))), y.tolist()
    (True, [0.0, 0.0])
    """

    z: Float[np.ndarray, "clients rows size"]
    penalty: float = 0.0

    @property
    def problem(self) -> Minimax:
        """What the critic tells the samples from x by."""
        return Minimax(_Payoff(self.penalty))

    @property
    def data(self) -> dict[str, np.ndarray]:
        """The samples, [clients, rows, size]."""
        return {"z": self.z}

    @property
    def start(self) -> tuple[np.ndarray, np.ndarray]:
        """Zeros for the generator and ones for the critic."""
        size = self.z.shape[-1]
        return np.zeros(size, self.z.dtype), np.ones(size, self.z.dtype)

    def inner_solution(self, x: Float[np.ndarray, " size"]) -> Float[np.ndarray, " size"]:
        """The best critic y*(x)."""
        return (self._mean() - x) / self._curvature()

    def gradient(self, x: Float[np.ndarray, " size"]) -> Float[np.ndarray, " size"]:
        """The exact gradient of the maximum over y."""
        return (x - self._mean()) / self._curvature()

    def solution(self) -> tuple[Float[np.ndarray, " size"], Float[np.ndarray, " size"]]:
        """(x*, y*), the mean of all samples and zero."""
        return self._mean(), np.zeros(self.z.shape[-1])

    def _mean(self) -> np.ndarray:
        return self.z.astype(np.float64).mean((0, 1))

    def _curvature(self) -> float:
        if not self.penalty:
            raise ValueError(
                "the best critic is infinite without a penalty. Use dirac_gan(penalty=...), or "
                "solution(), which needs none."
            )
        return self.penalty


class _Payoff(eqx.Module):
    penalty: float

    def __call__(self, x, y, row):
        penalty = jnp.asarray(self.penalty / 2).astype(y.dtype)
        return y @ (row["z"] - x) - penalty * (y @ y)


@expands(ClientDraws)
def dirac_gan(
    *, size: int = 2, penalty: float = 0.0, **clients: Unpack[ClientSettings]
) -> DiracGAN:
    """A random instance whose clients differ in the means of their samples.

    Args:
        size: length of x and of y.
        penalty: curvature of the critic's penalty; at 0 plain descent-ascent does not converge.
        **clients: how the clients are drawn, see :class:`ClientDraws`.

    >>> dirac_gan(n_clients=3, rows=5, noise=0.1).data["z"].shape
    (3, 5, 2)
    """
    check.not_negative("penalty", penalty)
    draw = ClientDraws(**clients)
    return DiracGAN(draw(size).astype(draw.dtype), float(penalty))
