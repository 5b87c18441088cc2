"""Clients are visited in order, each once, whatever their number."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.engines.masked_loop import visit_some


@pytest.mark.parametrize("n", [1, 2, 4, 5, 9, 10, 16, 17, 100, 103])
@pytest.mark.parametrize("width", [1, 3, 32])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_all_concerned_have_their_turn_in_order(n, width, share):
    who = np.random.default_rng(n).random(n) < share

    def visit(ids, active, carry):
        seen, order, turn = carry
        order = order.at[jnp.where(active, ids, n)].set(
            turn * width + jnp.arange(width, dtype=jnp.int32), mode="drop"
        )
        return seen.at[jnp.where(active, ids, n)].add(1, mode="drop"), order, turn + 1

    fed: Any = SimpleNamespace(n_clients=n)  # all that visits look at
    empty = (jnp.zeros(n, jnp.int32), jnp.full(n, -1, jnp.int32), jnp.int32(0))
    run = jax.jit(lambda who: visit_some(fed, who, width, visit, empty))
    seen, order, turns = run(jnp.asarray(who))
    np.testing.assert_array_equal(seen, who)
    np.testing.assert_array_equal(order[who], np.arange(who.sum()))
    assert int(turns) == -(-who.sum() // width)
