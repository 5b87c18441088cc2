"""The end of a wait is that of the walk from event to event, to the last bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.engines.waiting import Timeline, Times


def timeline(finish, due, usual):
    """Jobs of which nothing else is known."""

    def times(pick):
        ends, known = pick(finish), pick(due)
        return Times(ends, ends, ends, known, known, ends > 0)

    return Timeline(finish.shape[0], times, usual)


def walk(now, finish, due, needed):
    """One event after another, as the rule says."""
    while (due <= now).sum() < needed:
        now = finish[due > now].min()
    return now


# one block, and more of them than are read at a time
@pytest.mark.parametrize("n", [12, pytest.param(700, marks=pytest.mark.slow)])
@pytest.mark.parametrize("slack", [pytest.param(0.0, marks=pytest.mark.slow), 1e-3, 0.3])
def test_the_wait_ends_where_the_walk_does(slack, n):
    """With a large slack events chain: each takes in jobs that the next would else begin with."""
    rng = np.random.default_rng(0)

    @jax.jit
    def end(now, finish, due, needed):
        enough = jnp.sort(due)[needed - 1]
        found = timeline(finish, due, 2).end_of_wait(now, enough, lambda time: time < enough)
        arrived = timeline(finish, due, 2).due_by(found, buffer=None)
        return found, arrived.ids, arrived.size

    for trial in range(100):
        finish = rng.uniform(-1, 2, n).round(1 if trial % 2 else 6)
        due = finish - slack * rng.uniform(0, 1, n)
        needed = int(rng.integers(1, n + 1))
        expected = walk(0.0, finish, due, needed)
        found, ids, size = end(jnp.zeros(()), finish, due, jnp.int32(needed))
        assert found == expected
        np.testing.assert_array_equal(ids[:size], np.flatnonzero(due <= expected))


@pytest.mark.parametrize("k", [1, 2, 7, 300, 999, 1000])
def test_equal_times_count_one_by_one(k):
    due = np.random.default_rng(k).integers(0, 400, 1000).astype(float)
    found = jax.jit(lambda due: timeline(due, due, k).kth_due(k))(jnp.asarray(due))
    assert found == np.sort(due)[k - 1]
