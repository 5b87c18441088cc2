"""Runs side by side: means over seeds, what it costs to reach a target, paired tests."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rookery.report.statistics import Interval, interval, student_cdf
from rookery.runner.history import History


class Axis(NamedTuple):
    """A cost that a metric can be drawn against."""

    label: str
    values: Callable[[History], np.ndarray]


AXES: dict[str, Axis] = {
    "round": Axis("rounds", lambda run: run["round"]),
    "exchanges": Axis("exchanges", lambda run: run["exchanges"]),
    "megabytes_up": Axis("megabytes up", lambda run: run["bytes_up"] / 1e6),
    "megabytes_down": Axis("megabytes down", lambda run: run["bytes_down"] / 1e6),
    "megabytes": Axis("megabytes in all", lambda run: (run["bytes_up"] + run["bytes_down"]) / 1e6),
    "gradients": Axis("gradient evaluations", lambda run: run["gradients"]),
    "hessian_vectors": Axis("Hessian-vector products", lambda run: run["hessian_vectors"]),
    "seconds": Axis("virtual seconds", lambda run: run["seconds"]),
}
"""By name: the label to print, and how to get the values from a history."""

_COSTS = set(
    "round exchanges messages bytes_down bytes_up gradients hessian_vectors seconds".split()
)


@dataclass(frozen=True)
class Curve:
    """One algorithm in one setting, run once for every seed.

    Attributes:
        name: what the legend says.
        runs: one history per seed.
        seeds: the seeds, in the same order; 0, 1, ... if not given.
        diaries: of an asynchronous algorithm's first run, by kind of jobs: who worked when.
    """

    name: str
    runs: list[History]
    seeds: list[int] = field(default_factory=list)
    diaries: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self):
        if not self.runs or not all(len(run) for run in self.runs):
            raise ValueError(f"curve {self.name!r} needs one run or more, none of them empty.")
        if not self.seeds:
            object.__setattr__(self, "seeds", list(range(len(self.runs))))
        if len(self.seeds) != len(self.runs) or len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"curve {self.name!r} needs a seed for every run, got {self.seeds}.")

    @property
    def metrics(self) -> list[str]:
        """What every run has measured, costs apart."""
        shared = set.intersection(*(set(run.names) for run in self.runs))
        return [name for name in self.runs[0].names if name in shared - _COSTS]


@dataclass(frozen=True)
class Comparison:
    """Curves to be shown together.

    Attributes:
        title: the headline.
        curves: in the order in which to show them.
        settings: for the name of a curve, how its runs were made: nested and fit for JSON.
        versions: of the software that ran.
        notes: plain text to print below the headline.
    """

    title: str
    curves: list[Curve]
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    notes: str = ""

    def __post_init__(self):
        names = [curve.name for curve in self.curves]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"a comparison needs curves with different names, got {names}.")
        if strangers := set(self.settings) - set(names):
            raise ValueError(f"settings for {sorted(strangers)}, but the curves are {names}.")

    @property
    def metrics(self) -> list[str]:
        """What any of the curves has measured."""
        return list(dict.fromkeys(name for curve in self.curves for name in curve.metrics))


def axis_values(run: History, axis: str) -> np.ndarray:
    """What a run had spent at each of its evaluations."""
    if axis not in AXES:
        raise ValueError(f"unknown axis {axis!r}; choose one of {', '.join(AXES)}.")
    return AXES[axis].values(run)


def metric_values(run: History, metric: str) -> np.ndarray:
    """What a run measured at each of its evaluations; NaN where that was not finite."""
    values = run[metric]
    return np.where(np.isfinite(values), values, np.nan)


class Band(NamedTuple):
    """A curve's mean over seeds with its bounds, at each value of an axis."""

    axis: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def mean_and_interval(curve: Curve, axis: str, metric: str) -> Band:
    """A curve's mean over seeds and its 95 % interval along an axis.

    Seeds that were evaluated at the same costs are averaged row by row. If the costs differ, as
    when the number of exchanges is random, each seed is interpolated linearly at all the costs
    at which any seed was evaluated, within the range that all seeds reach. A seed that ended
    early therefore ends the curve. NaN in one seed leaves a gap in the mean.
    """
    xs = [axis_values(run, axis) for run in curve.runs]
    ys = [metric_values(run, metric) for run in curve.runs]
    if all(np.array_equal(x, xs[0]) for x in xs):
        return Band(xs[0], *interval(np.stack(ys)))
    grid = np.unique(np.concatenate(xs))
    grid = grid[(grid >= max(x[0] for x in xs)) & (grid <= min(x[-1] for x in xs))]
    aligned = [np.interp(grid, x, y) for x, y in zip(xs, ys, strict=True)]
    return Band(grid, *interval(np.stack(aligned)))


def final_values(curve: Curve, metric: str) -> list[float]:
    """The last measured value of every seed."""
    return [float(metric_values(run, metric)[-1]) for run in curve.runs]


@dataclass(frozen=True)
class Cost:
    """What it cost to reach a target.

    Attributes:
        per_seed: the cost for every seed, None if the seed never got there.
        interval: mean and bounds over the seeds that did; NaN if none did.
        reached: how many did.
        total: how many seeds there are.
    """

    per_seed: list[float | None]
    interval: Interval
    reached: int
    total: int


def cost_to_reach(
    curve: Curve, metric: str, target: float, axis: str, higher_is_better: bool = True
) -> Cost:
    """The cost at which each seed first reaches a target, interpolated between evaluations.

    The mean is over the seeds that reach it, so read it together with their number.
    """
    sign = 1 if higher_is_better else -1
    per_seed = [
        _first_reach(axis_values(run, axis), sign * metric_values(run, metric), sign * target)
        for run in curve.runs
    ]
    reached = [cost for cost in per_seed if cost is not None]
    return Cost(per_seed, interval(reached or [math.nan]), len(reached), len(per_seed))


def _first_reach(x: np.ndarray, y: np.ndarray, target: float) -> float | None:
    there = np.flatnonzero(y >= target)
    if not len(there):
        return None
    i = there[0]
    if i == 0 or np.isnan(y[i - 1]):
        return float(x[i])
    return float(x[i - 1] + (target - y[i - 1]) / (y[i] - y[i - 1]) * (x[i] - x[i - 1]))


def best_curve(curves: Sequence[Curve], metric: str, higher_is_better: bool = True) -> Curve:
    """The curve with the best mean of its last values; one that is not finite is never it."""
    sign = 1 if higher_is_better else -1
    means = [sign * np.mean(final_values(curve, metric)) for curve in curves]
    return curves[int(np.argmax(np.where(np.isnan(means), -np.inf, means)))]


@dataclass(frozen=True)
class PairedTest:
    """Final values of two curves compared seed by seed, the first minus the second.

    Attributes:
        seeds: those that both curves have.
        differences: one per seed.
        interval: mean difference and its bounds.
        p_student: two-sided, of the paired t-test; NaN with one seed.
        p_flips: two-sided and exact: the share of all sign flips of the differences whose mean
            is as far from zero. With n seeds it cannot be less than 2 / 2^n. NaN if a difference
            is, or with more than 20 seeds.
    """

    seeds: list[int]
    differences: np.ndarray
    interval: Interval
    p_student: float
    p_flips: float


def paired_test(curve_a: Curve, curve_b: Curve, metric: str) -> PairedTest:
    """Whether two curves end at different values, judged over the seeds that both have."""
    last_a = dict(zip(curve_a.seeds, final_values(curve_a, metric), strict=True))
    last_b = dict(zip(curve_b.seeds, final_values(curve_b, metric), strict=True))
    seeds = [seed for seed in last_a if seed in last_b]
    if not seeds:
        raise ValueError(f"{curve_a.name!r} and {curve_b.name!r} have no seed in common.")
    differences = np.array([last_a[seed] - last_b[seed] for seed in seeds])
    p_student, p_flips = _p_student(differences), _p_flips(differences)
    return PairedTest(seeds, differences, interval(differences), p_student, p_flips)


def _p_student(differences: np.ndarray) -> float:
    n, mean = len(differences), differences.mean()
    if n == 1 or np.isnan(mean):
        return math.nan
    error = differences.std(ddof=1) / math.sqrt(n)
    return float(mean == 0) if error == 0 else 2 * student_cdf(-abs(mean / error), n - 1)


def _p_flips(differences: np.ndarray) -> float:
    if len(differences) > 20 or np.isnan(differences).any():
        return math.nan  # every seed more doubles the number of flips
    sums = np.zeros(1)
    for difference in differences:
        sums = np.concatenate([sums + difference, sums - difference])
    # rounding must not make a flip differ from the same sum in another order
    slack = 1e-12 * np.abs(differences).sum()
    return float(np.mean(np.abs(sums) >= abs(differences.sum()) - slack))
