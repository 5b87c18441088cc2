"""What an engine offers the run loop."""

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx

from rookery.clients.population import Population
from rookery.program.aggregate import Aggregate
from rookery.program.algorithm import AbstractAlgorithm
from rookery.program.delays import Clock
from rookery.program.ledger import Ledger
from rookery.types import Key, Tree


class Program(eqx.Module):
    """What all runs of a comparison have in common, apart from where they run."""

    problem: Any
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
    """Something that befell a client and that the numbers of a round depend on.

    Attributes:
        round: the number of the round.
        step: the client step that was asked for.
        client: the client, or None if it concerns the whole cohort.
        reason: what happened.
    """

    round: int
    step: str
    client: int | None
    reason: str


class Stopped(RuntimeError):
    """A run that cannot go on now and can later; what was done until then is not lost."""

    def __init__(self, message: str, progress: Sequence[Progress]):
        super().__init__(message)
        self.progress = progress


class AbstractRunner(abc.ABC):
    """One or several runs, side by side in lanes, made ready on an engine."""

    def follow(self, note: Callable[[int, Event], None]) -> None:  # noqa: B027
        """Call ``note(lane, event)`` as soon as something befalls a client.

        On engines where nothing does, there is nothing to follow.
        """

    def close(self) -> None:  # noqa: B027
        """Let go of what is held outside of this process, if anything is."""

    @abc.abstractmethod
    def advance(
        self, states: Sequence[Tree], keys: Sequence[Key], first: int, n: Sequence[int]
    ) -> list[Progress]:
        """Run rounds ``first`` to ``first + n[i] - 1`` of each lane i.

        A round's key is ``fold_in(keys[i], round)``, so where the rounds are cut changes nothing.
        A lane ends after the first round whose state is not finite. An engine that cannot finish
        raises :class:`Stopped` with the rounds that it did.
        """


class AbstractEngine(eqx.Module):
    """Where a program runs."""

    @abc.abstractmethod
    def prepare(self, program: Program, algorithms: Sequence[AbstractAlgorithm]) -> AbstractRunner:
        """Make algorithms that differ in numbers only ready to run side by side."""
