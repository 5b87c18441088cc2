"""Scores of the benchmark, computed from the curves: values at equal costs, ranks, profiles.

A *contest* is a task on a data set with a split: all algorithms in it are measured by one metric on
the same rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from rookery.report.statistics import interval

Line = Mapping  # of the results, as json reads it
Contest = tuple[str, str, str]

AXES = ("exchanges", "megabytes", "gradients")
"""Costs that do not depend on delays."""
SHARE = 0.9
"""Of the way from the start to the best, which is the target of a contest."""
COST = "exchanges"
"""What a performance profile counts."""


def contest(line: Line) -> Contest:
    """The task, the data set and the split of a line."""
    return line["task"], line["data"], line["split"]


def by_contest(lines: Iterable[Line]) -> dict[Contest, list[Line]]:
    """The lines of every contest, in the order of the first of each."""
    found: dict[Contest, list[Line]] = {}
    for line in lines:
        found.setdefault(contest(line), []).append(line)
    return found


def axes_of(line: Line) -> list[str]:
    """The names of the budgets."""
    return list(line["budgets"])


def runs_on(line: Line, axis: str) -> list[tuple[Sequence[float], Sequence[float]]]:
    """Per seed, what was spent on an axis and the value by then."""
    if line["curves"] is None:
        return []
    main = next(iter(line["curves"].values()))
    if axis in AXES:
        return [(run[axis], run["value"]) for run in main]
    delays = axis.removeprefix("seconds, ")
    return [
        (run["seconds"], run.get("value", first["value"]))
        for run, first in zip(line["curves"][delays], main, strict=True)
    ]


def values_at(line: Line, axis: str) -> list[float]:
    """Per seed, the value at the budget of an axis, interpolated between evaluations.

    A run that has ended keeps its last value. An algorithm of which every setting diverged has 0.

    >>> run = {"value": [0.1, 0.5, 0.7], "exchanges": [0, 10, 20]}
    >>> line = {"curves": {"even": [run]}, "budgets": {"exchanges": 15.0}, "size": {"seeds": [0]}}
    >>> values_at(line, "exchanges")
    [0.6]
    """
    runs = runs_on(line, axis)
    if not runs:
        return [0.0] * len(line["size"]["seeds"])
    budget = line["budgets"][axis]
    return [round(float(np.interp(budget, spent, value)), 4) for spent, value in runs]


def n_diverged(line: Line) -> int:
    """How many runs diverged with the chosen steps; all, if every setting tried did."""
    if line["curves"] is None:
        return len(line["size"]["seeds"])
    return sum("diverged" in run for run in next(iter(line["curves"].values())))


def is_spent(line: Line, axis: str) -> bool:
    """Whether all runs came to the budget of an axis (to within a twentieth)."""
    return all(spent[-1] >= 0.95 * line["budgets"][axis] for spent, _ in runs_on(line, axis))


def target(lines: Sequence[Line]) -> float:
    """What has to be reached in a contest: most of the way from the start to the best end."""
    starts = [value[0] for line in lines for _, value in runs_on(line, COST)]
    best = max(float(np.mean(values_at(line, COST))) for line in lines)
    start = float(np.mean(starts)) if starts else 0.0
    return start + SHARE * (best - start)


def cost_to(spent: Sequence[float], value: Sequence[float], wanted: float) -> float:
    """Where a curve reaches a value for the first time; infinity if it does not.

    >>> cost_to([0, 10, 20], [0.1, 0.5, 0.7], 0.6)
    15.0
    >>> cost_to([0, 10], [0.1, 0.5], 0.6)
    inf
    """
    for i, one in enumerate(value):
        if one >= wanted:
            if i == 0:
                return float(spent[0])
            rise = (wanted - value[i - 1]) / (one - value[i - 1])
            return float(spent[i - 1] + rise * (spent[i] - spent[i - 1]))
    return float("inf")


def costs_to_target(line: Line, axis: str, wanted: float) -> list[float]:
    """Per seed; infinity where the target is not reached."""
    runs = runs_on(line, axis)
    if not runs:
        return [float("inf")] * len(line["size"]["seeds"])
    return [cost_to(spent, value, wanted) for spent, value in runs]


def ranks(values: Sequence[float]) -> list[float]:
    """1 for the largest; equal values share the mean of their ranks.

    >>> ranks([0.5, 0.9, 0.5])
    [2.5, 1.0, 2.5]
    """
    array = np.asarray(values)
    return [1 + float(np.sum(array > v)) + (float(np.sum(array == v)) - 1) / 2 for v in array]


def contest_ranks(lines: Sequence[Line], axis: str) -> list[float]:
    """The mean over seeds of every line's rank in its contest."""
    table = np.array([values_at(line, axis) for line in lines])
    return [float(v) for v in np.mean([ranks(column) for column in table.T], axis=0)]


@dataclass(frozen=True)
class Standing:
    """Where an algorithm stands among those of its form.

    Attributes:
        ranks: on every axis, per contest, as a share: 0 for the first, 1 for the last.
        contests: in the same order.
        reached: the share of its runs that reach the target.
        diverged: how many of its runs.
        wins: contests in which its mean is the best, by exchanges.
    """

    ranks: dict[str, list[float]]
    contests: list[Contest]
    reached: float
    diverged: int
    wins: int

    def mean(self, axis: str, among: Iterable[Contest] | None = None) -> float:
        """The mean rank on an axis, over some contests or all."""
        pairs = zip(self.contests, self.ranks[axis], strict=True)
        return float(np.mean([r for c, r in pairs if among is None or c in among]))

    def interval(self, axis: str) -> tuple[float, float]:
        """The mean and half the width of its 95 % interval over contests."""
        found = interval(self.ranks[axis])
        return float(found.mean), float(found.high - found.mean)


def standings(lines: Sequence[Line]) -> dict[tuple[str, str], Standing]:
    """By algorithm and form; ranks are among the entrants of a form."""
    found: dict[tuple[str, str], dict] = {}
    ordered = sorted(lines, key=lambda line: (line["form"], *contest(line)))
    for _, group in groupby(ordered, key=lambda line: (line["form"], *contest(line))):
        some = list(group)
        wanted = target(some)
        share = max(len(some) - 1, 1)
        by_axis = {axis: contest_ranks(some, axis) for axis in axes_of(some[0])}
        first = int(np.argmax([np.mean(values_at(line, COST)) for line in some]))
        for i, line in enumerate(some):
            own = found.setdefault(
                (line["algorithm"], line["form"]),
                {"ranks": {}, "contests": [], "costs": [], "diverged": 0, "wins": 0},
            )
            own["contests"].append(contest(line))
            for axis, values in by_axis.items():
                own["ranks"].setdefault(axis, []).append((values[i] - 1) / share)
            own["costs"] += costs_to_target(line, COST, wanted)
            own["diverged"] += n_diverged(line)
            own["wins"] += i == first
    return {
        key: Standing(
            own["ranks"],
            own["contests"],
            float(np.mean(np.isfinite(own["costs"]))),
            own["diverged"],
            own["wins"],
        )
        for key, own in found.items()
    }


def profile(
    lines: Sequence[Line], factors: Sequence[float], axis: str = COST
) -> dict[str, list[float]]:
    """Performance profiles: how often an algorithm needs at most a factor of the least cost.

    Dolan and Moré. Counted over contests and seeds; a target that is not reached counts as never.

    Args:
        lines: of algorithms of one form.
        factors: at least 1.
        axis: the cost.
    """
    factor: dict[str, list[np.ndarray]] = {}
    names = list(dict.fromkeys(line["algorithm"] for line in lines))
    for some in by_contest(lines).values():
        wanted = target(some)
        own = {line["algorithm"]: costs_to_target(line, axis, wanted) for line in some}
        n_seeds = len(next(iter(own.values())))
        least = np.min([own[name] for name in own], axis=0)
        for name in names:
            each = np.asarray(own.get(name, [np.inf] * n_seeds))
            over = [
                c / max(low, 1e-12) if np.isfinite(c) else np.inf
                for c, low in zip(each, least, strict=True)
            ]
            factor.setdefault(name, []).append(np.array(over))
    return {
        name: [round(float(np.mean(np.concatenate(rows) <= f)), 3) for f in factors]
        for name, rows in factor.items()
    }


WORDS = {"exchanges": "exchange", "megabytes": "byte", "gradients": "gradient evaluation"}


def regime(name: str, own: Standing, n: int) -> str:
    """A sentence on where an algorithm stands, from its ranks.

    Args:
        name: of the algorithm.
        own: its standing.
        n: how many algorithms of its form there are.
    """

    def place(share: float) -> str:
        return f"{1 + share * (n - 1):.1f}"

    means = {axis: own.mean(axis) for axis in own.ranks}
    mean, half = own.interval(COST)
    best, worst = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    text = f"{name}: rank {place(mean)} ± {half * (n - 1):.1f} of {n} per exchange"
    text += f" over {len(own.contests)} contest{'s' * (len(own.contests) > 1)}"
    if means[worst] - means[best] > 0.1:
        text += f"; strongest per {_per(best)} ({place(means[best])}), weakest per {_per(worst)}"
        text += f" ({place(means[worst])})"
    else:
        text += "; about equally strong on all costs"
    text += _contrast(own, 2, place) + _contrast(own, 0, place)
    if own.wins:
        text += f"; first in {own.wins}"
    text += f"; {100 * own.reached:.0f} % of its runs reach the target"
    if own.diverged:
        text += f"; {own.diverged} diverged with the chosen steps"
    return text + "."


def _per(axis: str) -> str:
    return WORDS.get(axis) or axis.replace("seconds,", "second with") + " delays"


def _contrast(own: Standing, part: int, place) -> str:
    """On which split, or task, its ranks are best, if that makes a difference."""
    values = list(dict.fromkeys(c[part] for c in own.contests))
    if len(values) < 2:
        return ""
    means = {v: own.mean(COST, {c for c in own.contests if c[part] == v}) for v in values}
    best, worst = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    if means[worst] - means[best] <= 0.1:
        return ""
    named = {
        "sorted": "label-sorted clients",
        "iid": "iid clients",
        "dirichlet": "Dirichlet clients",
    }
    first, last = (named.get(v, v) for v in (best, worst))
    return f"; better on {first} ({place(means[best])}) than on {last} ({place(means[worst])})"
