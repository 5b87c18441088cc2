import math
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from matplotlib.colors import to_hex

from rookery.report.comparison import AXES, Comparison, Curve, mean_and_interval
from rookery.report.curves import COLOURS, draw, plot
from rookery.runner.history import History


def curve(name, cost, lift=0.0):
    costs = "exchanges messages bytes_down bytes_up gradients hessian_vectors seconds".split()
    runs = [
        History(
            [
                {"round": k, **dict.fromkeys(costs, cost * k), "accuracy": k / 10 + lift * seed}
                for k in range(5)
            ]
        )
        for seed in range(3)
    ]
    return Curve(name, runs)


@pytest.fixture
def comparison():
    return Comparison("Costs $5 & <more>", [curve("cheap_$x", 1, 0.02), curve("dear", 1000)])


@pytest.mark.parametrize(
    ("suffix", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
def test_the_suffix_decides_the_format(comparison, tmp_path, suffix, start):
    path = tmp_path / f"figure.{suffix}"
    plot(comparison, path)
    assert path.read_bytes().startswith(start)
    if suffix == "svg":
        ElementTree.parse(path)


def test_panels_show_means_and_intervals(comparison):
    figure = draw(comparison, metrics="accuracy", axes=["round", "megabytes"])
    left, right = figure.axes
    assert (left.get_xlabel(), right.get_xlabel()) == ("rounds", AXES["megabytes"].label)
    assert left.get_ylabel() == "accuracy" and left.get_ylim() == right.get_ylim()
    for panel, axis in ((left, "round"), (right, "megabytes")):
        for line, shade, one in zip(panel.lines, panel.collections, comparison.curves, strict=True):
            band = mean_and_interval(one, axis, "accuracy")
            np.testing.assert_allclose(np.asarray(line.get_xdata()), band.axis)
            np.testing.assert_allclose(np.asarray(line.get_ydata()), band.mean)
            corners = np.asarray(shade.get_paths()[0].vertices)
            assert corners[:, 1].max() == pytest.approx(band.high.max())
            assert corners[:, 1].min() == pytest.approx(band.low.min())
    assert [to_hex(line.get_color()).upper() for line in left.lines] == list(COLOURS[:2])


def test_one_legend_names_every_curve_once(comparison):
    figure = draw(comparison, axes=["round", "exchanges"])
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["cheap_$x", "dear"]
    assert legend.get_title().get_text() == comparison.title


def test_logarithmic_axes_leave_out_what_they_cannot_show(comparison, tmp_path):
    plot(comparison, tmp_path / "log.png", axes="exchanges", log_x=True, log_y=True)
    (panel,) = draw(comparison, axes="exchanges", log_x=True, log_y=True).axes
    assert (panel.get_xscale(), panel.get_yscale()) == ("log", "log")
    assert panel.get_ylim()[0] > 0.01


def test_gaps_missing_metrics_and_many_curves(tmp_path):
    curves = [curve(f"curve {i}", i + 1) for i in range(len(COLOURS) + 1)]
    curves[0].runs[0].rows[2]["accuracy"] = math.nan
    curves[1] = Curve("unmeasured", [History([{"round": 0, "exchanges": 0, "loss": 1.0}])])
    comparison = Comparison("many", curves)
    plot(comparison, tmp_path / "many.png", metrics=["accuracy", "loss"], axes="exchanges")
    accuracy, loss = draw(comparison, metrics=["accuracy", "loss"], axes="exchanges").axes
    assert len(accuracy.lines) == len(COLOURS) and len(loss.lines) == 1
    assert np.isnan(np.asarray(accuracy.lines[0].get_ydata())[2])
    first, again = accuracy.lines[0], accuracy.lines[-1]
    assert first.get_color() == again.get_color() and first.get_linestyle() != again.get_linestyle()


@pytest.mark.parametrize("is_grouped", [True, False])
def test_more_than_eight_curves_are_small_multiples(tmp_path, is_grouped):
    curves = [curve(f"curve {i}", i + 1) for i in range(9)]
    names = {f"curve {i}": {"algorithm": {"name": "AB"[i % 2]}} for i in range(9)}
    comparison = Comparison("many $x", curves, names if is_grouped else {})
    plot(comparison, tmp_path / "many.png", axes=["exchanges", "round"])
    panels = [panel for panel in draw(comparison).axes if panel.get_visible()]
    assert len(panels) == (2 if is_grouped else 9)
    assert [p.get_title("left") for p in panels[:2]] == (
        ["A", "B"] if is_grouped else ["curve 0", "curve 1"]
    )
    for panel in panels:
        bright = [line for line in panel.lines if line.get_linewidth() > 1]
        assert len(panel.lines) == 9 and len(bright) in ((4, 5) if is_grouped else (1,))


def test_an_unknown_metric_says_what_there_is(comparison):
    with pytest.raises(ValueError, match="no curve has measured 'loss'; there are accuracy"):
        draw(comparison, metrics="loss")


def marks(panel):
    """Where the crosses are."""
    crosses = [line for line in panel.lines if line.get_marker() == "X"]
    return [
        (float(c.get_path().vertices[0, 0]), float(c.get_path().vertices[0, 1])) for c in crosses
    ]


def test_a_cross_marks_where_a_curve_diverged():
    steady, wild = curve("steady", 1), curve("wild", 1)
    for row in wild.runs[2].rows[2:]:
        row["accuracy"] = 1e20 if row["round"] == 2 else math.nan
    wild = Curve("wild", wild.runs, diverged={2: 3})
    figure = draw(Comparison("t", [steady, wild]), axes="round")
    (panel,), (legend,) = figure.axes, figure.legends
    # at the last finite mean, and at the edge of the panel
    assert marks(panel) == [(2, panel.get_ylim()[1])]
    assert panel.get_ylim()[0] < 0 < 0.4 < panel.get_ylim()[1] < 1  # the steady curve's limits
    assert [text.get_text() for text in legend.get_texts()] == ["steady", "wild (diverged)"]


@pytest.mark.parametrize("log_y", [False, True])
def test_a_run_that_diverged_before_its_second_evaluation_can_be_seen(log_y, tmp_path):
    row = dict.fromkeys("exchanges bytes_down bytes_up".split(), 0)
    run = History([{"round": 0, **row, "loss": 2.0}, {"round": 3, **row, "loss": None}])
    comparison = Comparison("t", [Curve("wild", [run], diverged={0: 3})])
    (panel,) = draw(comparison, metrics="loss", axes="round", log_y=log_y).axes
    assert marks(panel) == [(0, 2)]
    plot(comparison, tmp_path / "f.png", metrics="loss", axes=["round", "exchanges"])


def test_a_curve_that_was_never_finite_is_in_the_legend(tmp_path):
    run = History([{"round": 0, "loss": None}])
    comparison = Comparison("t", [Curve("wild", [run], diverged={0: 0})])
    figure = draw(comparison, metrics="loss", axes="round", log_y=True)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["wild (diverged)"]
    figure.savefig(tmp_path / "f.png")
