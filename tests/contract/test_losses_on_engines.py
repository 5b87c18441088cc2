"""Losses with keys and losses over pairs: the same numbers and ledgers on every engine."""

from contextlib import closing
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_engines_agree import initial, program, same_state

import rookery as rk
from rookery.problem import OverPairs

DATA = np.random.default_rng(1).normal(size=(3, 5, 2))


class Case(NamedTuple):
    problem: rk.SingleLevel
    data: np.ndarray
    start: tuple


def with_dropout(w, row, key):
    kept = jnp.where(jax.random.bernoulli(key, 0.5, (2,)), 2.0, 0.0)
    return jnp.sum((w - kept * row) ** 2) / 2


def apart(w, first, second):
    return jnp.vdot(w - first, w - second) ** 2 / 2


@pytest.mark.slow
@pytest.mark.parametrize("loss", [with_dropout, OverPairs(apart)], ids=["key", "pairs"])
def test_engines_agree(loss):
    case = Case(rk.SingleLevel(loss), DATA, (np.ones(2),))
    ready, key = program(case), jax.random.key(3)
    algorithm = rk.FedAvg(lr=0.01, local_steps=2, clients=2, batch_size=3)
    got = []
    for engine in (rk.Compiled(), rk.Eager(), rk.remote.Remote()):
        with closing(engine.prepare(ready, [algorithm])) as runner:
            got += runner.advance([initial(case, algorithm)], [key], 0, [2])
    want, *others = got
    assert not np.allclose(want.state.w, 1.0)
    for other in others:
        same_state(other.state, want.state)
        assert [a.values()[:-1] for a in other.ledgers] == [b.values()[:-1] for b in want.ledgers]
