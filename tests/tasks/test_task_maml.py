import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import rookery as rk
from rookery.problem import oracles
from rookery.problem.sample import Rows


def test_gradients(digits, parts, moved_start, rows_of, agrees_with_differences):
    task = rk.tasks.maml(digits, parts, adapt_lr=0.3, hidden=(5,))
    task.problem.check(task.start(0), task.population.example)
    (w,), rows = moved_start(task), rows_of(task, 1, "train")
    gradient = jax.jit(lambda w: task.problem.gradient(w, rows, rows))(w)
    agrees_with_differences(lambda w: task.problem.value(w, rows, rows), w, gradient)


def test_the_gradient_is_that_of_the_paper(digits, parts, moved_start, rows_of):
    """(I - a Hess f(w)) grad f(w - a grad f(w)), on two different samples."""
    task = rk.tasks.maml(digits, parts, adapt_lr=0.3)
    loss, (w,) = task.problem.loss, moved_start(task)
    inner, outer = rows_of(task, 0, "train"), rows_of(task, 0, "validation")

    @jax.jit
    def paper(w):
        slope = oracles.gradient(loss, (w,), 0, inner)
        g = oracles.gradient(loss, (step(w, slope),), 0, outer)
        return step(g, oracles.second_derivative(loss, (w,), 0, 0, g, inner))

    def step(a, b):
        return jax.tree.map(lambda a, b: a - 0.3 * b, a, b)

    got = jax.jit(lambda w: task.problem.gradient(w, inner, outer))(w)
    np.testing.assert_allclose(ravel_pytree(got)[0], ravel_pytree(paper(w))[0], atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("label", "steps"), [("adapted_", 1), ("adapted3_", 3)])
@pytest.mark.parametrize("make", [rk.tasks.maml, rk.tasks.classification])
def test_evaluation_adapts_each_client_to_its_training_rows(
    digits, parts, measure, label, steps, make
):
    task = make(digits, parts, adapt_lr=0.3, adapt_steps=3)
    (w,) = task.start(0)

    @jax.jit
    def adapted_loss(w, train, validation):
        for _ in range(steps):
            slope = oracles.gradient(task.problem.loss, (w,), 0, train)
            w = jax.tree.map(lambda w, g: w - jnp.float32(0.3) * g, w, slope)
        return oracles.value(task.problem.loss, (w,), validation)

    each = []
    for client in range(5):
        samples = [Rows(task.population.rows(client, s)) for s in ("train", "validation")]
        each.append(float(adapted_loss(w, *samples)))
    got = measure(task, (w,))
    assert got[f"{label}loss/mean"] == pytest.approx(np.mean(each), rel=1e-5)
    assert got[f"{label}loss/worst"] == pytest.approx(max(each), rel=1e-5)
    assert got[f"{label}loss/variance"] == pytest.approx(np.var(each), rel=1e-3)
    assert got[f"{label}loss/mean"] < got["loss/mean"]
    # two on the server's rows; four each of accuracy and loss, after none, one and three steps
    assert len(got) == 2 + 3 * 8


@pytest.mark.parametrize("make", [rk.tasks.maml, rk.tasks.classification])
def test_a_holdout_split_is_measured_apart_from_the_validation_rows(digits, parts, measure, make):
    swapped = {"train": parts["train"], "validation": parts["train"]}
    with_holdout = {**parts, "holdout": parts["train"]}
    found, plain, on_train = (
        measure(task, task.start(0))
        for task in (make(digits, p, adapt_lr=0.3) for p in (with_holdout, parts, swapped))
    )
    assert {name: found[name] for name in plain} == pytest.approx(plain, rel=1e-5)
    for name in ("accuracy/mean", "accuracy/worst", "loss/mean"):
        value = found[f"holdout_adapted_{name}"]
        assert value == pytest.approx(on_train[f"adapted_{name}"], rel=1e-5)
        assert value != found[f"adapted_{name}"]


@pytest.mark.slow
def test_descent_lowers_the_loss_after_adaptation(digits, parts, measure):
    task = rk.tasks.maml(digits, parts, adapt_lr=0.3)
    samples = [Rows(task.population.rows(i, "train")) for i in range(5)]

    @jax.jit
    def step(w):
        gradients = [task.problem.gradient(w, s, s) for s in samples]
        return jax.tree.map(lambda w, *g: w - jnp.float32(0.1) * sum(g[1:], g[0]), w, *gradients)

    (w,) = start = task.start(0)
    for _ in range(20):
        w = step(w)
    after, before = measure(task, (w,)), measure(task, start)
    assert after["adapted_loss/mean"] < 0.7 * before["adapted_loss/mean"]


@pytest.mark.slow
def test_comfedl_learns_to_adapt(digits, parts):
    task = rk.tasks.maml(digits, parts, adapt_lr=0.3, adapt_steps=1)
    result = rk.run(
        rk.ComFedL(lr=0.3, local_steps=3, batch_size=8, outer_batch_size=8),
        task.problem,
        task.population,
        task.start(0),
        rounds=50,
        evaluate=task.evaluate,
    )
    accuracy = result.history["adapted_accuracy/mean"]
    assert accuracy[-1] > accuracy[0] + 0.2
    assert "adapted1_accuracy/mean" not in result.history.rows[0]


def test_bad_arguments(digits, parts):
    with pytest.raises(ValueError, match="adapt_steps must be at least 1, got 0"):
        rk.tasks.maml(digits, parts, adapt_lr=0.1, adapt_steps=0)
    with pytest.raises(ValueError, match="adapt_lr must be a finite number above 0"):
        rk.tasks.maml(digits, parts, adapt_lr=-0.1)
    with pytest.raises(ValueError, match="got train"):
        rk.tasks.maml(digits, {"train": parts["train"]}, adapt_lr=0.1)
