"""The researcher's desk: run the curves of an experiment, tune them, compare, report."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import equinox as eqx
import jax
import numpy as np
from rich.console import Console

from rookery import check
from rookery.engines.compiled import Compiled, programs_compiled
from rookery.engines.engine import Program
from rookery.experiment import config
from rookery.program.aggregate import Mean
from rookery.program.algorithm import first_state
from rookery.program.ledger import Ledger
from rookery.report.comparison import Comparison, Curve, Trace
from rookery.runner.history import replace_file, to_json
from rookery.runner.run_record import versions
from rookery.runner.run_state import Result, Run
from rookery.runner.sweep import sweep
from rookery.tasks.task import Task


def run_experiment(
    experiment: config.Experiment,
    out: Path,
    *,
    data: Path | None = None,
    overwrite: bool = False,
    console: Console | None = None,
) -> Comparison:
    """Run every curve with every seed, curves of one structure side by side."""
    curves = tuned(experiment)
    compiled_before = programs_compiled()
    with experiment.in_precision():
        results = _run_curves(
            curves, experiment.run, experiment.seeds, experiment.plot.get("metrics", []),
            data=data, out=out, overwrite=overwrite, console=console,
        )  # fmt: skip
    if console is not None:
        n_runs, n_programs = sum(map(len, results.values())), programs_compiled() - compiled_before
        console.print(f"Runs: {n_runs}. Programs compiled for them: {n_programs}.", highlight=False)
    return Comparison(
        title=experiment.title,
        curves=[_curve(c.label, results[c.label], experiment.seeds) for c in curves],
        settings={c.label: {**c.tables, "run": experiment.run} for c in curves},
        versions=versions(),
        notes=experiment.claim,
    )


def _curve(label: str, results: Sequence[Result], seeds: list[int]) -> Curve:
    return Curve(
        label,
        [r.history for r in results],
        seeds,
        cast(Mapping[str, Trace], results[0].async_traces),
        {seed: r.rounds for seed, r in zip(seeds, results, strict=True) if r.status == "diverged"},
        [r.per_client for r in results],
    )


def _run_curves(
    curves: Sequence[config.Curve],
    run: Mapping[str, Any],
    seeds: Sequence[int],
    metrics: Sequence[str],
    *,
    data: Path | None,
    out: Path | None,
    overwrite: bool,
    console: Console | None,
) -> dict[str, list[Result]]:
    """Per label one result per seed. Curves that share task, clock and engine share a sweep.

    The metrics are those that will be asked for: a name that is not measured is found out now.
    """
    groups: dict[Any, list[config.Curve]] = {}
    for curve in curves:
        key = (curve.needs(), str(curve.tables.get("clock")), str(curve.tables.get("engine")))
        groups.setdefault(key, []).append(curve)
    slugs = [slug(curve.label) for curve in curves]
    if out is not None and (len(set(slugs)) < len(slugs) or "" in slugs):
        raise ValueError(
            f"labels must differ in letters or digits, got {[c.label for c in curves]}."
        )
    settings = {key: value for key, value in run.items() if key not in ("seeds", "precision")}
    results: dict[str, list[Result]] = {}
    for group in groups.values():
        task = group[0].task(data)
        for metric in metrics:
            check.one_of("metric", metric, measured(task))
        jobs = [
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
        done = sweep(
            jobs,
            task.problem,
            task.population,
            evaluate=task.evaluate,
            clock=group[0].clock,
            engine=group[0].engine,
            overwrite=overwrite,
            console=console,
            **settings,
        )
        for job, result in zip(jobs, done, strict=True):
            results.setdefault(job.title, []).append(result)
    return results


def measured(task: Task) -> list[str]:
    """The names of all that a run of the task measures."""
    arguments = (task.start(0), task.population, jax.random.key(0))
    return [name for e in task.evaluate for name in eqx.filter_eval_shape(e, *arguments)]


def slug(label: str) -> str:
    """A label as a folder's name."""
    return re.sub(r"[^\w.=]+", "-", label).strip("-")


# ---- costs before running


def cost_of_rounds(curve: config.Curve, rounds: int = 20) -> list[Ledger]:
    """What rounds cost in exchanges and bytes, by running them on rows of zeros."""
    task = curve.task(is_blank=True)
    curve.algorithm.check(task.problem, task.population.n_clients)
    start = jax.tree.map(np.asarray, task.start(0))
    program = Program(task.problem, task.population, curve.clock, Mean())
    runner = Compiled().prepare(program, [curve.algorithm])
    state = first_state(curve.algorithm, task.problem, task.population.n_clients, start)
    (progress,) = runner.advance([state], [jax.random.key(0)], 0, [rounds])
    return progress.ledgers


# ---- tuning


def tune(
    experiment: config.Experiment, *, data: Path | None = None, console: Console | None = None
) -> dict[str, Any]:
    """Run the declared grid for every curve and choose by the declared criterion.

    The grid is the same for all curves, apart from settings that a curve does not have and that
    ``without`` names. The choice is the setting with the best mean of the last
    measured values over seeds; one that diverges is never chosen.
    """
    declared = experiment.tune
    if declared is None:
        raise ValueError("the experiment declares no grid; add a table [tune].")
    metric, goal = declared["metric"], declared["goal"]
    seeds = declared.get("seeds", experiment.seeds)
    run = {**experiment.run, **{k: declared[k] for k in ("rounds", "seconds") if k in declared}}
    candidates = []
    for curve in experiment.curves:
        for point in config.tuning_grid(declared, curve.label):
            one = config.override(curve, point)
            label = f"{curve.label} | {json.dumps(point)}"
            candidates.append(config.curve(label, one.tables))
    with experiment.in_precision():
        results = _run_curves(
            candidates, run, seeds, [metric], data=data, out=None, overwrite=False, console=console
        )
    made_for = _digest([{c.label: c.tables for c in experiment.curves}, experiment.run])
    report: dict[str, Any] = {"declared": declared, "for": made_for, "curves": {}}
    for curve in experiment.curves:
        tried = []
        for point in config.tuning_grid(declared, curve.label):
            runs = results[f"{curve.label} | {json.dumps(point)}"]
            values = [r.history.last(metric) if r.status == "finished" else None for r in runs]
            mean = None if None in values else fmean(v for v in values if v is not None)
            tried.append({"setting": point, "values": values, "mean": mean})
        good = [t for t in tried if t["mean"] is not None and np.isfinite(t["mean"])]
        if not good:
            raise ValueError(
                f"every setting of {curve.label!r} diverged; widen the grid downwards."
            )
        best = (max if goal == "max" else min)(good, key=lambda t: t["mean"])
        report["curves"][curve.label] = {"choice": best["setting"], "tried": tried}
    return report


def _digest(curves_and_run: list) -> str:
    """Of everything that the choice depends on, apart from the grid itself."""
    content = json.dumps(curves_and_run, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def tuning_path(experiment: config.Experiment) -> Path:
    """Where the choice is kept, beside the experiment's file."""
    if experiment.path is None:
        raise ValueError("only an experiment in a file can be tuned.")
    return experiment.path.with_suffix(".tuning.json")


def write_tuning(experiment: config.Experiment, report: Mapping[str, Any]) -> Path:
    """Keep the grid, all its values and the choice."""
    path = tuning_path(experiment)
    replace_file(path, (json.dumps(to_json(report), indent=1) + "\n").encode())
    return path


def tuned(experiment: config.Experiment) -> list[config.Curve]:
    """The curves with the chosen settings, if the experiment declares a grid."""
    if experiment.tune is None:
        return experiment.curves
    path = tuning_path(experiment)
    if not path.exists():
        raise FileNotFoundError(
            f"{experiment.path} declares a grid but {path.name} is not there. "
            f"Choose the settings first: rookery tune {experiment.path}"
        )
    chosen = json.loads(path.read_text(encoding="utf-8"))
    if chosen["declared"] != json.loads(json.dumps(experiment.tune)):
        raise ValueError(f"{path} was made for another grid. Run: rookery tune {experiment.path}")
    if chosen["for"] != _digest(experiment.declared):
        raise ValueError(f"{path} was made for other settings. Run: rookery tune {experiment.path}")
    # what the user says on the command line goes over what was chosen
    changes = (config.parse_override(text) for text in experiment.overrides)
    said = {".".join(keys): value for keys, value in changes if keys[0] != "run"}
    curves = []
    for curve in experiment.curves:
        if curve.label not in chosen["curves"]:
            raise ValueError(
                f"{path} does not know the curve {curve.label!r}. "
                f"Run: rookery tune {experiment.path}"
            )
        settings = {**chosen["curves"][curve.label]["choice"], **said}
        curves.append(config.override(curve, settings))
    return curves


def varied(experiment: config.Experiment, text: str) -> config.Experiment:
    """Every curve once for each value of one setting, ``table.key=[value, ...]``."""
    keys, values = config.parse_override(text)
    if not isinstance(values, list) or not values:
        raise ValueError(
            f"--vary wants a list of values, as algorithm.outer_lr=[0.01,0.02]: {text}"
        )
    curves = []
    for curve in tuned(experiment):
        for value in values:
            one = config.override(curve, {".".join(keys): value})
            curves.append(config.curve(f"{curve.label}, {keys[-1]}={value}", one.tables))
    return replace(experiment, curves=curves, tune=None)
