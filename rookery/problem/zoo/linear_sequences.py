"""Coupled affine maps whose common root is one linear solve.

With all blocks concatenated, u = (x, z_1, ..., z_N), client i has the maps  M_i u + c_i;  the rows
of M_i that belong to a block are the map of that block.
"""

from typing import Unpack

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from rookery.problem.multisequence import MultiSequence
from rookery.problem.zoo.client_draws import ClientDraws, ClientSettings
from rookery.signature import expands


class LinearSequences(eqx.Module):
    """The matrices of all clients, stacked as [clients, rows, ...], and the closed forms.

    Attributes:
        M: [clients, rows, total size, total size].
        c: [clients, rows, total size].
        sizes: lengths of x, z_1, ..., z_N.

    >>> zoo = linear_sequences(sizes=(2, 1))
    >>> all(abs(block).max() < 1e-12 for block in zoo.residual(zoo.solution()))
    True
    """

    M: Float[np.ndarray, "clients rows total total"]
    c: Float[np.ndarray, "clients rows total"]
    sizes: tuple[int, ...] = eqx.field(static=True)

    @property
    def problem(self) -> MultiSequence:
        """One map per block, all averaged over the same rows."""
        main, *sequences = (_Map(part.start, part.stop) for part in self._parts())
        return MultiSequence(main, tuple(sequences))

    @property
    def data(self) -> dict[str, np.ndarray]:
        """Per field, an array [clients, rows, ...]."""
        return {"M": self.M, "c": self.c}

    @property
    def start(self) -> tuple[np.ndarray, ...]:
        """Zeros for every block."""
        return tuple(np.zeros(size, self.c.dtype) for size in self.sizes)

    def residual(self, blocks: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        """The exact mean maps at the blocks, which are all zero at the solution."""
        M, c = self._means()
        joined = M @ np.concatenate(blocks) + c
        return tuple(joined[part] for part in self._parts())

    def solution(self) -> tuple[np.ndarray, ...]:
        """(x*, z_1*, ..., z_N*)."""
        M, c = self._means()
        joined = np.linalg.solve(M, -c)
        return tuple(joined[part] for part in self._parts())

    def _means(self) -> tuple[np.ndarray, np.ndarray]:
        return self.M.astype(np.float64).mean((0, 1)), self.c.astype(np.float64).mean((0, 1))

    def _parts(self) -> list[slice]:
        ends = np.cumsum(self.sizes).tolist()
        return [slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True)]


class _Map(eqx.Module):
    """The map of the block at positions ``begin`` to ``end``."""

    begin: int = eqx.field(static=True)
    end: int = eqx.field(static=True)

    def __call__(self, blocks, row):
        part = slice(self.begin, self.end)
        return row["M"][part] @ jnp.concatenate(blocks) + row["c"][part]


@expands(ClientDraws)
def linear_sequences(
    *,
    sizes: tuple[int, ...] = (3, 2, 4),
    coupling: float = 0.5,
    **clients: Unpack[ClientSettings],
) -> LinearSequences:
    """A random instance whose mean map is well-conditioned, however different the clients are.

    The mean matrix is  I + coupling K  with a random K of norm 1. Its symmetric part is positive,
    so steps against the mean maps converge for any small enough step size of each block. The matrix
    of a single client may be indefinite.

    Args:
        sizes: lengths of x, z_1, ..., z_N.
        coupling: size of the random part of the mean matrix, below 1.
        **clients: how the clients are drawn, see :class:`ClientDraws`.

    >>> [len(block) for block in linear_sequences(sizes=(2, 1)).solution()]
    [2, 1]
    """
    if not 0 <= coupling < 1:
        raise ValueError(f"coupling must be at least 0 and below 1, got {coupling}.")
    chosen = ClientDraws(**clients)
    rng, row_rng = np.random.default_rng(chosen.seed).spawn(2)
    total = sum(sizes)

    def around(mean, scale):
        """Clients that average to the mean, and rows that average to their client."""
        own = chosen.heterogeneity * scale * rng.normal(size=(chosen.n_clients, 1, *mean.shape))
        jitter = chosen.noise * row_rng.normal(size=(chosen.n_clients, chosen.rows, *mean.shape))
        return mean + own - own.mean(0) + jitter - jitter.mean(1, keepdims=True)

    K = rng.normal(size=(total, total))
    M = np.eye(total) + coupling * K / np.linalg.norm(K, 2)
    c = rng.normal(size=total)
    return LinearSequences(
        around(M, 1 / np.sqrt(total)).astype(chosen.dtype),
        around(c, 1.0).astype(chosen.dtype),
        tuple(sizes),
    )
