"""Every algorithm with private rows: it runs and every evaluation is noised, or it is refused."""

import numpy as np
import pytest
from instances import INSTANCES

import rookery as rk
from rookery.program.row_privacy import RowPrivate

RUNS = {
    "FedAvg", "FedProx", "FedNova", "FedDyn", "Scaffold", "Scaffnew", "Mime", "FedAvgS",
    "ScaffoldS", "F2SA", "MemFBO", "SOBA", "SimFBO", "FedBiO", "FedMSA",
}  # fmt: skip
"""Algorithms that the page on privacy names."""


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(INSTANCES))
def test_it_runs_or_is_refused_by_name(name):
    which, (zoo, algorithm) = next(iter(INSTANCES[name].items()))
    population = rk.Population.stacked(zoo.data)

    def solution(noise):
        private = RowPrivate(algorithm, clip=1.0, noise=noise, delta=None)
        result = rk.run(private, zoo.problem, population, zoo.start, rounds=2, engine=rk.Eager())
        return np.concatenate([np.ravel(leaf) for leaf in result.solution])

    try:
        small, large = solution(1e-6), solution(1e-2)
    except ValueError as refusal:
        assert "RowPrivate does not allow" in str(refusal), which
        assert name not in RUNS, which
    else:
        assert (small != large).any(), which
