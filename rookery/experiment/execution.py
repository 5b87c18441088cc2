"""Run the curves of an experiment, or choose their settings from a grid."""

import itertools
import json
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from rich.console import Console

from rookery import check
from rookery.engines.compiled import programs_compiled
from rookery.experiment.config import (
    CurveSettings,
    Experiment,
    Table,
    tuning_grid,
    tuning_plan,
)
from rookery.experiment.registry import make_stop_rules
from rookery.experiment.task_loader import TaskLoader
from rookery.experiment.tuning_file import (
    digest,
    read_tuning,
    trial_run,
    tuning_for_report,
    tuning_path,
)
from rookery.report.comparison import Comparison, Curve, Holdings, Trace
from rookery.report.read import longest_run
from rookery.report.write import FILES as REPORT_FILES
from rookery.runner.atomic_file import replace_file
from rookery.runner.best import Goal
from rookery.runner.documents import read_document
from rookery.runner.guard import Guard
from rookery.runner.history import to_json
from rookery.runner.metrics import metric_goals, metric_names
from rookery.runner.run_record import versions
from rookery.runner.run_state import DivergenceWarning, Result, RollBackWarning, Run
from rookery.runner.search import search
from rookery.runner.sweep import sweep
from rookery.runner.tune import Tuning, last_values

LABELS = "labels"
"""The field with the labels in data sets of rookery."""
MOST_HOLDERS = 100
"""Of how many clients a report lists the labels."""


def run_experiment(
    experiment: Experiment,
    out: Path,
    loader: TaskLoader,
    *,
    overwrite: bool = False,
    console: Console | None = None,
) -> Comparison:
    """Run every curve with every seed.

    Args:
        experiment: curves, seeds and rounds.
        out: folder for the run directories.
        loader: builds the tasks; experiments with one loader share their data.
        overwrite: discard the runs that ``out`` holds.
        console: where to show progress.
    """
    compiled_before = programs_compiled()
    with experiment.in_precision():
        results = run_curves(
            experiment.curves, experiment.run, experiment.seeds, loader,
            metrics=experiment.plot.get("metrics", []), out=out, overwrite=overwrite,
            console=console, guard=experiment.guard,
        )  # fmt: skip
    if console is not None:
        n_runs, n_programs = sum(map(len, results.values())), programs_compiled() - compiled_before
        console.print(f"Runs: {n_runs}. Programs compiled for them: {n_programs}.", highlight=False)
    return Comparison(
        title=experiment.title,
        curves=[curve_of_results(label, own, experiment.seeds) for label, own in results.items()],
        settings={c.label: {**c.tables, "run": experiment.run} for c in experiment.curves},
        versions=versions(),
        notes=" ".join(filter(None, [experiment.claim, rollback_notes(results)])),
        tuning=_tuning_of(experiment),
        goals=_goals_of(experiment, loader),
        holdings=_holdings_of(experiment, loader),
        wall_seconds=longest_run([out]),
    )


def _goals_of(experiment: Experiment, loader: TaskLoader) -> dict[str, Goal]:
    """Which way the metrics of all curves are better, as far as their evaluations know."""
    with experiment.in_precision():
        evaluations = [one for curve in experiment.curves for one in loader.load(curve).evaluate]
    return {name: goal for one in evaluations for name, goal in one.goals().items()}


def _holdings_of(experiment: Experiment, loader: TaskLoader) -> Holdings | None:
    """Who holds what, if the curves share one population in memory whose rows have labels."""
    if len({curve.task_key for curve in experiment.curves}) > 1:
        return None
    with experiment.in_precision():
        population = loader.load(experiment.curves[0]).population
    labels = population.data.get(LABELS) if isinstance(population.data, Mapping) else None
    if population.is_on_disk or labels is None or labels.ndim != 1 or labels.dtype.kind not in "iu":
        return None
    described = replace(population, data={LABELS: labels}).describe(LABELS)  # inputs are not read
    counts = dict(zip(described.clients, described.labels.tolist(), strict=True))
    shown = dict(itertools.islice(counts.items(), MOST_HOLDERS))
    return {
        "label": described.label,
        "classes": list(described.classes),
        "clients": shown,
        "n_clients": len(counts),
    }


def _tuning_of(experiment: Experiment) -> dict[str, object]:
    """What was tried to choose the settings in use, for the report; empty if nothing was."""
    if experiment.tune is None or not experiment.choices:
        return {}
    source = tuning_path(experiment.path)
    return tuning_for_report(read_tuning(source, f"Run: rookery tune {experiment.path}"))


def rollback_notes(results: Mapping[str, Sequence[Result]]) -> str:
    """Which runs the guard took back, in a sentence for the report; empty if none.

    >>> rollback_notes({"FedNest": []})
    ''
    """
    taken_back = [
        f"{label} seed {one.run.seed} ({len(one.rollbacks)} times, steps times "
        f"{one.step_factor:.3g})"
        for label, own in results.items()
        for one in own
        if one.rollbacks
    ]
    return f"Taken back by the guard: {', '.join(taken_back)}." if taken_back else ""


def curve_of_results(label: str, results: Sequence[Result], seeds: list[int]) -> Curve:
    """A curve for reports, from its runs, one per seed."""
    return Curve(
        label,
        [r.history for r in results],
        seeds,
        cast(Mapping[str, Trace], results[0].async_traces),
        {seed: r.rounds for seed, r in zip(seeds, results, strict=True) if r.status == "diverged"},
        [r.per_client for r in results],
    )


def run_curves(
    curves: Sequence[CurveSettings],
    run: Table,
    seeds: Sequence[int],
    loader: TaskLoader,
    *,
    metrics: Sequence[str],
    out: Path | None = None,
    overwrite: bool = False,
    console: Console | None = None,
    guard: Guard | None = None,
) -> dict[str, list[Result]]:
    """Per label one result per seed. Curves that share task, clock and engine share a sweep.

    ``metrics`` are those that will be shown or compared: a name that no evaluation measures is an
    error before the first round.
    """
    groups: dict[tuple[str, str, str], list[CurveSettings]] = {}
    for curve in curves:
        key = (curve.task_key, str(curve.tables.get("clock")), str(curve.tables.get("engine")))
        groups.setdefault(key, []).append(curve)
    slugs = [slug(curve.label) for curve in curves]
    if out is not None and len(set(slugs)) < len(slugs):
        raise ValueError(
            f"labels must differ in letters or digits, got {[c.label for c in curves]}."
        )
    settings = {key: value for key, value in run.items() if key not in ("seeds", "precision")}
    if "stop" in run:
        settings["stop"] = make_stop_rules(run["stop"], curves[0].folder)
    results: dict[str, list[Result]] = {curve.label: [] for curve in curves}
    for group in groups.values():
        task = loader.load(group[0])
        measured = metric_names(task.evaluate, task.start(0), task.population)
        for metric in metrics:
            check.one_of("metric", metric, measured)
        runs = [
            Run(
                curve.algorithm,
                task.start(seed),
                seed,
                None if out is None else out / slug(curve.label) / f"seed-{seed}",
                curve.label,
            )
            for curve in group
            for seed in seeds
        ]
        with warnings.catch_warnings():
            for shown in (DivergenceWarning, RollBackWarning):  # by console and report
                warnings.simplefilter("ignore", shown)
            done = sweep(
                runs,
                task.problem,
                task.population,
                evaluate=task.evaluate,
                clock=group[0].clock,
                engine=group[0].engine,
                overwrite=overwrite,
                console=console,
                guard=guard,
                **settings,
            )
        for one, result in zip(runs, done, strict=True):
            results[one.title].append(result)
    return results


def goal_of(metric: str, experiment: Experiment, loader: TaskLoader) -> str:
    """Whether a metric of an experiment's first curve has to be ``max`` or ``min``."""
    with experiment.in_precision():
        task = loader.load(experiment.curves[0])
        goals = metric_goals(task.evaluate, task.start(0), task.population)
    goal = goals[check.one_of("metric", metric, goals)]
    if goal is None:
        raise ValueError(f"it is not known whether {metric} should rise: add --goal max or min.")
    return goal


def tune_experiment(
    experiment: Experiment,
    loader: TaskLoader,
    *,
    out: Path | None = None,
    console: Console | None = None,
) -> dict[str, Tuning]:
    """Search the declared grid or ranges for every curve; per label all trials and the choice.

    They are the same for all curves, apart from settings that a curve does not have and that
    ``without`` names. As in :func:`rookery.tune`, the choice has the best mean of the last measured
    values over seeds, and a setting that diverges is never chosen.

    Args:
        experiment: with a table [tune].
        loader: builds the tasks.
        out: folder for the runs; an interrupted search resumes there.
        console: where to show progress.
    """
    declared = experiment.tune
    if declared is None:
        raise ValueError("the experiment declares no grid; add a table [tune].")
    metric, goal, unseen = declared["metric"], declared["goal"], declared.get("unseen")
    metrics = [metric] if unseen is None else [metric, unseen]
    used = trial_run(experiment.run, declared)
    whole = used | {k: v for k, v in experiment.run.items() if k == "checkpoint_every"}
    plan = tuning_plan(declared, experiment.seeds)
    tunings = {}
    for curve in experiment.curves:
        space = tuning_grid(declared, curve.label)
        folder = None
        if out is not None:
            folder = out / digest({curve.label: curve.tables}, {**declared, "run": used})
        memo = Memo(None if folder is None else folder / "measured.json")
        if console is not None and len(memo):
            console.print(
                f"{curve.label}: {folder} holds {len(memo)} results; remove it to measure again.",
                markup=False,
            )

        def measure(settings, seeds, share, curve=curve, folder=folder, memo=memo):
            run = whole if share == 1 else _shortened(whole, share)
            tried = {
                number: curve.changed(point, f"{curve.label}, setting {number}")
                for number, point in settings.items()
                if not memo.knows(number, seeds, share)
            }
            if tried:
                results = run_curves(
                    list(tried.values()), run, seeds, loader, metrics=metrics, out=folder,
                    console=console,
                )  # fmt: skip
                for number, one in tried.items():
                    for name in reversed(metrics):  # the one that Memo.knows of comes last
                        values = last_values(results[one.label], name)
                        memo.add(number, seeds, share, values, name if name == unseen else "")
            return [memo.get(number, seeds, share) for number in settings]

        with experiment.in_precision():
            found = search(space, goal, measure, plan)
        trials = found.trials
        if unseen is not None:
            seeds = [*plan.seeds, *plan.confirm]
            trials = [
                replace(t, unseen=memo.get(number, seeds[: len(t.values)], t.share, unseen))
                for number, t in enumerate(trials)
            ]
        tunings[curve.label] = Tuning(found.space, metric, goal, trials, found.widened)
        if all(one.mean is None for one in found.trials):
            raise ValueError(
                f"{curve.label!r}: every setting of the grid diverged. Add smaller step sizes to "
                "[tune.grid]."
            )
    return tunings


class Memo:
    """What a search has measured, in a file, so that an interrupted search can resume.

    >>> memo = Memo(None)
    >>> memo.add(7, [0, 1], 1.0, [0.5, None])
    >>> memo.knows(7, [0], 1.0), memo.knows(7, [2], 1.0), memo.get(7, [1, 0], 1.0)
    (True, False, [None, 0.5])

    Args:
        path: the file; None keeps nothing.
    """

    def __init__(self, path: Path | None):
        self._path = path
        self._values: dict[str, float | None] = {}
        if path is not None and path.exists():
            remedy = "Remove it; what is lost is measured again."
            self._values = read_document(path, dict[str, float | None], remedy)

    def __len__(self) -> int:
        """How many values there are."""
        return len(self._values)

    def knows(self, number: int, seeds: Sequence[int], share: float) -> bool:
        """Whether a setting was measured with these seeds after a share of the rounds."""
        return all(self._key(number, seed, share) in self._values for seed in seeds)

    def add(
        self,
        number: int,
        seeds: Sequence[int],
        share: float,
        values: Sequence[float | None],
        metric: str = "",
    ) -> None:
        """Keep the values of a setting, one per seed; of another metric by its name."""
        for seed, value in zip(seeds, values, strict=True):
            self._values[self._key(number, seed, share, metric)] = value
        if self._path is not None:
            replace_file(self._path, json.dumps(to_json(self._values)).encode())

    def get(
        self, number: int, seeds: Sequence[int], share: float, metric: str = ""
    ) -> list[float | None]:
        """The values of a setting, one per seed; of another metric by its name."""
        return [self._values[self._key(number, seed, share, metric)] for seed in seeds]

    @staticmethod
    def _key(number: int, seed: int, share: float, metric: str = "") -> str:
        other = f", {metric}" if metric else ""
        return f"setting {number}, seed {seed}, share {share:.4g}{other}"


def _shortened(run: Table, share: float) -> Table:
    """The same run for a share of its rounds and seconds."""
    shorter = {**run, "rounds": math.ceil(run["rounds"] * share)}
    if "seconds" in run:
        shorter["seconds"] = run["seconds"] * share
    return shorter


def slug(label: str) -> str:
    """A label as a folder's name; never ``..``, which is another folder.

    >>> slug("FedNest, outer_lr=0.1")
    'FedNest-outer_lr=0.1'
    """
    name = re.sub(r"[^\w.=]+", "-", label).strip("-")
    if not re.search(r"\w", name):
        raise ValueError(f"a curve's label needs a letter or a digit, got {label!r}. Rename it.")
    if name in REPORT_FILES:
        raise ValueError(f"a curve cannot be called {label!r}, as a file of the report. Rename it.")
    return name
