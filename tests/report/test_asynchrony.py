"""The picture of who worked when, on three clients that can be followed by hand."""

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

import rookery as rk
from rookery.report.asynchrony import draw_traces, has_traces, shown, strip_end
from rookery.report.comparison import Comparison, Curve, Trace
from rookery.report.curves import COLOURS
from rookery.report.page import render
from rookery.report.read import read_runs
from rookery.report.write import write_report
from rookery.runner.history import History

ROW = {"round": 0, "accuracy": 0.1} | dict.fromkeys(
    "exchanges messages bytes_down bytes_up gradients hessian_vectors seconds".split(), 0
)
TRACE: Trace = {
    "client": [0, 1, 0, 2],
    "began": [0.0, 0.0, 1.0, 0.0],
    "ended": [1.0, 0.5, 2.0, 2.5],
    "taken": [1.0, 1.0, 2.5, 2.5],
    "version": [0, 0, 1, 0],
    "used_in": [0, 0, 1, 1],
    "received": 4,
    "staleness": [3, 1] + [0] * 31,
}


@pytest.fixture
def comparison():
    plain, own = History([ROW]), History([ROW])
    return Comparison("both", [Curve("sync", [plain]), Curve("a", [own], [0], {"inner": TRACE})])


def bars(panel):
    return [p for p in panel.patches if isinstance(p, Rectangle) and p.get_width() > 0]


def test_a_bar_is_a_job_in_the_colour_of_its_version(comparison):
    strip, staleness = draw_traces(comparison).axes
    jobs = [b for b in bars(strip) if b.get_height() == 0.8]
    spans = [(b.get_x(), b.get_x() + b.get_width()) for b in jobs]
    assert spans == [(0, 1), (0, 0.5), (1, 2), (0, 2.5)]
    assert [b.get_y() + 0.4 for b in jobs] == TRACE["client"]
    colours = [to_hex(b.get_facecolor()).upper() for b in jobs]
    assert colours == [COLOURS[version] for version in TRACE["version"]]
    waits = {(b.get_x(), b.get_width()) for b in bars(strip) if b.get_height() == 0.5}
    assert waits == {(0.5, 0.5), (2.0, 0.5)}
    assert [b.get_height() for b in bars(staleness)] == [0.75, 0.25]


def test_a_strip_is_no_longer_than_its_trace_or_a_dozen_jobs():
    assert strip_end({"inner": TRACE}) == 2.5
    late: Trace = {**TRACE, "taken": [1.0, 1.0, 2.5, 99.0]}
    assert strip_end({"inner": late}) == 12 * np.median([1.0, 0.5, 1.0, 2.5])


def test_a_strip_shows_jobs_of_every_kind():
    late: Trace = {**TRACE, "began": [9.0] * 4, "ended": [10.0] * 4, "taken": [10.0, 10.0, 20, 90]}
    assert strip_end({"inner": TRACE, "outer": late}) == 40


def test_a_comparison_without_a_trace_says_so(comparison):
    alone = Comparison("one", comparison.curves[:1])
    assert (has_traces(comparison), has_traces(alone)) == (True, False)
    with pytest.raises(ValueError, match="none is asynchronous"):
        draw_traces(alone)


def test_jobs_that_take_no_time_are_not_drawn(comparison):
    """Without a clock a Gantt chart would be an empty panel."""
    zero: Trace = {**TRACE, "staleness": [4] + [0] * 32, "began": [0.0] * 4, "ended": [0.0] * 4,
                   "taken": [0.0] * 4}  # fmt: skip
    assert shown({"inner": zero, "outer": TRACE}) == {"outer": TRACE}
    alone = Comparison("t", [Curve("a", comparison.curves[1].runs, [0], {"inner": zero})])
    assert not has_traces(alone)
    assert '"traces": {}' in render(alone)


@pytest.mark.slow
def test_a_run_keeps_its_trace_and_the_report_shows_it(tmp_path, browse):
    zoo = rk.zoo.quadratic_losses(n_clients=3)
    population = rk.Population.stacked(zoo.data)
    settings = {
        "rounds": 4,
        "clock": rk.delays.Clock(rk.delays.LogNormalDelay(1.0)),
        "evaluate_every": 2,
    }
    size = rk.metrics.OfSolution(lambda w: {"size": w @ w})
    for name, algorithm in {
        "AFL": rk.AFACS(lr=0.1, server_lr=0.2),
        "FedAvg": rk.FedAvg(lr=0.1),
    }.items():
        result = rk.run(
            algorithm, zoo.problem, population, zoo.start,
            directory=tmp_path / name, title=name, evaluate=[size], **settings,
        )  # fmt: skip
        assert (tmp_path / name / "async_traces.json").exists() == bool(result.async_traces)
    comparison = read_runs([tmp_path])
    first = next(c for c in comparison.curves if c.name == "AFL")
    assert sum(first.traces["inner"]["staleness"]) == first.traces["inner"]["received"] >= 4
    write_report(comparison, tmp_path / "out")
    assert (tmp_path / "out" / "asynchrony.png").exists()
    document, console = browse(tmp_path / "out" / "report.html")
    assert console == []
    assert 'aria-label="AFL, inner jobs"' in document
    assert document.count("<rect") >= first.traces["inner"]["received"]
    alone = render(Comparison("one", [c for c in comparison.curves if c.name == "FedAvg"]))
    (tmp_path / "alone.html").write_text(alone)
    assert "Which client worked when" not in browse(tmp_path / "alone.html")[0]
