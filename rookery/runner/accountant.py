"""How much privacy a run spends: epsilon after every round, by the package dp-accounting.

Who is drawn and how often follows from the key and the number of a round, never from the data; so
all releases of a run are known before it begins, and so is the round in which it must stop. A
program whose number of exchanges depends on what clients reply is refused.

The exchanges of one cohort are composed first, and drawing the cohort amplifies the privacy of all
of them together. Every round draws a new cohort, and their Rényi divergences add up.
"""

import abc
import functools
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rookery.engines.engine import Program
from rookery.engines.scout import (
    NotScoutable,
    ScoutFederation,
    depends_on_unknown,
    unknown_like,
)
from rookery.program.algorithm import numbers_to_arrays
from rookery.program.ledger import Ledger
from rookery.program.privacy import MOST_RELEASES, Private, Releases, Sampling
from rookery.types import Key, Tree

DPObject = Any  # of dp-accounting: the package is optional

NOT_COVERED = (
    "Epsilon covers what the rounds release. Evaluations on clients, checkpoints with what clients "
    "remember, and the choice of settings by earlier runs are not covered."
)


class PrivacyTarget(Protocol):
    """What a private program promises."""

    @property
    def name(self) -> str:
        """Of the program."""
        ...

    @property
    def delta(self) -> float | None:
        """Of (epsilon, delta)-privacy."""
        ...

    @property
    def epsilon(self) -> float | None:
        """The most that it may spend."""
        ...


class AbstractSpending(abc.ABC):
    """What a private run spends, from its first round to its last.

    Args:
        target: the private program.
    """

    def __init__(self, target: PrivacyTarget):
        self._target = target
        self._known: dict[int, float] = {}

    @property
    @abc.abstractmethod
    def rounds(self) -> int:
        """How many rounds are known."""

    @abc.abstractmethod
    def releases(self, rounds: int) -> int:
        """How many releases there are in this many rounds."""

    @abc.abstractmethod
    def check(self, first: int, ledgers: Sequence[Ledger]) -> None:
        """Raise if the ledger of a round shows more than was accounted for."""

    @abc.abstractmethod
    def compute_epsilon(self, rounds: int) -> float:
        """Epsilon after this many rounds; infinite without noise."""

    def epsilon(self, rounds: int) -> float:
        """The same, computed once."""
        if rounds not in self._known:
            self._known[rounds] = self.compute_epsilon(rounds)
        return self._known[rounds]

    @cached_property
    def last_round(self) -> int:
        """The number of rounds that stay within the target."""
        target = self._target.epsilon
        if target is None or self.epsilon(self.rounds) <= target:
            return self.rounds
        below, above = 0, self.rounds
        while above - below > 1:
            middle = (below + above) // 2
            below, above = (middle, above) if self.epsilon(middle) <= target else (below, middle)
        return below

    @property
    def reason(self) -> str:
        """Why the run stops after its last round."""
        last, target = self.last_round, self._target.epsilon
        return (
            f"Privacy: round {last + 1} would exceed epsilon={target:g} at "
            f"delta={self._target.delta:g}; after round {last} it is {self.epsilon(last):.4g}."
        )


class Spending(AbstractSpending):
    """What a run with private clients spends.

    Args:
        algorithm: the private program.
        n_clients: of the population.
        releases: of all rounds; the counts have one row per round.
    """

    def __init__(self, algorithm: Private, n_clients: int, releases: Releases):
        super().__init__(algorithm)
        self._algorithm, self._n_clients = algorithm, n_clients
        self._samplings = releases.samplings
        each = np.asarray(releases.cohorts, np.int64)  # [rounds, samplings, exchanges]
        if each[:, :, MOST_RELEASES].any():
            raise ValueError(
                f"a cohort of {algorithm.name} answers to {MOST_RELEASES} exchanges or more, which "
                "is not accounted for. Draw more often, or pass delta=None."
            )
        self._exchanges = each @ np.arange(MOST_RELEASES + 1)
        self._until = np.concatenate([np.zeros_like(each[:1]), np.cumsum(each, axis=0)])
        self._replaces = algorithm.replaces(n_clients)

    @property
    def rounds(self) -> int:
        """How many rounds are known."""
        return len(self._until) - 1

    def releases(self, rounds: int) -> int:
        """How many exchanges there are in this many rounds."""
        return int(self._exchanges[:rounds].sum())

    def check(self, first: int, ledgers: Sequence[Ledger]) -> None:
        """Raise unless rounds had the exchanges that were accounted for."""
        known = self._exchanges[first : first + len(ledgers)].sum(axis=1).tolist()
        counted = [one.exchanges for one in ledgers]
        if known != counted:
            raise RuntimeError(
                f"{self._algorithm.name} made {counted} exchanges in the rounds from {first} on, "
                f"and {known} are accounted for: epsilon would be wrong. This is a bug."
            )

    def compute_epsilon(self, rounds: int) -> float:
        """Epsilon after this many rounds; infinite without noise."""
        done = self._until[rounds]
        if not done.any():
            return 0.0
        if self._algorithm.multiplier is None:
            return float("inf")
        rdp, total = accounting().rdp, 0.0
        for sampling, counts in zip(self._samplings, done, strict=True):
            for exchanges in np.flatnonzero(counts[1:]) + 1:
                event = self.event(sampling, int(exchanges))
                total = total + counts[exchanges] * divergences(event, self._replaces)
        return float(
            rdp.compute_epsilon(accountant(self._replaces).orders, total, self._algorithm.delta)[0]
        )

    def event(self, sampling: Sampling, exchanges: int) -> DPObject:
        """A cohort that answers to some exchanges, as an event of dp-accounting."""
        events, multiplier = accounting(), self._algorithm.multiplier
        assert multiplier is not None
        one = events.GaussianDpEvent(float(multiplier))
        several = one if exchanges == 1 else events.SelfComposedDpEvent(one, exchanges)
        if sampling.rate is not None:
            return events.PoissonSampledDpEvent(sampling.rate, several)
        if sampling.size is not None:
            return events.SampledWithoutReplacementDpEvent(self._n_clients, sampling.size, several)
        return several


def accountant(replaces: bool) -> DPObject:
    """A fresh accountant, for neighbours with other data or for those that are left out."""
    relation = accounting().NeighboringRelation
    kind = relation.REPLACE_ONE if replaces else relation.REPLACE_SPECIAL
    return accounting().rdp.RdpAccountant(neighboring_relation=kind)


@functools.lru_cache(maxsize=256)
def divergences(event: DPObject, replaces: bool) -> np.ndarray:
    """The Rényi divergences of an event, at the accountant's orders."""
    own, log = accountant(replaces), logging.getLogger("absl")
    # it says which orders it leaves out, which makes epsilon larger and not wrong
    before = log.level
    log.setLevel(logging.ERROR)
    own.compose(event)
    log.setLevel(before)
    return own.rdp


def accounting() -> DPObject:
    """The package, or an error that says how to install it."""
    try:
        import dp_accounting  # pyright: ignore[reportMissingImports]
        import dp_accounting.rdp  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(
            "the epsilon of a private run needs the package dp-accounting: "
            "pip install -e '.[privacy]' in rookery's checkout. "
            "With delta=None nothing is accounted."
        ) from error
    return dp_accounting


def spending(
    program: Program, algorithm: Private, state: Tree, key: Key, rounds: int
) -> Spending | None:
    """What a private run will spend; None if it has no delta or clips nothing.

    Args:
        program: what is run; of the rows only the shapes are used.
        algorithm: the private program.
        state: before round 0; only its shapes are used.
        key: of the run's rounds.
        rounds: how many.
    """
    if algorithm.delta is None or algorithm.clip is None:
        return None
    if algorithm.noise is not None:
        accounting()  # missing packages are reported before the work
    program = without_rows(program)
    try:
        releases = _all_releases(program, numbers_to_arrays(algorithm), state, key, rounds)
    except NotScoutable as word:
        raise ValueError(f"{word} cannot be private: {algorithm.name} is asynchronous.") from None
    return Spending(algorithm, program.population.n_clients, releases)


def without_rows(program: Program) -> Program:
    """The same program with few rows of a population on disk: only their shapes are used."""
    if not program.population.is_on_disk:
        return program
    blank = program.population.resident(np.zeros(0, int), 1, 1)
    return replace(program, population=blank)


@eqx.filter_jit  # runs that differ in numbers and seeds share one program
def _all_releases(
    program: Program, algorithm: Private, state: Tree, key: Key, rounds: int
) -> Releases:
    """What all rounds release, a row each."""
    found: list[tuple[Sampling, ...]] = []
    nobody = jnp.zeros(program.population.n_clients, bool)

    def all_rounds(unknown):
        shown = jax.tree.map(lambda leaf: unknown_like(leaf, unknown), state)

        def one(round):
            fed = ScoutFederation(program, round, nobody, unknown)
            own = jax.random.fold_in(key, round)
            _, made = algorithm.round_and_releases(fed, program.problem, shown, own)
            found.append(made.samplings)
            return made.cohorts

        return lax.map(one, jnp.arange(rounds, dtype=jnp.int32))

    if depends_on_unknown(all_rounds):
        raise ValueError(
            f"{algorithm.name}: how many exchanges a round has depends on what clients reply, so "
            "it would tell about them. Choose a fixed number, or pass delta=None."
        )
    cohorts = all_rounds(jnp.zeros(()))
    return Releases(found[-1], cohorts)
