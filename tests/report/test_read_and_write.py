"""Reports from run directories that are written by hand."""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import jax.numpy as jnp
import pytest
from rich.console import Console

import rookery as rk
from rookery.cli.main import report
from rookery.report.comparison import Comparison, Curve
from rookery.report.read import read_comparison, read_plot_settings, read_runs
from rookery.report.write import PlotSettings, print_tables, write_report
from rookery.runner.history import History

COSTS = "exchanges messages bytes_down bytes_up gradients hessian_vectors seconds".split()


def row(k, **metrics):
    return {"round": k, **dict.fromkeys(COSTS, 3 * k), **metrics}


def write_run(path, title, rows, *, seed=0, setting=1.0, diverged=None):
    path.mkdir(parents=True)
    run = {"algorithm": {"name": title}, "seed": seed, "float": "float32", "setting": setting}
    config = {"format": 1, "title": title, "run": run, "versions": {"jax": "0.10"}}
    (path / "config.json").write_text(json.dumps(config))
    if rows is not None:
        (path / "history.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    status = {"status": "finished", "rounds": 10} if diverged is None else {
        "status": "diverged", "rounds": diverged}  # fmt: skip
    (path / "summary.json").write_text(json.dumps({**status, "message": ""}))


LEARNS = [row(0, loss=2.0, accuracy=0.1), row(10, loss=1.0, accuracy=0.8)]


@pytest.fixture
def said(monkeypatch, capsys):
    """What commands have printed since the last call, on a terminal of 200 columns."""
    monkeypatch.setenv("COLUMNS", "200")
    return lambda: capsys.readouterr().out


def test_curves_are_sorted_by_their_numbers(tmp_path):
    for size in (10, 200, 50, 0.5, 0.25):
        write_run(tmp_path / f"n={size}", f"n={size}", LEARNS, setting=size)
    names = [curve.name for curve in read_runs([tmp_path]).curves]
    assert names == ["n=0.25", "n=0.5", "n=10", "n=50", "n=200"]


def test_directories_stay_in_the_order_given(tmp_path):
    for name in "ab":
        write_run(tmp_path / name / "seed-0", name, LEARNS)
    names = [curve.name for curve in read_runs([tmp_path / "b", tmp_path / "a"]).curves]
    assert names == ["b", "a"]


def test_runs_of_one_setting_are_one_curve_with_its_divergence(tmp_path):
    for seed in (10, 2):
        write_run(tmp_path / f"seed-{seed}", "c", LEARNS, seed=seed)
    write_run(tmp_path / "seed-3", "c", [LEARNS[0], row(4, loss=None, accuracy=None)], seed=3,
              diverged=4)  # fmt: skip
    (curve,) = read_runs([tmp_path]).curves
    assert (curve.seeds, curve.diverged) == ([2, 3, 10], {3: 4})
    with pytest.raises(ValueError, match="seed 2"):
        read_runs([tmp_path, tmp_path / "seed-2"])


def test_values_of_clients_are_read_and_printed(tmp_path, said):
    write_run(tmp_path / "run", "c", LEARNS)
    line = {"round": 10, "metric": "loss/each", "clients": {"Lund": 0.125, "Oslo": 0.375}}
    (tmp_path / "run" / "per_client.jsonl").write_text(json.dumps(line) + "\n")
    report((tmp_path / "run",), out=tmp_path / "out")
    text = said()
    assert all(part in text for part in ("loss/each of each client", "Lund", "0.125", "Oslo"))
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["per_client"]["c"]["0"] == [line]


def test_an_empty_run_among_others_is_left_out_with_a_warning(tmp_path):
    write_run(tmp_path / "a", "a", LEARNS)
    write_run(tmp_path / "b", "b", None, setting=2)
    write_run(tmp_path / "c", "a", [], seed=1)
    console = Console(file=StringIO(), width=300)
    (curve,) = read_runs([tmp_path], console).curves
    assert (curve.name, curve.seeds) == ("a", [0])
    warnings = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert str(tmp_path / "b") in warnings and str(tmp_path / "c") in warnings
    with pytest.raises(ValueError, match=r"b.*no measurements"):
        read_runs([tmp_path / "b"])


def test_the_report_of_runs_without_metrics(tmp_path, said):
    write_run(tmp_path / "runs", "c", [row(0), row(10)])
    report((tmp_path / "runs",), out=tmp_path / "out")
    assert (tmp_path / "out" / "report.html").exists()
    assert not (tmp_path / "out" / "curves.png").exists()
    text = said()
    assert "30" in text and "measured no metric" in text


def test_the_report_prints_its_tables(tmp_path, said):
    for i, name in enumerate("ab"):
        write_run(tmp_path / "runs" / name, name, LEARNS, setting=i)
    report((tmp_path / "runs",), out=tmp_path / "out.html", title="My title")
    text = said()
    assert "My title" in text and "sign flips" in text and "0.8" in text and "reached" not in text
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["out.html"]


def test_options_of_the_report_choose_metric_axes_and_target(tmp_path, said):
    write_run(tmp_path / "runs", "c", LEARNS)
    report((tmp_path / "runs",), out=tmp_path / "out", metric=("loss",), axes=("seconds",),
               target=1.5)  # fmt: skip
    assert "loss ≤ 1.5" in said()  # the loss falls, so lower is better
    page = (tmp_path / "out" / "report.html").read_text()
    shown = ('"metric": "loss"', '"axis": "seconds"', '"target": 1.5', '"loss": -1')
    assert all(part in page for part in shown)
    with pytest.raises(ValueError, match=r"'f1'.*loss, accuracy"):
        report((tmp_path / "runs",), out=tmp_path / "out", metric=("f1",))
    with pytest.raises(ValueError, match="axis 'bytes'"):
        report((tmp_path / "runs",), out=tmp_path / "out", axes=("bytes",))


def test_a_run_keeps_which_way_its_metrics_are_better_and_a_target_needs_it(tmp_path):
    zoo = rk.zoo.quadratic_losses(n_clients=2)
    size = rk.metrics.OfSolution(lambda w: {"size": jnp.sum(w**2)}, goal={"size": "min"})
    on = zoo.problem, rk.Population.stacked(zoo.data), zoo.start
    rk.run(rk.FedAvg(lr=0.1), *on, rounds=1, evaluate=[size], directory=tmp_path / "run")
    known = read_runs([tmp_path])
    assert known.wall_seconds is not None and known.wall_seconds > 0
    assert known.goals == {"size": "min"}
    settings = PlotSettings(["size"], target=1.0)
    assert settings.resolved(known).higher_is_better is False
    with pytest.raises(ValueError, match="is more of 'size' better"):
        settings.resolved(replace(known, goals={}))
    assert PlotSettings(["size"]).resolved(replace(known, goals={})).higher_is_better is None
    with pytest.raises(ValueError, match="goal of 'size'"):
        rk.metrics.OfSolution(size.fn, goal={"size": "less"})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="'gone'"):
        rk.metrics.OnServer({"loss": jnp.abs}, jnp.zeros(2), goal={"gone": "min"})


def test_the_report_keeps_to_the_experiments_plot_table(tmp_path, said):
    for name in "ab":
        write_run(tmp_path / name, name, LEARNS)
    first = read_runs([tmp_path])
    experiment = Comparison("The experiment", first.curves[::-1], notes="It learns.")
    declared = PlotSettings(["loss", "gone"], ["seconds"], target=1.25, log_y=True)
    with pytest.raises(ValueError, match="'gone'"):
        write_report(experiment, tmp_path, declared)
    write_report(experiment, tmp_path, declared.for_metrics(["loss"]))
    again = read_runs([tmp_path])
    assert (again.title, again.notes) == ("The experiment", "It learns.")
    assert [curve.name for curve in again.curves] == ["b", "a"]
    settings = read_plot_settings([tmp_path], again)
    assert (settings.target, settings.log_y) == (1.25, True)
    report((tmp_path,), out=tmp_path / "out")
    assert "loss ≤ 1.25" in said()
    assert '"target": 1.25' in (tmp_path / "out" / "report.html").read_text()
    report((tmp_path,), out=tmp_path / "out", metric=("accuracy",))  # another metric's target
    assert '"target": null' in (tmp_path / "out" / "report.html").read_text()


def test_results_that_a_report_wrote_are_read_back(tmp_path):
    write_run(tmp_path / "runs" / "0", "c", LEARNS, seed=4)
    broken = [LEARNS[0], row(4, loss=None, accuracy=None)]
    write_run(tmp_path / "runs" / "1", "c", broken, seed=5, diverged=4)
    line = {"round": 10, "metric": "loss/each", "clients": {"Lund": 0.125}}
    (tmp_path / "runs" / "0" / "per_client.jsonl").write_text(json.dumps(line) + "\n")
    first = read_runs([tmp_path / "runs"])
    write_report(first, tmp_path / "out", PlotSettings(["loss"], ["seconds"]))
    for path in (tmp_path / "out", tmp_path / "out" / "results.json"):
        again = read_comparison([path])
        (curve,), (before,) = again.curves, first.curves
        assert (curve.seeds, curve.diverged) == ([4, 5], {5: 4})
        assert [run.rows for run in curve.runs] == [run.rows for run in before.runs]
        assert [own.rows for own in curve.per_client] == [[line], []]
        assert (again.settings, again.versions) == (first.settings, first.versions)
        assert read_plot_settings([path], again).axes == ["seconds"]
    with pytest.raises(ValueError, match="either runs or files of results"):
        read_comparison([tmp_path / "out", tmp_path / "runs"])
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match="has no curves"):
        read_comparison([tmp_path / "other.json"])


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_report_of_a_committed_file_is_its_picture(tmp_path, said, suffix):
    folder = Path(__file__).parents[2] / "experiments" / "afbo_fig4"
    report((folder,), out=tmp_path / f"curves.{suffix}")
    text = said()
    assert "AFBO Fig. 4" in text and "waiting for all" in text
    report((folder / "results.json",), out=tmp_path / f"work.{suffix}", jobs=True)
    names = [f"curves.{suffix}", f"work.{suffix}"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert len({(tmp_path / name).read_bytes() for name in names}) == 2
    with pytest.raises(ValueError, match="--jobs draws one figure"):
        report((folder,), out=tmp_path, jobs=True)


def test_a_terminal_is_not_flooded_with_metrics():
    run = History([row(0, **{f"m{i}": 1.0 for i in range(30)})])
    console = Console(file=StringIO(), width=300)
    comparison = Comparison("t", [Curve("c", [run])])
    print_tables(comparison, PlotSettings(), console)
    text = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert "m3" in text and "m4" not in text
    print_tables(comparison, PlotSettings(metrics=["m7", "m8"]), console)
    assert "m8" in console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
