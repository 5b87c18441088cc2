"""Which iterate of a run is its output: the last, or one drawn from all of them."""

import abc
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import tree
from rookery.program.federation import AbstractFederation
from rookery.rng import below
from rookery.types import Count, Key, Tree


class Kept(NamedTuple):
    """The output so far, and the number of iterates it was drawn from."""

    iterate: Tree
    seen: jax.Array


class AbstractOutput(eqx.Module):
    """A choice of the output among the iterates of all rounds."""

    @abc.abstractmethod
    def init(self, start: Tree) -> Kept | None:
        """What is kept before round 0."""

    @abc.abstractmethod
    def renew(
        self,
        fed: AbstractFederation,
        kept: Kept | None,
        first: Tree,
        steps: Count,
        ask: Callable[[jax.Array], Tree],
        key: Key,
    ) -> Kept | None:
        """What is kept after a round.

        Args:
            fed: the federation.
            kept: what was kept before.
            first: the round's first iterate, which the server has.
            steps: the number of iterates of the round.
            ask: gives iterate k > 1, at the cost of an exchange.
            key: of the draw.
        """


class LastIterate(AbstractOutput):
    """The newest iterate. Nothing is kept.

    >>> LastIterate()
    LastIterate()
    """

    def init(self, start):
        """Nothing."""
        return None

    def renew(self, fed, kept, first, steps, ask, key):
        """Nothing."""
        return None


class RandomIterate(AbstractOutput):
    """One of all iterates, each equally likely, by a reservoir that holds one of them.

    The theorems of stochastic approximation are about this iterate. A round that replaces the
    iterate in the reservoir costs an exchange more, with one client, which takes its steps again.

    >>> RandomIterate().init(1.0).seen.item()
    0
    """

    def init(self, start):
        """The start, drawn from none."""
        return Kept(start, jnp.zeros((), jnp.int32))

    def renew(self, fed, kept, first, steps, ask, key):
        """The old iterate, or one of the round."""
        assert kept is not None
        seen = kept.seen + jnp.asarray(steps, jnp.int32)
        k = below(key, (), seen) + 1  # numbers beyond this round's stand for older iterates
        iterate = tree.where(k == 1, first, kept.iterate)
        is_later = (k > 1) & (k <= steps)
        return Kept(fed.when(is_later, lambda _: ask(k), iterate), seen)
