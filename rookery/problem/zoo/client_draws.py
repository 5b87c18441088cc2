"""Random arrays of clients that differ by a chosen amount."""

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class ClientDraws:
    """Draws arrays [clients, rows, ...]: a common part, a part of each client's own, noisy rows.

    The rows of a client average to the client's array, so noise leaves the full-batch problem
    unchanged.

    Attributes:
        n_clients: number of clients.
        heterogeneity: 0 makes all clients equal, 1 draws them independently.
        rows: rows per client.
        noise: standard deviation of the rows around their client's array.
        seed: seed of the random numbers.

    >>> ClientDraws(n_clients=2, heterogeneity=1.0, rows=3, noise=0.1, seed=0)(4).shape
    (2, 3, 4)
    """

    n_clients: int
    heterogeneity: float
    rows: int
    noise: float
    seed: int
    _generators: list[np.random.Generator] = field(init=False, repr=False)

    def __post_init__(self):
        object.__setattr__(self, "_generators", np.random.default_rng(self.seed).spawn(2))

    def __call__(self, *shape: int, noise: float | None = None) -> np.ndarray:
        """One array for every row; ``noise`` replaces the usual one."""
        rng, row_rng = self._generators
        noise = self.noise if noise is None else noise
        common, own = rng.normal(size=shape), rng.normal(size=(self.n_clients, 1, *shape))
        jitter = noise * row_rng.normal(size=(self.n_clients, self.rows, *shape))
        mixed = common + self.heterogeneity * (own - common)
        return mixed + jitter - jitter.mean(1, keepdims=True)
