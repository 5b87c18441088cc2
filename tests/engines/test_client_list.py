"""Selected clients are visited in order, each once, however many are selected."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.engines.client_list import list_of, visit_some


# one client, less than a block, whole blocks, a block that is not full, many; narrow and wide
@pytest.mark.parametrize(("n", "width"), [(1, 1), (5, 32), (64, 3), (103, 1), (1003, 32)])
def test_every_selected_client_is_visited_once_in_order(n, width):
    def visit(ids, active, carry):
        seen, order, turn = carry
        order = order.at[jnp.where(active, ids, n)].set(
            turn * width + jnp.arange(width, dtype=jnp.int32), mode="drop"
        )
        return seen.at[jnp.where(active, ids, n)].add(1, mode="drop"), order, turn + 1

    empty = (jnp.zeros(n, jnp.int32), jnp.full(n, -1, jnp.int32), jnp.int32(0))
    run = jax.jit(lambda who: visit_some(list_of(who, usual=2), width, visit, empty))
    draws = np.random.default_rng(n)
    for fraction in (0.0, 0.1, 0.5, 1.0):
        who = draws.random(n) < fraction
        seen, order, turns = run(jnp.asarray(who))
        np.testing.assert_array_equal(seen, who)
        np.testing.assert_array_equal(order[who], np.arange(who.sum()))
        assert int(turns) == -(-who.sum() // width)
