"""Run directories, or the results of an experiment, read back as a comparison."""

import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import NotRequired, TypedDict

from rich.console import Console

from rookery.report.comparison import Comparison, Curve, Examined, Holdings, Trace, joined
from rookery.report.write import RESULTS, PlotSettings
from rookery.runner.best import Goal
from rookery.runner.documents import read_document, read_summary
from rookery.runner.history import ClientHistory, History, HistoryFile
from rookery.runner.run_record import read_config


class _Plot(TypedDict, total=False):
    metrics: list[str]
    axes: list[str]
    log_x: bool
    log_y: bool
    target: float | None
    higher_is_better: bool | None


class _Entry(TypedDict):
    setting: dict
    mean: float | None
    share: NotRequired[float]
    early: NotRequired[float | None]


class _Tried(TypedDict):
    choice: dict
    tried: list[_Entry]


class _Tuning(TypedDict, total=False):
    metric: str
    goal: str
    curves: dict[str, _Tried]


class _Results(TypedDict, total=False):
    title: str
    claim: str
    versions: dict[str, str]
    plot: _Plot
    curves: dict[str, dict[str, dict[str, list]]]
    settings: dict[str, dict]
    per_client: dict[str, dict[str, list]]
    diverged: dict[str, dict[str, int]]
    traces: dict[str, dict[str, Trace]]
    goals: dict[str, str]
    tuning: _Tuning
    holdings: Holdings


@dataclass
class _Runs:
    """The runs of one setting, found so far."""

    histories: dict[int, History] = field(default_factory=dict)
    diverged: dict[int, int] = field(default_factory=dict)
    traces: dict[int, dict[str, Trace]] = field(default_factory=dict)
    per_client: dict[int, ClientHistory] = field(default_factory=dict)
    examined: dict[int, Examined] = field(default_factory=dict)

    def curve(self, name: str) -> Curve:
        seeds = sorted(self.histories)
        traces = self.traces[min(self.traces)] if self.traces else {}
        return Curve(
            name,
            runs=[self.histories[seed] for seed in seeds],
            seeds=seeds,
            traces=traces,
            diverged=self.diverged,
            per_client=[self.per_client[seed] for seed in seeds],
            examined=self.examined,
        )


def read_runs(directories: Iterable[Path], console: Console | None = None) -> Comparison:
    """Read run directories, at any depth; runs that differ only in their seed form one curve.

    A run without measurements is left out with a warning. Title, claim and the order of curves come
    from the experiment's own results, where the first directory has them; otherwise curves are in
    the order of their directories, numbers in names counting as numbers.
    """
    directories = list(directories)
    found: dict[str, _Runs] = {}
    settings: dict[str, dict[str, object]] = {}
    versions: dict[str, str] = {}
    goals: dict[str, Goal] = {}
    empty: list[Path] = []
    for path in run_directories(directories):
        content = read_config(path)
        history, broken = HistoryFile(path / "history.jsonl").read()
        if broken:
            _warn(console, broken)
        if not len(history):
            empty.append(path)
            continue
        seed = content["run"]["seed"]
        common = {k: v for k, v in content["run"].items() if k not in ("seed", "start")}
        name = _curve_name(content["title"], common, settings)
        settings[name] = common
        versions |= content["versions"]
        goals |= content.get("goals", {})
        runs = found.setdefault(name, _Runs())
        if seed in runs.histories:
            raise ValueError(
                f"{path} is a second run of {name!r} with seed {seed}; name only one of them."
            )
        runs.histories[seed] = history
        clients, broken = HistoryFile(path / "per_client.jsonl").read()
        if broken:
            _warn(console, broken)
        runs.per_client[seed] = ClientHistory(clients.rows)
        summary = read_summary(path)
        if summary.get("status") == "diverged":
            runs.diverged[seed] = summary["rounds"]
        if traces := _read_traces(path / "async_traces.json"):
            runs.traces[seed] = traces
        if os.path.lexists(path / "diagnosis.json"):
            remedy = 'Remove it; "rookery doctor" writes it again.'
            runs.examined[seed] = read_document(path / "diagnosis.json", Examined, remedy)
    if not found:
        raise ValueError(
            f"{', '.join(map(str, empty))}: no measurements yet. Wait for the first evaluation, or "
            "run again."
        )
    for path in empty:
        _warn(console, f"{path} holds no measurements yet; it is left out.")
    results = _results(directories)
    order = {name: i for i, name in enumerate(results.get("curves", {}))}
    names = sorted(found, key=lambda name: order.get(name, len(order)))
    return Comparison(
        title=results.get("title", "Comparison"),
        curves=[found[name].curve(name) for name in names],
        settings=settings,
        versions=versions,
        notes=results.get("claim", ""),
        tuning=results.get("tuning", {}),
        goals=goals,
        holdings=results.get("holdings"),
        wall_seconds=longest_run(directories),
    )


def read_comparison(paths: Iterable[Path], console: Console | None = None) -> Comparison:
    """Read run directories as :func:`read_runs` does, or files of results.

    Args:
        paths: folders of runs; or files that a report or an experiment has written, or folders
            with a ``results.json`` and without runs.
        console: for warnings.
    """
    paths = list(paths)
    files = [file for path in paths if (file := _results_file(path)) is not None]
    if not files:
        return read_runs(paths, console)
    if len(files) < len(paths):
        raise ValueError(
            f"{', '.join(map(str, paths))}: name either runs or files of results, not both."
        )
    found = [_comparison_of(file) for file in files]
    return found[0] if len(found) == 1 else joined(found)


def _results_file(path: Path) -> Path | None:
    """The file of results that a path stands for; None if it stands for runs."""
    if path.is_file():
        return path
    is_alone = (path / RESULTS).is_file() and not any(path.rglob("config.json"))
    return path / RESULTS if is_alone else None


def _comparison_of(file: Path) -> Comparison:
    content = _read_file(file)
    if not content.get("curves"):
        raise ValueError(f"{file} has no curves, so it holds no results of an experiment.")
    return Comparison(
        title=content.get("title", "Comparison"),
        curves=[_curve_of(name, content) for name in content["curves"]],
        settings=content.get("settings", {}),
        versions=content.get("versions", {}),
        notes=content.get("claim", ""),
        tuning=content.get("tuning", {}),
        goals=content.get("goals", {}),
        holdings=content.get("holdings"),
    )


def _curve_of(name: str, content: dict) -> Curve:
    """One curve of the content of a file of results."""
    seeds = content["curves"][name]
    clients = content.get("per_client", {}).get(name, {})
    return Curve(
        name,
        runs=[
            History([dict(zip(run, row, strict=True)) for row in zip(*run.values(), strict=True)])
            for run in seeds.values()
        ],
        seeds=[int(seed) for seed in seeds],
        traces=content.get("traces", {}).get(name, {}),
        diverged={int(k): v for k, v in content.get("diverged", {}).get(name, {}).items()},
        per_client=[ClientHistory(clients[seed]) for seed in seeds] if clients else (),
    )


def read_plot_settings(paths: Iterable[Path], comparison: Comparison) -> PlotSettings:
    """The ``[plot]`` table of the first path's experiment, without metrics it lacks now."""
    table = _results(list(paths)).get("plot", {})
    valid = [each.name for each in fields(PlotSettings)]
    declared = PlotSettings(**{key: value for key, value in table.items() if key in valid})
    return declared.for_metrics([m for m in declared.metrics if m in comparison.metrics])


def _results(paths: list[Path]) -> dict:
    """The results of the first path's experiment; empty if there are none."""
    if not paths:
        return {}
    return _read_file(paths[0]) if paths[0].is_file() else read_results(paths[0])


def read_results(directory: Path) -> dict:
    """The file of results in a folder; empty if there is none.

    >>> read_results(Path("nowhere"))
    {}
    """
    path = directory / RESULTS
    return _read_file(path) if os.path.lexists(path) else {}


def _read_file(path: Path) -> dict:
    return read_document(path, _Results, 'Remove it; "rookery run" writes it again.')


def _read_traces(path: Path) -> dict[str, Trace]:
    if not os.path.lexists(path):
        return {}
    remedy = "Remove it; the command that made the run writes it again."
    traces: dict[str, Trace] = read_document(path, dict[str, Trace], remedy)
    for kind, trace in traces.items():
        jobs = [trace[name] for name in ("client", "began", "ended", "taken", "version", "used_in")]
        if (
            len({len(job) for job in jobs}) > 1
            or bool(trace["received"]) > bool(trace["client"] and sum(trace["staleness"]))
            or not all(math.isfinite(n) for numbers in (*jobs, trace["staleness"]) for n in numbers)
            or min((*trace["client"], *trace["staleness"]), default=0) < 0
        ):
            raise ValueError(f"{path} is damaged: the numbers of {kind} do not agree. {remedy}")
    return traces


def run_directories(directories: Iterable[Path]) -> list[Path]:
    """All run directories in some folders, numbers in names counting as numbers."""
    found = []
    for directory in directories:
        inside = [path.parent for path in directory.rglob("config.json")]
        if not inside:
            raise ValueError(f"{directory} holds no run: there is no config.json in it.")
        found += sorted(inside, key=natural_order)
    return found


def longest_run(directories: Iterable[Path]) -> float | None:
    """The wall time of the longest run in some folders, as the runs have noted it.

    Runs that are computed together take equally long. A resumed run counts from there.

    >>> longest_run([])
    """
    rows = [
        HistoryFile(path / "timing.jsonl").read()[0].rows for path in run_directories(directories)
    ]
    return max((float(own[-1]["wall_seconds"]) for own in rows if own), default=None)


def natural_order(path: Path) -> list[list[str | float]]:
    """A sort key under which numbers in names compare as numbers.

    >>> sorted([Path("lr=10"), Path("lr=9"), Path("lr=0.5")], key=natural_order)[0].name
    'lr=0.5'
    """
    number = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)")
    return [
        [float(piece) if i % 2 else piece for i, piece in enumerate(number.split(part))]
        for part in path.parts
    ]


def _curve_name(
    title: str, common: Mapping[str, object], known: Mapping[str, Mapping[str, object]]
) -> str:
    """The title, numbered if another setting has it already."""
    name, number = title, 1
    while name in known and known[name] != common:
        number += 1
        name = f"{title} ({number})"
    return name


def _warn(console: Console | None, text: str) -> None:
    if console is not None:
        console.print(f"Warning: {text}", markup=False, highlight=False)
