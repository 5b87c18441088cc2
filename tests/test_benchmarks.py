"""The collector of benchmarks: order, merging, failures, and what it writes."""

import importlib
import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def run_all(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("run_all")


def results_of(timing, **rows):
    one = {"date": "2026-01-02T03:04+00:00", "commit": "abc", "load": [1.0, 2.0]}
    return {
        "machine": {"system": "Linux", "processor": "some", "cores": 2},
        "benchmarks": {
            name: {**one, "rows": [row.to_json() for row in found]} for name, found in rows.items()
        },
    }


def test_what_misses_its_goal_comes_first_and_the_worst_at_the_top(run_all):
    timing = importlib.import_module("timing")
    results = results_of(
        timing,
        a=[
            timing.Row("no goal", 5.0, "s"),
            timing.Row("kept", 1.0, "", timing.at_most(1.0)),
            timing.Row("twice too slow", 2.0, "", timing.at_most(1.0)),
        ],
        b=[
            timing.Row("a third of what is wanted", 2.0, "x", timing.at_least(6.0)),
            timing.Row("not a number", float("nan"), "", timing.at_most(1.0)),
        ],
    )
    order = [row.what for _, row in run_all.rows_by_urgency(results)]
    missed = ["not a number", "a third of what is wanted", "twice too slow"]
    assert order == [*missed, "kept", "no goal"]
    without = results_of(timing, a=[timing.Row.from_json(results["benchmarks"]["b"]["rows"][0])])
    merged = {**without["benchmarks"], "c": results["benchmarks"]["a"]}
    order = [row.what for _, row in run_all.rows_by_urgency({"benchmarks": merged})]
    assert order == ["a third of what is wanted", "twice too slow", "kept", "no goal"]
    table = run_all.markdown(without)
    assert "| a third of what is wanted | 2 x | at least 6 |  | a |" in table
    assert "2 cores" in table and "load 1.0 to 2.0" in table and "Goals kept" not in table


def test_a_bound_is_missed_by_a_factor(run_all):
    timing = importlib.import_module("timing")
    assert timing.at_most(2).excess(3) == 1.5
    assert timing.at_least(10).excess(5) == 2.0
    assert str(timing.Row("w", 3, "s", timing.at_most(2), "n")) == (
        "w: 3 s (goal: at most 2, missed); n"
    )


def test_scripts_are_found_by_their_rows_and_a_failure_is_kept(run_all, tmp_path):
    (tmp_path / "no_rows.py").write_text("x = 1")
    (tmp_path / "good.py").write_text(
        "class R:\n def to_json(self): return {'what': 'w'}\ndef rows(): return [R()]"
    )
    (tmp_path / "bad.py").write_text("def rows(): raise OSError('no such disk')")
    assert run_all.benchmarks(tmp_path) == ["bad", "good"]
    good, bad = run_all.measure("good", tmp_path), run_all.measure("bad", tmp_path)
    assert good["rows"] == [{"what": "w"}] and "error" not in good
    assert bad["rows"] == [] and bad["error"] == ["OSError: no such disk"]
    assert {"flatness", "devices", "big_population"} <= set(run_all.benchmarks())


def test_the_page_keeps_what_stands_around_the_results(run_all, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"head\n{run_all.BEGIN}\nold\n{run_all.END}\ntail\n")
    run_all.write_page(page, "new")
    assert page.read_text() == f"head\n{run_all.BEGIN}\nnew\n{run_all.END}\ntail\n"


def test_measuring_some_keeps_the_others(run_all, tmp_path, monkeypatch, capsys):
    timing = importlib.import_module("timing")
    row = timing.Row("w", 2.0, "", timing.at_most(1.0))
    old = results_of(timing, flatness=[row], devices=[row])
    old["machine"] = run_all.machine()
    new = results_of(timing, devices=[timing.Row("v", 0.5, "", timing.at_most(1.0))])
    (tmp_path / "results.json").write_text(json.dumps(old))
    monkeypatch.setattr(run_all, "measure", lambda name: new["benchmarks"][name])
    monkeypatch.setattr(sys, "argv", ["run_all", "--only", "devices", "--output", str(tmp_path)])
    assert run_all.main() == 0
    kept = json.loads((tmp_path / "results.json").read_text())["benchmarks"]
    assert kept["flatness"] == old["benchmarks"]["flatness"]
    assert kept["devices"]["rows"][0]["what"] == "v"
    assert (tmp_path / "results.png").stat().st_size > 1000
    assert (tmp_path / "results.svg").exists() and "Goals kept" in (
        tmp_path / "benchmarks.md"
    ).read_text()
    assert "](results.svg)" in (tmp_path / "benchmarks.md").read_text()
    assert "devices ..." in capsys.readouterr().out
