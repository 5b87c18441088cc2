import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from rookery.report.comparison import (
    AXES,
    Comparison,
    Curve,
    axis_values,
    best_curve,
    cost_to_reach,
    divergence,
    final_values,
    mean_and_interval,
    metric_label,
    metric_values,
    paired_test,
)
from rookery.report.statistics import interval, student_cdf, student_quantile
from rookery.runner.history import History


def history(exchanges, accuracy):
    rows = [
        {
            "round": k,
            "exchanges": e,
            "messages": 2 * e,
            "bytes_down": 3_000_000 * e,
            "bytes_up": 1_000_000 * e,
            "gradients": 5 * e,
            "hessian_vectors": 7 * e,
            "seconds": 0.5 * e,
            "accuracy": a,
        }
        for k, (e, a) in enumerate(zip(exchanges, accuracy, strict=True))
    ]
    return History(rows)


def ending_at(*values):
    return Curve("c", [history([0, 1], [0.0, value]) for value in values])


@pytest.mark.parametrize("df", [1, 2, 3, 4, 9, 30, 200])
def test_student_agrees_with_scipy(df):
    for t in (-50.0, -3.0, -1e-3, 0.0, 0.5, 2.0, 12.7, 300.0):
        np.testing.assert_allclose(student_cdf(t, df), stats.t.cdf(t, df), rtol=1e-10)
    np.testing.assert_allclose(student_quantile(df), stats.t.ppf(0.975, df), rtol=1e-12)


def test_axes_of_a_history():
    run = history([0, 4], [0.1, 0.2])
    assert np.isnan(axis_values(run, "epsilon")).all()
    run.rows[1]["epsilon"] = 0.5
    got = {name: axis_values(run, name)[1] for name in AXES}
    assert got == {
        "round": 1,
        "exchanges": 4,
        "megabytes_up": 4,
        "megabytes_down": 12,
        "megabytes": 16,
        "gradients": 20,
        "hessian_vectors": 28,
        "seconds": 2,
        "epsilon": 0.5,
    }
    with pytest.raises(ValueError, match=r"unknown axis 'bytes'; choose one of round, "):
        axis_values(run, "bytes")


def test_interval_by_hand():
    # standard deviation 1, standard error 1/√3, quantile of two degrees of freedom 4.30265
    mean, low, high = interval([1.0, 2.0, 3.0])
    assert mean == 2
    assert [high - mean, mean - low] == pytest.approx([4.3026527 / math.sqrt(3)] * 2)
    assert interval([5.0]) == (5, 5, 5)


def test_band_of_equal_costs_averages_row_by_row():
    curve = Curve("c", [history([0, 2, 4], [0, 0.2, 0.3]), history([0, 2, 4], [0, 0.4, 0.3])])
    band = mean_and_interval(curve, "exchanges", "accuracy")
    np.testing.assert_array_equal(band.axis, [0, 2, 4])
    np.testing.assert_allclose(band.mean, [0, 0.3, 0.3])
    # the standard error of 0.2 and 0.4 is 0.1
    np.testing.assert_allclose(band.high - band.mean, [0, 1.27062047, 0], atol=1e-8)
    np.testing.assert_allclose(band.low, 2 * band.mean - band.high)


def test_band_of_different_costs_is_interpolated_on_the_common_range():
    curve = Curve("c", [history([0, 2, 6], [0, 0.2, 0.6]), history([0, 3, 4], [0, 0.6, 0.8])])
    band = mean_and_interval(curve, "exchanges", "accuracy")
    np.testing.assert_array_equal(band.axis, [0, 2, 3, 4])
    np.testing.assert_allclose(band.mean, [0, (0.2 + 0.4) / 2, (0.3 + 0.6) / 2, (0.4 + 0.8) / 2])
    in_rounds = mean_and_interval(curve, "round", "accuracy")
    np.testing.assert_allclose(in_rounds.mean, [0, 0.4, 0.7])


def test_band_of_one_seed_has_no_width():
    band = mean_and_interval(Curve("c", [history([0, 1], [0.1, 0.9])]), "round", "accuracy")
    np.testing.assert_array_equal(band.low, band.mean)
    np.testing.assert_array_equal(band.high, [0.1, 0.9])


@pytest.mark.parametrize("bad", [None, math.nan, math.inf])
def test_what_is_not_finite_is_a_gap(bad):
    curve = Curve("c", [history([0, 1, 2], [0.1, bad, 0.3]), history([0, 1, 2], [0.1, 0.2, 0.3])])
    band = mean_and_interval(curve, "exchanges", "accuracy")
    np.testing.assert_allclose(band.mean, [0.1, np.nan, 0.3])
    shifted = Curve("c", [curve.runs[0], history([0, 1.5, 2], [0.1, 0.2, 0.3])])
    band = mean_and_interval(shifted, "exchanges", "accuracy")
    np.testing.assert_allclose(band.mean, [0.1, np.nan, np.nan, 0.3])
    assert np.isnan(metric_values(curve.runs[0], "accuracy")[1])


def test_cost_to_reach_interpolates_and_counts():
    rising = [[0.0, 0.4, 0.8], [0.0, 0.8, 0.1], [0.0, 0.1, 0.2]]
    curve = Curve("c", [history([0, 10, 20], values) for values in rising])
    cost = cost_to_reach(curve, "accuracy", 0.6, "exchanges")
    assert cost.per_seed == [pytest.approx(15), pytest.approx(7.5), None]
    assert (cost.reached, cost.total) == (2, 3)
    assert cost.interval.mean == pytest.approx(11.25)
    assert cost.interval.high == pytest.approx(11.25 + 12.7062047 * 3.75)
    never = cost_to_reach(curve, "accuracy", 2.0, "exchanges")
    assert never.reached == 0 and math.isnan(never.interval.mean)


def test_cost_to_reach_downwards_at_once_and_after_a_gap():
    falling = Curve("c", [history([0, 10], [2.0, 1.0])])
    assert cost_to_reach(falling, "accuracy", 1.25, "megabytes_up", False).per_seed == [7.5]
    assert cost_to_reach(falling, "accuracy", 3.0, "exchanges", False).per_seed == [0]
    gap = Curve("c", [history([0, 10, 20], [0.0, math.nan, 1.0])])
    assert cost_to_reach(gap, "accuracy", 0.5, "exchanges").per_seed == [20]


def test_paired_test_agrees_with_scipy_and_with_counting():
    a, b = [0.91, 0.89, 0.93, 0.90, 0.94], [0.88, 0.89, 0.90, 0.91, 0.90]
    test = paired_test(ending_at(*a), ending_at(*b), "accuracy")
    theirs = stats.ttest_rel(a, b)
    differences = np.subtract(a, b)
    flips = [abs(np.dot(signs, differences)) for signs in product([1, -1], repeat=5)]
    assert test.p_student == pytest.approx(theirs.pvalue, rel=1e-9)
    assert test.p_flips == np.mean(np.array(flips) >= differences.sum() - 1e-12)
    np.testing.assert_allclose(test.differences, differences)
    bounds = theirs.confidence_interval(0.95)
    np.testing.assert_allclose(test.interval, [differences.mean(), bounds.low, bounds.high])


def test_paired_test_flips_by_hand():
    # of the eight sign flips only the two with all signs alike are as far from zero
    assert paired_test(ending_at(3, 2, 4), ending_at(0, 0, 0), "accuracy").p_flips == 2 / 8


def test_paired_test_pairs_by_seed():
    a = Curve("a", [history([0], [0.5]), history([0], [0.9])], [7, 8])
    b = Curve("b", [history([0], [0.8]), history([0], [0.1])], [8, 9])
    test = paired_test(a, b, "accuracy")
    assert test.seeds == [8]
    assert test.differences == pytest.approx([0.1])
    assert math.isnan(test.p_student) and test.p_flips == 1
    with pytest.raises(ValueError, match="no seed in common"):
        paired_test(a, Curve("c", b.runs, [1, 2]), "accuracy")


def test_paired_test_at_its_limits():
    same = paired_test(ending_at(1, 1), ending_at(1, 1), "accuracy")
    assert (same.p_student, same.p_flips) == (1, 1)
    # equal differences have no spread, up to rounding in single precision: no t-test
    for a, b in (
        ((2, 2), (1, 1)),
        ((0.9, 0.7), (0.8, 0.6)),
        ((0.9 + 3e-8, 0.7 - 3e-8), (0.8, 0.6)),
    ):
        apart = paired_test(ending_at(*a), ending_at(*b), "accuracy")
        assert math.isnan(apart.p_student) and apart.p_flips == 0.5
    broken = paired_test(ending_at(2, math.nan), ending_at(1, 1), "accuracy")
    assert all(map(math.isnan, (broken.p_student, broken.p_flips, broken.interval.mean)))
    many = paired_test(ending_at(*range(21)), ending_at(*[0] * 21), "accuracy")
    assert many.p_student < 1e-4 and math.isnan(many.p_flips)


def test_a_diverged_seed_has_no_final_value_and_is_never_the_best():
    runs = [history([0, 1], [0.0, value]) for value in (0.5, 0.9)]
    curve = Curve("c", runs, [3, 4], diverged={4: 12})
    np.testing.assert_equal(final_values(curve, "accuracy"), [0.5, math.nan])
    assert divergence(curve) == "diverged at round 12, seed 4"
    assert divergence(Curve("c", runs)) == ""
    assert best_curve([curve, ending_at(0.1)], "accuracy").runs[0]["accuracy"][-1] == 0.1


def test_which_way_is_better_is_declared_or_plain_from_the_name_or_unknown():
    curve = Curve("c", [History([{"round": 0}])])
    plain = Comparison("t", [curve])
    ways = {"test/balanced_accuracy": "max", "adapted_loss/mean": "min", "distance_x": "min"}
    ways |= {"size": None, "accuracy/variance": None, "loss_of_accuracy": None, "floss": None}
    assert {name: plain.goal_of(name) for name in ways} == ways
    assert Comparison("t", [curve], goals={"size": "min", "loss": "max"}).goal_of("loss") == "max"


def test_curves_have_the_colour_of_their_algorithm_and_a_stroke_of_their_setting():
    curves = [Curve(f"{i}", [History([{"round": 0}])]) for i in range(10)]
    settings = {f"{i}": {"algorithm": {"name": ["A", "B", "C"][i % 3]}} for i in range(10)}
    many = Comparison("t", curves, settings)
    assert many.styles()[:5] == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1)]
    assert many.groups() == {"A": [0, 3, 6, 9], "B": [1, 4, 7], "C": [2, 5, 8]}
    few = Comparison("t", curves[:4], dict(list(settings.items())[:4]))
    assert few.styles() == [(0, 0), (1, 0), (2, 0), (0, 1)]
    unknown = Comparison("t", curves)
    assert unknown.styles()[6:9] == [(6, 0), (0, 1), (1, 1)] and len(unknown.groups()) == 10


@pytest.mark.parametrize(
    ("metric", "label"),
    [
        ("accuracy", "accuracy"),
        ("balanced_accuracy", "balanced accuracy"),
        ("adapted_accuracy/mean", "adapted accuracy, mean over clients"),
        ("accuracy/worst", "accuracy, worst client"),
        ("loss/worst10", "loss, worst tenth of clients"),
        ("test/balanced_accuracy", "test balanced accuracy"),
        ("validation/loss/variance", "validation loss, variance over clients"),
        ("holdout_auc", "holdout AUC"),
        ("distance_y", "distance of y"),
        ("distance", "distance"),
        ("distance_travelled", "distance travelled"),
        ("mean", "mean"),
    ],
)
def test_a_metric_is_named_in_words(metric, label):
    assert metric_label(metric) == label


def test_metrics_are_what_is_not_a_cost():
    other = Curve("d", [History([{"round": 0, "loss": 1.0}])])
    assert Comparison("t", [ending_at(1), other]).metrics == ["accuracy", "loss"]
    assert ending_at(1, 2).seeds == [0, 1]


def test_wrong_constructions_say_so():
    run = history([0], [1])
    for runs in ([], [History()], [run, History()]):
        with pytest.raises(ValueError, match=r"curve 'c'.*at least one run"):
            Curve("c", runs)
    with pytest.raises(ValueError, match=r"curve 'c'.*seed.*\[1, 1\]"):
        Curve("c", [run, run], [1, 1])
    with pytest.raises(ValueError, match=r"curve 'c'.*seeds \[7\]"):
        Curve("c", [run], [1], diverged={7: 3})
    with pytest.raises(ValueError, match="different names"):
        Comparison("t", [Curve("c", [run]), Curve("c", [run])])
    with pytest.raises(ValueError, match=r"settings for \['d'\]"):
        Comparison("t", [Curve("c", [run])], {"d": {}})
