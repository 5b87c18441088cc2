"""Choosing from a grid and from ranges, in Python."""

import math
from collections import Counter

import jax.numpy as jnp
import pytest

import rookery as rk
from rookery.runner.search import SearchPlan, Trial, at_ends, chosen, search
from rookery.runner.tune import Tuning

ZOO = rk.zoo.scalar_bilevel()


def error(x, y):
    return {"error": jnp.abs(x[0] - ZOO.solution()[0][0])}


def go(grid, **kwargs):
    settings = {"metric": "error", "goal": "min", "seeds": (0, 1), "rounds": 10, **kwargs}
    return rk.tune(
        lambda outer_lr, inner_lr: rk.FedNest(outer_lr=outer_lr, inner_lr=inner_lr), grid,
        ZOO.problem, rk.Population.stacked(ZOO.data), lambda seed: ZOO.start,
        evaluate=[rk.metrics.OfSolution(error)], **settings,
    )  # fmt: skip


def test_the_best_of_the_grid_is_chosen_and_divergence_is_not():
    tuning = go({"outer_lr": [0.01, 0.2, 1e200], "inner_lr": [0.3]})
    assert tuning.setting == {"outer_lr": 0.2, "inner_lr": 0.3}
    assert tuning.at_edge == []
    assert [t.mean is None for t in tuning.trials] == [False, False, True]
    for trial in tuning.trials[:2]:
        alone = rk.run(
            rk.FedNest(**trial.setting), ZOO.problem, rk.Population.stacked(ZOO.data), ZOO.start,
            rounds=10, seed=1, evaluate=[rk.metrics.OfSolution(error)],
        )  # fmt: skip
        assert trial.values[1] == pytest.approx(alone.history.last("error"), rel=1e-9)


def test_a_choice_at_the_edge_is_told():
    trials = [Trial({"lr": lr, "kind": k}, [lr]) for lr in (1, 2, 3) for k in "ab"]
    grid = {"lr": [1, 2, 3], "kind": ["a", "b"], "one": [7]}
    trials = [Trial({**t.setting, "one": 7}, t.values) for t in trials]
    assert Tuning(grid, "m", "max", trials).at_edge == ["lr"]
    assert Tuning({**grid, "lr": [0, 1, 2, 3, 4]}, "m", "max", trials).at_edge == []


PAIRS = [[0.1, 0.5], [0.1, 0.6], [0.2, 0.6], [0.3, 0.7]]


@pytest.mark.parametrize(
    ("grid", "value", "sides"),
    [
        (PAIRS, [0.2, 0.6], []),
        (PAIRS, [0.1, 0.6], ["low"]),
        (PAIRS, [0.3, 0.7], ["high"]),
        ([[1, 9], [2, 5], [3, 1]], [1, 9], ["low", "high"]),
        ([[1, 2], [2, 2], [3, 2]], [2, 2], []),  # one place has one value
        ([(1, 2), (3, 2)], (3, 2), ["high"]),
        ([[1, 2], [3]], [3], []),
        ([1, [3]], [3], []),
        ([["a", 1], ["b", 2]], ["b", 2], []),
    ],
)
def test_lists_have_ends_at_each_place(grid, value, sides):
    assert at_ends({"lr": grid}, {"lr": value}) == [("lr", side) for side in sides]
    at_edge = Tuning({"lr": grid}, "m", "max", [Trial({"lr": value}, [1.0])]).at_edge
    assert at_edge == ["lr"][: len(sides)]


def test_a_grid_of_lists_is_not_widened():
    space = {"lr": [[0.01, 1], [0.1, 1]], "steps": [1, 2]}
    found, _ = halved(space, SearchPlan(extend=2), lambda one, share: one["lr"][0] + one["steps"])
    assert found.widened == ["steps", "steps"] and found.space["lr"] == space["lr"]


def test_a_budget_of_seconds_ends_the_runs_and_not_before_they_begin():
    budget = {"seconds": 40.0, "clock": rk.delays.Clock(delay=rk.delays.ConstantDelay(1.0))}
    tuning = go({"outer_lr": [0.01, 0.2], "inner_lr": [0.3]}, **budget, evaluate_every=2)
    alone = rk.run(
        rk.FedNest(**tuning.setting), ZOO.problem, rk.Population.stacked(ZOO.data), ZOO.start,
        rounds=10, seed=1, evaluate=[rk.metrics.OfSolution(error)], evaluate_every=2, **budget,
    )  # fmt: skip
    assert 0 < alone.rounds < 10 and tuning.setting["outer_lr"] == 0.2
    assert tuning.best.values[1] == pytest.approx(alone.history.last("error"), rel=1e-9)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"metric": "eror"}, "'eror'. Did you mean 'error'"),
        ({"goal": "least"}, "'least'"),
        ({"seeds": ()}, "seeds is empty"),
    ],
)
def test_mistakes_are_found_before_the_runs(wrong, message):
    with pytest.raises(ValueError, match=message):
        go({"outer_lr": [0.1], "inner_lr": [0.3]}, **wrong)


def test_an_empty_or_hopeless_grid_is_an_error():
    with pytest.raises(ValueError, match="inner_lr must be a list"):
        go({"outer_lr": [0.1], "inner_lr": []})
    with pytest.raises(ValueError, match="every one diverged"):
        _ = Tuning({"lr": [1]}, "m", "min", [Trial({"lr": 1}, [1.0, None])]).best


# ---- ranges

STEPS = {"outer_lr": {"low": 1e-3, "high": 0.1}, "inner_lr": {"low": 0.01, "high": 1.0}}


def first_digit(setting, share):
    """Best at lr = 1, and better the longer it runs."""
    return -abs(math.log10(setting["lr"])) - 1 / share


def halved(space, plan, loss=first_digit):
    asked = []

    def measure(settings, seeds, share):
        asked.append((len(settings), tuple(seeds), share))
        return [[loss(one, share) for _ in seeds] for one in settings.values()]

    return search(space, "max", measure, plan), asked


def test_one_in_three_goes_on_and_the_last_are_confirmed():
    found, asked = halved({"lr": {"low": 0.01, "high": 100.0}}, SearchPlan((0,), confirm=(1, 2)))
    assert asked == [
        (27, (0,), 1 / 9),
        (9, (0,), 1 / 3),
        (3, (0,), 1.0),
        (3, (1, 2), 1.0),
    ]
    best = chosen(found.trials, "max")
    assert best is not None and 0.8 < best.setting["lr"] < 1.25 and len(best.values) == 3
    assert Counter(one.share for one in found.trials) == {1 / 9: 18, 1 / 3: 6, 1.0: 3}


def test_diverged_settings_do_not_go_on():
    def half_diverges(setting, share):
        return None if setting["lr"] > 1 else first_digit(setting, share)

    found, asked = halved({"lr": {"low": 0.01, "high": 100.0}}, SearchPlan(), half_diverges)
    assert [n for n, *_ in asked] == [27, 9, 3]
    assert all(one.setting["lr"] <= 1 for one in found.trials if one.share > 0.2)
    found, asked = halved({"lr": {"low": 2.0, "high": 100.0}}, SearchPlan(), half_diverges)
    assert chosen(found.trials, "max") is None


def test_a_choice_at_an_end_widens_the_range_and_says_so():
    space = {"lr": {"low": 1e-3, "high": 0.05}, "kind": ["a", "b"]}
    found, asked = halved(space, SearchPlan(extend=3))
    assert found.widened == ["lr", "lr"]  # to 0.5 and to 5, which contains 1
    assert found.space["lr"] == {"low": 1e-3, "high": pytest.approx(5.0)}
    best = chosen(found.trials, "max")
    assert best is not None and 0.5 < best.setting["lr"] < 2
    assert [n for n, *_ in asked] == [27, 9, 3, 13, 5, 2, 6, 2, 1]
    found, _ = halved(space, SearchPlan(extend=1))
    best = chosen(found.trials, "max")
    assert found.widened == ["lr"] and best and at_ends(found.space, best.setting)


def test_a_grid_goes_on_with_the_ratio_of_its_last_values():
    found, asked = halved({"lr": [0.01, 0.03], "steps": [1]}, SearchPlan(extend=9))
    assert found.space["lr"] == [0.01, 0.03, 0.09, 0.27, 0.81, 2.43]
    best = chosen(found.trials, "max")
    assert found.widened == ["lr"] * 4 and best and best.setting["lr"] == 0.81
    assert [n for n, *_ in asked] == [2, 1, 1, 1, 1]
    whole = {"steps": [2, 4]}  # below 1 there is nothing
    found, _ = halved(whole, SearchPlan(extend=9), lambda one, share: -one["steps"])
    assert found.space["steps"] == [2, 4, 1]


@pytest.mark.slow
def test_ranges_in_python_go_on_from_rung_to_rung():
    tuning = go(STEPS, trials=9, rounds=18, seeds=(0,), confirm=(1,))
    assert Counter(one.share for one in tuning.trials) == {1 / 9: 6, 1 / 3: 2, 1.0: 1}
    alone = rk.run(
        rk.FedNest(**tuning.setting), ZOO.problem, rk.Population.stacked(ZOO.data), ZOO.start,
        rounds=18, seed=0, evaluate=[rk.metrics.OfSolution(error)],
    )  # fmt: skip
    assert tuning.best.values[0] == pytest.approx(alone.history.last("error"), rel=1e-9)


@pytest.mark.parametrize(
    ("grid", "wrong", "message"),
    [
        ({"lr": {"low": 1.0}}, {}, "needs low and high"),
        ({"lr": {"low": 1.0, "high": 0.1}}, {}, "low below high"),
        ({"lr": {"low": 0.0, "high": 0.1}}, {}, "lr.low"),
        ({"lr": [1]}, {"trials": 9}, "trials is for ranges"),
        ({"lr": [1]}, {"sampler": "optuna"}, "sampler is for ranges"),
        ({"lr": [1]}, {"sampler": "random"}, "'random'"),
        ({"lr": [1]}, {"confirm": (0,)}, "other seeds"),
    ],
)
def test_a_search_that_cannot_be_is_refused(grid, wrong, message):
    with pytest.raises(ValueError, match=message):
        SearchPlan(**wrong).check(grid)


def test_optuna_proposes_from_what_it_has_seen():
    pytest.importorskip("optuna")
    space = {"lr": {"low": 1e-4, "high": 1e4}, "steps": [1, 5]}
    found, asked = halved(space, SearchPlan(sampler="optuna"))
    assert [n for n, *_ in asked] == [9, 9, 9, 9, 3]
    reverse, _ = halved(space, SearchPlan(sampler="optuna"), lambda *given: -first_digit(*given))
    tried = [[one.setting for one in each.trials] for each in (found, reverse)]
    assert tried[0][:9] == tried[1][:9] and tried[0][9:] != tried[1][9:]
    assert found == halved(space, SearchPlan(sampler="optuna"))[0]
