"""What algorithms for two levels share: their state, their settings and kinds of parts."""

import abc
from collections.abc import Callable
from typing import NamedTuple, TypedDict

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import tree
from rookery.algorithms.shared.context import Context
from rookery.algorithms.shared.levels import TwoLevel, check_two_levels
from rookery.problem import validation
from rookery.problem.composition import Composition
from rookery.program.algorithm import SampledAlgorithm
from rookery.program.participation import AbstractParticipation
from rookery.types import Key, Tree

REMEDY = "A smaller step size, or a larger lipschitz where there is one, is the usual remedy."
"""What to try when a value is no longer finite, for algorithms whose adjoint may need L."""


class NestedState(NamedTuple):
    """The iterates, and the last estimate of L, the largest eigenvalue of the inner Hessian."""

    x: Tree
    y: Tree
    lipschitz: jax.Array


class CompositionState(NamedTuple):
    """The same for a composition: x alone is a variable, y follows the inner layer's value."""

    x: Tree
    y: Tree
    lipschitz: jax.Array


State = NestedState | CompositionState


def initial_state(problem: TwoLevel, x: Tree, y: Tree) -> State:
    """The state before round 0; L is estimated when it is first needed."""
    kind = CompositionState if isinstance(problem, Composition) else NestedState
    return kind(x, y, jnp.zeros((), jnp.result_type(*jax.tree.leaves(y))))


class TwoLevelSettings(TypedDict, total=False):
    """The settings of :class:`TwoLevelAlgorithm`, as keywords of a function that configures one."""

    clients: AbstractParticipation | int | None
    batch_size: int | None
    inner_start: Tree


class TwoLevelAlgorithm(SampledAlgorithm):
    """An algorithm with the state (x, y, L).

    Args:
        inner_start: initial y, for compositions only, where the start is x alone.
    """

    inner_start: Tree = eqx.field(converter=tree.as_arrays, default=None, kw_only=True)

    def check_problem(self, problem: TwoLevel, n_clients: int) -> None:
        """Raise unless the problem has two levels and a cohort can be drawn."""
        check_two_levels(self.name, problem)
        self.clients.check(n_clients)

    def check_start(
        self, problem: TwoLevel, start: tuple[Tree, ...], example: Callable[[str], Tree]
    ) -> None:
        """Raise unless ``inner_start`` has the shape of the inner layer's value."""
        if isinstance(problem, Composition):
            row = example(problem.split)
            value = validation.check_map("layers[0]", problem.layers[0], start[0], row)
            y = self._given_inner_start()
            validation.check_like("inner_start", y, "the value of layers[0]", value)

    def init(self, problem: TwoLevel, x: Tree, y: Tree = None) -> State:
        """The given iterates; L is estimated when it is first needed."""
        return initial_state(problem, x, self._given_inner_start() if y is None else y)

    def solution(self, state: State) -> tuple[Tree, ...]:
        """(x, y), or (x,) of a composition."""
        return (state.x,) if isinstance(state, CompositionState) else (state.x, state.y)

    def remedy(self) -> str:
        """A smaller step, or a larger L."""
        return REMEDY

    def _given_inner_start(self) -> Tree:
        if self.inner_start is None:
            raise ValueError(
                f"{self.name} needs inner_start on a composition, whose start is x alone: an "
                "initial y of the shape of the inner layer's value, zeros if nothing better is "
                "known."
            )
        return self.inner_start


class AbstractInner(eqx.Module):
    """A way to improve y at fixed x, called T times a round."""

    @abc.abstractmethod
    def __call__(self, context: Context, x: Tree, y: Tree, key: Key) -> Tree:
        """The inner variable y after one call."""

    @abc.abstractmethod
    def check(self, n_clients: int) -> None:
        """Raise unless the settings fit the number of clients."""


class AbstractOuter(eqx.Module):
    """A way to improve x, called once a round."""

    @abc.abstractmethod
    def __call__(self, context: Context, state: State, key: Key) -> State:
        """The state with a new x, and a new L if the part estimates it."""

    @abc.abstractmethod
    def check(self, problem: TwoLevel, n_clients: int) -> None:
        """Raise unless the settings fit the problem and the number of clients."""


class AbstractHypergradient(eqx.Module):
    """An estimator of the gradient of the outer objective."""

    @abc.abstractmethod
    def __call__(self, context: Context, state: State, key: Key) -> tuple[Tree, jax.Array]:
        """The hypergradient h at (x, y), and L."""

    @abc.abstractmethod
    def check(self, problem: TwoLevel, n_clients: int) -> None:
        """Raise unless the estimator fits the problem and the number of clients."""
