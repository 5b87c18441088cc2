"""Choose settings from a grid or from ranges: the best mean of a metric over seeds."""

import math
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

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
from rookery.runner.search import (
    KEEP,
    RUNGS,
    TRIALS,
    SearchPlan,
    Setting,
    Space,
    Trial,
    at_ends,
    chosen,
    finalists,
    has_range,
    search,
)
from rookery.runner.sweep import sweep
from rookery.types import Problem, Tree


@dataclass(frozen=True)
class Tuning:
    """All trials of a search, and the choice.

    >>> trials = [Trial({"lr": 0.1}, [2.0, 3.0]), Trial({"lr": 1.0}, [1.0, None])]
    >>> tuning = Tuning({"lr": [0.1, 1.0]}, "loss", "min", trials)
    >>> tuning.setting, tuning.at_edge  # the other trial diverged for one seed
    ({'lr': 0.1}, ['lr'])

    Attributes:
        grid: the values or the range of every setting, as they were in the end.
        metric: the column of the history that decides.
        goal: ``max`` or ``min``.
        trials: every setting that was tried, with its results.
        widened: the settings whose range was widened, once for each time.
    """

    grid: Space
    metric: str
    goal: str
    trials: list[Trial]
    widened: list[str] = field(default_factory=list)

    @property
    def best(self) -> Trial:
        """The trial with the best mean; one with a diverged run is never chosen.

        Only trials that ran to the end, with the seeds that confirm, can be chosen.
        """
        best = chosen(self.trials, self.goal)
        if best is None:
            raise ValueError(
                f"no setting of the grid gave a finite {self.metric}: every one diverged for some "
                "seed. Add smaller step sizes to the grid."
            )
        return best

    @property
    def setting(self) -> Setting:
        """The chosen values, by name."""
        return self.best.setting

    @property
    def regret(self) -> float | None:
        """By how much the choice is worse than the best trial on the unseen metric.

        None if no such metric was recorded, or if the choice diverged on it.

        >>> chosen = Trial({"lr": 0.1}, [0.75], unseen=[0.5])
        >>> other = Trial({"lr": 1.0}, [0.7], unseen=[0.75])
        >>> Tuning({"lr": [0.1, 1.0]}, "holdout", "max", [chosen, other]).regret
        0.25
        """
        here = self.best.mean_unseen
        all_means = [one.mean_unseen for one in finalists(self.trials)]
        means = [mean for mean in all_means if mean is not None]
        if here is None:
            return None
        return max(means) - here if self.goal == "max" else here - min(means)

    @property
    def at_edge(self) -> list[str]:
        """Settings chosen at the end of their range: a wider grid may do better."""
        return list(dict(at_ends(self.grid, self.setting)))


def tune(
    make: Callable[..., AbstractAlgorithm],
    grid: Space,
    problem: Problem,  # any class of rookery.problem, or the user's own
    population: Population,
    start: tuple[Tree, ...] | Callable[[int], tuple[Tree, ...]],
    *,
    metric: str,
    goal: str,
    rounds: int,
    seeds: Sequence[int] = (0,),
    confirm: Sequence[int] = (),
    trials: int | None = None,
    extend: int = 0,
    sampler: str = "halton",
    evaluate: Sequence[AbstractEvaluation],
    evaluate_every: int = 10,
    seconds: float | None = None,
    engine: AbstractEngine | None = None,
    clock: Clock | None = None,
    aggregate: Aggregate | None = None,
    batch: int = 32,
    console: Console | None = None,
) -> Tuning:
    """Run every point of a grid, or search ranges, and choose the best mean of a metric.

    Settings that differ only in numbers share one compiled program, as in :func:`rookery.sweep`. If
    the grid has a range, settings are drawn from it and searched by successive halving: 27 of them
    run for a ninth of the rounds, the best third of these for a third, and three to the end.

    The trials of a private algorithm read the clients' data too, and no epsilon counts them: tune
    on public data, or add up the epsilons of all trials.

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
        grid: by name, the values to try, or a range as ``{"low": 0.001, "high": 10.0}``, searched
            by its logarithm. Without a range all combinations are run.
        problem: the problem to solve.
        population: the clients and their data.
        start: initial values, or a function of the seed that returns them.
        metric: name of the number that decides; its value at the end of each run counts.
        goal: ``max`` or ``min``.
        rounds: number of rounds of each run.
        seeds: seeds to average over.
        confirm: further seeds, with which the three best settings run before one is chosen.
        trials: how many settings of a range are begun; None means 27.
        extend: how often a choice at the end of its range or grid widens it: a range by a decade, a
            grid by the ratio of its last two values; a grid of lists is never widened.
        sampler: for ranges: ``halton`` spreads the settings evenly, ``optuna`` proposes them from
            the results so far (extra ``tune``).
        evaluate: evaluations, among them the one that measures ``metric``.
        evaluate_every: rounds between evaluations of a run with a budget of ``seconds``, which ends
            at the last one within it; other runs are measured at the end.
        seconds: budget of virtual seconds of each run, as in :func:`rookery.run`.
        engine: where to run; :class:`Compiled` if None.
        clock: the clients' delays; none if None.
        aggregate: replaces the weighted mean of the clients' replies.
        batch: the most runs in one compiled program.
        console: where to show progress; None shows nothing.
    """
    check.one_of("goal", goal, GOALS)
    plan = SearchPlan(seeds, confirm, trials, extend, sampler)
    start_of = start if callable(start) else lambda _: start
    first = start_of(seeds[0])
    problem.check(first, population.example)
    measured = metric_names(evaluate, jax.tree.map(jnp.asarray, first), population)
    check.one_of("metric", metric, measured)

    def measure(
        settings: Mapping[int, Setting], seeds: Sequence[int], share: float
    ) -> list[list[float | None]]:
        runs = [
            Run(
                make(**point),
                start_of(seed),
                seed,
                None if directory is None else Path(directory) / str(number) / str(seed),
                title=", ".join(f"{k}={v}" for k, v in point.items()),
            )
            for number, point in settings.items()
            for seed in seeds
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DivergenceWarning)  # the trials tell
            results = sweep(
                runs, problem, population, rounds=math.ceil(rounds * share),
                seconds=None if seconds is None else seconds * share, evaluate=evaluate,
                evaluate_every=every, engine=engine, clock=clock, aggregate=aggregate,
                batch=width, console=console, guard=None,
            )  # fmt: skip
        n = len(seeds)
        return [last_values(results[i : i + n], metric) for i in range(0, len(results), n)]

    if not has_range(grid):
        directory, every, width = None, rounds if seconds is None else evaluate_every, batch
        found = search(grid, goal, measure, plan)
    else:  # in directories, a run of one rung continues in the next
        every = math.ceil(rounds / KEEP ** (RUNGS - 1)) if seconds is None else evaluate_every
        width = min(batch, math.ceil((trials or TRIALS) / KEEP))  # of the first two rungs
        with tempfile.TemporaryDirectory() as directory:
            found = search(grid, goal, measure, plan)
    return Tuning(found.space, metric, goal, found.trials, found.widened)


def last_values(results: Sequence[Result], metric: str) -> list[float | None]:
    """The last value of the metric of each run; None where a run diverged."""
    return [None if r.status == "diverged" else r.history.last(metric) for r in results]
