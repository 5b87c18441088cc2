"""A solution that is finite but out of scale has diverged."""

import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk

POPULATION = rk.Population.stacked({"target": np.array([[1.0], [3.0]])})
LR = 5.5  # w - 2 = -10 (w - 2) in every round, from -2


def loss(w, row):
    return (w - row["target"]) ** 2


def go(rounds=10, start=0.0, **kwargs):
    problem = rk.SingleLevel(loss, split="train")
    kwargs = {"evaluate_every": 3, "guard": None, **kwargs}
    evaluate = [rk.metrics.OfSolution(lambda w: {"w": w})]
    algorithm = rk.FedAvg(lr=LR, local_steps=1)
    start = (jnp.asarray(start),)
    return rk.run(algorithm, problem, POPULATION, start, rounds=rounds, evaluate=evaluate, **kwargs)


def test_a_huge_but_finite_solution_is_divergence(tmp_path):
    with pytest.warns(rk.stop.DivergenceWarning, match="w has an entry of size 2e"):
        result = go(directory=tmp_path)
    # 2 10^r exceeds 10^8 from round 8 on, and the next evaluation is in round 9
    assert (result.status, result.rounds) == ("diverged", 9)
    np.testing.assert_allclose(result.history["w"], [0, 2002, -1999998, 2000000002], rtol=1e-9)
    assert "in round 9" in result.message and "growth_limit=1e+08" in result.message
    with pytest.raises(FileNotFoundError, match="the run diverged"):
        rk.load_solution(tmp_path, like=(jnp.zeros(()),))
    with pytest.warns(rk.stop.DivergenceWarning):
        again = go(directory=tmp_path)
    assert (again.message, again.history.rows) == (result.message, result.history.rows)
    # a user who raises the limit continues
    finished = go(directory=tmp_path, growth_limit=None)
    assert (finished.status, finished.rounds) == ("finished", 10)
    assert finished.history.rows == go(growth_limit=None).history.rows


def test_growth_is_relative_to_the_start_and_found_at_evaluations_only():
    assert go(rounds=8, start=1e5).status == "finished"  # 99,998 10^8 + 2, below 10^5 10^8
    with pytest.warns(rk.stop.DivergenceWarning):
        assert go(rounds=8).rounds == 8
    with pytest.warns(rk.stop.DivergenceWarning):
        assert go(rounds=3, growth_limit=100.0, evaluate_every=1).rounds == 2
    with pytest.warns(rk.stop.DivergenceWarning):
        assert go(rounds=8, growth_limit=100.0, evaluate_every=8).rounds == 8


def test_the_best_of_a_diverged_run_is_kept(tmp_path):
    with pytest.warns(rk.stop.DivergenceWarning):
        result = go(directory=tmp_path, keep="best:w:min")
    assert result.best.round == 6
    (best,) = rk.load_solution(tmp_path, like=(jnp.zeros(()),), which="best")
    assert best == result.best.value
