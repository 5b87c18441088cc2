"""Garbage collection is paused while a program is traced, and goes on afterwards."""

import gc

import jax
import numpy as np
import pytest

import rookery as rk
from rookery.engines.collection import paused
from rookery.engines.engine import Program
from rookery.program.algorithm import first_state


@pytest.fixture
def turned_off():
    gc.disable()
    yield
    gc.enable()


def test_it_stays_off_where_the_user_has_turned_it_off(turned_off):
    with paused():
        pass
    assert not gc.isenabled()


def test_it_goes_on_after_a_program_that_fails_while_it_is_traced():
    seen = []

    def loss(w, row):
        seen.append(gc.isenabled())
        raise ZeroDivisionError

    problem, algorithm = rk.SingleLevel(loss), rk.FedAvg(lr=0.1)
    population = rk.Population.stacked(np.ones((2, 1), np.float32))
    program = Program(problem, population, rk.delays.Clock(), rk.aggregate.Mean())
    runner = rk.Compiled().prepare(program, [algorithm])
    state = first_state(algorithm, problem, 2, (np.float32(0.0),))
    with pytest.raises(ZeroDivisionError):
        runner.advance([state], [jax.random.key(0)], 0, [1])
    assert seen == [False] and gc.isenabled()
