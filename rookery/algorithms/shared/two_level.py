"""What algorithms for two levels share: their state, their settings and kinds of parts."""

import abc
from collections.abc import Callable
from typing import ClassVar, NamedTuple, Self, TypedDict

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import tree
from rookery.algorithms.shared.auto import following
from rookery.algorithms.shared.context import Context
from rookery.algorithms.shared.levels import TwoLevel, check_two_levels
from rookery.algorithms.shared.step_rule import StepRule
from rookery.problem import validation
from rookery.problem.composition import Composition
from rookery.program.algorithm import SampledAlgorithm
from rookery.program.participation import AbstractParticipation
from rookery.types import BatchSize, Key, Tree

REMEDY = "A smaller step size, or a larger lipschitz where there is one, is the usual remedy."
"""What to try when a value is no longer finite, for algorithms whose adjoint may need L."""


class Opts(NamedTuple):
    """The states of the step rules of y and x: the server's, or a memory of the clients' own.

    ``adjoint`` is what the estimator of the adjoint remembers, if anything.
    """

    inner: Tree = ()
    outer: Tree = ()
    adjoint: Tree = ()


class Warm(NamedTuple):
    """An adjoint that is remembered, and the damping that the curvature along it called for."""

    v: Tree
    damping: jax.Array


class NestedState(NamedTuple):
    """The iterates, the last estimate of L, the largest eigenvalue of the inner Hessian, and opts.

    The last are the states of the step rules, empty where these are numbers.
    """

    x: Tree
    y: Tree
    lipschitz: jax.Array
    opts: Opts = Opts()


class CompositionState(NamedTuple):
    """The same for a composition: x alone is a variable, y follows the inner layer's value."""

    x: Tree
    y: Tree
    lipschitz: jax.Array
    opts: Opts = Opts()


State = NestedState | CompositionState


def initial_state(problem: TwoLevel, x: Tree, y: Tree) -> State:
    """The state before round 0; L is estimated when it is first needed."""
    kind = CompositionState if isinstance(problem, Composition) else NestedState
    return kind(x, y, jnp.zeros((), jnp.result_type(*jax.tree.leaves(y))))


class TwoLevelSettings(TypedDict, total=False):
    """The settings of :class:`TwoLevelAlgorithm`, as keywords of a function that configures one."""

    clients: AbstractParticipation | int | None
    batch_size: BatchSize
    inner_start: Tree


class TwoLevelAlgorithm(SampledAlgorithm):
    """An algorithm with the state (x, y, L) and the states of its step rules.

    Args:
        inner_start: initial y, for compositions only, where the start is x alone.
    """

    projects: ClassVar[bool] = True

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

    @property
    @abc.abstractmethod
    def is_alone(self) -> bool:
        """Whether clients take several steps by themselves."""

    @abc.abstractmethod
    def first_opts(self, x: Tree, y: Tree) -> Opts:
        """The states of the step rules before round 0."""

    def init(self, problem: TwoLevel, x: Tree, y: Tree = None) -> State:
        """The given iterates; L is estimated when it is first needed."""
        y = self._given_inner_start() if y is None else y
        opts = self.first_opts(x, y)
        if not isinstance(problem, Composition) and not self.is_alone:
            opts = opts._replace(inner=following(opts.inner, y))
        return initial_state(problem, x, y)._replace(opts=opts)

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


class AbstractPart(eqx.Module):
    """A part of a round that moves a variable and may carry something from call to call."""

    @abc.abstractmethod
    def first_opt(self, start: Tree, /) -> Tree:
        """What is carried before the first call, such as an optimiser's state; () if nothing."""

    @property
    def is_keeping(self) -> bool:
        """Whether clients keep any of it themselves, so that a cohort has no client twice."""
        return False


class AbstractInner(AbstractPart):
    """A way to improve y at fixed x, called T times a round."""

    @property
    def rule(self) -> StepRule | None:
        """The step rule of y, if it is one for which L may be measured; None if not."""
        return None

    @abc.abstractmethod
    def __call__(
        self, context: Context, x: Tree, y: Tree, opt: Tree, key: Key
    ) -> tuple[Tree, Tree]:
        """The inner variable y after one call, and what the part carries."""

    @abc.abstractmethod
    def check(self, n_clients: int) -> None:
        """Raise unless the settings fit the number of clients."""


class AbstractOuter(AbstractPart):
    """A way to improve x, called once a round."""

    @abc.abstractmethod
    def __call__(self, context: Context, state: State, key: Key) -> State:
        """The state with a new x and ``opts.outer``, and a new L if the part estimates it."""

    def first_memory(self, y: Tree) -> Tree:
        """What the part's estimator of the adjoint remembers before round 0; () if nothing."""
        return ()

    def with_lipschitz(self, L: jax.Array) -> Self:
        """The part with an L that was measured elsewhere in place of an estimate of its own."""
        return self

    @abc.abstractmethod
    def check(self, problem: TwoLevel, n_clients: int) -> None:
        """Raise unless the settings fit the problem and the number of clients."""


class AbstractHypergradient(eqx.Module):
    """An estimator of the gradient of the outer objective."""

    @abc.abstractmethod
    def __call__(self, context: Context, state: State, key: Key) -> tuple[Tree, jax.Array]:
        """The hypergradient h at (x, y), and L."""

    def first_memory(self, y: Tree) -> Tree:
        """What the estimator remembers from round to round before round 0; () if nothing."""
        return ()

    def from_memory(self, context: Context, state: State, key: Key) -> tuple[Tree, jax.Array, Tree]:
        """The hypergradient, L, and what the estimator remembers."""
        return *self(context, state, key), state.opts.adjoint

    def with_lipschitz(self, L: jax.Array) -> Self:
        """The estimator with an L that was measured elsewhere in place of an estimate of its own.

        An L that was given stays.
        """
        return self

    @abc.abstractmethod
    def check(self, problem: TwoLevel, n_clients: int) -> None:
        """Raise unless the estimator fits the problem and the number of clients."""
