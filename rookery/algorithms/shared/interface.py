"""What the parts of a nested algorithm agree on, so that any two of them fit together."""

import abc
import functools

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery.algorithms.shared.levels import TwoLevel
from rookery.program.federation import AbstractFederation
from rookery.program.participation import AbstractParticipation
from rookery.types import Key, Tree


class Sampling(eqx.Module):
    """What all parts of an algorithm share: who takes part in an exchange, and with how many rows.

    Attributes:
        clients: the rule that draws a cohort.
        batch_size: rows per evaluation on a client; None is all its rows.
    """

    clients: AbstractParticipation
    batch_size: int | None = None

    def size(self, n_clients: int) -> int:
        """How many slots a cohort has."""
        probabilities = jnp.full(n_clients, 1 / n_clients)
        draw = functools.partial(
            self.clients.draw, n_clients=n_clients, probabilities=probabilities
        )
        return len(jax.eval_shape(draw, jax.random.key(0)))


class AbstractInner(eqx.Module):
    """A way to improve y at fixed x, called T times a round."""

    @abc.abstractmethod
    def __call__(
        self,
        fed: AbstractFederation,
        problem: TwoLevel,
        sampling: Sampling,
        x: Tree,
        y: Tree,
        key: Key,
    ) -> Tree:
        """The inner variable y after one call."""

    @abc.abstractmethod
    def check(self, n_clients: int) -> None:
        """Raise unless the settings fit so many clients."""


class AbstractOuter(eqx.Module):
    """A way to improve x, called once a round.

    L, the Lipschitz constant of the inner gradient as last estimated, is handed through: a part
    that needs it may renew it, all others give it back as it is.
    """

    @abc.abstractmethod
    def __call__(
        self,
        fed: AbstractFederation,
        problem: TwoLevel,
        sampling: Sampling,
        x: Tree,
        y: Tree,
        L: jax.Array,
        key: Key,
    ) -> tuple[Tree, jax.Array]:
        """The outer variable x after one call, and L."""

    @abc.abstractmethod
    def check(self, problem: TwoLevel, n_clients: int) -> None:
        """Raise unless the settings fit the problem and so many clients."""


class AbstractHypergradient(eqx.Module):
    """An estimator of the gradient of the outer objective."""

    @abc.abstractmethod
    def __call__(
        self,
        fed: AbstractFederation,
        problem: TwoLevel,
        sampling: Sampling,
        x: Tree,
        y: Tree,
        L: jax.Array,
        key: Key,
    ) -> tuple[Tree, jax.Array]:
        """The hypergradient h at (x, y), and L."""

    @abc.abstractmethod
    def check(self, problem: TwoLevel, n_clients: int) -> None:
        """Raise unless the estimator fits the problem and so many clients."""
