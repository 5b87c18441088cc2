"""Run the curves of an experiment, or choose their settings from a grid."""

import json
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from rich.console import Console

from rookery import check
from rookery.engines.compiled import programs_compiled
from rookery.experiment.config import CurveSettings, Experiment, Table, tuning_grid
from rookery.experiment.registry import make_stop_rules
from rookery.experiment.task_loader import TaskLoader
from rookery.report.comparison import Comparison, Curve, Trace
from rookery.runner.guard import Guard
from rookery.runner.metrics import metric_names
from rookery.runner.run_record import versions
from rookery.runner.run_state import DivergenceWarning, Result, RollBackWarning, Run
from rookery.runner.sweep import sweep
from rookery.runner.tune import Tuning, grid_points, trial


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
    )


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
    if out is not None and (len(set(slugs)) < len(slugs) or "" in slugs):
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


def tune_experiment(
    experiment: Experiment, loader: TaskLoader, *, console: Console | None = None
) -> dict[str, Tuning]:
    """Run the declared grid for every curve; per label all trials and the choice.

    The grid is the same for all curves, apart from settings that a curve does not have and that
    ``without`` names. As in :func:`rookery.tune`, the choice has the best mean of the last measured
    values over seeds, and a setting that diverges is never chosen.
    """
    declared = experiment.tune
    if declared is None:
        raise ValueError("the experiment declares no grid; add a table [tune].")
    metric, seeds = declared["metric"], declared.get("seeds", experiment.seeds)
    run = {**experiment.run, **{k: declared[k] for k in ("rounds", "seconds") if k in declared}}
    candidates = {
        curve.label: [
            curve.changed(point, f"{curve.label} | {json.dumps(point)}")
            for point in grid_points(tuning_grid(declared, curve.label))
        ]
        for curve in experiment.curves
    }
    with experiment.in_precision():
        results = run_curves(
            [one for tried in candidates.values() for one in tried],
            run,
            seeds,
            loader,
            metrics=[metric],
            console=console,
        )
    tunings = {}
    for label, tried in candidates.items():
        grid = tuning_grid(declared, label)
        trials = [
            trial(point, results[curve.label], metric)
            for point, curve in zip(grid_points(grid), tried, strict=True)
        ]
        tunings[label] = Tuning(grid, metric, declared["goal"], trials)
        if all(one.mean is None for one in trials):
            raise ValueError(
                f"{label!r}: every setting of the grid diverged. Add smaller step sizes to "
                "[tune.grid]."
            )
    return tunings


def slug(label: str) -> str:
    """A label as a folder's name.

    >>> slug("FedNest, outer_lr=0.1")
    'FedNest-outer_lr=0.1'
    """
    return re.sub(r"[^\w.=]+", "-", label).strip("-")
