import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.problem.sample import Rows
from rookery.tasks.hyper_cleaning import MeanWeights


@pytest.mark.slow
def test_oracles(digits, parts, check_bilevel):
    check_bilevel(rk.tasks.hyper_cleaning(digits, parts))


def test_a_share_of_every_clients_training_labels_is_wrong_and_nothing_else(digits, parts):
    task = rk.tasks.hyper_cleaning(digits, parts, corruption=0.25, seed=1)
    evaluation = task.evaluate[-1]
    assert isinstance(evaluation, rk.metrics.OfSolution) and isinstance(evaluation.fn, MeanWeights)
    marked = evaluation.fn.is_wrong
    for client, rows in enumerate(parts["train"]):
        got = task.population.rows(client, "train")
        is_wrong = got["labels"] != digits.train["labels"][rows]
        assert is_wrong.sum() == round(0.25 * len(rows))
        np.testing.assert_array_equal(marked[got["position"]], is_wrong)
        np.testing.assert_array_equal(got["inputs"], digits.train["inputs"][rows])
        assert set(got["labels"]) <= set(range(10))
    for client, rows in enumerate(parts["validation"]):
        got = task.population.rows(client, "validation")
        np.testing.assert_array_equal(got["labels"], digits.train["labels"][rows])
    assert task.start(0)[0].shape == (sum(map(len, parts["train"])),)


def test_the_seed_decides_which_labels_are_wrong(digits, parts):
    def labels(**settings):
        return rk.tasks.hyper_cleaning(digits, parts, **settings).population.data["labels"].tolist()

    assert labels(seed=1) == labels(seed=1) != labels(seed=2)


def test_copies_of_a_row_have_a_number_each(digits):
    rows = [np.arange(20), np.arange(20)]
    task = rk.tasks.hyper_cleaning(digits, {"train": rows, "validation": rows}, corruption=0.0)
    assert task.start(0)[0].size == 40
    positions = [task.population.rows(client, "train")["position"] for client in (0, 1)]
    assert np.concatenate(positions).tolist() == list(range(40))


def test_only_the_rows_own_number_counts(digits, parts):
    task = rk.tasks.hyper_cleaning(digits, parts)
    x, y = task.start(0)
    sample = Rows(task.population.rows(2, "train"))
    moved = task.problem.inner_grad_x(x, y, sample)
    mine = task.population.rows(2, "train")["position"]
    assert np.flatnonzero(moved).tolist() == sorted(mine)


@pytest.mark.slow
def test_fednest_lowers_the_outer_loss_and_finds_wrong_labels(digits, parts, lower_the_outer_loss):
    task = rk.tasks.hyper_cleaning(digits, parts)
    result = lower_the_outer_loss(task, rounds=10, outer_lr=1000.0, inner_lr=1.0)
    history = result.history
    assert history["clean_weight"][0] == history["corrupted_weight"][0] == 0.5
    assert history["clean_weight"][-1] > history["corrupted_weight"][-1] + 0.1
    assert history["accuracy"][-1] > 0.6


def test_weights_of_no_rows_are_zero(digits, parts, measure):
    task = rk.tasks.hyper_cleaning(digits, parts, corruption=0)
    x, y = task.start(0)
    assert measure(task, (jnp.asarray(x), y))["corrupted_weight"] == 0


def test_bad_arguments(digits, parts):
    with pytest.raises(ValueError, match="corruption must be at least 0 and below 1, got 1"):
        rk.tasks.hyper_cleaning(digits, parts, corruption=1)
    with pytest.raises(ValueError, match="corruption must be a finite number"):
        rk.tasks.hyper_cleaning(digits, parts, corruption=-0.1)
    with pytest.raises(ValueError, match="l2 must be a finite number above 0"):
        rk.tasks.hyper_cleaning(digits, parts, l2=0.0)
    with pytest.raises(ValueError, match="got validation"):
        rk.tasks.hyper_cleaning(digits, {"validation": parts["validation"]})
