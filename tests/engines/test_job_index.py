"""An index of the jobs spares searches and changes nothing else."""

from functools import partial

import jax
import numpy as np
import pytest
from jax import lax

import rookery as rk
from rookery.engines.blocks import SIDE, n_blocks
from rookery.engines.engine import Program
from rookery.engines.job_index import MANY, indexed, indices, without_index
from rookery.engines.rounds import one_round
from rookery.program.algorithm import first_state
from rookery.program.availability import DiurnalOn
from rookery.program.polling import SIMULTANEOUS

N = MANY + 150
ALGORITHM = rk.FedBuff(lr=0.1, buffer_size=5)


def loss(w, row):
    return (w - row) ** 2


def first_events(jobs):
    """Block by block, in double precision; jobs that the next poll looks at anyway have none."""
    start, seconds = np.float64(jobs.start), np.float64(jobs.seconds)
    slack = SIMULTANEOUS * np.finfo(jobs.start.dtype).eps * np.maximum(abs(start), seconds)
    events = np.where(jobs.is_idle, start, start + seconds) - slack
    events[np.asarray(jobs.has_arrived)] = np.inf
    padded = np.full(n_blocks(N) * SIDE, np.inf)
    padded[:N] = events
    return padded.reshape(-1, SIDE).min(axis=1)


@pytest.mark.parametrize("bandwidth", [None, pytest.param(100.0, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_rounds_with_an_index_are_the_same_and_its_bounds_hold(bandwidth):
    clock = rk.delays.Clock(
        rk.delays.LogNormalDelay(3.0, 2.0),
        bandwidth=bandwidth,
        availability=DiurnalOn(period=500.0, fraction=0.2),
    )
    problem = rk.SingleLevel(loss)
    population = rk.Population.stacked(np.arange(N, dtype=np.float32)[:, None])
    program = Program(problem, population, clock, rk.aggregate.Mean())
    state = first_state(ALGORITHM, problem, N, (np.float32(0.0),))

    @partial(jax.jit, static_argnames="n")
    def rounds(state, n):
        def one(round, state):
            key = jax.random.key(0)
            return one_round(program, ALGORITHM, None, state, key, round)[0]

        return lax.fori_loop(0, n, one, state)

    kept = rounds(indexed(state), 80)
    jax.tree.map(np.testing.assert_array_equal, without_index(kept), rounds(state, 80))
    ((jobs, index),) = indices(kept)
    arrived = np.flatnonzero(jobs.has_arrived)
    assert 5 <= arrived.size == index.arrived.size < 100
    np.testing.assert_array_equal(index.arrived.ids[: arrived.size], arrived)
    bound, event = np.float64(index.events.first), first_events(jobs)
    assert (bound <= event).all()
    is_known = ~np.isin(np.arange(bound.size), arrived // SIDE)  # others are looked at anyway
    assert (bound > event - 0.1)[is_known].all() and is_known.sum() > 10


def test_few_clients_have_no_index():
    state = first_state(ALGORITHM, rk.SingleLevel(loss), MANY, (np.float32(0.0),))
    assert indices(indexed(state)) == []
