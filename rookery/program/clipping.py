"""How what leaves a client is clipped, and who adds the noise."""

import math
from dataclasses import KW_ONLY

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rookery import check, tree
from rookery.types import Key, Number, Tree

SCALES = ("inner", "outer", "inner_iterate", "outer_iterate")
"""Uploads that have a bound each: directions and iterates, of inner and of outer exchanges."""


class Clip(eqx.Module):
    """Uploads longer than a bound are shortened to it; a number is a bound for all.

    Directions and iterates differ in size, and so do the levels of a nested problem. An iterate is
    clipped around the value that was sent, so its bound is one for the way that it has gone.

    >>> Clip(1.0, outer=0.5).bound((), "outer_iterate")
    0.5

    Args:
        inner: the longest upload, in the Euclidean norm over all its arrays.
        outer: the same for exchanges that bring the outer variable or its direction.
        inner_iterate: the same for inner iterates; ``inner`` if None.
        outer_iterate: the same for outer iterates; ``outer`` if None.
        by_block: whether the entries of an upload that is a tuple (x, y, v ...) are clipped each by
            itself to the bound. An upload of B blocks has noise √B times as large then.
    """

    inner: float
    _: KW_ONLY
    outer: float | None = None
    inner_iterate: float | None = None
    outer_iterate: float | None = None
    by_block: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        for name in SCALES:
            if (bound := getattr(self, name)) is not None:
                check.positive(f"Clip.{name}", bound)

    def first(self) -> Tree:
        """What is remembered before round 0: nothing."""
        return ()

    def bound(self, memory: Tree, scale: str) -> Number:
        """The longest upload of a scale."""
        outer = self.inner if self.outer is None else self.outer
        own = getattr(self, scale)
        return (outer if scale.startswith("outer") else self.inner) if own is None else own

    def renewed(self, memory: Tree, scale: str, within: Float[Array, ""]) -> Tree:
        """What is remembered after a release."""
        return memory

    def total_noise(self, multiplier: float) -> float:
        """The noise multiplier of a release with all that is said about it."""
        return multiplier

    @property
    def bit_noise(self) -> float | None:
        """The noise multiplier of the fraction of uploads within the bound; None if unused."""
        return None


class QuantileClip(eqx.Module):
    """Bounds that follow a quantile of the lengths of the uploads.

    The fraction of uploads within the bound is released too, with noise of its own, and the bound
    moves by exp(-lr (fraction - quantile)). Each of the four scales of :class:`Clip` has a bound.
    (G. Andrew, O. Thakkar, H. B. McMahan, S. Ramaswamy. NeurIPS 2021, arXiv:1905.03871.)

    >>> round(QuantileClip(1.0, noise=4.0).total_noise(1.0), 3)
    0.97

    Args:
        start: the bounds before round 0: a :class:`Clip`, or a number for all.
        quantile: the fraction of uploads that should not be shortened.
        lr: how fast the bounds move.
        noise: noise multiplier of the fraction. The accountant adds this release to the other.
    """

    start: Clip = eqx.field(
        converter=lambda start: start if isinstance(start, Clip) else Clip(start)
    )
    _: KW_ONLY
    quantile: float = 0.5
    lr: float = 0.2
    noise: float

    def __check_init__(self):
        check.fraction("QuantileClip.quantile", self.quantile)
        check.positive("QuantileClip.lr", self.lr)
        check.positive("QuantileClip.noise", self.noise)
        if self.start.by_block:
            raise ValueError("QuantileClip clips all blocks jointly; leave by_block out.")

    @property
    def by_block(self) -> bool:
        """All blocks are clipped jointly."""
        return False

    def first(self) -> Tree:
        """The bounds."""
        return jnp.stack([jnp.asarray(self.start.bound((), s), float) for s in SCALES])

    def bound(self, memory: Tree, scale: str) -> Number:
        """The present bound of a scale."""
        return memory[SCALES.index(scale)]

    def renewed(self, memory: Tree, scale: str, within: Float[Array, ""]) -> Tree:
        """The bounds after a release."""
        factor = jnp.exp(-self.lr * (within - self.quantile))
        return memory.at[SCALES.index(scale)].multiply(factor.astype(memory.dtype))

    def total_noise(self, multiplier: float) -> float:
        """The noise multiplier of a release together with its fraction."""
        return (multiplier**-2 + self.noise**-2) ** -0.5

    @property
    def bit_noise(self) -> float | None:
        """The noise multiplier of the fraction."""
        return self.noise


def as_clip(given: Clip | QuantileClip | float) -> Clip | QuantileClip | None:
    """Field converter: a number is a bound for all, infinity is None."""
    if isinstance(given, Clip | QuantileClip):
        return given
    return (
        None if isinstance(given, float | int) and math.isinf(given) and given > 0 else Clip(given)
    )


class AbstractNoise(eqx.Module):
    """Gaussian noise of every release; a number is :class:`Central`.

    >>> [isinstance(noise, AbstractNoise) for noise in (Central(1.1), Distributed(1.1))]
    [True, True]
    """

    multiplier: eqx.AbstractVar[float]

    def __check_init__(self):
        check.positive(f"{type(self).__name__}.multiplier", self.multiplier)


class Central(AbstractNoise):
    """The server adds it.

    >>> Central(1.1).multiplier
    1.1

    Args:
        multiplier: standard deviation over sensitivity.
    """

    multiplier: float


class Distributed(AbstractNoise):
    """Every client of a cohort adds a part of it, before it uploads.

    The weights s_i of n slots sum to one, so Σ s_i² is at least 1/n: noise of √n
    times that of the mean suffices for all weights, and is exact for equal ones. Two numbers
    are sent down with every exchange, the bound and the size of the noise.

    >>> Distributed(1.1).multiplier
    1.1

    Args:
        multiplier: standard deviation over sensitivity, of the mean.
    """

    multiplier: float


def as_noise(given: AbstractNoise | float) -> AbstractNoise | None:
    """Field converter: a number is noise at the server, zero is None."""
    if isinstance(given, AbstractNoise):
        return given
    return None if isinstance(given, float | int) and given == 0 else Central(given)


def clipped(way: Tree, bound: jax.Array, by_block: bool) -> tuple[Tree, Float[Array, ""]]:
    """A way that is no longer than the bound, and whether it was (1) or not (0).

    One that is not finite counts as zero: it must not show.

    >>> way, is_within = clipped(jnp.array([3.0, 4.0]), jnp.array(1.0), False)
    >>> [round(float(w), 6) for w in way], float(is_within)
    ([0.6, 0.8], 0.0)
    """
    if by_block and isinstance(way, tuple):
        parts = [clipped(part, bound, False) for part in way]
        return tuple(part for part, _ in parts), jnp.min(jnp.stack([w for _, w in parts]))
    squares = [jnp.sum(jnp.square(leaf.astype(float))) for leaf in jax.tree.leaves(way)]
    length = jnp.sqrt(sum(squares, jnp.zeros(())))
    is_long = length > bound
    factor = jnp.where(is_long, bound / jnp.where(is_long, length, 1.0), 1.0)
    is_finite = jnp.isfinite(length)

    def one(leaf):
        return jnp.where(is_finite, leaf, jnp.zeros_like(leaf)) * factor.astype(leaf.dtype)

    return jax.tree.map(one, way), jnp.where(is_long | ~is_finite, 0.0, 1.0)


def gaussian(key: Key, like: Tree, std: jax.Array) -> Tree:
    """Noise of the shapes and types of a tree."""
    return tree.scale(std, tree.random_normal(key, like))
