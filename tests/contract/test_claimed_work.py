"""The work that a client of any algorithm may claim has a bound."""

import math

import pytest
from instances import INSTANCES

import rookery as rk
from rookery.program.algorithm import first_state, numbers_to_arrays
from rookery.remote.protocol.tracing import trace_round
from rookery.remote.server.claimed_work import ClaimedWork


def is_bounded(zoo, algorithm):
    population = rk.Population.stacked(zoo.data)
    state = first_state(algorithm, zoo.problem, population.n_clients, zoo.start)
    plan = trace_round(numbers_to_arrays(algorithm), zoo.problem, population, state)
    bounds = ClaimedWork(population).bounds(0, plan.calls)
    return all(most < math.inf for _, most in bounds)


@pytest.mark.slow
def test_every_algorithm_bounds_its_work():
    """Scaffnew's number of steps has no bound; claims are compared with each other."""
    unbounded = {
        name
        for name, variants in INSTANCES.items()
        if not all(is_bounded(*instance) for instance in variants.values())
    }
    assert unbounded == {"Scaffnew", "ProxSkipVIP", "Scafflix"}
