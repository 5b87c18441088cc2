"""Clients visited a few at a time, in loops as long as there are clients concerned."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from rookery.engines import uint64
from rookery.types import Tree

if TYPE_CHECKING:
    from rookery.engines.traced import TracedFederation

AT_ONCE = 32  # the most clients in one vmap: wide enough to fill the vector units


def visit_some(
    fed: TracedFederation, who: jax.Array, width: int, visit: Callable[..., Tree], carry: Tree
) -> Tree:
    """``visit(ids, active, carry)`` until all clients where ``who`` is true have had their turn."""
    n = fed.n_clients
    next_after = _finder(who)

    def once(_, carry):
        last, value = carry

        def pick(slot, carry):
            last, ids = carry
            found = next_after(last)
            return found, ids.at[slot].set(found)

        last, ids = lax.fori_loop(0, width, pick, (last, jnp.zeros(width, jnp.int32)))
        return last, visit(jnp.minimum(ids, n - 1), ids < n, value)

    turns = -(-jnp.sum(who, dtype=jnp.int32) // width)
    return lax.fori_loop(0, turns, once, (jnp.int32(-1), carry))[1]


def _finder(who: jax.Array) -> Callable[[jax.Array], jax.Array]:
    """A function that gives the next client after another where ``who`` is true, or their number.

    It looks at a square root of all clients: in a table of them, at the rest of one row, at which
    rows have any, and at the first of these.
    """
    (n,) = who.shape
    side = math.isqrt(n - 1) + 1
    columns, rows = jnp.arange(side, dtype=jnp.int32), jnp.arange(side + 1, dtype=jnp.int32)
    # one empty row more, which the search after the last client begins in
    table = jnp.zeros((side + 1) * side, bool).at[:n].set(who).reshape(side + 1, side)
    have_any = jnp.any(table, axis=1)

    def next_after(last):
        row, column = (last + 1) // side, (last + 1) % side
        here = jnp.min(jnp.where(table[row] & (columns >= column), columns, side))
        later = jnp.min(jnp.where(have_any & (rows > row), rows, side))
        first = jnp.min(jnp.where(table[later], columns, side))
        found = jnp.where(here < side, row * side + here, later * side + first)
        return jnp.where((here < side) | (later < side), found, n).astype(jnp.int32)

    return next_after


def width_of(fed: TracedFederation, usual: int | None = None) -> int:
    """How many clients go through one vmap, where ``usual`` clients are the common number."""
    return min(usual or AT_ONCE, fed.clients_at_once or AT_ONCE, fed.n_clients)


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
    return tuple(uint64.add_all(c, m) for c, m in zip(counted, more, strict=True))
