"""What an engine offers the run loop."""

import abc
from dataclasses import dataclass
from typing import Any

import equinox as eqx

from rookery._types import Key, Tree
from rookery.clients.population import Population
from rookery.program.aggregate import Aggregate
from rookery.program.algorithm import AbstractAlgorithm
from rookery.program.clock import Clock
from rookery.program.ledger import Ledger


@dataclass(frozen=True)
class Program:
    """Everything that a run consists of, apart from where it runs."""

    algorithm: AbstractAlgorithm
    problem: Any
    population: Population
    clock: Clock
    aggregate: Aggregate


@dataclass(frozen=True)
class Progress:
    """Some rounds done: the new state, what each round cost and whether it stayed finite."""

    state: Tree
    ledgers: list[Ledger]
    is_finite: list[bool]


class AbstractRunner(abc.ABC):
    """A program made ready on an engine."""

    @abc.abstractmethod
    def advance(self, state: Tree, key: Key, first_round: int, n_rounds: int) -> Progress:
        """Run rounds ``first_round`` to ``first_round + n_rounds - 1``.

        A round's key is ``fold_in(key, round)``, so where the rounds are cut changes nothing. The
        rounds end after the first whose state is not finite.
        """


class AbstractEngine(eqx.Module):
    """Where a program runs."""

    @abc.abstractmethod
    def prepare(self, program: Program) -> AbstractRunner:
        """Make a program ready to run."""
