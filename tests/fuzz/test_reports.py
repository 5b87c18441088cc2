"""A report of damaged files shows what can be read, or is refused with a plain error."""

import json
import random
import shutil
from pathlib import Path

import pytest
from mutations import damage_file
from outcome import outcome_of

from rookery.report.comparison import Comparison, Curve
from rookery.report.write import PlotSettings, write_results
from rookery.runner.history import History, HistoryFile
from rookery.runner.run_record import FORMAT

TRACE = {
    "client": [0, 1], "began": [0.0, 0.0], "ended": [1.0, 2.0], "taken": [1.0, 2.0],
    "version": [0, 0], "used_in": [1, 2], "received": 2, "staleness": [1, 1],
}  # fmt: skip
TRIED = [
    {"setting": {"algorithm.lr": lr}, "values": [v], "mean": v, "share": 1.0, "early": v}
    for lr, v in ((0.1, 0.5), (1.0, 0.7), (10.0, None))
]
TUNING = {
    "metric": "loss",
    "goal": "min",
    "curves": {"A": {"choice": {"algorithm.lr": 0.1}, "tried": TRIED}},
}


def rows(scale: float) -> list[dict]:
    costs = ("exchanges", "messages", "bytes_down", "bytes_up", "gradients", "hessian_vectors")
    return [
        {"round": r, **dict.fromkeys(costs, 3 * r), "seconds": 1.5 * r, "loss": scale / (1 + r)}
        for r in (0, 2, 4)
    ]


@pytest.fixture
def folder(tmp_path) -> Path:
    """Runs of two curves with two seeds, with everything that a report reads."""
    curves = []
    for name in ("A", "B"):
        for seed in (0, 1):
            own = tmp_path / "whole" / name / f"seed-{seed}"
            own.mkdir(parents=True)
            run = {"algorithm": {"name": name, "lr": 0.1}, "seed": seed, "float": "float32"}
            document = {"format": FORMAT, "title": name, "run": run, "versions": {"jax": "1"}}
            (own / "config.json").write_text(json.dumps(document))
            HistoryFile(own / "history.jsonl").rewrite(rows(1 + seed))
            clients = {"round": 4, "metric": "loss", "clients": {"Lund": 0.5, "Oslo": None}}
            HistoryFile(own / "per_client.jsonl").rewrite([clients])
            status = "diverged" if seed else "finished"
            summary = {"status": status, "rounds": 4, "message": ""}
            (own / "summary.json").write_text(json.dumps(summary))
            (own / "async_traces.json").write_text(json.dumps({"inner": TRACE}))
        curves.append(Curve(name, [History(rows(1 + seed)) for seed in (0, 1)]))
    settings = PlotSettings(metrics=["loss"], target=0.3)
    write_results(
        Comparison("two", curves, tuning=TUNING), tmp_path / "whole" / "results.json", settings
    )
    return tmp_path / "whole"


def check(folder: Path, seeds, *options: str) -> tuple[int, int]:
    """Damage a folder and report it; returns how often it was refused, and how often shown."""
    codes = []
    for seed in seeds:
        chance, own = random.Random(seed), shutil.copytree(folder, folder.parent / str(seed))
        results = own / "results.json"
        files = sorted(p for p in own.rglob("*") if p.is_file() and p != results)
        path = results if seed % 3 == 0 else files[seed % len(files)]
        kind = damage_file(path, chance)
        got = outcome_of("report", own, "--out", own.parent / "out" / "report.html", *options)
        codes.append(got.code)
        assert got.code in (0, 2), f"{seed}, {kind} of {path}: {got.said}"
        assert got.is_deliberate, f"{seed}, {kind} of {path}: {got.said}"
        shutil.rmtree(own)
    return codes.count(2), codes.count(0)


def test_damaged_files_are_shown_or_refused(folder):
    assert outcome_of("report", folder, "--out", folder / "report.html").code == 0
    refused, shown = check(folder, range(24))
    assert refused > 3 and shown > 3


@pytest.mark.slow
def test_many_damaged_files_are_shown_or_refused(folder):
    refused, shown = check(folder, range(1000, 1400), "--latex", "--markdown")
    assert refused > 100 and shown > 50


@pytest.mark.parametrize("name", ["results.json", "A/seed-0/summary.json", "A/seed-0/config.json"])
def test_links_are_not_read(folder, name):
    moved = (folder / name).rename(folder.parent / "elsewhere")
    (folder / name).symlink_to(moved)
    got = outcome_of("report", folder, "--out", folder / "report.html")
    assert got.code == 2 and "is a symbolic link" in " ".join(got.said.split())
