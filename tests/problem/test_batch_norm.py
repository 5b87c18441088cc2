"""Batch normalisation: frozen, averaged and own statistics, each against NumPy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import rookery as rk
from rookery.algorithms import FedAdam
from rookery.problem import OverBatch, batch_norm
from rookery.problem.sample import Rows

RANDOM = np.random.default_rng(3)
INPUT: Any = RANDOM.normal(2.0, 3.0, size=(7, 2))
TARGET = RANDOM.normal(size=7)
POPULATION = rk.Population.from_parts(
    {"input": INPUT, "target": TARGET},
    {"train": [np.arange(3), np.arange(3, 7)]},
    weights=[3.0, 4.0],
)
NORM: Any = {k: np.asarray(v) for k, v in batch_norm.init(2).items()}
START = {"norm": NORM, "out": np.array([0.5, -0.25])}


def normalised(values, mean, square, norm):
    return norm["scale"] * (values - mean) / np.sqrt(square - mean**2 + 1e-5) + norm["shift"]


def by_batch_loss(w, rows, weights):
    hidden, follow = batch_norm.by_batch(rows["input"], weights, w["norm"])
    return jnp.vdot(weights, (hidden @ w["out"] - rows["target"]) ** 2) / 2 + follow


def frozen_loss(w, row):
    hidden = batch_norm.by_statistics(row["input"], w["norm"])
    return (hidden @ w["out"] - row["target"]) ** 2 / 2


def numpy_gradient(w, rows):
    """The gradient of ``by_batch_loss`` by hand; inputs have no parameters in front of them."""
    mean, square = rows["input"].mean(0), (rows["input"] ** 2).mean(0)
    plain = (rows["input"] - mean) / np.sqrt(square - mean**2 + 1e-5)
    hidden = w["norm"]["scale"] * plain + w["norm"]["shift"]
    error = (hidden @ w["out"] - rows["target"]) / len(plain)
    norm = {
        "scale": w["out"] * (error @ plain),
        "shift": w["out"] * error.sum(),
        "mean": w["norm"]["mean"] - mean,
        "square": w["norm"]["square"] - square,
    }
    return {"norm": norm, "out": error @ hidden}


def close(got, wanted, rtol=1e-12):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol, 1e-14), got, wanted)


def stepped(w, gradient, lr):
    return jax.tree.map(lambda a, g: a - lr * g, w, gradient)


def client_rows(i):
    return POPULATION.rows(i, "train")


def test_values_are_those_of_the_rows_that_count():
    values: Any = RANDOM.normal(size=(4, 3, 2))
    weights = jnp.array([0.5, 0.5, 0.0, 0.0])
    norm: Any = {"scale": np.array([2.0, 3.0]), "shift": np.array([1.0, 0.0])}
    kept = values[:2].reshape(-1, 2)
    got, follow = batch_norm.by_batch(values, weights, {**NORM, **norm})
    wanted = normalised(values, kept.mean(0), (kept**2).mean(0), norm)
    np.testing.assert_allclose(got, wanted, rtol=1e-13)
    assert float(follow) == 0


def test_a_large_mean_does_not_cancel_the_variance_in_float32():
    values = RANDOM.normal(1e4, 1.0, size=(32, 3, 2)).astype(np.float32)
    exact = values.astype(np.float64).reshape(-1, 2)
    norm = batch_norm.init(2, jnp.float32)
    got, _ = batch_norm.by_batch(jnp.asarray(values), jnp.full(32, 1 / 32, jnp.float32), norm)
    assert got.dtype == jnp.float32
    wanted = (exact - exact.mean(0)) / exact.std(0)
    np.testing.assert_allclose(got.reshape(-1, 2), wanted, atol=2e-3)


def test_gradients_pass_through_the_statistics_of_the_batch(differences):
    def loss(flat):
        hidden, follow = batch_norm.by_batch(
            INPUT @ flat.reshape(2, 2),
            jnp.full(7, 1 / 7),
            {k: jnp.asarray(v) for k, v in NORM.items()},
        )
        return jnp.mean((jnp.tanh(hidden) @ START["out"] - TARGET) ** 2) + follow

    flat = RANDOM.normal(size=4)
    slope = differences(jax.jit(loss), flat)
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(flat), slope, rtol=1e-7)


def test_the_gradient_is_the_one_by_hand_and_the_rate_scales_the_statistics():
    problem = rk.SingleLevel(OverBatch(by_batch_loss))
    problem.check((START,), POPULATION.example)
    got = jax.jit(problem.gradient)(START, Rows(client_rows(0)))
    close(got, numpy_gradient(START, client_rows(0)))
    weights = jnp.full(7, 1 / 7)
    slope = jax.grad(lambda norm: batch_norm.by_batch(INPUT, weights, norm, rate=0.2)[1])(NORM)
    close(slope["mean"], -0.2 * INPUT.mean(0))
    close(slope["scale"], np.zeros(2))


def test_frozen_statistics_never_move_and_the_rest_is_trained():
    begin = {
        **START,
        "norm": {**NORM, "mean": np.array([1.0, 2.0]), "square": np.array([3.0, 9.0])},
    }
    hidden = normalised(INPUT, np.array([1.0, 2.0]), np.array([3.0, 9.0]), NORM)
    np.testing.assert_allclose(batch_norm.by_statistics(INPUT, begin["norm"]), hidden, rtol=1e-13)
    problem = rk.SingleLevel(frozen_loss)
    result = rk.run(
        rk.FedAvg(lr=0.1, local_steps=2),
        problem,
        POPULATION,
        start=(begin,),
        rounds=2,
    )
    (w,) = result.solution
    for name in ("mean", "square"):
        np.testing.assert_array_equal(w["norm"][name], begin["norm"][name])
    assert np.all(np.asarray(w["norm"]["scale"]) != 1)


def test_averaged_statistics_become_those_of_all_rows_together():
    problem = rk.SingleLevel(OverBatch(by_batch_loss))
    algorithm = rk.FedAvg(lr=0.25, local_steps=2)
    once = rk.run(algorithm, problem, POPULATION, start=(START,), rounds=1)
    own = []
    for i in range(2):
        w = START
        for _ in range(2):
            w = stepped(w, numpy_gradient(w, client_rows(i)), 0.25)
        own.append(w)
    close(once.solution[0], jax.tree.map(lambda a, b: (3 * a + 4 * b) / 7, *own))
    long = rk.run(algorithm, problem, POPULATION, start=(START,), rounds=60)
    norm = long.solution[0]["norm"]
    np.testing.assert_allclose(norm["mean"], INPUT.mean(0), rtol=1e-12)
    np.testing.assert_allclose(norm["square"], (INPUT**2).mean(0), rtol=1e-12)


def test_statistics_in_an_inner_variable_have_the_identity_as_their_hessian():
    loss = OverBatch(lambda x, y, rows, weights: by_batch_loss(y, rows, weights))
    problem, sample = rk.Bilevel(loss, loss), Rows(client_rows(0))
    v = jax.tree.map(lambda a: RANDOM.normal(size=a.shape), START)
    product = jax.jit(problem.inner_hvp)(jnp.zeros(1), START, v, sample)
    for name in ("mean", "square"):
        np.testing.assert_allclose(product["norm"][name], v["norm"][name], rtol=1e-13)


def adam_on_weights(lr, rate):
    def kinds(w):
        return jax.tree.map(
            lambda is_one: "plain" if is_one else "adam", batch_norm.is_statistic(w)
        )

    return optax.partition({"adam": optax.adam(lr), "plain": optax.sgd(rate)}, kinds)


CLIPPED = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1))
AVERAGED, FROZEN = OverBatch(by_batch_loss), frozen_loss
NOT_PROPORTIONAL, AT_ZERO = "not proportional to the gradient", "although their gradient is zero"


@pytest.mark.parametrize(
    ("algorithm", "loss", "message"),
    [
        (rk.FedAvg(lr=optax.adam(0.1)), AVERAGED, f"lr=.*{NOT_PROPORTIONAL}"),
        (rk.FedProx(lr=CLIPPED, mu=0.1), AVERAGED, NOT_PROPORTIONAL),
        (rk.FedAvg(lr=optax.adam(0.1), own="norm"), AVERAGED, NOT_PROPORTIONAL),
        (FedAdam(lr=0.1, server_lr=0.1), AVERAGED, f"server_lr=.*{NOT_PROPORTIONAL}"),
        (rk.FedAvg(lr=optax.adamw(0.1)), FROZEN, AT_ZERO),
        (rk.QFedAvg(lr=0.1, q=1.0), AVERAGED, "depend on the losses"),
        (rk.QFedAvg(lr=0.1, q=0.0), AVERAGED, None),
        (rk.QFedAvg(lr=0.1, q=1.0), FROZEN, None),
        (rk.FedAvg(lr=optax.adam(0.1)), FROZEN, None),
        (rk.FedAvg(lr=optax.sgd(0.1, momentum=0.9)), AVERAGED, None),
        (rk.FedAvg(lr=0.1, server_lr=optax.adam(0.1), own="norm"), AVERAGED, None),
        (rk.FedAvg(lr=rk.parts.Optimiser(adam_on_weights, lr=0.1, rate=0.2)), AVERAGED, None),
    ],
)
def test_rules_that_would_spoil_the_statistics_are_refused(algorithm, loss, message):
    problem = rk.SingleLevel(loss)
    if message is None:
        algorithm.check_start(problem, (START,), POPULATION.example)
    else:
        with pytest.raises(ValueError, match=message):
            algorithm.check_start(problem, (START,), POPULATION.example)


def test_statistics_with_plain_steps_beside_adam_are_those_of_all_rows():
    rule = rk.parts.Optimiser(adam_on_weights, lr=0.01, rate=0.5)
    problem = rk.SingleLevel(AVERAGED)
    result = rk.run(rk.FedAvg(lr=rule), problem, POPULATION, start=(START,), rounds=60)
    np.testing.assert_allclose(result.solution[0]["norm"]["mean"], INPUT.mean(0), rtol=1e-12)


def test_a_layer_needs_features():
    with pytest.raises(ValueError, match="features"):
        batch_norm.init(0)
