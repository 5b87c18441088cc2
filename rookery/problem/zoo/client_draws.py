"""Random arrays of clients that differ by a chosen amount, and the settings of all such clients."""

from dataclasses import dataclass, field
from typing import TypedDict

import numpy as np
from numpy.typing import DTypeLike

from rookery import check


class ClientSettings(TypedDict, total=False):
    """The settings of :class:`ClientDraws`, as keywords of a zoo function."""

    n_clients: int
    heterogeneity: float
    rows: int
    noise: float
    seed: int
    dtype: DTypeLike


@dataclass(frozen=True, kw_only=True)
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
        dtype: data type of a problem's arrays; draws are float64.

    >>> ClientDraws(n_clients=2, rows=3, noise=0.1)(4).shape
    (2, 3, 4)
    """

    n_clients: int = 5
    heterogeneity: float = 1.0
    rows: int = 1
    noise: float = 0.0
    seed: int = 0
    dtype: DTypeLike = np.float64
    _generators: list[np.random.Generator] = field(init=False, repr=False)

    def __post_init__(self):
        check.count("n_clients", self.n_clients)
        check.count("rows", self.rows)
        check.count("seed", self.seed, least=0)
        check.not_negative("heterogeneity", self.heterogeneity)
        check.not_negative("noise", self.noise)
        check_dtype(self.dtype)
        object.__setattr__(self, "_generators", np.random.default_rng(self.seed).spawn(2))

    def __call__(self, *shape: int, noise: float | None = None) -> np.ndarray:
        """One array for every row; ``noise`` replaces the usual one."""
        return self.rows_around(self.common_and_own(*shape), noise)

    def common_and_own(self, *shape: int) -> np.ndarray:
        """[clients, 1, ...]: a common part, moved towards a part of each client's own."""
        rng, _ = self._generators
        common, own = rng.normal(size=shape), rng.normal(size=(self.n_clients, 1, *shape))
        return common + self.heterogeneity * (own - common)

    def rows_around(self, own: np.ndarray, noise: float | None = None) -> np.ndarray:
        """Noisy rows [clients, rows, ...] that average to the arrays [clients, 1, ...]."""
        _, row_rng = self._generators
        noise = self.noise if noise is None else noise
        jitter = noise * row_rng.normal(size=(self.n_clients, self.rows, *own.shape[2:]))
        return own + jitter - jitter.mean(1, keepdims=True)


def check_dtype(dtype: DTypeLike) -> None:
    """Raise unless a data type is one of floating-point numbers.

    >>> check_dtype("float32")
    """
    try:
        is_float = np.issubdtype(np.dtype(dtype), np.floating)
    except (TypeError, ValueError):
        is_float = False
    if not is_float:
        raise ValueError(f"dtype must be a floating-point type, as float32, got {dtype!r}.")
