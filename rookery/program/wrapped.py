"""A federation that changes some words of another one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
from jaxtyping import Array, Bool, Float, Int

from rookery.program.federation import (
    AbstractFederation,
    Around,
    Cached,
    Placed,
    Step,
)
from rookery.program.memory import Memory
from rookery.program.participation import AbstractParticipation, Cohort
from rookery.program.polling import InFlight, PollResult
from rookery.types import Key, Tree


class AbstractWrapped(AbstractFederation):
    """The words of another federation; a subclass says which of them differ.

    Args:
        fed: whose words these are.
    """

    def __init__(self, fed: AbstractFederation):
        super().__init__(
            fed.n_clients, fed.weights, fed.round, fed.aggregate, hidden_total=fed.hidden_total
        )
        self.fed = fed

    @contextmanager
    def outer(self) -> Iterator[None]:
        """Outer exchanges, of the other federation too."""
        with self.fed.outer(), super().outer():
            yield

    def sample(self, rule: AbstractParticipation, key: Key, probabilities=None) -> Cohort:
        """A fresh cohort of the other federation."""
        return self.fed.sample(rule, key, probabilities)

    def cache(self, value: Tree, held_by: Bool[Array, " clients"] | None = None) -> Cached:
        """A cached value of the other federation."""
        return self.fed.cache(value, held_by)

    def broadcast(self, cohort: Cohort, *values: Tree | Cached) -> Any:  # one value or a tuple
        """Values at the other federation's clients."""
        return self.fed.broadcast(cohort, *values)

    def scatter(self, cohort: Cohort, rows: Tree) -> Placed:
        """Rows at the other federation's clients."""
        return self.fed.scatter(cohort, rows)

    def as_sent(self, placed: Placed) -> Tree:
        """The server's copy of a value."""
        return self.fed.as_sent(placed)

    def map(
        self, step: Step, *values: Placed, key: Key | None = None, **settings: object
    ) -> Placed:
        """A step on the other federation's clients."""
        return self.fed.map(step, *values, key=key, **settings)

    def recall(self, cohort: Cohort, memory: Memory) -> Placed:
        """What the other federation's clients remember."""
        return self.fed.recall(cohort, memory)

    def keep(self, memory: Memory, placed: Placed) -> Memory:
        """What the other federation's clients remember afterwards."""
        return self.fed.keep(memory, placed)

    def mean(self, placed: Placed, *, decode=None, apart=False, around: Around = None) -> Tree:
        """The mean of the other federation."""
        return self.fed.mean(placed, decode=decode, apart=apart, around=around)

    def weighted_mean(self, placed: Placed, weights: Placed) -> Tree:
        """The weighted mean of the other federation."""
        return self.fed.weighted_mean(placed, weights)

    def sum(self, placed: Placed, *, weights: Float[Array, " slots"] | None = None) -> Tree:
        """The sum of the other federation."""
        return self.fed.sum(placed, weights=weights)

    def stack(self, placed: Placed, *, is_aggregated: bool = False) -> Tree:
        """All replies of the other federation."""
        return self.fed.stack(placed, is_aggregated=is_aggregated)

    # the keywords are those of AbstractFederation
    def poll(self, jobs: InFlight, step: Step, *values: Tree, **how: Any) -> PollResult:
        """Jobs of the other federation."""
        return self.fed.poll(jobs, step, *values, **how)

    def ask(self, who: jax.Array, step: Step, *values: Tree, **how: Any) -> Tree:
        """Replies of the other federation's clients."""
        return self.fed.ask(who, step, *values, **how)

    def repeat(
        self, n: int | Int[Array, ""], body: Callable[[jax.Array, Tree], Tree], init: Tree
    ) -> Tree:
        """The loop of the other federation, which carries along what this one notes."""

        def once(i: jax.Array, carry: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
            value, notes = carry
            self.take_notes(notes)
            return self.turn(body, i, value), self.notes()

        value, notes = self.fed.repeat(n, once, (init, self.notes()))
        self.take_notes(notes)
        return value

    def turn(self, body: Callable[[jax.Array, Tree], Tree], i: jax.Array, value: Tree) -> Tree:
        """One turn of a loop."""
        return body(i, value)

    def notes(self) -> Tree:
        """What this federation knows of the round so far: arrays, which a loop must carry."""
        return ()

    def take_notes(self, notes: Tree) -> None:
        """Continue from these notes."""

    # ---- never called: all words above are those of the other federation

    def _new_cohort(self, cohort: Cohort) -> None:
        raise AssertionError

    def _new_cached(self, cached: Cached, holders: Bool[Array, " clients"]) -> None:
        raise AssertionError

    def _send(self, cohort: Cohort, value: Tree | Cached, *, as_rows: bool) -> Tree:
        raise AssertionError

    def _collect(self, placed: Placed, *, needs_all: bool) -> tuple[Tree, Cohort]:
        raise AssertionError
