"""What an engine offers to the run loop."""

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import equinox as eqx
import jax

from rookery.clients.population import Population
from rookery.program.aggregate import Aggregate
from rookery.program.algorithm import AbstractAlgorithm
from rookery.program.delays import Clock
from rookery.program.ledger import Ledger
from rookery.types import AnyProblem, Key, Tree


class Program(eqx.Module):
    """What all runs of a batch have in common: everything but the algorithm and the engine."""

    problem: AnyProblem  # a Problem, or what a user's own algorithm takes for one
    population: Population
    clock: Clock
    aggregate: Aggregate


@dataclass(frozen=True)
class Progress:
    """Some rounds done.

    Attributes:
        state: the new state.
        ledgers: the costs of each round.
        is_finite: whether the state stayed finite.
        cohorts: per round, the clients of every exchange, on engines that record them.
    """

    state: Tree
    ledgers: list[Ledger]
    is_finite: bool
    cohorts: list[tuple[tuple[int, ...], ...]] | None = None


@dataclass(frozen=True)
class Event:
    """A client failure that may change a round's result: a timeout, a rejected reply, a restart.

    >>> Event(round=3, step="gradient", client=7, reason="timed out").client
    7

    Attributes:
        round: the number of the round.
        step: the client step that was requested.
        client: the client, or None if the whole cohort is affected.
        reason: what happened.
    """

    round: int
    step: str
    client: int | None
    reason: str


class Stopped(RuntimeError):
    """A run that cannot continue now but can be resumed; ``progress`` has the rounds done."""

    def __init__(self, message: str, progress: Sequence[Progress]):
        super().__init__(message)
        self.progress = progress


class AbstractRunner(abc.ABC):
    """A batch of runs, prepared on an engine."""

    def follow(self, note: Callable[[int, Event], None]) -> None:  # noqa: B027, most have no events
        """Call ``note(run, event)`` as soon as a client fails; simulated clients never do."""

    def close(self) -> None:  # noqa: B027, most hold nothing
        """Release what is held outside this process; nothing, unless a runner says otherwise."""

    def agreed(self, number: float) -> float:
        """A number that all processes of the run must have in common: that of the first."""
        return number

    @abc.abstractmethod
    def advance(
        self,
        states: Sequence[Tree],
        keys: Sequence[Key],
        first: int,
        n: Sequence[int],
        *,
        may_reuse: bool = False,
    ) -> list[Progress]:
        """Run rounds ``first`` to ``first + n[i] - 1`` of each run i.

        A round's key is ``fold_in(keys[i], round)``, so splitting the rounds into several calls
        changes nothing. A run ends after the first round whose state is not finite. An engine that
        cannot finish raises :class:`Stopped` with the rounds that it did. With ``may_reuse`` nobody
        reads the given states again, and the engine may overwrite the rows that they hold per
        client; otherwise it copies these rows first.
        """


class AbstractEngine(eqx.Module):
    """Where a program runs."""

    def placed(self, population: Population) -> Population:
        """The population as a run keeps it, for this engine and for evaluations."""
        return jax.device_put(population)

    @abc.abstractmethod
    def prepare(self, program: Program, algorithms: Sequence[AbstractAlgorithm]) -> AbstractRunner:
        """Prepare a batch of runs whose algorithms differ in numbers only."""
