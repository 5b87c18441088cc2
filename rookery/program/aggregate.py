"""How the clients' replies become one value: the plug under ``fed.mean``.

The mean is the default. A robust rule stands in for it by ``aggregate=`` and tolerates some Byzantine
clients, which may send anything: numbers of any size, and NaN. Its price is bias where honest clients
differ from each other: it cannot tell an unusual client from a Byzantine one.
"""

import abc
import math
from typing import Protocol

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check
from rookery.types import Tree

_ROUNDING = 1e-6  # of weights that sum to one half


class Aggregate(Protocol):
    """Anything that joins stacked replies into one; robust and private means fit here."""

    def __call__(self, replies: Tree, weights: jax.Array) -> Tree:
        """Join replies.

        Args:
            replies: pytree of arrays [slots, ...].
            weights: [slots], not negative, summing to one; zero for a slot that is switched off.
        """
        ...


class Mean(eqx.Module):
    """The weighted mean."""

    def __call__(self, replies: Tree, weights: jax.Array) -> Tree:
        """Sum of weight times reply, in the order of the slots."""
        return _mean(replies, weights)


@jax.jit  # where nothing else is compiled, as on a server by messages, it is still one call
def _mean(replies: Tree, weights: jax.Array) -> Tree:
    return jax.tree.map(lambda r: jnp.tensordot(weights.astype(r.dtype), r, 1), replies)


class AbstractRobust(eqx.Module):
    """Something that stands in for the weighted mean."""

    @abc.abstractmethod
    def __call__(self, replies: Tree, weights: jax.Array) -> Tree:
        """Join replies; see :class:`rookery.aggregate.Aggregate`."""

    @property
    def fewest(self) -> int:
        """With fewer replies in an exchange it bears no bad one."""
        return 1

    @abc.abstractmethod
    def check(self, weights: jax.Array) -> None:
        """Raise unless it makes sense for a population of clients with such weights."""


class Median(AbstractRobust):
    """The weighted median of every coordinate: bad clients of less than half the weight are borne.

    Halfway between the two middle values where the weight is split evenly between them, so for
    clients of equal weight it is the usual median.
    """

    def __call__(self, replies: Tree, weights: jax.Array) -> Tree:
        """The median of each coordinate."""

        def one(leaf):
            values, passed, _ = _sorted(leaf, weights)
            lower = jnp.argmax(passed >= 0.5 - _ROUNDING, axis=0, keepdims=True)
            upper = jnp.argmax(passed > 0.5 + _ROUNDING, axis=0, keepdims=True)
            low, high = (jnp.take_along_axis(values, at, axis=0)[0] for at in (lower, upper))
            return low + (high - low) / 2

        return jax.tree.map(one, replies)

    @property
    def fewest(self) -> int:
        """With two it would be their mean."""
        return 3

    def check(self, weights: jax.Array) -> None:
        """Enough clients."""
        _at_least("Median", self.fewest, weights)


class TrimmedMean(AbstractRobust):
    """The mean of every coordinate without its extremes.

    Args:
        trim: the share of the weight that is cut off at either end; bad clients of at most as much
            weight are borne. With n clients of equal weight, k / n cuts off k clients.
    """

    trim: float = 0.1

    def __check_init__(self):
        if not 0 < self.trim < 0.5:
            raise ValueError(f"TrimmedMean.trim must be above 0 and below 0.5, got {self.trim}.")

    def __call__(self, replies: Tree, weights: jax.Array) -> Tree:
        """The trimmed mean of each coordinate."""
        if (slots := weights.shape[0]) < self.fewest:
            raise ValueError(
                f"TrimmedMean cuts off a share of {self.trim:g} at either end, which is less than "
                f"one of the {slots} clients in an exchange: a bad one would stay in. Cut off "
                f"more, or ask at least {self.fewest} clients."
            )

        def one(leaf):
            values, passed, own = _sorted(leaf, weights)
            inside = jnp.minimum(passed, 1 - self.trim) - jnp.maximum(passed - own, self.trim)
            inside = jnp.where(inside > _ROUNDING * own, inside, jnp.zeros_like(inside))
            kept = jnp.where(inside > 0, values, jnp.zeros_like(values))  # not 0 times infinity
            share = inside / jnp.sum(inside, axis=0, keepdims=True)
            return jnp.sum(share.astype(leaf.dtype) * kept, axis=0)

        return jax.tree.map(one, replies)

    @property
    def fewest(self) -> int:
        """One of them is as much as is cut off at either end."""
        return math.ceil((1 - _ROUNDING) / self.trim)

    def check(self, weights: jax.Array) -> None:
        """A client must not be heavier than what is cut off, or it could not be cut off."""
        _at_least("TrimmedMean", 3, weights)
        heaviest = float(jnp.max(jnp.asarray(weights)))
        if heaviest > self.trim * (1 + _ROUNDING):
            raise ValueError(
                f"TrimmedMean cuts off a share of {self.trim:g} at either end, and the heaviest of "
                f"{len(weights)} clients has {heaviest:.3g} of the weight: as a bad client it "
                "would stay in. Cut off more, or use Median."
            )


class Krum(AbstractRobust):
    """The mean of the replies that lie closest to others (Krum, and multi-Krum for ``keep > 1``).

    A reply's score is the sum of the squared distances to its n - f - 2 nearest others; the
    ``keep`` replies with the lowest scores are averaged. All clients count as equals.

    P. Blanchard, E. M. El Mhamdi, R. Guerraoui, J. Stainer. Machine learning with adversaries:
    Byzantine tolerant gradient descent. NeurIPS 2017.

    Args:
        bad: f, how many bad clients in an exchange are borne; there must be 2 f + 3 clients in it.
        keep: how many replies are averaged.
    """

    bad: int = 1
    keep: int = 1

    def __check_init__(self):
        check.count("Krum.bad", self.bad)
        check.count("Krum.keep", self.keep)

    def __call__(self, replies: Tree, weights: jax.Array) -> Tree:
        """The mean of the chosen replies."""
        slots = weights.shape[0]
        self._check_slots(slots)
        active = weights > 0
        distances = _squared_distances(replies)
        others = active[:, None] & active[None, :] & ~jnp.eye(slots, dtype=bool)
        # what is not finite is as far away as can be
        near = jnp.where(others & jnp.isfinite(distances), distances, jnp.inf)
        nearest = jnp.sort(near, axis=1)
        count = jnp.maximum(jnp.sum(active) - self.bad - 2, 1)
        counted = (jnp.arange(slots) < count)[None, :]
        scores = jnp.sum(jnp.where(counted, nearest, jnp.zeros_like(nearest)), axis=1)
        order = jnp.argsort(jnp.where(active, scores, jnp.inf))
        chosen = jnp.zeros(slots, bool).at[order[: self.keep]].set(True) & active
        share = chosen.astype(weights.dtype)
        share = share / jnp.sum(share)

        def one(leaf):
            mask = chosen.reshape((slots,) + (1,) * (leaf.ndim - 1))
            kept = jnp.where(mask, leaf, jnp.zeros_like(leaf))
            return jnp.tensordot(share.astype(leaf.dtype), kept, 1)

        return jax.tree.map(one, replies)

    @property
    def fewest(self) -> int:
        """As many as its theorem needs, and as are kept."""
        return max(2 * self.bad + 3, self.keep + self.bad)

    def check(self, weights: jax.Array) -> None:
        """Clients must be equals, and enough of them."""
        self._check_slots(len(weights))
        least, most = float(jnp.min(jnp.asarray(weights))), float(jnp.max(jnp.asarray(weights)))
        if not math.isclose(least, most, rel_tol=1e-9):
            raise ValueError(
                f"Krum takes all clients as equals, and their weights go from {least:.3g} to "
                f"{most:.3g}. Use equal weights, Median or TrimmedMean."
            )

    def _check_slots(self, slots: int) -> None:
        if slots < self.fewest:
            raise ValueError(
                f"Krum with bad={self.bad}, keep={self.keep} needs at least {self.fewest} clients "
                f"in every exchange, got {slots}."
            )


def _sorted(leaf: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Values in rising order, the weight up to and with each of them, and its own weight.

    Slots that are switched off come last, and so does what is not a number: as far up as can be.
    """
    own = jnp.broadcast_to(weights.reshape((-1,) + (1,) * (leaf.ndim - 1)), leaf.shape)
    top = jnp.full_like(leaf, jnp.inf)
    leaf = jnp.where(jnp.isnan(leaf), top, leaf)
    # by two sorts, as a switched-off slot must come after an infinite value that counts
    order = jnp.lexsort((jnp.where(own > 0, leaf, top), own <= 0), axis=0)
    values, own = (jnp.take_along_axis(a, order, axis=0) for a in (leaf, own))
    return values, jnp.cumsum(own, axis=0), own


def _squared_distances(replies: Tree) -> jax.Array:
    """[slots, slots], over all leaves; by differences, as the short formula cancels."""
    total = None
    for leaf in jax.tree.leaves(replies):
        flat = leaf.reshape(leaf.shape[0], -1)
        wide = flat.astype(float)
        one = jax.lax.map(lambda row, all=wide: jnp.sum((all - row[None]) ** 2, axis=1), wide)
        total = one if total is None else total + one
    if total is None:
        raise ValueError("Krum needs replies that hold numbers.")
    return total


def _at_least(name: str, least: int, weights: jax.Array) -> None:
    if len(weights) < least:
        raise ValueError(f"{name} needs at least {least} clients, got {len(weights)}.")
