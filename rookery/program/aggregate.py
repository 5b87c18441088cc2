"""How the clients' replies become one value: the plug under ``fed.mean``.

The mean is the default. A robust rule stands in for it by ``aggregate=`` and tolerates some
Byzantine clients, which may send anything: numbers of any size, and NaN. Its price is bias where
honest clients differ from each other: it cannot tell an unusual client from a Byzantine one.
"""

import abc
import math
from typing import Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rookery import check
from rookery.program.participation import inclusion
from rookery.types import Tree

_ROUNDING = 1e-6  # of weights that sum to one half


class Aggregate(Protocol):
    """Anything that combines stacked replies into one value; robust and private means fit here.

    A function does, too; ``rk.run(..., aggregate=largest)`` uses this one:

    >>> import jax.numpy as jnp
    >>> def largest(replies, weights):
    ...     return jnp.max(jnp.where(weights > 0, replies, -jnp.inf), axis=0)
    >>> float(largest(jnp.array([1.0, 5.0, 2.0]), jnp.array([0.5, 0.0, 0.5])))
    2.0
    """

    def __call__(self, replies: Tree, weights: Float[Array, " slots"]) -> Tree:
        """Combine replies.

        Args:
            replies: pytree of arrays [slots, ...].
            weights: not negative, summing to one; zero for an inactive slot.
        """
        ...


class Mean(eqx.Module):
    """The weighted mean.

    >>> import jax.numpy as jnp
    >>> float(Mean()(jnp.array([0.0, 4.0]), jnp.array([0.75, 0.25])))
    1.0
    """

    def __call__(self, replies: Tree, weights: Float[Array, " slots"]) -> Tree:
        """Sum of weight times reply, in the order of the slots."""
        return _mean(replies, weights)


@jax.jit  # one call also on a remote server, where nothing else is compiled
def _mean(replies: Tree, weights: jax.Array) -> Tree:
    return jax.tree.map(lambda r: jnp.tensordot(weights.astype(r.dtype), r, 1), replies)


class AbstractRobust(eqx.Module):
    """A rule that tolerates Byzantine clients.

    In an exchange a client counts at most :attr:`most` of the weight, whatever its weight among the
    clients that take part: with more, a Byzantine client alone could decide.

    >>> rule = TrimmedMean(0.2)
    >>> isinstance(rule, AbstractRobust), rule.fewest, rule.tolerated(10)
    (True, 5, 2)
    """

    @abc.abstractmethod
    def combine(self, replies: Tree, weights: jax.Array) -> Tree:
        """Combine replies of at least :attr:`fewest` slots; see :class:`Aggregate`."""

    @property
    @abc.abstractmethod
    def fewest(self) -> int:
        """The least number of replies with which it tolerates a Byzantine one."""

    @property
    @abc.abstractmethod
    def most(self) -> float:
        """The largest fraction of the weight that a Byzantine client may have."""

    @abc.abstractmethod
    def tolerated(self, slots: int) -> int:
        """How many Byzantine clients of equal weight it tolerates among ``slots``."""

    def __call__(self, replies: Tree, weights: jax.Array) -> Tree:
        """Combine replies; outside of a program it is compiled once."""
        self._check_slots(weights.shape[0])
        return _combined(self, replies, weights)

    def largest(self, values: jax.Array, active: jax.Array) -> jax.Array:
        """The largest value that remains without as many as there may be Byzantine clients.

        It is at most the largest of an honest client.

        >>> import jax.numpy as jnp
        >>> float(Median().largest(jnp.array([1.0, 2.0, jnp.nan]), jnp.ones(3, bool)))
        2.0
        """
        slots = active.shape[0]
        self._check_slots(slots)
        values = jnp.where(jnp.isnan(values), jnp.inf, values)
        values = jnp.where(active, values, -jnp.inf)
        return jnp.sort(values, descending=True)[self.tolerated(slots)]

    def check(self, weights: jax.Array) -> None:
        """Raise unless it makes sense for a population with these weights."""
        _at_least(type(self).__name__, 3, weights)
        heaviest = float(jnp.max(jnp.asarray(weights)))
        if heaviest > self.most * (1 + _ROUNDING):
            raise ValueError(
                f"{self}: the heaviest of {len(weights)} clients has {heaviest:.3g} of the weight, "
                f"but a Byzantine one may have at most {self.most:.3g}. Use equal weights, or "
                "another rule: TrimmedMean with a larger trim, or Median."
            )

    def _check_slots(self, slots: int) -> None:
        if slots < self.fewest:
            raise ValueError(
                f"{self} needs at least {self.fewest} clients in every exchange, got {slots}: with "
                "fewer, a Byzantine one would not be outvoted."
            )


@eqx.filter_jit  # rules have loops, which a server would compile in every exchange
def _combined(rule: AbstractRobust, replies: Tree, weights: jax.Array) -> Tree:
    return rule.combine(replies, _capped(weights, rule.most))


def robust_rule(aggregate: Aggregate) -> AbstractRobust | None:
    """The robust rule of a run, also of one under attack; None if it has none.

    >>> robust_rule(Mean()) is None, robust_rule(Attacked(Median(), bad=1))
    (True, Median())
    """
    rule = aggregate.rule if isinstance(aggregate, Attacked) else aggregate
    return rule if isinstance(rule, AbstractRobust) else None


class AbstractMajority(AbstractRobust):
    """A rule that tolerates Byzantine clients holding less than half of the weight.

    >>> isinstance(Median(), AbstractMajority), Median().tolerated(7)
    (True, 3)
    """

    @property
    def fewest(self) -> int:
        """Of two replies neither is in the majority."""
        return 3

    @property
    def most(self) -> float:
        """Less than one half."""
        return 0.49

    def tolerated(self, slots: int) -> int:
        """Less than one half of them."""
        return (slots - 1) // 2


class Median(AbstractMajority):
    """The weighted median of every coordinate.

    Tolerates Byzantine clients holding less than half of the total weight. It is halfway between
    the two middle values where the weight is split evenly between them, so for clients of equal
    weight it is the usual median.

    >>> import jax.numpy as jnp
    >>> float(Median()(jnp.array([1.0, 2.0, 1e9]), jnp.full(3, 1 / 3)))
    2.0
    """

    def combine(self, replies: Tree, weights: jax.Array) -> Tree:
        """The median of each coordinate."""

        def one(leaf):
            values, passed, _ = _sorted(leaf, weights)
            lower = jnp.argmax(passed >= 0.5 - _ROUNDING, axis=0, keepdims=True)
            upper = jnp.argmax(passed > 0.5 + _ROUNDING, axis=0, keepdims=True)
            low, high = (jnp.take_along_axis(values, at, axis=0)[0] for at in (lower, upper))
            return low + (high - low) / 2

        return jax.tree.map(one, replies)


class TrimmedMean(AbstractRobust):
    """The mean of every coordinate without its extremes.

    >>> import jax.numpy as jnp
    >>> float(TrimmedMean(0.25)(jnp.array([-1e9, 1.0, 2.0, 1e9]), jnp.full(4, 0.25)))
    1.5

    Args:
        trim: the fraction of the total weight that is cut off at either end. Tolerates Byzantine
            clients holding at most that much. With n clients of equal weight, k / n cuts off k.
    """

    trim: float = 0.1

    def __check_init__(self):
        if not 0 < self.trim < 0.5:
            raise ValueError(f"TrimmedMean.trim must be above 0 and below 0.5, got {self.trim}.")

    def combine(self, replies: Tree, weights: jax.Array) -> Tree:
        """The trimmed mean of each coordinate."""

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
        """As many as are needed for one of them to be cut off at either end."""
        return math.ceil((1 - _ROUNDING) / self.trim)

    @property
    def most(self) -> float:
        """What is cut off."""
        return self.trim

    def tolerated(self, slots: int) -> int:
        """As many as are cut off at either end."""
        return int(self.trim * slots * (1 + _ROUNDING))


class Krum(AbstractRobust):
    """The mean of the replies that lie closest to others (Krum, and multi-Krum for ``keep > 1``).

    A reply's score is the sum of the squared distances to its n - f - 2 nearest others; the
    ``keep`` replies with the lowest scores are averaged. All clients count equally.

    P. Blanchard, E. M. El Mhamdi, R. Guerraoui, J. Stainer. Machine learning with adversaries:
    Byzantine tolerant gradient descent. NeurIPS 2017.

    Args:
        bad: f, how many Byzantine clients in an exchange it tolerates; needs 2 f + 3 clients.
        keep: how many replies are averaged.

    >>> Krum(bad=1, keep=2).fewest
    5
    """

    bad: int = 1
    keep: int = 1

    def __check_init__(self):
        check.count("Krum.bad", self.bad)
        check.count("Krum.keep", self.keep)

    def combine(self, replies: Tree, weights: jax.Array) -> Tree:
        """The mean of the chosen replies."""
        slots = weights.shape[0]
        active = weights > 0
        distances = _squared_distances(replies)
        others = active[:, None] & active[None, :] & ~jnp.eye(slots, dtype=bool)
        # a reply that is not finite is infinitely far away
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
        """Enough for its theorem, and for ``keep`` honest replies."""
        return max(2 * self.bad + 3, self.keep + self.bad)

    @property
    def most(self) -> float:
        """Weights do not matter: all clients count equally."""
        return 1.0

    def tolerated(self, slots: int) -> int:
        """``bad``, whatever the number of clients."""
        return self.bad

    def check(self, weights: jax.Array) -> None:
        """Weights must be equal, and clients enough."""
        self._check_slots(len(weights))
        least, most = float(jnp.min(jnp.asarray(weights))), float(jnp.max(jnp.asarray(weights)))
        if not math.isclose(least, most, rel_tol=1e-9):
            raise ValueError(
                f"Krum treats all clients as equals, but their weights range from {least:.3g} to "
                f"{most:.3g}. Use equal weights, Median or TrimmedMean."
            )


class AbstractCentre(AbstractMajority):
    """A point that moves a few times, from the coordinate-wise median on.

    All leaves together are one point. A reply that is not finite does not count.

    >>> isinstance(GeometricMedian(), AbstractCentre), GeometricMedian().iterations
    (True, 32)
    """

    iterations: eqx.AbstractVar[int]

    def __check_init__(self):
        check.count(f"{type(self).__name__}.iterations", self.iterations)

    @abc.abstractmethod
    def step(self, centre: Tree, replies: Tree, weights: jax.Array, far: jax.Array) -> Tree:
        """The next centre, where ``far`` has the distances of the replies from the last."""

    def combine(self, replies: Tree, weights: jax.Array) -> Tree:
        """The centre after the iterations."""
        replies, weights = _finite_only(replies, weights)

        def step(_, centre):
            far = jnp.sqrt(_squared_distances_from(replies, centre))
            return self.step(centre, replies, weights, far)

        return jax.lax.fori_loop(0, self.iterations, step, Median().combine(replies, weights))


class GeometricMedian(AbstractCentre):
    """The point with the least weighted sum of distances to the replies, by Weiszfeld's steps.

    Tolerates Byzantine clients holding less than half of the total weight. (RFA: K. Pillutla,
    S. Kakade, Z. Harchaoui, IEEE TSP 2022, arXiv:1912.13445.)

    Args:
        iterations: of Weiszfeld's algorithm, which starts at the coordinate-wise median.
        smoothing: distances below it count as it.

    >>> import jax.numpy as jnp
    >>> replies = jnp.array([[0.0], [1.0], [1e9]])
    >>> round(float(GeometricMedian()(replies, jnp.full(3, 1 / 3))[0]), 3)
    1.0
    """

    iterations: int = 32
    smoothing: float = 1e-8

    def __check_init__(self):
        check.positive("GeometricMedian.smoothing", self.smoothing)

    def step(self, centre: Tree, replies: Tree, weights: jax.Array, far: jax.Array) -> Tree:
        """The mean of the replies, each weighted by one over its distance."""
        pull = weights / jnp.maximum(far, self.smoothing).astype(weights.dtype)
        return _mean(replies, pull / jnp.sum(pull))


class CentredClipping(AbstractCentre):
    """The mean of replies that are pulled to within a radius of a centre, a few times over.

    S. P. Karimireddy, L. He, M. Jaggi. Learning from history for Byzantine robust optimization.
    ICML 2021, arXiv:2012.10333. The paper's centre is its result of the last round; a rule has no
    memory here, and starts at the coordinate-wise median.

    Args:
        radius: the longest way from the centre that a reply counts with, over all leaves.
        iterations: how often the centre moves to the mean of the clipped replies.

    >>> import jax.numpy as jnp
    >>> replies = jnp.array([[0.0], [1.0], [1e9]])
    >>> centre = CentredClipping(radius=1.0, iterations=1)(replies, jnp.full(3, 1 / 3))
    >>> round(float(centre[0]), 6)
    1.0
    """

    radius: float
    iterations: int = 3

    def __check_init__(self):
        check.positive("CentredClipping.radius", self.radius)

    def step(self, centre: Tree, replies: Tree, weights: jax.Array, far: jax.Array) -> Tree:
        """The mean of the clipped replies."""
        share = jnp.minimum(1.0, self.radius / jnp.where(far > 0, far, 1.0))
        pull = weights * share.astype(weights.dtype)
        stay = 1 - jnp.sum(pull)
        return jax.tree.map(lambda c, m: stay.astype(c.dtype) * c + m, centre, _mean(replies, pull))


class Attacked(eqx.Module):
    """A rule under attack, for experiments: the first slots of every exchange are Byzantine.

    With all clients in every exchange these are always the same clients.

    Args:
        rule: what the server uses.
        bad: how many slots attack.
        scale: what they send is this multiple of their own reply; -10 turns and magnifies it.

    >>> import jax.numpy as jnp
    >>> float(Attacked(Mean(), bad=1)(jnp.array([1.0, 1.0]), jnp.full(2, 0.5)))
    -4.5
    """

    rule: Aggregate
    bad: int
    scale: float = -10.0

    def __check_init__(self):
        check.count("Attacked.bad", self.bad)

    def __call__(self, replies: Tree, weights: Float[Array, " slots"]) -> Tree:
        """The rule's value of the replies, some of them replaced."""
        return self.rule(self.sent(replies), weights)

    def sent(self, replies: Tree) -> Tree:
        """What the server receives in place of honest replies."""

        def one(leaf):
            bad = jnp.arange(leaf.shape[0]) < self.bad
            factor = jnp.where(bad, self.scale, 1.0).astype(leaf.dtype)
            return leaf * factor.reshape((-1,) + (1,) * (leaf.ndim - 1))

        return jax.tree.map(one, replies)


def _capped(weights: jax.Array, most: float) -> jax.Array:
    """Weights that sum to one, of which none is above ``most``, as far as there are enough."""
    shares = most * inclusion(weights, 1 / most)
    is_above = jnp.max(weights) > most * (1 + _ROUNDING)
    is_enough = most * jnp.sum((weights > 0).astype(weights.dtype)) >= 1 - _ROUNDING
    return jnp.where(is_above & is_enough, shares, weights)


def _sorted(leaf: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Sorted values, their cumulative weights, and their own weights.

    NaN sorts as infinity; inactive slots come last.
    """
    own = jnp.broadcast_to(weights.reshape((-1,) + (1,) * (leaf.ndim - 1)), leaf.shape)
    top = jnp.full_like(leaf, jnp.inf)
    leaf = jnp.where(jnp.isnan(leaf), top, leaf)
    # two keys, as an inactive slot must come after an infinite value that counts
    order = jnp.lexsort((jnp.where(own > 0, leaf, top), own <= 0), axis=0)
    values, own = (jnp.take_along_axis(a, order, axis=0) for a in (leaf, own))
    return values, jnp.cumsum(own, axis=0), own


def _squared_distances(replies: Tree) -> jax.Array:
    """[slots, slots], over all leaves; from differences, as the short formula cancels."""
    total = None
    for leaf in jax.tree.leaves(replies):
        flat = leaf.reshape(leaf.shape[0], -1)
        wide = flat.astype(float)
        one = jax.lax.map(lambda row, all=wide: jnp.sum((all - row[None]) ** 2, axis=1), wide)
        total = one if total is None else total + one
    if total is None:
        raise ValueError("Krum: the replies hold no array, so there is no distance.")
    return total


def _squared_distances_from(replies: Tree, centre: Tree) -> jax.Array:
    """[slots], over all leaves."""

    def one(rows, point):
        return jnp.sum(jnp.square(rows - point[None]).reshape(rows.shape[0], -1), axis=1)

    return jnp.sum(jnp.stack(jax.tree.leaves(jax.tree.map(one, replies, centre))), axis=0)


def _finite_only(replies: Tree, weights: jax.Array) -> tuple[Tree, jax.Array]:
    """Replies that are not finite as zeros without weight; the other weights sum to one."""
    per_leaf = [
        jnp.all(jnp.isfinite(leaf.reshape(leaf.shape[0], -1)), axis=1)
        for leaf in jax.tree.leaves(replies)
    ]
    finite = jnp.all(jnp.stack(per_leaf), axis=0)

    def kept(leaf):
        return jnp.where(finite.reshape((-1,) + (1,) * (leaf.ndim - 1)), leaf, jnp.zeros_like(leaf))

    weights = jnp.where(finite, weights, jnp.zeros_like(weights))
    return jax.tree.map(kept, replies), weights / jnp.sum(weights)


def _at_least(name: str, least: int, weights: jax.Array) -> None:
    if len(weights) < least:
        raise ValueError(f"{name} needs at least {least} clients, got {len(weights)}.")
