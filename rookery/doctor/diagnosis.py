"""Examines the directory of a run: what was measured at its checkpoints, and what it means."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from rookery.clients.population import Population
from rookery.doctor.settings_of import Settings, settings_of
from rookery.doctor.verdicts import Verdict, verdicts_of, verdicts_of_record
from rookery.doctor.vitals import Vitals, measure
from rookery.doctor.wording import sentences
from rookery.problem.bilevel import Bilevel
from rookery.problem.single_level import SingleLevel
from rookery.program.algorithm import AbstractAlgorithm, first_state
from rookery.program.step_sizes import scale_steps
from rookery.runner.atomic_file import replace_file
from rookery.runner.checkpoint import load_all
from rookery.runner.describe import describe
from rookery.runner.documents import read_summary
from rookery.runner.finite import not_finite_in_state
from rookery.runner.guard import GUARD
from rookery.runner.history import HistoryFile, to_json
from rookery.runner.run_record import read_config
from rookery.types import Problem, Tree

DIAGNOSIS = "diagnosis.json"
"""The file in a run directory that reports read."""


@dataclass(frozen=True)
class Diagnosis:
    """What is wrong with a run, and the measurements behind it.

    :func:`diagnose` makes it. Printed, it has the verdicts first and then the figures:

    >>> at_start = Vitals(round=0, largest=4.0, smallest=0.5, L=5.0, drift=0.02)
    >>> settings = Settings(0.1, "inner_lr", local_steps=1, cohort=4, batch_size=None, series=None)
    >>> print(Diagnosis(Path("runs/a"), [], [at_start], settings, notes=[]))
    runs/a
      Nothing wrong was found.
      round 0: eigenvalues 0.5 to 4, of a client's batch up to 5
      inner_lr times L: 0.5
      client drift: 0.02

    Attributes:
        directory: of the run.
        verdicts: what is wrong, and what to change; empty if nothing was found.
        vitals: measurements at the start and at the checkpoints; the last are complete.
        settings: of the algorithm, that they are compared with.
        notes: what could not be measured, and why.
    """

    directory: Path
    verdicts: list[Verdict]
    vitals: list[Vitals]
    settings: Settings
    notes: list[str]

    def __str__(self) -> str:
        """The verdicts in words, then the figures."""
        lines = [str(self.directory)]
        for one in self.verdicts:
            lines += [f"  {one.name}: {one.finding}", f"    {one.advice}"]
        if not self.verdicts:
            lines.append("  Nothing wrong was found.")
        for v in self.vitals:
            lines.append(
                f"  round {v.round}: eigenvalues {v.smallest:.4g} to {v.largest:.4g}, of a "
                f"client's batch up to {v.L:.4g}"
            )
        for name, value in self.figures().items():
            lines.append(f"  {name}: {value:.4g}")
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])

    def figures(self) -> dict[str, float]:
        """The measurements at the last point, by what they are called in reports."""
        if not self.vitals:
            return {}
        v = self.vitals[-1]
        step = None if self.settings.step is None else self.settings.step * v.L
        figures = {
            f"{self.settings.step_name} times L": step,
            "distance of y from its solution": v.distance if v.v is not None else None,
            "client drift": v.drift,
            "factor between terms of the series": v.hops,
            "error of the series": v.series_error,
            "norm of v": v.v,
            "amplification of v": v.amplification,
            "norm of the direction": v.signal,
            "noise over signal": v.noise,
            "share of clipped steps": self.settings.clipped,
        }
        return {name: value for name, value in figures.items() if value is not None}

    def record(self) -> dict[str, object]:
        """All of it, ready for JSON: what a report shows of a run."""
        return {
            "round": self.vitals[-1].round if self.vitals else None,
            "verdicts": [asdict(one) for one in self.verdicts],
            "sentences": sentences(self.vitals, self.settings),
            "curvature": [
                {"round": v.round, "L": v.L, "largest": v.largest, "smallest": v.smallest}
                for v in self.vitals
            ],
            "figures": self.figures(),
            "notes": self.notes,
        }

    def save(self) -> Path:
        """Write the record into the directory of the run, where reports find it."""
        path = self.directory / DIAGNOSIS
        replace_file(path, (json.dumps(to_json(self.record())) + "\n").encode())
        return path


def diagnose(
    directory: str | Path,
    algorithm: AbstractAlgorithm,
    problem: Problem,
    population: Population,
    start: tuple[Tree, ...],
) -> Diagnosis:
    """Examine a run from its directory and what it was run with.

    >>> import tempfile
    >>> import rookery as rk
    >>> zoo, directory = rk.zoo.quadratic_losses(n_clients=2, size=2), tempfile.mkdtemp()
    >>> what = rk.FedAvg(lr=0.1, local_steps=1), zoo.problem, rk.Population.stacked(zoo.data)
    >>> result = rk.run(*what, zoo.start, rounds=3, directory=directory)
    >>> diagnose(directory, *what, zoo.start).verdicts
    []

    Args:
        directory: of the run.
        algorithm: that was run.
        problem: that it solved. Curvature, noise and drift are measured for bilevel and
            single-level problems; of others the record alone is read.
        population: the clients and their rows.
        start: initial values.
    """
    directory = Path(directory)
    written = read_config(directory)["run"]
    if written["algorithm"] != json.loads(json.dumps(describe(algorithm))):
        raise ValueError(
            f"{directory} holds a run of another algorithm than {algorithm.name} with these "
            "settings. Name the experiment file, and the settings, that it was run with."
        )
    state = first_state(algorithm, problem, population.n_clients, start)
    found, notes = load_all(directory / "checkpoints", state, algorithm.solution(state))
    factor = next((c.guard_state.factor for c in found if c.guard_state is not None), 1.0)
    last = max((c.round for c in found), default=0)
    at_last = next((c.state for c in found if not not_finite_in_state(c.state)), state)
    own = settings_of(scale_steps(algorithm, factor), population.n_clients, last, at_last)
    vitals: list[Vitals] = []
    if not isinstance(problem, Bilevel | SingleLevel):
        notes.append(
            f"Curvature and noise are measured for Bilevel and SingleLevel problems, not for "
            f"{type(problem).__name__}."
        )
    elif population.is_on_disk:
        notes.append("The population is on disk; open it with in_memory() to measure more.")
    else:
        population.check_rows("the doctor")
        points = {0: state} | {c.round: c.state for c in reversed(found)}
        good = {r: s for r, s in points.items() if not not_finite_in_state(s)}
        if len(good) < len(points):
            notes.append("The last state is not finite; the one before it was measured.")
        for round, each in good.items():
            point = algorithm.solution(each)
            is_whole = round == max(good)
            vitals.append(measure(problem, population, point, own, round=round, is_whole=is_whole))
    verdicts = _of_record(directory)
    if vitals:
        verdicts += verdicts_of(vitals[-1], own)
    return Diagnosis(directory, verdicts, vitals, own, notes)


def _of_record(directory: Path) -> list[Verdict]:
    summary = read_summary(directory)
    history, _ = HistoryFile(directory / "history.jsonl").read()
    first = best = last = math.nan
    name = ""
    metric = GUARD.deciding_metric({}, history.rows[0]) if len(history) else None
    if metric is not None:
        name, goal = metric
        scores = history[name] if goal == "max" else -history[name]
        scores = scores[np.isfinite(scores)]
        if len(scores):
            first, best, last = float(scores[0]), float(scores.max()), float(scores[-1])
    return verdicts_of_record(summary, first, best, last, name)
