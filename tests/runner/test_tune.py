"""Choosing from a grid, in Python."""

import jax.numpy as jnp
import pytest

import rookery as rk
from rookery.runner.tune import Trial, Tuning

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
