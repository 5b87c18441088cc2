"""Results: read them from run directories, join them, write them as numbers, picture and page."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from rookery.report.comparison import Comparison, Curve
from rookery.report.curves import plot
from rookery.report.page import write_page
from rookery.report.work import has_work, plot_work
from rookery.runner.history import History, HistoryFile, replace_file, to_json
from rookery.runner.run_record import read_config


def read_runs(directories: Iterable[Path], console: Console | None = None) -> Comparison:
    """A comparison out of run directories; runs that differ in their seed alone are one curve."""
    found: dict[str, list[tuple[int, History]]] = {}
    settings: dict[str, dict[str, Any]] = {}
    seen: dict[str, str] = {}
    diaries: dict[str, tuple[int, dict[str, Any]]] = {}
    for directory in directories:
        inside = sorted(p.parent for p in directory.rglob("config.json"))
        if not inside:
            raise ValueError(f"{directory} holds no run: there is no config.json in it.")
        for path in inside:
            content = read_config(path)
            history, broken = HistoryFile(path / "history.jsonl").read()
            if broken and console is not None:
                console.print(f"Warning: {broken}", markup=False)
            if not len(history):
                raise ValueError(f"{path} holds no measurements; run it first.")
            run = content["run"]
            common = {k: v for k, v in run.items() if k not in ("seed", "start")}
            name = _curve_name(content["title"], common, settings)
            settings[name] = common
            found.setdefault(name, []).append((run["seed"], history))
            seen.update(content["versions"])
            diary = path / "diary.json"
            if diary.exists() and run["seed"] <= diaries.get(name, (run["seed"],))[0]:
                diaries[name] = run["seed"], json.loads(diary.read_text(encoding="utf-8"))
    curves = []
    for name, runs in found.items():
        runs.sort(key=lambda r: r[0])
        seeds, histories = zip(*runs, strict=True)
        diary = diaries[name][1] if name in diaries else {}
        curves.append(Curve(name, list(histories), list(seeds), diary))
    return Comparison("Comparison", curves, settings, seen)


def _curve_name(title: str, common: dict[str, Any], known: Mapping[str, dict[str, Any]]) -> str:
    """The title, with a number if another setting has it already."""
    name, number = title, 1
    while name in known and known[name] != common:
        number += 1
        name = f"{title} ({number})"
    return name


def write_report(comparison: Comparison, out: Path, shown: Mapping[str, Any]) -> tuple[Path, Path]:
    """The page, the picture and the numbers; ``shown`` says which metric against which axes."""
    out.mkdir(parents=True, exist_ok=True)
    metrics = shown.get("metrics", default_metrics(comparison))
    axes = shown.get("axes", ["exchanges", "megabytes"])
    scales = {key: shown[key] for key in ("log_x", "log_y") if key in shown}
    page, picture = out / "report.html", out / "curves.png"
    write_results(comparison, out / "results.json")
    write_page(comparison, page, metric=metrics[0], axis=axes[0])
    plot(comparison, picture, metrics=metrics, axes=axes, **scales)
    if has_work(comparison):
        plot_work(comparison, out / "work.png")
    return page, picture


def default_metrics(comparison: Comparison) -> list[str]:
    """Accuracy if it was measured, else the first metric."""
    return ["accuracy"] if "accuracy" in comparison.metrics else comparison.metrics[:1]


def joined(comparisons: Sequence[Comparison]) -> Comparison:
    """Several comparisons as one; a label that occurs twice is told apart by its title."""
    labels = [curve.name for c in comparisons for curve in c.curves]
    curves, settings = [], {}
    for comparison in comparisons:
        for curve in comparison.curves:
            is_unique = labels.count(curve.name) == 1
            name = curve.name if is_unique else f"{comparison.title}: {curve.name}"
            curves.append(Curve(name, curve.runs, curve.seeds, curve.diaries))
            settings[name] = comparison.settings[curve.name]
    title = " / ".join(dict.fromkeys(c.title for c in comparisons))
    return Comparison(title, curves, settings, comparisons[0].versions)


def _columns(history: History) -> dict[str, list]:
    """By name, the values at all measurements: a quarter of the size of a list of rows."""
    rows = [to_json(row) for row in history]
    return {name: [row.get(name) for row in rows] for name in history.names}


def write_results(comparison: Comparison, path: Path) -> None:
    """All measurements with their settings and versions, as one JSON file to keep."""
    content = {
        "title": comparison.title,
        "claim": comparison.notes,
        "versions": comparison.versions,
        "settings": comparison.settings,
        "curves": {
            curve.name: {
                str(seed): _columns(history)
                for seed, history in zip(curve.seeds, curve.runs, strict=True)
            }
            for curve in comparison.curves
        },
        "diaries": {c.name: c.diaries for c in comparison.curves if c.diaries},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, (json.dumps(content) + "\n").encode())
