"""Results as tables for dataframe libraries and as HTML for notebooks."""

import re
import xml.etree.ElementTree as ET

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import rookery as rk

ZOO = rk.zoo.scalar_bilevel()
POPULATION = rk.Population.stacked(ZOO.data)


def numbers(x, y):
    return {"x": x[0], "z<b>": jnp.where(x[0] > 0, jnp.nan, y[0])}


@pytest.fixture(scope="module")
def results():
    runs = [
        rk.Run(rk.FedNest(outer_lr=lr, inner_lr=0.3), ZOO.start, seed)
        for lr in (0.1, 0.2)
        for seed in (0, 1)
    ]
    evaluate = [rk.metrics.OfSolution(numbers)]
    return rk.sweep(
        runs, ZOO.problem, POPULATION, rounds=4, evaluate=evaluate, evaluate_every=2,
        callback=lambda s: s.run.seed == 1 and s.round == 2,
    )  # fmt: skip


def test_a_history_becomes_a_data_frame(results):
    frame = pd.DataFrame(results[0].history.to_table())
    assert frame["round"].tolist() == [0, 2, 4]
    assert frame["bytes_up"].dtype == np.int64 and frame["seconds"].dtype == float
    np.testing.assert_array_equal(frame["x"], results[0].history["x"])


def test_a_sweep_becomes_a_data_frame_with_settings_and_seeds(results):
    frame = pd.DataFrame(results.to_table())
    assert len(frame) == 3 + 2 + 3 + 2  # runs of seed 1 were stopped
    assert set(frame["run"]) == {"FedNest"} and "inner_lr" not in frame
    last = frame.groupby(["outer_lr", "seed"])["x"].last()
    for result in results:
        key = (result.run.algorithm.outer_lr, result.run.seed)
        assert last[key] == result.history.last("x")


def test_a_missing_value_is_nan_and_counts_stay_whole():
    history = results_of([{"round": 0, "f": None}, {"round": 10, "f": 1, "g": 2}])
    table = history.to_table()
    assert table["round"].dtype == np.int64
    np.testing.assert_array_equal(table["f"], [np.nan, 1.0])
    np.testing.assert_array_equal(table["g"], [np.nan, 2.0])


def results_of(rows):
    from rookery.runner.history import History

    return History(rows)


def charts(page):
    """The drawings of a page, parsed: a broken one raises."""
    return [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page)]


def test_a_result_shows_itself_with_a_curve_through_its_values(results):
    page = results[0]._repr_html_()
    assert "FedNest" in page and "finished" in page and "4 rounds" in page
    assert "<b>" not in page.replace("<b>FedNest</b>", "")  # names are escaped
    drawn = charts(page)
    assert drawn[0].attrib["aria-label"] == "x"
    path = drawn[0].findall("path")[-1].attrib["d"]
    points = np.array([pair.split() for pair in re.split("[ML]", path)[1:]], float)
    x = results[0].history["x"]
    heights = (points[0, 1] - points[:, 1]) / (points[0, 1] - points[-1, 1])
    np.testing.assert_allclose(heights, (x - x[0]) / (x[-1] - x[0]), atol=0.01)
    np.testing.assert_allclose(np.diff(points[:, 0]), np.diff(points[:, 0])[0])
    assert str(results[0]).startswith("<FedNest, seed 0: finished, 4 rounds, x ")


def test_a_sweep_shows_a_line_and_a_curve_for_each_run(results):
    page = results._repr_html_()
    assert page.count("<tr>") == 5 and page.count("stopped") == 2
    assert len(charts(page)[0].findall("path")) == 1 + 4


def test_a_run_that_measured_nothing_shows_itself_too():
    algorithm = rk.FedNest(outer_lr=0.1, inner_lr=0.3)
    result = rk.run(algorithm, ZOO.problem, POPULATION, ZOO.start, rounds=1)
    assert "after 1 round</div>" in result._repr_html_() and not charts(result._repr_html_())
