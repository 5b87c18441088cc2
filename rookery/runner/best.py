"""The best iterate of a run by one of its metrics: ``keep="best:METRIC"``."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from rookery import check
from rookery.runner.history import Row
from rookery.types import Tree

Goal = Literal["max", "min"]
GOALS: tuple[Goal, Goal] = ("max", "min")


@dataclass(frozen=True)
class Best:
    """The solution at the best evaluation so far; the first one of equals.

    Attributes:
        metric: the number that decided.
        round: after how many rounds it was measured.
        value: what the metric was then.
        solution: the problem's variables then.
    """

    metric: str
    round: int
    value: float
    solution: tuple[Tree, ...]


@dataclass(frozen=True)
class KeepBest:
    """Which metric decides, and which way is better.

    >>> KeepBest.parse("best:loss:min", {"loss": None})
    KeepBest(metric='loss', goal='min')
    """

    metric: str
    goal: Goal

    @classmethod
    def parse(cls, text: str, goals: Mapping[str, Goal | None]) -> "KeepBest":
        """What ``keep=`` stands for.

        Args:
            text: ``best:METRIC:max``, ``best:METRIC:min``, or ``best:METRIC`` if the evaluation
                knows which way is better.
            goals: for every number that the run measures, which way is better; None if unknown.
        """
        metric, goal = cls.split(text)
        return cls(metric, goal_of("keep", metric, goal, goals))

    @staticmethod
    def split(text: str) -> tuple[str, Goal | None]:
        """The metric and the goal in a text.

        >>> KeepBest.split("best:test/accuracy:max")
        ('test/accuracy', 'max')
        """
        kind, _, rest = text.partition(":") if isinstance(text, str) else ("", "", "")
        if kind != "best" or not rest:
            raise ValueError(f'keep must be "best:METRIC:max" or "best:METRIC:min", got {text!r}.')
        for known in GOALS:
            if rest.endswith(f":{known}"):
                return rest.removesuffix(f":{known}"), known
        return rest, None


def goal_of(where: str, metric: str, given: Goal | None, goals: Mapping[str, Goal | None]) -> Goal:
    """Which way a metric is better: as given, or as its evaluation knows; never a guess."""
    if not goals:
        raise ValueError(f"{where}: the run measures nothing; pass evaluate=[...].")
    check.one_of(f"metric in {where}", metric, goals)
    goal = given or goals[metric]
    if goal is None:
        how = f'keep="best:{metric}:max"' if where == "keep" else 'goal="max"'
        raise ValueError(
            f"{where}: is more of {metric!r} better, or less? Write {how}, or min. Only the scores "
            "and losses of OnClients say so themselves."
        )
    return cast(Goal, check.one_of("goal", goal, GOALS))


_WORDS: dict[str, Goal] = {
    "accuracy": "max", "auc": "max", "loss": "min", "error": "min", "distance": "min",
}  # fmt: skip


def goal_by_name(metric: str) -> Goal | None:
    """Which way a metric is better by a word of its name that leaves no doubt, or None.

    For reports only: what changes a run has to be known or declared.

    >>> goal_by_name("adapted_accuracy/worst"), goal_by_name("distance_x"), goal_by_name("size")
    ('max', 'min', None)
    """
    words = re.split(r"[^a-z]+", metric.lower())
    goals: set[Goal] = {_WORDS[word] for word in words if word in _WORDS}
    return goals.pop() if len(goals) == 1 and "variance" not in words else None


def value_in(row: Row, metric: str) -> float:
    """What a row of a history measured; NaN if it did not, or if it was not finite.

    >>> value_in({"round": 3, "loss": None}, "loss")
    nan
    """
    value = row.get(metric)
    return math.nan if value is None or not math.isfinite(value) else float(value)


def is_better(goal: Goal, value: float, best: float, least: float = 0.0) -> bool:
    """Whether a value improves on the best so far by more than ``least``; NaN never does.

    >>> is_better("min", 1.0, 2.0), is_better("min", 1.0, 1.0), is_better("max", 0.0, math.nan)
    (True, False, True)
    """
    if math.isnan(value):
        return False
    if math.isnan(best):
        return True
    return value > best + least if goal == "max" else value < best - least
