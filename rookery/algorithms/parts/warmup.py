"""What is done once, in round 0, before blocks move together."""

import abc
from dataclasses import KW_ONLY
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check
from rookery.algorithms.fednest.fedihgp import FedIHGPSum
from rookery.algorithms.shared.adjoint import AbstractAdjoint
from rookery.algorithms.shared.chain import backward, forward
from rookery.algorithms.shared.interface import AbstractInner, Sampling
from rookery.algorithms.shared.views import Blocks
from rookery.problem.bilevel import Bilevel
from rookery.problem.composition import Composition
from rookery.program.federation import AbstractFederation
from rookery.types import Key


class AbstractWarmUp(eqx.Module):
    """Better initial blocks."""

    @abc.abstractmethod
    def __call__(
        self, fed: AbstractFederation, problem: Any, sampling: Sampling, blocks: Blocks, key: Key
    ) -> Blocks:
        """The blocks to start from."""

    @abc.abstractmethod
    def check(self, problem: Any, n_clients: int) -> None:
        """Raise unless it fits the problem and so many clients."""


class BilevelWarmUp(AbstractWarmUp):
    """Some inner rounds at the initial x, then v from a Neumann series, as in FedMSA's own program.

    It costs the inner solver's exchanges T times, and those of the adjoint.

    Args:
        inner: the inner solver; None, with no inner rounds, leaves y as it is.
        inner_rounds: T, calls of it; five in FedMSA's own program.
        adjoint: the estimator of v.
    """

    _: KW_ONLY
    inner: AbstractInner | None = None
    inner_rounds: int = 0
    adjoint: AbstractAdjoint = eqx.field(default_factory=FedIHGPSum)

    def __check_init__(self):
        check.count("BilevelWarmUp.inner_rounds", self.inner_rounds, least=0)
        if (self.inner is None) != (self.inner_rounds == 0):
            raise ValueError(
                f"BilevelWarmUp got inner={self.inner!r}, inner_rounds={self.inner_rounds}. "
                "Give both, or neither to leave y as it is."
            )

    def __call__(self, fed, problem, sampling, blocks, key):
        """X as it is, y after the inner rounds, and v at both."""
        x, y, _ = blocks
        inner_key, adjoint_key = jax.random.split(key)

        def inner_round(t, y):
            assert self.inner is not None
            return self.inner(fed, problem, sampling, x, y, jax.random.fold_in(inner_key, t))

        if self.inner is not None:
            y = fed.repeat(self.inner_rounds, inner_round, y)
        L = jnp.zeros((), jnp.result_type(*jax.tree.leaves(y)))
        v, _ = self.adjoint.estimate(fed, problem, sampling, x, y, L, adjoint_key)
        return x, y, v

    def check(self, problem, n_clients):
        """The problem must be bilevel."""
        if not isinstance(problem, Bilevel):
            raise TypeError(f"BilevelWarmUp is for Bilevel problems, got {type(problem).__name__}.")
        if self.inner is not None:
            self.inner.check(n_clients)
        self.adjoint.check(problem, n_clients)


class CompositionWarmUp(AbstractWarmUp):
    """Values from a pass through the layers at the initial x, and adjoints from the way back.

    Without it both start where the problem says, at zero as a rule, and a composition that is not
    linear may be thrown far before they have caught up. It costs 2 N + 1 exchanges, N without
    adjoints.

    Args:
        batch_size: rows per client; None is all.
    """

    _: KW_ONLY
    batch_size: int | None = None

    def __check_init__(self):
        if self.batch_size is not None:
            check.count("CompositionWarmUp.batch_size", self.batch_size)

    def __call__(self, fed, problem, sampling, blocks, key):
        """X as it is, z_1 .. z_N, and a_1 .. a_N if these are blocks too."""
        N = len(problem.layers) - 1
        who, sample_key = jax.random.split(key)
        turn = fed.sample(sampling.clients, who), sample_key
        points = forward(fed, problem, [turn] * N, blocks[0], self.batch_size)
        values = tuple(point.value for point in points)
        if len(blocks) == N + 1:
            return values
        return *values, *backward(fed, problem, [turn] * (N + 1), points, self.batch_size)[1:]

    def check(self, problem, n_clients):
        """The problem must be a composition."""
        if not isinstance(problem, Composition):
            raise TypeError(
                f"CompositionWarmUp is for Composition problems, got {type(problem).__name__}."
            )
