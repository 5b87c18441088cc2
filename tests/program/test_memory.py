"""What clients remember, on both engines, with toy steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.engines.eager import EagerFederation
from rookery.engines.engine import Program
from rookery.engines.traced import TracedFederation
from rookery.program.algorithm import with_rows

POPULATION = jax.tree.map(jnp.asarray, rk.Population.stacked(np.zeros((4, 1, 2))))
PROGRAM = Program(None, POPULATION, rk.delays.Clock(), rk.aggregate.Mean())
ENGINES = [lambda: EagerFederation(PROGRAM, 0), lambda: TracedFederation(PROGRAM, 0, None)]
BLANK = {"a": jnp.zeros(2), "n": jnp.asarray(7)}


def add_one(client, value):
    return {"a": value["a"] + 10.0 + jnp.asarray(client.id).astype(float), "n": value["n"] + 1}


def is_free(fed):
    if isinstance(fed, EagerFederation):
        return fed.ledger == rk.program.Ledger()
    return all(not np.any(one) for one in fed.costs)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_reads_its_own_row_and_only_active_clients_write_theirs(engine):
    fed = engine()
    memory = rk.program.Memory.of(BLANK).for_clients(4)
    cohort = fed.sample(rk.participation.Fixed((3, 0, 2)), jax.random.key(0))
    cohort = cohort.where(jnp.array([True, True, False]))
    for _ in range(2):
        memory = fed.keep(memory, fed.map(add_one, fed.recall(cohort, memory)))
    assert memory.rows["a"].tolist() == [[20, 20], [0, 0], [0, 0], [26, 26]]
    assert memory.rows["n"].tolist() == [9, 7, 7, 9]
    mine = fed.recall(fed.sample(rk.participation.Fixed((3, 1)), jax.random.key(0)), memory)
    assert mine.value["n"].tolist() == [9, 7]
    assert is_free(fed)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_value_that_is_the_same_for_all_can_be_kept(engine):
    fed = engine()
    cohort = fed.sample(rk.participation.Fixed((1, 2)), jax.random.key(0))
    memory = rk.program.Memory.of(jnp.zeros(())).for_clients(4)
    memory = fed.keep(memory, fed.broadcast(cohort, jnp.asarray(5.0)))
    assert memory.rows.tolist() == [0, 5, 5, 0]


@pytest.mark.parametrize("engine", ENGINES)
def test_what_cannot_be_remembered(engine):
    fed = engine()
    memory = rk.program.Memory.of(jnp.zeros(2)).for_clients(4)
    everyone = fed.sample(rk.participation.Everyone(), jax.random.key(0))
    twice = fed.sample(rk.participation.WithReplacement(2), jax.random.key(0))
    with pytest.raises(ValueError, match="drawn with replacement: a client in two slots"):
        fed.recall(twice, memory)
    with pytest.raises(ValueError, match="drawn with replacement: a client in two slots"):
        fed.keep(memory, fed.broadcast(twice, jnp.zeros(2)))
    with pytest.raises(ValueError, match=r"float64\[3\].*float64\[2\]"):
        fed.keep(memory, fed.broadcast(everyone, jnp.zeros(3)))
    with pytest.raises(ValueError, match="rows for None clients, and there are 4"):
        fed.recall(everyone, rk.program.Memory.of(jnp.zeros(2)))
    with pytest.raises(TypeError, match="need a Memory, got ndarray"):
        fed.recall(everyone, np.zeros((4, 2)))


def test_a_memory_is_not_a_setting():
    fed = ENGINES[0]()
    memory = rk.program.Memory.of(jnp.zeros(2)).for_clients(4)
    v = fed.broadcast(fed.sample(rk.participation.Everyone(), jax.random.key(0)), jnp.zeros(()))
    with pytest.raises(ValueError, match="setting 'memory' holds an array"):
        fed.map(add_one, v, memory=memory)


def test_a_state_gets_its_rows_once():
    state = with_rows({"x": jnp.ones(3), "m": rk.program.Memory.of(np.ones(2, np.float32))}, 4)
    assert state["x"].shape == (3,)
    assert (state["m"].rows.shape, state["m"].rows.dtype) == ((4, 2), np.float32)
    with pytest.raises(ValueError, match="already has rows, for 4 clients"):
        with_rows(state, 4)


def test_shares_begin_equal_wherever_they_stand_in_a_state():
    state = with_rows({"w": jnp.zeros(2), "deep": (rk.program.Probabilities(),)}, 4)
    assert state["deep"][0].values.tolist() == [0.25] * 4
    with pytest.raises(ValueError, match="already there, for 4 clients"):
        with_rows(state, 4)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_slots_count_in_a_mean(engine):
    fed = engine()
    fed.weights = jnp.array([0.1, 0.2, 0.3, 0.4])
    cohort = fed.sample(rk.participation.Fixed((3, 0, 2)), jax.random.key(0))
    some = cohort.where(jnp.array([True, True, False]))
    np.testing.assert_allclose(fed.slot_weights(some), [0.8, 0.2, 0])
    drawn = fed.sample(rk.participation.Weighted(5), jax.random.key(0))
    np.testing.assert_allclose(fed.slot_weights(drawn), [0.2] * 5)


def test_what_the_server_keeps_per_client_gets_its_rows_with_the_clients():
    state = with_rows((rk.program.PerClient.of(jnp.array([1.0, 2.0])), 3), 4)
    assert state[0].rows.tolist() == [[1.0, 2.0]] * 4
    assert (state[0].has_rows, state[1]) == (True, 3)
    with pytest.raises(ValueError, match="this value already has a row for each client"):
        state[0].for_clients(4)
