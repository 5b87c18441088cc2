"""Losses of two rows and of a batch, against loops in NumPy."""

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery import uint64
from rookery.clients.local_client import LocalClient
from rookery.problem import OverBatch, OverPairs
from rookery.problem.sample import Rows
from rookery.program.step import python_loop

RANDOM = np.random.default_rng(0)
THREE: Any = 3  # stands where a function should
W = RANDOM.normal(size=2)


def clients(*sizes):
    n = sum(sizes)
    data = {"input": RANDOM.normal(size=(n, 2)), "label": RANDOM.integers(0, 2, n)}
    ends = np.cumsum(sizes)
    return rk.Population.from_parts(
        data, {"train": [np.arange(e - s, e) for s, e in zip(sizes, ends, strict=True)]}
    )


def client(population, id=0):
    return LocalClient(population, id, jax.random.key(5), python_loop)


def measured(problem, population, batch_size, key=1):
    """Value and gradient at W on a sample of client 0, and the rows that were evaluated."""

    @jax.jit  # one program compiles much faster than many operations
    def run(w):
        one = client(population)
        sample = one.draw("train", batch_size, jax.random.key(key))
        return *problem.value_and_gradient(w, sample), one.work[0]

    value, gradient, work = run(W)
    return value, gradient, uint64.read(work)


def ranking(w, first, second):
    """A surrogate of the AUC: a positive row should score 1 above a negative one."""
    applies = (first["label"] == 1) & (second["label"] == 0)
    margin = jnp.vdot(w, first["input"] - second["input"])
    return jnp.where(applies, jnp.maximum(0.0, 1.0 - margin) ** 2, 0.0)


def auc_value_and_gradient(w, rows):
    value, gradient, n = 0.0, np.zeros(2), len(rows["label"])
    for i, j in itertools.permutations(range(n), 2):
        if rows["label"][i] == 1 and rows["label"][j] == 0:
            apart = rows["input"][i] - rows["input"][j]
            hinge = max(0.0, 1 - w @ apart)
            value += hinge**2
            gradient -= 2 * hinge * apart
    return value / (n * (n - 1)), gradient / (n * (n - 1))


@pytest.mark.parametrize(
    ("sizes", "batch_size"),
    [
        ((7,), None),  # one tile
        ((40, 3), None),  # four tiles, the last of them padded
        ((7, 3), 42),  # the smallest batch that holds all pairs
        ((7, 30), 42),  # the same for one of two clients
    ],
    ids=str,
)
def test_all_pairs_give_the_exact_gradient_of_the_auc_surrogate(sizes, batch_size):
    population = clients(*sizes)
    problem = rk.SingleLevel(OverPairs(ranking))
    problem.check((W,), population.example)
    value, gradient, work = measured(problem, population, batch_size)
    wanted = auc_value_and_gradient(W, population.rows(0, "train"))
    np.testing.assert_allclose(value, wanted[0], rtol=1e-13)
    np.testing.assert_allclose(gradient, wanted[1], rtol=1e-13)
    assert work == 2 * sizes[0] * (sizes[0] - 1)


def test_rows_at_the_server_have_all_pairs():
    rows = clients(7).rows(0, "train")
    got = jax.jit(rk.SingleLevel(OverPairs(ranking)).gradient)(W, Rows(rows))
    np.testing.assert_allclose(got, auc_value_and_gradient(W, rows)[1], rtol=1e-13)


def drawn(n_rows, size):
    population = rk.Population.stacked(np.arange(float(n_rows))[None])
    sample = client(population).draw("train", size, jax.random.key(2)).pairs()
    pair, weights = sample.average(lambda pairs, weights: (pairs, weights))
    return np.stack([pair.first, pair.second], axis=1).astype(int), np.asarray(weights)


def test_drawn_pairs_are_uniform_over_the_ordered_pairs_of_different_rows():
    pairs, weights = drawn(200, 30_000)
    assert np.all(pairs[:, 0] != pairs[:, 1])
    np.testing.assert_allclose(weights, 1 / 30_000)
    for column in pairs.T:
        times = np.bincount(column, minlength=200)
        assert np.sum((times - 150) ** 2 / 150) < 199 + 5 * np.sqrt(2 * 199)
    behind = np.bincount((pairs[:, 1] - pairs[:, 0]) % 200, minlength=200)[1:]
    assert np.sum((behind - behind.mean()) ** 2 / behind.mean()) < 198 + 5 * np.sqrt(2 * 198)


def test_a_mini_batch_is_that_many_pairs_and_counts_two_rows_each():
    one = client(clients(9))
    sample = one.draw("train", 4, jax.random.key(0))
    rk.SingleLevel(OverPairs(ranking)).gradient(W, sample)
    assert uint64.read(one.work)[0] == 8
    rk.Bilevel(
        lambda x, y, row: x, OverPairs(lambda x, y, a, b: ranking(y, a, b)), outer_split="train"
    ).inner_hvp(jnp.array(0.0), W, W, sample)
    assert uint64.read(one.work)[1] == 8


def test_a_single_row_is_paired_with_itself():
    distance = OverPairs(lambda w, a, b: 3.0 + jnp.sum((w * (a["input"] - b["input"])) ** 2))
    for size in (None, 3):
        assert float(measured(rk.SingleLevel(distance), clients(1, 9), size)[0]) == 3


def test_pairs_that_do_not_count_do_not_spoil_derivatives():
    loss = OverPairs(lambda w, a, b: jnp.sqrt(jnp.sum((w * (a["input"] - b["input"])) ** 2)))
    for size in (None, 10):
        assert np.all(np.isfinite(measured(rk.SingleLevel(loss), clients(3, 40), size)[1]))


def test_pairs_get_keys_of_their_own_and_the_same_however_they_are_listed():
    problem = rk.SingleLevel(OverPairs(lambda w, a, b, *, key: w[0] * jax.random.normal(key)))
    listed, tiled = (measured(problem, clients(5, 40), n)[0] for n in (20, None))
    np.testing.assert_allclose(listed, tiled, rtol=1e-13)

    @jax.jit
    def keys_and_weights():
        sample = client(clients(5)).draw("train", None, jax.random.key(0)).pairs()
        return sample.average_with_keys(lambda pairs, w, keys: (jax.random.key_data(keys), w))

    keys, weights = keys_and_weights()
    assert len(np.unique(keys[weights > 0], axis=0)) == 20


def contrast(w, rows, weights):
    """InfoNCE: a row should resemble the next coordinate of itself more than those of others."""
    left, right = rows["input"][:, 0] * w[0], rows["input"][:, 1] * w[1]
    scores = jnp.where(weights > 0, left[:, None] * right[None], -jnp.inf)
    return jnp.vdot(weights, jax.nn.logsumexp(scores, axis=1) - left * right)


def contrast_in_numpy(w, rows):
    left, right = rows["input"][:, 0] * w[0], rows["input"][:, 1] * w[1]
    scores = left[:, None] * right
    return np.mean(np.log(np.exp(scores).sum(1)) - np.diag(scores))


@pytest.mark.parametrize("batch_size", [None, 6])
def test_a_whole_client_is_one_batch_whatever_the_padding(batch_size, differences):
    population = clients(4, 9)
    problem = rk.SingleLevel(OverBatch(contrast))
    problem.check((W,), population.example)
    value, gradient, work = measured(problem, population, batch_size)
    rows = population.rows(0, "train")
    np.testing.assert_allclose(value, contrast_in_numpy(W, rows), rtol=1e-13)
    slope = differences(lambda w: contrast_in_numpy(w, rows), W)
    np.testing.assert_allclose(gradient, slope, rtol=1e-8)
    assert work == 4
    np.testing.assert_allclose(jax.jit(problem.value)(W, Rows(rows)), value, rtol=1e-13)


def test_a_mini_batch_is_one_batch_of_the_drawn_rows():
    population = clients(9)
    sample = client(population).draw("train", 5, jax.random.key(3))
    rows = sample.average(lambda rows, weights: jax.tree.map(np.asarray, rows))
    value, _, work = measured(rk.SingleLevel(OverBatch(contrast)), population, 5, key=3)
    np.testing.assert_allclose(value, contrast_in_numpy(W, rows), rtol=1e-13)
    assert work == 5


def test_a_batch_has_one_key():
    loss = OverBatch(lambda w, rows, weights, key: jax.random.normal(key))
    sample = client(clients(9)).draw("train", 5, jax.random.key(3))
    problem = rk.SingleLevel(loss)
    assert float(problem.value(W, sample)) == float(problem.value(2 * W, sample)) != 0.0


def test_maps_of_rows_and_of_pairs_stand_together_in_a_multi_sequence():
    problem = rk.MultiSequence(
        main=OverPairs(lambda blocks, a, b: blocks[0] + a["input"] - b["input"] ** 2),
        sequences=[lambda blocks, row: blocks[1] - row["input"]],
    )
    population = clients(5)
    problem.check((W, W), population.example)
    one, rows = client(population), population.rows(0, "train")["input"]
    first, second = problem.maps((W, W), one.draw("train", None, one.key))
    np.testing.assert_allclose(first, W + rows.mean(0) - (rows**2).mean(0), rtol=1e-13)
    np.testing.assert_allclose(second, W - rows.mean(0), rtol=1e-13)
    assert uint64.read(one.work)[0] == 5 + 2 * 5 * 4


def test_metrics_over_pairs_and_batches():
    population = clients(4, 9)

    def correct(w, a, b):
        return jnp.vdot(w, a["input"]) > jnp.vdot(w, b["input"])

    metrics = {"half": OverPairs(correct), "contrast": OverBatch(contrast)}
    on = rk.metrics.OnClients(losses=metrics, split="train")
    got = eqx.filter_jit(on)((W,), population, jax.random.key(0))
    assert float(got["half/mean"]) == pytest.approx(0.5)
    each = [contrast_in_numpy(W, population.rows(i, "train")) for i in range(2)]
    assert float(got["contrast/worst"]) == pytest.approx(max(each))
    server = rk.metrics.OnServer(metrics, population.rows(1, "train"))
    got = eqx.filter_jit(server)((W,), population, jax.random.key(0))
    assert (float(got["half"]), float(got["contrast"])) == pytest.approx((0.5, each[1]))


def test_too_many_rows_are_refused():
    population = rk.Population.stacked(np.zeros((1, 70_000)))
    sample = client(population).draw("train", None, jax.random.key(0))
    with pytest.raises(ValueError, match="70000 rows"):
        rk.SingleLevel(OverPairs(lambda w, a, b: w)).value(jnp.array(0.0), sample)
    with pytest.raises(ValueError, match="70000 rows"):
        rk.SingleLevel(OverBatch(lambda w, rows, weights: w)).value(jnp.array(0.0), sample)


def test_mistakes_are_named():
    with pytest.raises(TypeError, match="needs a function"):
        OverPairs(THREE)
    with pytest.raises(TypeError, match="cannot hold OverBatch"):
        OverPairs(OverBatch(contrast))
    with pytest.raises(ValueError, match="outermost"):
        wrapped = OverPairs(ranking)
        rk.SingleLevel(lambda w, row: wrapped(w, row)).check((W,), clients(3).example)
    with pytest.raises(ValueError, match="two rows of the data"):
        rk.SingleLevel(OverPairs(lambda w, row: w)).check((W,), clients(3).example)
