"""A uniform draw of clients with unequal weights is biased, and a run says so."""

import warnings

import numpy as np
import pytest

import rookery as rk


def go(clients, weights, n_runs=1):
    problem = rk.SingleLevel(lambda w, row: (w - row) ** 2, split="train")
    population = rk.Population.stacked(np.ones((3, 1)), weights=weights)
    algorithm = rk.FedAvg(lr=0.1, clients=clients)
    runs = [rk.Run(algorithm, (np.zeros(()),), seed) for seed in range(n_runs)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rk.sweep(runs, problem, population, rounds=1)
    return caught


def test_equal_draws_of_unequal_clients_are_warned_of_once():
    (caught,) = go(2, [3.0, 1.0, 1.0], n_runs=2)
    assert "2 of 3 clients" in str(caught.message) and "Proportional(2)" in str(caught.message)
    assert caught.filename == __file__


@pytest.mark.parametrize(
    ("clients", "weights"),
    [
        (2, None),
        (2, [0.1, 0.1, 0.1]),
        (None, [3.0, 1.0, 1.0]),
        (3, [3.0, 1.0, 1.0]),
        (rk.participation.Proportional(2), [3.0, 1.0, 1.0]),
    ],
)
def test_unbiased_means_are_not_warned_of(clients, weights):
    assert not go(clients, weights)
