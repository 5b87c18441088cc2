"""Clients visited a few at a time, in loops as long as there are clients concerned."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from rookery._types import Tree
from rookery.engines import counters

if TYPE_CHECKING:
    from rookery.engines.traced import TracedFederation

AT_ONCE = 32  # clients that are visited side by side, at most, if nothing else is asked for


def visit_some(
    fed: TracedFederation, who: jax.Array, width: int, visit: Callable[..., Tree], carry: Tree
) -> Tree:
    """``visit(ids, active, carry)`` until all clients where ``who`` is true have had their turn."""
    n = fed.n_clients
    numbers = jnp.arange(n, dtype=jnp.int32)

    def once(_, carry):
        last, value = carry

        def pick(slot, carry):  # one minimum for each: a sort of all would cost far more
            last, ids = carry
            found = jnp.min(jnp.where(who & (numbers > last), numbers, n))
            return found, ids.at[slot].set(found)

        last, ids = lax.fori_loop(0, width, pick, (last, jnp.zeros(width, jnp.int32)))
        return last, visit(jnp.minimum(ids, n - 1), ids < n, value)

    turns = -(-jnp.sum(who, dtype=jnp.int32) // width)
    return lax.fori_loop(0, turns, once, (jnp.int32(-1), carry))[1]


def width_of(fed: TracedFederation, at_once: int | None) -> int:
    """How many clients are visited side by side."""
    return min(at_once or AT_ONCE, fed.clients_at_once or AT_ONCE, fed.n_clients)


def written(table: Tree, ids, active, rows: Tree) -> Tree:
    """The table with new rows; those of slots that are switched off aim past the end."""

    def write(all, new):
        at = jnp.where(active, ids, all.shape[0])
        return all.at[at].set(new, mode="drop")

    return jax.tree.map(write, table, rows)


def weighted_sum(weights: jax.Array, ids, active, rows: Tree) -> Tree:
    """The sum of the rows of active slots, by the weights of their clients."""
    weights = jnp.where(active, weights[ids], 0.0)
    return jax.tree.map(lambda r: jnp.tensordot(weights.astype(r.dtype), r, 1), rows)


def worked(counted, active, work):
    """The counters with the evaluations of active slots."""
    more = (jnp.where(active, w, jnp.uint32(0)) for w in work)
    return tuple(counters.add_all(c, m) for c, m in zip(counted, more, strict=True))
