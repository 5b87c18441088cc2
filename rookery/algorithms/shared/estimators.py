"""What a client's local step follows: an estimate of its maps, and how the next one is made.

    estimator           a step from w with the estimate d, on rows ξ
    PlainEstimator      d = s(w; ξ),                    w' = w - η d
    MomentumEstimator   d = β d + (1 - β) s(w; ξ),      w' = w - η d
    STORM               w' = w - η a d,                 d = s(w'; ξ) + (1 - c a²) (d - s(w; ξ))
    OptimisticEstimator w' = w - η (2 s(w; ξ) - d),     d = s(w; ξ)
    PAGE                w' = w - η d,                   d = d + s(w'; ξ) - s(w; ξ), or, with
                                                        probability p, s(w'; Ξ) on a large batch Ξ

STORM and PAGE move first: their estimate is that at the point reached. All but the plain one
outlive the round, as a mean over clients, which the server takes as it takes that of the iterates.
Differences are taken on one batch.
"""

import abc
from collections.abc import Callable
from typing import ClassVar, Protocol, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.shared.schedule import AbstractSchedule, number
from rookery.algorithms.shared.views import Blocks
from rookery.program.federation import Client
from rookery.types import BatchSize, Count, Key, Number, Tree


class Maps(Protocol):
    """A client's maps at one or several points, all on the same rows."""

    def __call__(self, *points: Blocks, key: Key, batch_size: BatchSize) -> tuple[Blocks, ...]:
        """One result for each point."""
        ...


Moved = tuple[Blocks, tuple[Tree, ...]]
"""The point after a step, and the states of the step rules."""

Step = tuple[Moved, Blocks, Blocks]
"""What a step moved, the estimate after it, and the direction that it followed."""


class AbstractEstimator(eqx.Module):
    """How a client estimates its maps along its local steps.

    Attributes:
        is_averaged: whether the estimate outlives the round, as the mean over the clients.
    """

    is_averaged: ClassVar[bool]

    @abc.abstractmethod
    def step(
        self,
        client: Client,
        maps: Maps,
        move: Callable[[Blocks], Moved],
        w: Blocks,
        d: Blocks,
        *,
        key: Key,
        batch_size: BatchSize,
        t: Count,
    ) -> Step:
        """One local step.

        Args:
            client: who takes it.
            maps: the client's maps.
            move: takes a step from ``w`` along a direction.
            w: the point.
            d: the estimate so far.
            key: of the step's samples.
            batch_size: rows of a small sample.
            t: how many local steps the client has taken since the first round.
        """


E = TypeVar("E", bound=AbstractEstimator)


def of_type(algorithm: str, estimator: object, kind: type[E]) -> E:
    """The estimator; raises unless it is of the kind that an algorithm is named for."""
    if not isinstance(estimator, kind):
        raise TypeError(
            f"estimator of {algorithm} must be rk.parts.{kind.__name__}, got "
            f"{type(estimator).__name__}. FedBiO takes any."
        )
    return estimator


class PlainEstimator(AbstractEstimator):
    """The maps of a fresh sample.

    >>> PlainEstimator()
    PlainEstimator()
    """

    is_averaged: ClassVar[bool] = False

    def step(self, client, maps, move, w, d, *, key, batch_size, t):
        """d = s(w), then a step."""
        (d,) = maps(w, key=key, batch_size=batch_size)
        return move(d), d, d


class MomentumEstimator(AbstractEstimator):
    """A moving average of the maps, averaged over the clients at the end of a round.

    Args:
        momentum: β, at least 0 and below 1; at 0 the estimate is plain.

    >>> MomentumEstimator(0.9).momentum
    0.9
    """

    is_averaged: ClassVar[bool] = True

    momentum: float = eqx.field(converter=number)

    def __check_init__(self):
        check.decay("MomentumEstimator.momentum", self.momentum)

    def step(self, client, maps, move, w, d, *, key, batch_size, t):
        """d = β d + (1 - β) s(w), then a step."""
        (new,) = maps(w, key=key, batch_size=batch_size)
        d = tree.add(tree.scale(self.momentum, d), tree.scale(1 - self.momentum, new))
        return move(d), d, d


class OptimisticEstimator(AbstractEstimator):
    """Twice the maps of now less those of the last step: GDA that does not cycle.

    C. Daskalakis, A. Ilyas, V. Syrgkanis, H. Zeng. Training GANs with optimism. ICLR 2018,
    arXiv:1711.00141.

    >>> OptimisticEstimator().is_averaged
    True
    """

    is_averaged: ClassVar[bool] = True

    def step(self, client, maps, move, w, d, *, key, batch_size, t):
        """A step along 2 s(w) - d; the estimate is s(w)."""
        (new,) = maps(w, key=key, batch_size=batch_size)
        along = tree.axpy(2.0, new, tree.scale(-1, d))
        return move(along), new, along


class STORM(AbstractEstimator):
    """Recursive momentum: the old estimate is corrected by a difference before it fades.

    A. Cutkosky, F. Orabona. Momentum-based variance reduction in non-convex SGD. NeurIPS 2019,
    arXiv:1905.10018.

    Args:
        renewal: c; the estimate keeps 1 - c a² of its past. One for all blocks, or a tuple with
            one each. c a² must be at most 1.
        rate: a, which scales all local steps, a number or a schedule of the local step
            (not of the round), such as ``PowerDecay(1.0, 1 / 3)``.

    >>> STORM(renewal=(1.0, 0.5, 0.5)).renewal
    (1.0, 0.5, 0.5)
    """

    is_averaged: ClassVar[bool] = True

    renewal: float | tuple[float, ...] = eqx.field(
        converter=lambda c: tuple(map(number, c)) if isinstance(c, list | tuple) else number(c),
        default=1.0,
    )
    rate: float | AbstractSchedule = eqx.field(converter=number, default=1.0)

    def __check_init__(self):
        if not isinstance(self.rate, AbstractSchedule):
            check.positive("STORM.rate", self.rate)
        for c in self.renewal if isinstance(self.renewal, tuple) else (self.renewal,):
            check.positive("STORM.renewal", c)
            first = self.rate_at(0)  # a product overflows to infinity, a power raises
            check.fraction("renewal times the square of the first rate", c * first * first)

    def rate_at(self, t: Count) -> Number:
        """a at a local step."""
        return self.rate(t) if isinstance(self.rate, AbstractSchedule) else self.rate

    def step(self, client, maps, move, w, d, *, key, batch_size, t):
        """A step along d, then the estimate at the new point."""
        a = self.rate_at(t)
        along = tree.scale(a, d)
        moved = move(along)
        new, old = maps(moved[0], w, key=key, batch_size=batch_size)
        return moved, self.corrected(d, new, old, a), along

    def corrected(self, d: Blocks, new: Blocks, old: Blocks, a: Number) -> Blocks:
        """The estimate at a new point: d at an old one, and the maps of one batch at both."""
        each = self.renewal if isinstance(self.renewal, tuple) else (self.renewal,) * len(d)
        kept = (
            tree.scale(1 - c * a**2, tree.sub(d_j, old_j))
            for c, d_j, old_j in zip(each, d, old, strict=True)
        )
        return tree.add(new, tuple(kept))


class PAGE(AbstractEstimator):
    """The estimate follows differences, and is replaced at random by that of a large batch.

    Z. Li, H. Bao, X. Zhang, P. Richtárik. PAGE: a simple and optimal probabilistic gradient
    estimator for nonconvex optimization. ICML 2021, arXiv:2008.10898.

    Args:
        refresh: p, the probability of a large batch, above 0 and at most 1; at 1 the estimate is
            plain, on large batches.
        large_batch: rows of it; None means all of a client's rows.

    >>> PAGE(refresh=0.1).large_batch is None
    True
    """

    is_averaged: ClassVar[bool] = True

    refresh: float = eqx.field(converter=number)
    large_batch: int | None = None

    def __check_init__(self):
        check.fraction("PAGE.refresh", self.refresh)
        if self.large_batch is not None:
            check.count("PAGE.large_batch", self.large_batch)

    def step(self, client, maps, move, w, d, *, key, batch_size, t):
        """A step along d, then the estimate at the new point."""
        moved = move(d)
        d_new = self.renewed(client, maps, moved[0], w, d, key=key, batch_size=batch_size)
        return moved, d_new, d

    def renewed(
        self,
        client: Client,
        maps: Maps,
        new: Blocks,
        old: Blocks,
        d: Blocks,
        *,
        key: Key,
        batch_size: BatchSize,
    ) -> Blocks:
        """The estimate at a new point, from that at an old one."""
        coin_key, key = jax.random.split(key)
        is_large = jax.random.uniform(coin_key) < self.refresh

        def fresh(_, d):
            return maps(new, key=key, batch_size=self.large_batch)[0]

        def corrected(_, d):
            at_new, at_old = maps(new, old, key=key, batch_size=batch_size)
            return tree.add(d, tree.sub(at_new, at_old))

        d = client.repeat(jnp.where(is_large, 1, 0), fresh, d, most=1)
        return client.repeat(jnp.where(is_large, 0, 1), corrected, d, most=1)
