"""A chain of affine layers under least squares: a composition with a closed form.

Client i has
    layers 0 to N - 1   A_i z + a_i,  with its own A_i and a_i at every layer,
    layer N             1/2 |z - t_i|^2.
With the clients' mean matrices the objective is an ordinary least-squares problem.
"""

import functools
from typing import Unpack

import equinox as eqx
import numpy as np
from jaxtyping import Float
from numpy.typing import DTypeLike

from rookery import check
from rookery.problem.composition import Composition
from rookery.problem.zoo.client_draws import ClientDraws, ClientSettings
from rookery.signature import expands


class LinearChain(eqx.Module):
    """The arrays of all clients, stacked as [clients, rows, ...], and the closed forms.

    Attributes:
        matrices: per affine layer, [clients, rows, size of its value, size of its argument].
        offsets: per affine layer, [clients, rows, size of its value].
        target: [clients, rows, size of the last affine layer's value].

    >>> scalar_composition().gradient(np.array([4.0])).tolist()
    [10.0]
    """

    matrices: tuple[Float[np.ndarray, "clients rows _value _argument"], ...]
    offsets: tuple[Float[np.ndarray, "clients rows _value"], ...]
    target: Float[np.ndarray, "clients rows last"]

    @property
    def problem(self) -> Composition:
        """The affine layers and the squared distance, all averaged over the same rows."""
        layers = (*(_Affine(n) for n in range(len(self.matrices))), _distance)
        return Composition(layers, starts=tuple(np.zeros_like(a[0, 0]) for a in self.offsets))

    @property
    def data(self) -> dict[str, np.ndarray]:
        """Per field, an array [clients, rows, ...]."""
        affine = enumerate(zip(self.matrices, self.offsets, strict=True))
        named = {f"{name}{n}": a for n, pair in affine for name, a in zip("Aa", pair, strict=True)}
        return {**named, "t": self.target}

    @property
    def start(self) -> tuple[np.ndarray]:
        """Zeros for x."""
        return (np.zeros(self.matrices[0].shape[-1], self.target.dtype),)

    def levels(self, x: Float[np.ndarray, " size"]) -> tuple[np.ndarray, ...]:
        """The values (z_1, ..., z_N) of the affine layers at x."""
        values = []
        for matrix, offset in self._means():
            x = matrix @ x + offset
            values.append(x)
        return tuple(values)

    def gradient(self, x: Float[np.ndarray, " size"]) -> Float[np.ndarray, " size"]:
        """The exact gradient: the transposed mean matrices times the last residual."""
        return self._product().T @ (self.levels(x)[-1] - _mean(self.target))

    def solution(self) -> tuple[np.ndarray]:
        """(x*,), the least-squares solution."""
        at_zero = self.levels(np.zeros(self.matrices[0].shape[-1]))[-1]
        return (np.linalg.lstsq(self._product(), _mean(self.target) - at_zero)[0],)

    def _means(self) -> list[tuple[np.ndarray, np.ndarray]]:
        return [(_mean(A), _mean(a)) for A, a in zip(self.matrices, self.offsets, strict=True)]

    def _product(self) -> np.ndarray:
        return functools.reduce(lambda before, A: A @ before, [A for A, _ in self._means()])


class _Affine(eqx.Module):
    level: int = eqx.field(static=True)

    def __call__(self, z, row):
        return row[f"A{self.level}"] @ z + row[f"a{self.level}"]


def _distance(z, row):
    e = z - row["t"]
    return e @ e / 2


def _mean(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64).mean((0, 1))


@expands(ClientDraws)
def linear_chain(
    *,
    sizes: tuple[int, ...] = (3, 4, 5),
    spread: float = 0.3,
    **clients: Unpack[ClientSettings],
) -> LinearChain:
    """A random instance with a unique solution.

    Args:
        sizes: length of x, then of the value of each affine layer; N + 1 numbers give N + 1 layers.
        spread: size of the random part of the matrices, which are otherwise identities.
        **clients: how the clients are drawn, see :class:`ClientDraws`.

    >>> len(linear_chain(sizes=(2, 2, 3, 4)).problem.layers)
    4
    """
    check.count("the number of sizes", len(sizes), least=2)
    if min(sizes) < sizes[0]:
        raise ValueError(
            f"sizes: no layer may be smaller than x ({sizes[0]}), otherwise the solution is not "
            f"unique; got {sizes}."
        )
    draw = ClientDraws(**clients)
    pairs = list(zip(sizes[1:], sizes[:-1], strict=True))
    return LinearChain(
        matrices=tuple((np.eye(*s) + spread * draw(*s)).astype(draw.dtype) for s in pairs),
        offsets=tuple(draw(size).astype(draw.dtype) for size in sizes[1:]),
        target=draw(sizes[-1]).astype(draw.dtype),
    )


def scalar_composition(dtype: DTypeLike = np.float64) -> LinearChain:
    """Two clients, one affine layer k_i x with k = (1, 3) and targets (1, 5), so x* = 3/2.

    The gradient is 2 (2 x - 3); the mean of the clients' own gradients is 5 x - 8.

    >>> scalar_composition().solution()[0].round(12).tolist()
    [1.5]
    """
    slope = np.array([1, 3], dtype).reshape(2, 1, 1, 1)
    target = np.array([1, 5], dtype).reshape(2, 1, 1)
    return LinearChain((slope,), (np.zeros_like(target),), target)
