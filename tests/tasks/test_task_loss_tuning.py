import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.problem import oracles
from rookery.tasks.classifier import ClassWeighted
from rookery.tasks.loss_tuning import class_weights


@pytest.fixture(scope="module")
def uneven(digits):
    return digits.keep(rk.partition.long_tail(digits.train["labels"], ratio=0.2))


@pytest.fixture(scope="module")
def uneven_parts(uneven):
    rows = rk.partition.iid(len(uneven.train["labels"]), 5)
    return rk.partition.split(rows, fractions={"train": 0.8, "validation": 0.2})


@pytest.mark.slow
def test_oracles(uneven, uneven_parts, check_bilevel):
    check_bilevel(rk.tasks.loss_tuning(uneven, uneven_parts, hidden=(6, 5)))


def test_at_the_start_the_logits_are_halved(uneven, uneven_parts, moved_start, rows_of):
    task = rk.tasks.loss_tuning(uneven, uneven_parts, hidden=(), l2=0.5)
    x, (_, y) = task.start(0)[0], moved_start(task)
    sample = rows_of(task, 0, "train")
    ridge = sum(jnp.sum(leaf**2) for leaf in y[0].values()) / 2
    # softmax regression is linear: half the parameters give half the logits
    outer = task.problem.outer
    assert isinstance(outer, ClassWeighted)
    halved = oracles.value(outer.metric, (jax.tree.map(lambda a: a / 2, y),), sample)
    zeros = jax.tree.map(lambda a: a.astype(float), x)
    got = task.problem.inner_value(zeros, y, sample)
    np.testing.assert_allclose(got, halved + 0.5 * ridge, rtol=1e-12)


def test_rare_classes_weigh_most(uneven, uneven_parts):
    outer = rk.tasks.loss_tuning(uneven, uneven_parts).problem.outer
    assert isinstance(outer, ClassWeighted)
    weights = outer.weights
    assert np.linalg.norm(weights) == pytest.approx(1)
    counts = np.bincount(uneven.train["labels"][np.concatenate(uneven_parts["train"])])
    np.testing.assert_allclose(weights * counts, weights[0] * counts[0])
    np.testing.assert_allclose(class_weights(np.array([0, 0, 1]), 3), np.array([1, 2, 2]) / 3)


def test_balanced_accuracy_is_the_mean_over_classes(uneven, uneven_parts, measure):
    rare = np.flatnonzero((uneven.test["labels"] > 0) | (np.arange(360) % 10 == 0))
    held = uneven.hold_out(40)
    dataset = type(held)(
        held.name, held.train, {n: a[rare] for n, a in held.test.items()}, (), held.holdout
    )
    rows = rk.partition.iid(len(dataset.train["labels"]), 5)
    parts = rk.partition.split(rows, fractions={"train": 0.8, "validation": 0.2})
    task = rk.tasks.loss_tuning(dataset, parts, hidden=())
    x, y = task.start(3)
    for prefix, rows in (("", dataset.test), ("holdout_", dataset.holdout)):
        got = measure(task, (x, y))
        right = np.argmax(rows["inputs"] @ y[0]["w"] + y[0]["b"], 1) == rows["labels"]
        each = [right[rows["labels"] == c].mean() for c in np.unique(rows["labels"])]
        assert got[f"{prefix}balanced_accuracy"] == pytest.approx(np.mean(each))
        assert got[f"{prefix}accuracy"] == pytest.approx(right.mean())


@pytest.mark.slow
def test_fednest_lowers_the_outer_loss(uneven, uneven_parts, lower_the_outer_loss):
    task = rk.tasks.loss_tuning(uneven, uneven_parts, hidden=(16,))
    result = lower_the_outer_loss(task, rounds=10, outer_lr=0.01, inner_lr=0.5, inner_steps=10)
    assert result.history["balanced_accuracy"][-1] > 0.5
    assert abs(result.solution[0]["l"]).max() > 1e-3


def test_bad_arguments(uneven, uneven_parts):
    with pytest.raises(ValueError, match="l2 must be a finite number above 0"):
        rk.tasks.loss_tuning(uneven, uneven_parts, l2=0)
    with pytest.raises(ValueError, match=r"hidden\[1\] must be at least 1, got 0"):
        rk.tasks.loss_tuning(uneven, uneven_parts, hidden=(3, 0))
    with pytest.raises(ValueError, match="got none"):
        rk.tasks.loss_tuning(uneven, {})
