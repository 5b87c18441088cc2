"""Examine runs of an experiment: the doctor with the experiment's own tasks."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import jax

from rookery.doctor.diagnosis import Diagnosis, diagnose
from rookery.experiment.config import CURVE_TABLES, CurveSettings, build_curve, load
from rookery.experiment.task_loader import TaskLoader
from rookery.report.read import read_results, run_directories
from rookery.runner.run_record import read_config


def examine(
    runs: Sequence[Path],
    loader: TaskLoader,
    experiment: Path | None = None,
    overrides: Sequence[str] = (),
) -> Iterator[Diagnosis]:
    """Examine run directories, or folders of them, one after another.

    Args:
        runs: the directories.
        loader: builds the tasks.
        experiment: the file that they were run with; None takes the settings from the report that
            lies in a folder above.
        overrides: settings that replaced the file's.
    """
    declared: dict[str, CurveSettings] = {}
    if experiment is not None:
        loaded = load(experiment, overrides, "if made")
        declared = {curve.label: curve for curve in loaded.curves}
    elif overrides:
        raise ValueError("settings replace those of a file: name it with --experiment.")
    for directory in run_directories(runs):
        written = read_config(directory)
        title, run = written["title"], written["run"]
        curve = declared.get(title) if declared else _curve_above(directory, title)
        if curve is None:
            known = f"; the file has {', '.join(declared)}" if declared else ""
            raise ValueError(
                f"{directory} is a run of {title!r}, and no settings of that name were found"
                f"{known}. Name the experiment file with --experiment."
            )
        with jax.enable_x64(run["float"] == "float64"):
            task = loader.load(curve)
            yield diagnose(
                directory, curve.algorithm, task.problem, task.population, task.start(run["seed"])
            )


def _curve_above(directory: Path, title: str) -> CurveSettings | None:
    """The curve of a run, from the results of its experiment in a folder above."""
    for folder in list(directory.resolve().parents)[:3]:
        tables = read_results(folder).get("settings", {}).get(title)
        if tables is not None and "task" in tables and "algorithm" in tables:
            return build_curve(title, {k: v for k, v in tables.items() if k in CURVE_TABLES})
    return None
