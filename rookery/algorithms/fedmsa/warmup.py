"""Better initial blocks for FedMSA, computed once, in round 0."""

import abc
from dataclasses import KW_ONLY

import equinox as eqx
import jax

from rookery import check
from rookery.algorithms.fednest.fedihgp import FedIHGPSum
from rookery.algorithms.shared.adjoint import AbstractAdjoint
from rookery.algorithms.shared.chain import backward, forward
from rookery.algorithms.shared.context import Context
from rookery.algorithms.shared.two_level import AbstractInner, initial_state
from rookery.algorithms.shared.views import Blocks
from rookery.problem.bilevel import Bilevel
from rookery.problem.composition import Composition
from rookery.types import Key, Problem


class AbstractWarmUp(eqx.Module):
    """Better initial blocks."""

    @abc.abstractmethod
    def __call__(self, context: Context, blocks: Blocks, key: Key) -> Blocks:
        """The blocks to start from."""

    @abc.abstractmethod
    def check(self, problem: Problem, n_clients: int) -> None:
        """Raise unless it fits the problem and the number of clients."""


class BilevelWarmUp(AbstractWarmUp):
    """Some inner rounds at the initial x, then v from a Neumann series, as in FedMSA's own program.

    It costs the inner solver's exchanges T times, and those of the adjoint.

    Args:
        inner: the inner solver; None, with no inner rounds, leaves y as it is.
        inner_rounds: T, calls of it; five in FedMSA's own program.
        adjoint: the estimator of v.

    >>> import rookery as rk
    >>> BilevelWarmUp(inner=rk.parts.FedInnSGD(lr=0.1), inner_rounds=5).inner_rounds
    5
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
        if self.inner is not None and self.inner.is_keeping:
            raise ValueError(
                "BilevelWarmUp got an inner solver with keep=True. It runs in round 0 only, so "
                "there is no round to keep the optimisers' states for; leave keep out."
            )

    def __call__(self, context, blocks, key):
        """x as it is, y after the inner rounds, and v at both."""
        x, y, _ = blocks
        inner_key, adjoint_key = jax.random.split(key)

        def inner_round(t, carry):
            assert self.inner is not None
            y, opt = carry
            return self.inner(context, x, y, opt, jax.random.fold_in(inner_key, t))

        if self.inner is not None:
            first = y, self.inner.first_opt(y)
            y, _ = context.fed.repeat(self.inner_rounds, inner_round, first)
        state = initial_state(context.problem, x, y)
        v, _ = self.adjoint.estimate(context, state, adjoint_key)
        return x, y, v

    def check(self, problem, n_clients):
        """The problem must be bilevel."""
        if not isinstance(problem, Bilevel):
            raise TypeError(f"BilevelWarmUp is for Bilevel problems, got {type(problem).__name__}.")
        if self.inner is not None:
            self.inner.check(n_clients)
        self.adjoint.check(problem, n_clients)


class CompositionWarmUp(AbstractWarmUp):
    """Values from a forward pass at the initial x, and adjoints from the backward pass.

    Without it both start where the problem says, usually at zero, and a composition that is not
    linear may move far away before they have caught up. It costs 2 N + 1 exchanges, N without
    adjoints.

    Args:
        batch_size: rows per client; None means all.

    >>> CompositionWarmUp(batch_size=8).batch_size
    8
    """

    _: KW_ONLY
    batch_size: int | None = None

    def __check_init__(self):
        if self.batch_size is not None:
            check.count("CompositionWarmUp.batch_size", self.batch_size)

    def __call__(self, context, blocks, key):
        """x as it is, z_1 .. z_N, and a_1 .. a_N if these are blocks too."""
        fed, problem = context.fed, context.problem
        N = len(problem.layers) - 1
        who, sample_key = jax.random.split(key)
        turn = context.sample(who), sample_key
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
