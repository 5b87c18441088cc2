"""The end of a wait is that of the walk from event to event, to the last bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.engines.waiting import FEW, end_of_wait, kth_smallest


def walk(now, finish, due, needed):
    """One event after another, as the rule says."""
    while (due <= now).sum() < needed:
        now = finish[due > now].min()
    return now


@pytest.mark.parametrize("slack", [0.0, 1e-3, 0.3])
def test_the_wait_ends_where_the_walk_does(slack):
    """With a large slack events chain: each takes in jobs that the next would else begin with."""
    rng = np.random.default_rng(0)

    @jax.jit
    def end(now, finish, due, needed):
        def must_wait(time):
            return jnp.sum(due <= time, dtype=jnp.int32) < needed

        return end_of_wait(now, finish, due, jnp.sort(due)[needed - 1], must_wait)

    for trial in range(300):
        finish = rng.uniform(-1, 2, 12).round(1 if trial % 2 else 6)
        due = finish - slack * rng.uniform(0, 1, 12)
        needed = int(rng.integers(1, 13))
        expected = walk(0.0, finish, due, needed)
        assert end(jnp.zeros(()), finish, due, jnp.int32(needed)) == expected


@pytest.mark.parametrize("k", [1, 2, 7, FEW, FEW + 1, FEW + 2])
def test_kth_smallest_counts_equal_values(k):
    values = np.random.default_rng(k).integers(0, 400, FEW + 2).astype(float)
    assert kth_smallest(jnp.asarray(values), k) == np.sort(values)[k - 1]
