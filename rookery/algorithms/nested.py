"""The family that FedNest and FedMBO belong to: some inner rounds, then one outer step.

Any inner solver goes with any outer step; papers are combinations under a name.

    inner       FedInn, FedInnSGD, ServerSGD
    outer       FedOut(adjoint), LFedOut(local adjoint), ServerStep(hypergradient)
    adjoint     FedIHGP, FedIHGPSum, FederatedCG; each of them is also a hypergradient, as are PHE
                and PHESum; LocalNeumann and LocalNeumannSum are local adjoints

Cost of a round: T times the inner part's exchanges, plus the outer part's.
"""

import abc
from dataclasses import KW_ONLY
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.shared import local
from rookery.algorithms.shared.interface import AbstractInner, AbstractOuter, Sampling
from rookery.algorithms.shared.levels import TwoLevel, check_two_levels
from rookery.algorithms.shared.lipschitz import REMEDY
from rookery.problem.composition import Composition
from rookery.program.algorithm import AbstractAlgorithm
from rookery.program.federation import AbstractFederation
from rookery.program.participation import AbstractParticipation, participation
from rookery.types import Key, Tree


class NestedState(NamedTuple):
    """The iterates, and L as last estimated."""

    x: Tree
    y: Tree
    lipschitz: jax.Array


class CompositionState(NamedTuple):
    """The same where x alone is the problem's variable, and y follows the inner layer's value."""

    x: Tree
    y: Tree
    lipschitz: jax.Array


State = NestedState | CompositionState


class Nested(AbstractAlgorithm):
    """Alternates calls of an inner solver with one outer step.

    Args:
        inner: the inner solver.
        outer: the outer step.
        inner_rounds: T, calls of the inner solver per round.
        clients: how many take part in an exchange, a rule that draws them, or None for everyone.
        batch_size: rows per stochastic evaluation on a client; None is all its rows.
        inner_start: initial y, in compositions only, where the start is x alone.
    """

    _: KW_ONLY
    inner: AbstractInner
    outer: AbstractOuter
    inner_rounds: int = 1
    clients: AbstractParticipation = eqx.field(converter=participation, default=None)
    batch_size: int | None = None
    inner_start: Tree = eqx.field(converter=tree.as_arrays, default=None)

    def __check_init__(self):
        check.count("inner_rounds", self.inner_rounds)
        if self.batch_size is not None:
            check.count("batch_size", self.batch_size)

    def check(self, problem: TwoLevel, n_clients: int) -> None:
        """Raise unless the problem has two levels and all parts fit it and the clients."""
        check_two_levels("Nested", problem)
        self.clients.check(n_clients)
        self.inner.check(n_clients)
        self.outer.check(problem, n_clients)

    def init(self, problem: TwoLevel, x: Tree, y: Tree = None) -> State:
        """The given iterates; L is set when it is first needed."""
        return initial_state(problem, x, y, self.inner_start)

    def round(self, fed: AbstractFederation, problem: TwoLevel, state: State, key: Key) -> State:
        """T calls of the inner solver, then the outer step."""
        x, y, L = state
        inner_key, outer_key = jax.random.split(key)
        sampling = Sampling(self.clients, self.batch_size)

        def inner_round(t, y):
            return self.inner(fed, problem, sampling, x, y, jax.random.fold_in(inner_key, t))

        y = fed.repeat(self.inner_rounds, inner_round, y)
        x, L = self.outer(fed, problem, sampling, x, y, L, outer_key)
        return type(state)(x, y, L)

    def solution(self, state: State) -> tuple[Tree, ...]:
        """(x, y), or (x,) of a composition."""
        return solution_of(state)

    def remedy(self) -> str:
        """A smaller step, or a larger L."""
        return REMEDY


class AbstractNested(AbstractAlgorithm):
    """A combination of parts under a paper's name. Its fields are what the paper lets one choose.

    Step sizes end in ``_lr`` and numbers of local steps in ``_steps``; they are checked by name.
    """

    @abc.abstractmethod
    def parts(self) -> Nested:
        """What the algorithm is put together from."""

    def __check_init__(self):
        local.check_fields(self)
        self.parts()  # parts check what is theirs

    def check(self, problem: TwoLevel, n_clients: int) -> None:
        """Raise unless the problem has two levels and all parts fit it and the clients."""
        check_two_levels(type(self).__name__, problem)
        local.check_fields(self, n_clients)
        self.parts().check(problem, n_clients)

    def init(self, problem: TwoLevel, x: Tree, y: Tree = None) -> State:
        """The given iterates; L is set when it is first needed."""
        return self.parts().init(problem, x, y)

    def round(self, fed: AbstractFederation, problem: TwoLevel, state: State, key: Key) -> State:
        """A round of the parts."""
        return self.parts().round(fed, problem, state, key)

    def solution(self, state: State) -> tuple[Tree, ...]:
        """(x, y), or (x,) of a composition."""
        return solution_of(state)

    def remedy(self) -> str:
        """A smaller step, or a larger L."""
        return REMEDY


def initial_state(problem: TwoLevel, x: Tree, y: Tree, inner_start: Tree) -> State:
    """The state before round 0."""
    kind = CompositionState if isinstance(problem, Composition) else NestedState
    y = inner_start if y is None else y
    if y is None:
        raise ValueError(
            "a composition starts from x alone: give the algorithm inner_start, an initial value "
            "of the shape of the inner layer's value, zeros if nothing better is known."
        )
    return kind(x, y, jnp.zeros((), jnp.result_type(*jax.tree.leaves(y))))


def solution_of(state: State) -> tuple[Tree, ...]:
    """The problem's variables out of a state."""
    return (state.x,) if isinstance(state, CompositionState) else (state.x, state.y)
