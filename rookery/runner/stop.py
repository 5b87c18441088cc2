"""When a run ends before its last round: rules for ``stop=``, and what a callback needs.

A rule reads the rows of the history one after another and nothing else. Resuming a run reads the
rows again, so a killed and resumed run ends in the same round as an unbroken one.
"""

import abc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from rookery import check
from rookery.program.ledger import Ledger
from rookery.runner.best import Goal, goal_of, is_better, value_in
from rookery.runner.guard import Guard as Guard
from rookery.runner.guard import RollBack as RollBack
from rookery.runner.history import Row
from rookery.runner.run_state import DivergenceWarning as DivergenceWarning
from rookery.runner.run_state import RollBackWarning as RollBackWarning
from rookery.runner.run_state import Snapshot as Snapshot
from rookery.runner.run_state import StopRun as StopRun

__all__ = [
    "AbstractRule",
    "Budget",
    "DivergenceWarning",
    "Guard",
    "Plateau",
    "RollBack",
    "RollBackWarning",
    "Snapshot",
    "StopRun",
    "Target",
]

Watcher = Callable[[Row], str]
"""Called with each row of a history in turn; returns why the run ends, or an empty text."""


class AbstractRule(abc.ABC):
    """Ends a run by what was measured, or by what it has cost.

    >>> import rookery as rk
    >>> isinstance(rk.stop.Budget(exchanges=100), AbstractRule)
    True
    """

    @abc.abstractmethod
    def resolved(self, goals: Mapping[str, Goal | None]) -> "AbstractRule":
        """The rule with its goal filled in, or an error if its metric is not measured.

        Args:
            goals: for every number that the run measures, which way is better; None if unknown.
        """

    @abc.abstractmethod
    def watcher(self) -> Watcher:
        """A function for one run, which sees all rows of its history in order."""

    def overspent(self, ledger: Ledger) -> str:
        """Why costs like these are too high; empty if they are not, or if the rule knows none."""
        return ""


@dataclass(frozen=True)
class Plateau(AbstractRule):
    """Ends a run when a metric has not improved for some evaluations.

    An evaluation improves on the best one so far if it is better by more than ``least``. A value
    that is not finite is no improvement. The start counts as the first evaluation.

    >>> import rookery as rk
    >>> watch = rk.stop.Plateau("loss", patience=2, goal="min", least=0.1).watcher()
    >>> [watch({"round": i, "loss": loss}) for i, loss in enumerate([3.0, 2.0, 1.95, 1.91])][-1]
    'Plateau: loss has not improved by more than 0.1 since round 1 (2).'

    Args:
        metric: a column of the history.
        patience: how many evaluations in a row may bring no improvement; the run ends after them.
        goal: ``max`` or ``min``; may be left out if the evaluation knows, as for the scores and
            losses of ``rk.metrics.OnClients``.
        least: the improvement that is not enough.
    """

    metric: str
    patience: int
    goal: Goal | None = None
    least: float = 0.0

    def __post_init__(self):
        check.count("patience", self.patience)
        check.not_negative("least", self.least)
        if self.goal is not None:
            check.one_of("goal", self.goal, ("max", "min"))

    def resolved(self, goals: Mapping[str, Goal | None]) -> "Plateau":
        """The rule with its goal."""
        return replace(self, goal=goal_of("stop", self.metric, self.goal, goals))

    def watcher(self) -> Watcher:
        """Counts the evaluations since the last improvement."""
        best: float = math.nan
        best_round, since = 0, 0

        def watch(row: Row) -> str:
            nonlocal best, best_round, since
            assert self.goal is not None, "a rule is resolved before it watches"
            value = value_in(row, self.metric)
            if is_better(self.goal, value, best, self.least):
                best, best_round, since = value, row["round"], 0
                return ""
            since += 1
            if since < self.patience:
                return ""
            return (
                f"Plateau: {self.metric} has not improved by more than {self.least:g} since round "
                f"{best_round} ({best:.6g})."
            )

        return watch


@dataclass(frozen=True)
class Target(AbstractRule):
    """Ends a run at the first evaluation in which a metric has reached a target.

    >>> import rookery as rk
    >>> rk.stop.Target("accuracy", at_least=0.9).watcher()({"round": 30, "accuracy": 0.91})
    'Target: accuracy is 0.91, at least 0.9.'

    Args:
        metric: a column of the history.
        at_least: the target of a metric that has to rise.
        at_most: the target of a metric that has to fall; give one of the two.
    """

    metric: str
    at_least: float | None = None
    at_most: float | None = None

    def __post_init__(self):
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError(
                f"Target needs at_least or at_most, one of them; got at_least={self.at_least}, "
                f"at_most={self.at_most}."
            )
        given = self.at_most if self.at_least is None else self.at_least
        if isinstance(given, bool) or not isinstance(given, int | float) or math.isnan(given):
            raise TypeError(f"the target of {self.metric} must be a number, got {given!r}.")

    def resolved(self, goals: Mapping[str, Goal | None]) -> "Target":
        """The rule as it is."""
        check.one_of("metric in stop", self.metric, goals)
        return self

    def watcher(self) -> Watcher:
        """Compares each row with the target."""

        def watch(row: Row) -> str:
            value = value_in(row, self.metric)
            if self.at_least is not None and value >= self.at_least:
                return f"Target: {self.metric} is {value:.6g}, at least {self.at_least:g}."
            if self.at_most is not None and value <= self.at_most:
                return f"Target: {self.metric} is {value:.6g}, at most {self.at_most:g}."
            return ""

        return watch


@dataclass(frozen=True)
class Budget(AbstractRule):
    """Ends a run at its last evaluation within a budget, as ``seconds=`` does for virtual time.

    The run continues until an evaluation finds the budget overspent, and then returns to the
    evaluation before: what it reports never cost more than it may.

    >>> import rookery as rk
    >>> rk.stop.Budget(bytes=5e6, exchanges=1000).bytes
    5000000.0

    Args:
        bytes: both ways together, over all clients.
        exchanges: downloads and uploads between the server and a cohort.
    """

    bytes: float | None = None
    exchanges: float | None = None

    def __post_init__(self):
        if self.bytes is None and self.exchanges is None:
            raise ValueError("Budget needs bytes, exchanges or both.")
        for name, value in (("bytes", self.bytes), ("exchanges", self.exchanges)):
            if value is not None:
                check.positive(name, value)

    def resolved(self, goals: Mapping[str, Goal | None]) -> "Budget":
        """The rule as it is; costs are always known."""
        return self

    def watcher(self) -> Watcher:
        """A row is recorded only if its costs are within the budget."""
        return lambda row: ""

    def overspent(self, ledger: Ledger) -> str:
        """Which limit was exceeded."""
        spent = {"bytes": ledger.bytes_down + ledger.bytes_up, "exchanges": ledger.exchanges}
        for name, limit in (("bytes", self.bytes), ("exchanges", self.exchanges)):
            if limit is not None and spent[name] > limit:
                return f"Budget: the next evaluation would exceed {limit:,.10g} {name}."
        return ""


def as_rules(stop: AbstractRule | Sequence[AbstractRule] | None) -> tuple[AbstractRule, ...]:
    """The rules that ``stop=`` stands for; the first that holds ends the run.

    >>> as_rules(None), len(as_rules([Budget(bytes=1), Budget(exchanges=2)]))
    ((), 2)
    """
    if stop is None:
        return ()
    rules = (stop,) if isinstance(stop, AbstractRule) else stop
    if not isinstance(rules, Sequence) or not all(isinstance(r, AbstractRule) for r in rules):
        raise TypeError(
            "stop must be a rule of rk.stop (Plateau, Target, Budget) or a list of them, got "
            f"{stop!r}."
        )
    return tuple(rules)


def any_of(rules: Sequence[AbstractRule]) -> Watcher:
    """One watcher for several rules: the reason of the first that holds.

    Every rule sees every row, also if another one has ended the run: a run that is resumed with
    more patience continues as if it had never stopped.
    """
    watchers = [rule.watcher() for rule in rules]

    def watch(row: Row) -> str:
        reasons = [watcher(row) for watcher in watchers]
        return next(filter(None, reasons), "")

    return watch
