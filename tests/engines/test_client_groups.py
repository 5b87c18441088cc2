"""How many clients are computed at once, and sums as replies come."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.engines import client_groups
from rookery.engines.client_groups import computed_and_summed, group_size
from rookery.engines.engine import Program
from rookery.engines.rounds import one_round
from rookery.program.aggregate import Mean, Median
from rookery.program.algorithm import first_state
from rookery.program.delays import Clock


@pytest.mark.parametrize(
    ("nbytes", "n_slots", "size"),
    [
        (8, 1000, 1000),  # small models: everybody
        (0, 5, 5),
        (client_groups.WORKING_SET // 4, 100, 4),
        (client_groups.WORKING_SET // 4, 10, 5),  # no smaller group at the end
        (client_groups.WORKING_SET // 4, 7, 7),
        (client_groups.WORKING_SET // 4, 13, 4),  # a prime number: with a smaller one
        (client_groups.WORKING_SET * 3, 100, 1),
    ],
)
def test_groups_fit_into_the_cache(nbytes, n_slots, size):
    assert group_size(nbytes, n_slots) == size


@pytest.mark.parametrize("size", [1, 3, 7, 10])
def test_a_sum_by_groups_is_the_sum(size):
    rng = np.random.default_rng(0)
    weights, rows = rng.uniform(size=10), rng.normal(size=(10, 4))
    replies, rest, total = computed_and_summed(
        lambda row: ((row**2, jnp.sum(row > 0)), row[0]), jnp.array(rows), jnp.array(weights), size
    )
    np.testing.assert_array_equal(replies[0], rows**2)
    np.testing.assert_array_equal(rest, rows[:, 0])
    np.testing.assert_allclose(total[0], weights @ rows**2, rtol=1e-13)
    assert total[1] is None  # counts have no mean


SIZE, COHORT = 2000, 60


def squares(w, example):
    return 0.5 * jnp.sum((w - example) ** 2)


def compiled_round(aggregate):
    """The program of a round of FedAvg on long vectors, and the bytes it needs beside arguments."""
    population = rk.Population.stacked(np.random.default_rng(0).normal(size=(COHORT, 1, SIZE)))
    algorithm = rk.FedAvg(lr=0.1, local_steps=2, clients=rk.participation.Everyone())
    problem = rk.SingleLevel(squares)
    program = Program(problem, jax.tree.map(jnp.asarray, population), Clock(), aggregate)
    state = first_state(algorithm, problem, COHORT, (jnp.zeros(SIZE),))

    def round(population, state):
        own = Program(problem, population, Clock(), aggregate)
        return one_round(own, algorithm, 2, state, jax.random.key(0), 0)

    compiled = jax.jit(round).lower(program.population, state).compile()
    analysis = compiled.memory_analysis()
    assert analysis is not None
    solution = algorithm.solution(compiled(program.population, state)[0])[0]
    return solution, analysis.temp_size_in_bytes


def test_replies_that_are_summed_as_they_come_are_never_all_in_memory(monkeypatch):
    stacked, much = compiled_round(Mean())
    monkeypatch.setattr(client_groups, "SUMMED_BYTES", 1000)
    summed, little = compiled_round(Mean())
    np.testing.assert_allclose(summed, stacked, rtol=1e-12, atol=1e-15)
    replies = COHORT * SIZE * stacked.dtype.itemsize
    assert little < replies / 2 < replies < much
    robust, _ = compiled_round(Median())  # needs all of them
    assert not np.allclose(robust, stacked)
