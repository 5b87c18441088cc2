"""What every algorithm is: an initial state and a round."""

import abc
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check
from rookery.program.federation import AbstractFederation
from rookery.program.memory import Memory, PerClient, Probabilities
from rookery.program.participation import AbstractParticipation, participation
from rookery.program.polling import InFlight
from rookery.types import AnyProblem, BatchSize, Key, Problem, Tree

SMALLER_STEP = "A smaller step size is the usual remedy."
"""What most algorithms advise when a value is no longer finite."""


class AbstractAlgorithm(eqx.Module):
    """A server program. Its fields are its hyper-parameters; it holds no state.

    Floating-point fields are array leaves of the program, so a whole run can be mapped over them.

    A ``problem`` is of any type: an algorithm of your own may solve one that rookery does not know.

    Attributes:
        label: the name of a configuration that a function returns, such as ``FedNestSGD``; None for
            the class itself.
        projects: whether the rounds keep every variable in its set (``project=`` of a problem).
        shows_rows: whether clients upload numbers of single rows, such as scores. A site's policy
            refuses it.

    >>> class Nothing(AbstractAlgorithm):
    ...     def check(self, problem, n_clients): ...
    ...     def init(self, problem, w): return w
    ...     def round(self, fed, problem, state, key): return state
    ...     def solution(self, state): return (state,)
    >>> Nothing().name
    'Nothing'
    """

    label: str | None = eqx.field(static=True, default=None, kw_only=True)
    projects: ClassVar[bool] = False
    shows_rows: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """What messages, titles and run directories call the algorithm."""
        return self.label or type(self).__name__

    @abc.abstractmethod
    def check(self, problem: AnyProblem, n_clients: int) -> None:  # subclasses narrow it
        """Raise unless the algorithm can solve this kind of problem with this many clients."""

    def check_start(
        self,
        problem: AnyProblem,
        start: tuple[Tree, ...],
        example: Callable[[str], Tree],
    ) -> None:
        """Raise unless the settings have the shapes that the problem has at ``start``.

        ``example`` gives one row of a split. Most algorithms have no setting with a shape.
        """

    @abc.abstractmethod
    def init(self, problem: AnyProblem, *variables: Tree, **named: Tree) -> Tree:
        """The state before round 0, from the problem's variables.

        It need not know the clients: a :class:`Memory`, a :class:`PerClient` and :class:`InFlight`
        in it get their rows from ``first_state``.
        """

    @abc.abstractmethod
    def round(
        self,
        fed: AbstractFederation,
        problem: AnyProblem,
        state: Tree,
        key: Key,
    ) -> Tree:
        """One round: a new state from an old one."""

    @abc.abstractmethod
    def solution(self, state: Tree) -> tuple[Tree, ...]:
        """The problem's variables out of a state."""

    def own_leaves(self, state: Tree) -> tuple[Tree, ...] | None:
        """Leaves of the variables that each client has for itself, for evaluations on clients.

        One row per client along the first axis, with None in place of every shared leaf. None if
        all clients share the whole solution, as in most algorithms.
        """
        return None

    def remedy(self) -> str:
        """What a user is told to try when a value is no longer finite; a sentence or two."""
        return SMALLER_STEP


class BatchedAlgorithm(AbstractAlgorithm):
    """An algorithm whose clients evaluate on mini-batches.

    Args:
        batch_size: rows per stochastic evaluation on a client; None is all its rows. A dictionary
            has a number for each split of the problem, and so for each level of a bilevel problem
            whose levels read different splits: ``{"train": 64, "validation": None}``.
    """

    batch_size: BatchSize = eqx.field(default=None, kw_only=True)

    def __check_init__(self):
        check_batch_size("batch_size", self.batch_size)


class SampledAlgorithm(BatchedAlgorithm):
    """An algorithm whose exchanges are with a sampled cohort.

    >>> import rookery as rk
    >>> issubclass(rk.FedAvg, SampledAlgorithm), rk.FedAvg(lr=0.1, clients=3).clients
    (True, Uniform(n=3))

    Args:
        clients: who takes part in an exchange: how many, drawn uniformly without replacement, a
            rule of :mod:`rookery.participation`, or None for all clients. If the population has
            unequal weights, the mean over a uniform cohort is biased; that of ``Proportional(n)``
            is not.
    """

    clients: AbstractParticipation = eqx.field(converter=participation, default=None, kw_only=True)


class PolledAlgorithm(BatchedAlgorithm):
    """An asynchronous algorithm: its server polls the clients' jobs and does not wait for all.

    Args:
        wait_for: how many results the server waits for, at least: a number, ``"all"`` for one from
            every client, or None for half of the clients, rounded up.
    """

    wait_for: int | Literal["all"] | None = eqx.field(default=None, kw_only=True)

    def __check_init__(self):
        if isinstance(self.wait_for, str):
            check.one_of("wait_for", self.wait_for, ["all"])
        elif self.wait_for is not None:
            check.count("wait_for", self.wait_for)

    def results_needed(self, n_clients: int) -> int:
        """``wait_for`` as a number."""
        if isinstance(self.wait_for, int):
            return self.wait_for
        return n_clients if self.wait_for == "all" else -(-n_clients // 2)


def with_settings_of(
    algorithm: type[AbstractAlgorithm], without: tuple[str, ...]
) -> Callable[[Callable], Callable]:
    """Give a function that configures an algorithm the signature of that algorithm.

    Experiment files and messages then know its settings, which need not be written twice.

    Args:
        algorithm: whose settings the function takes.
        without: those that the function chooses itself.
    """

    def decorate(configure: Callable) -> Callable:
        parameters = inspect.signature(algorithm).parameters
        kept = [p for name, p in parameters.items() if name not in (*without, "label")]
        signature = inspect.Signature(kept)

        @functools.wraps(configure)
        def configured(**settings: object) -> AbstractAlgorithm:
            try:
                signature.bind(**settings)
            except TypeError as error:
                raise TypeError(f"{configure.__name__}: {error}.") from None
            return configure(**settings)

        configured.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]
        return configured

    return decorate


def check_kind(algorithm: AbstractAlgorithm, problem: Problem, kind: type) -> None:
    """Raise unless a problem is of the kind that an algorithm solves."""
    if not isinstance(problem, kind):
        raise TypeError(
            f"{algorithm.name} solves {kind.__name__} problems, got {type(problem).__name__}."
        )


def check_batch_size(name: str, batch_size: BatchSize) -> None:
    """Raise unless all numbers of rows are at least one, or None."""
    by_split = isinstance(batch_size, Mapping)
    if by_split and not batch_size:
        raise ValueError(f"{name} must have a number for each split, got {{}}.")
    sizes = batch_size if by_split else {"": batch_size}
    for split, size in sizes.items():
        if size is not None:
            check.count(f"{name}[{split!r}]" if by_split else name, size)


def check_splits(algorithm: AbstractAlgorithm, problem: Problem) -> None:
    """Raise unless a batch size by split has the splits that the problem reads."""
    batch_size = getattr(algorithm, "batch_size", None)
    if isinstance(batch_size, Mapping) and set(batch_size) != set(problem.splits):
        raise ValueError(
            f"batch_size has numbers for {', '.join(sorted(batch_size))}, but the problem reads "
            f"{', '.join(sorted(problem.splits))}. Give one for each of these; None means all rows."
        )


def check_constraints(algorithm: AbstractAlgorithm, problem: Problem) -> None:
    """Raise if the algorithm would leave a variable's set, or does not suit the splits."""
    check_splits(algorithm, problem)
    constrained = ", ".join(getattr(problem, "projections", ()))
    if constrained and not algorithm.projects:
        raise ValueError(
            f"{algorithm.name} does not project: it would leave the set of {constrained} that the "
            "problem's project= describes. Choose another algorithm, or write the constraint as a "
            "penalty in the loss."
        )


def first_state(
    algorithm: AbstractAlgorithm, problem: Problem, n_clients: int, start: tuple[Tree, ...]
) -> Tree:
    """The state before round 0, with a row for each client in all that is kept per client."""
    return jax.tree.map(jnp.asarray, with_rows(algorithm.init(problem, *start), n_clients))


def with_rows(state: Tree, n_clients: int) -> Tree:
    """A state whose memories, rows, probabilities and jobs have a row for each client."""

    def has_rows(leaf):
        return isinstance(leaf, Memory | PerClient | Probabilities | InFlight)

    return jax.tree.map(
        lambda leaf: leaf.for_clients(n_clients) if has_rows(leaf) else leaf,
        state,
        is_leaf=has_rows,
    )


def numbers_to_arrays(tree: Tree) -> Tree:
    """Turn Python floats into arrays, so that changing one does not compile again."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, float) else leaf, tree)
