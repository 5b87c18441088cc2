"""Choose settings from a grid: the best mean of a metric over seeds."""

import itertools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console

from rookery import check
from rookery.clients.population import Population
from rookery.engines.engine import AbstractEngine
from rookery.program.aggregate import Aggregate
from rookery.program.algorithm import AbstractAlgorithm
from rookery.program.delays import Clock
from rookery.runner.best import GOALS
from rookery.runner.metrics import AbstractEvaluation, metric_names
from rookery.runner.run_state import DivergenceWarning, Result, Run
from rookery.runner.sweep import sweep
from rookery.types import Problem, Tree

Setting = dict[str, Any]  # keywords of an algorithm, each of its own type
"""The values at one point of a grid, by name."""


@dataclass(frozen=True)
class Trial:
    """One point of the grid.

    Attributes:
        setting: the values tried, by name.
        values: the last value of the metric for each seed; None where the run diverged.
    """

    setting: Setting
    values: list[float | None]

    @property
    def mean(self) -> float | None:
        """The mean over the seeds; None if a run diverged."""
        finite = [v for v in self.values if v is not None and math.isfinite(v)]
        return fmean(finite) if len(finite) == len(self.values) else None


@dataclass(frozen=True)
class Tuning:
    """All trials of a grid, and the choice.

    >>> trials = [Trial({"lr": 0.1}, [2.0, 3.0]), Trial({"lr": 1.0}, [1.0, None])]
    >>> tuning = Tuning({"lr": [0.1, 1.0]}, "loss", "min", trials)
    >>> tuning.setting, tuning.at_edge  # the other trial diverged for one seed
    ({'lr': 0.1}, ['lr'])

    Attributes:
        grid: the values of every setting.
        metric: the column of the history that decides.
        goal: ``max`` or ``min``.
        trials: every point of the grid with its results.
    """

    grid: Mapping[str, Sequence[object]]
    metric: str
    goal: str
    trials: list[Trial]

    @property
    def best(self) -> Trial:
        """The trial with the best mean; one with a diverged run is never chosen."""
        good = [(trial.mean, trial) for trial in self.trials if trial.mean is not None]
        if not good:
            raise ValueError(
                f"no setting of the grid gave a finite {self.metric}: every one diverged for some "
                "seed. Add smaller step sizes to the grid."
            )
        return (max if self.goal == "max" else min)(good, key=lambda pair: pair[0])[1]

    @property
    def setting(self) -> Setting:
        """The chosen values, by name."""
        return self.best.setting

    @property
    def at_edge(self) -> list[str]:
        """Settings chosen at the end of their range: a wider grid may do better."""
        return [
            name
            for name, values in self.grid.items()
            if len(numbers := _numbers(values)) == len(values) > 1
            and self.setting[name] in (min(numbers), max(numbers))
        ]


def _numbers(values: Sequence[object]) -> list[int | float]:
    return [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]


def tune(
    make: Callable[..., AbstractAlgorithm],
    grid: Mapping[str, Sequence[object]],
    problem: Problem,  # any class of rookery.problem, or the user's own
    population: Population,
    start: tuple[Tree, ...] | Callable[[int], tuple[Tree, ...]],
    *,
    metric: str,
    goal: str,
    rounds: int,
    seeds: Sequence[int] = (0,),
    evaluate: Sequence[AbstractEvaluation],
    seconds: float | None = None,
    engine: AbstractEngine | None = None,
    clock: Clock | None = None,
    aggregate: Aggregate | None = None,
    batch: int = 32,
    console: Console | None = None,
) -> Tuning:
    """Run every point of a grid with every seed, and choose the best mean of a metric.

    Points that differ only in numbers share one compiled program, as in :func:`rookery.sweep`.

    >>> import rookery as rk
    >>> zoo = rk.zoo.scalar_bilevel()
    >>> best = zoo.solution()[0][0]
    >>> tuning = rk.tune(
    ...     lambda outer_lr: rk.FedNest(outer_lr=outer_lr, inner_lr=0.3),
    ...     {"outer_lr": [0.01, 0.2]},
    ...     zoo.problem,
    ...     rk.Population.stacked(zoo.data),
    ...     zoo.start,
    ...     metric="error",
    ...     goal="min",
    ...     rounds=10,
    ...     evaluate=[rk.metrics.OfSolution(lambda x, y: {"error": abs(x[0] - best)})],
    ... )
    >>> tuning.setting, tuning.at_edge
    ({'outer_lr': 0.2}, ['outer_lr'])

    Args:
        make: returns the algorithm for one point: called with the grid's names as keywords.
        grid: the values to try, by name; all combinations are run.
        problem: the problem to solve.
        population: the clients and their data.
        start: initial values, or a function of the seed that returns them.
        metric: name of the number that decides; its value at the end of each run counts.
        goal: ``max`` or ``min``.
        rounds: number of rounds of each run.
        seeds: seeds to average over.
        evaluate: evaluations, among them the one that measures ``metric``.
        seconds: budget of virtual seconds of each run, as in :func:`rookery.run`.
        engine: where to run; :class:`Compiled` if None.
        clock: the clients' delays; none if None.
        aggregate: replaces the weighted mean of the clients' replies.
        batch: the most runs in one compiled program.
        console: where to show progress; None shows nothing.
    """
    check.one_of("goal", goal, GOALS)
    if not seeds:
        raise ValueError("seeds is empty; name at least one, as in seeds=(0, 1, 2).")
    start_of = start if callable(start) else lambda _: start
    first = start_of(seeds[0])
    problem.check(first, population.example)
    measured = metric_names(evaluate, jax.tree.map(jnp.asarray, first), population)
    check.one_of("metric", metric, measured)
    points = grid_points(grid)
    runs = [
        Run(
            make(**point),
            start_of(seed),
            seed,
            title=", ".join(f"{k}={v}" for k, v in point.items()),
        )
        for point in points
        for seed in seeds
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergenceWarning)  # the trials tell
        results = sweep(
            runs, problem, population, rounds=rounds, seconds=seconds, evaluate=evaluate,
            evaluate_every=rounds, engine=engine, clock=clock, aggregate=aggregate, batch=batch,
            console=console, guard=None,
        )  # fmt: skip
    per_point = [results[i : i + len(seeds)] for i in range(0, len(results), len(seeds))]
    trials = [trial(point, own, metric) for point, own in zip(points, per_point, strict=True)]
    return Tuning(grid, metric, goal, trials)


def grid_points(grid: Mapping[str, Sequence[object]]) -> list[Setting]:
    """All combinations of the values of a grid.

    >>> grid_points({"a": [1, 2], "b": [3]})
    [{'a': 1, 'b': 3}, {'a': 2, 'b': 3}]
    """
    for name, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not len(values):
            raise ValueError(f"grid: {name} must be a list of values, got {values!r}.")
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def trial(setting: Setting, results: Sequence[Result], metric: str) -> Trial:
    """The trial of one setting, from its runs, one per seed."""
    values = [None if r.status == "diverged" else r.history.last(metric) for r in results]
    return Trial(setting, values)
