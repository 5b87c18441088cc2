"""Prepared rows: the same derivatives as losses of the rows, and fewer evaluations of prepare."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.algorithms.shared.context import Context
from rookery.algorithms.shared.system import LocalSystem
from rookery.clients.local_client import LocalClient
from rookery.engines.engine import Program
from rookery.engines.traced import TracedFederation
from rookery.loss import OverBatch, OverPairs
from rookery.problem.sample import Rows
from rookery.program.step import python_loop

COUNTS = (5, 3, 7)  # rows of the clients


def features(x, row):
    return {"h": jnp.tanh(x @ row["a"]), "b": row["b"]}


def outer(x, y, ready):
    return (y @ ready["h"] - ready["b"]) ** 2 / 2 + jnp.sum(x**2) / 20


def inner(x, y, ready):
    return (y @ ready["h"] + ready["b"]) ** 2 / 2 + jnp.sum(y**2) / 2


PREPARED = rk.Bilevel(outer, inner, outer_split="train", prepare=features)
PLAIN = rk.Bilevel(
    lambda x, y, row: outer(x, y, features(x, row)),
    lambda x, y, row: inner(x, y, features(x, row)),
    outer_split="train",
)


def make_rows(n, seed=0):
    rng = np.random.default_rng(seed)
    return {"a": rng.normal(size=(n, 3)), "b": rng.normal(size=n)}


def make_population():
    ends = np.cumsum(COUNTS)
    parts = [np.arange(end - n, end) for n, end in zip(COUNTS, ends, strict=True)]
    return rk.Population.from_parts(make_rows(int(ends[-1])), {"train": parts})


def make_point():
    rng = np.random.default_rng(1)
    x, y, v = rng.normal(size=(2, 3)), rng.normal(size=2), rng.normal(size=2)
    return jnp.asarray(x), jnp.asarray(y), jnp.asarray(v)


@pytest.mark.parametrize("name", ["outer_grad_x", "outer_grad_y", "inner_grad_x", "inner_grad_y"])
def test_gradients_go_through_prepare(name):
    x, y, _ = make_point()
    rows = Rows(make_rows(6))
    got, want = (getattr(problem, name)(x, y, rows) for problem in (PREPARED, PLAIN))
    np.testing.assert_allclose(got, want, rtol=1e-14)


@pytest.mark.parametrize("name", ["inner_hvp", "inner_cross"])
def test_second_derivatives_go_through_prepare(name):
    x, y, v = make_point()
    rows = Rows(make_rows(6))
    got, want = (getattr(problem, name)(x, y, v, rows) for problem in (PREPARED, PLAIN))
    np.testing.assert_allclose(got, want, rtol=1e-13)


def test_pairs_and_batches_are_prepared_row_by_row():
    x, y, _ = make_point()
    rows = Rows(make_rows(4))

    def difference(x, y, one, other):
        return (y @ (one["h"] - other["h"])) ** 2

    def spread(x, y, ready, weights):
        scores = ready["h"] @ y
        return weights @ scores**2 - (weights @ scores) ** 2

    pairs, batch = OverPairs(difference), OverBatch(spread)
    problem = rk.Bilevel(pairs, batch, prepare=features)
    scores = np.tanh(np.asarray(rows.rows["a"]) @ np.asarray(x).T) @ np.asarray(y)
    gaps = (scores[:, None] - scores[None]) ** 2
    assert float(problem.outer_value(x, y, rows)) == pytest.approx(gaps.sum() / 12, rel=1e-12)
    assert float(problem.inner_value(x, y, rows)) == pytest.approx(scores.var(), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [2, None])
def test_local_steps_are_the_same_with_prepared_rows(batch_size):
    x, y, _ = make_point()
    population = jax.tree.map(jnp.asarray, make_population())
    ends, costs = [], []
    for problem in (PREPARED, PLAIN):
        program = Program(problem, population, rk.delays.Clock(), rk.aggregate.Mean())
        fed = TracedFederation(program, 0, None)
        context = Context(fed, problem, rk.participation.Uniform(2), batch_size)
        part = rk.parts.FedInn(lr=0.1, local_steps=5)
        ends.append(part(context, x, y, (), jax.random.key(4))[0])
        costs.append(fed.costs)
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-12)
    assert np.abs(ends[0] - y).max() > 0.1
    jax.tree.map(np.testing.assert_array_equal, *costs)


@pytest.mark.parametrize(("draws", "is_worth_it"), [(3, False), (4, True)])
def test_rows_are_prepared_once_if_the_samples_have_as_many(draws, is_worth_it):
    population = make_population()  # the largest client has 7 rows
    client: Any = LocalClient(population, 1, jax.random.key(0), python_loop)
    x, y, _ = make_point()
    at = LocalSystem(client, PREPARED, x, y, 2)
    ready = at.prepared_for(draws)
    assert isinstance(ready.problem, rk.Bilevel)
    assert (ready.prepared is not None) == is_worth_it
    key = jax.random.key(3)
    got = ready.problem.inner_grad_y(x, y, ready.inner_sample(key))
    want = PLAIN.inner_grad_y(x, y, LocalSystem(client, PLAIN, x, y, 2).inner_sample(key))
    np.testing.assert_allclose(got, want, rtol=1e-13)


def test_a_prepare_that_does_not_fit_the_rows_is_refused_before_the_run():
    problem = rk.Bilevel(outer, inner, outer_split="train", prepare=lambda x, row: row["c"])
    row = jax.tree.map(lambda a: a[0], make_rows(1))
    with pytest.raises(ValueError, match=r"prepare cannot take x float64\[2, 3\]"):
        problem.check(make_point()[:2], lambda split: row)


def test_a_random_prepare_is_refused():
    with pytest.raises(TypeError, match="prepare has a parameter named key"):
        rk.Bilevel(outer, inner, prepare=lambda x, row, key=None: row)
