"""A batch size for each split, and so for each level of a bilevel problem."""

import jax
import numpy as np
import pytest
from arena import at, ledger

import rookery as rk
from rookery.algorithms.shared.context import Context
from rookery.engines.engine import Program
from rookery.engines.traced import TracedFederation

ZOO = rk.zoo.quadratic_bilevel(n_clients=3, rows=6, noise=0.3)
PROBLEM = rk.Bilevel(ZOO.problem.outer, ZOO.problem.inner)


def make_population():
    """The first two rows of a client are for validation, the others for training."""
    rows = {name: values.reshape(-1, *values.shape[2:]) for name, values in ZOO.data.items()}
    parts = {
        "validation": [np.arange(6 * i, 6 * i + 2) for i in range(3)],
        "train": [np.arange(6 * i + 2, 6 * i + 6) for i in range(3)],
    }
    return rk.Population.from_parts(rows, parts)


def estimate(batch_size):
    population = jax.tree.map(jax.numpy.asarray, make_population())
    program = Program(PROBLEM, population, rk.delays.Clock(), rk.aggregate.Mean())
    fed = TracedFederation(program, 0, None)
    context = Context(fed, PROBLEM, rk.participation.Everyone(), batch_size)
    series = rk.parts.FedIHGPSum(terms=2, lipschitz=5.0)
    v, _ = series.estimate(context, at(*ZOO.start), jax.random.key(0))
    return np.asarray(v), ledger(fed)


@pytest.mark.slow
def test_each_level_draws_as_many_rows_as_its_split_says():
    _, costs = estimate({"validation": 1, "train": 3})
    assert costs.gradients == 3 * 1  # f_y on one row of each client
    assert costs.hessian_vectors == 3 * 2 * 3  # two hops on three rows


@pytest.mark.slow
def test_equal_numbers_are_one_number():
    both, costs = estimate({"validation": 3, "train": 3})
    one, same = estimate(3)
    np.testing.assert_array_equal(both, one)
    assert costs == same


@pytest.mark.parametrize(
    ("batch_size", "message"),
    [
        ({"train": 0, "validation": 1}, r"batch_size\['train'\] must be at least 1, got 0"),
        ({}, "batch_size must have a number for each split"),
    ],
)
def test_bad_sizes_are_refused_at_construction(batch_size, message):
    with pytest.raises(ValueError, match=message):
        rk.FedNest(outer_lr=0.1, inner_lr=0.1, batch_size=batch_size)


@pytest.mark.parametrize("batch_size", [{"train": 2}, {"train": 2, "validation": 1, "test": 1}])
def test_splits_must_be_those_of_the_problem(batch_size):
    algorithm = rk.FedNest(outer_lr=0.1, inner_lr=0.1, batch_size=batch_size)
    with pytest.raises(ValueError, match="the problem reads train, validation"):
        rk.run(algorithm, PROBLEM, make_population(), ZOO.start, rounds=1)


def test_prometheus_needs_to_know_when_to_renew():
    sizes = {"train": 2, "validation": 1}
    with pytest.raises(ValueError, match="renew_every"):
        rk.Prometheus(outer_lr=0.1, inner_lr=0.1, batch_size=sizes)
