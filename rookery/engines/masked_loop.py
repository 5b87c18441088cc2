"""Loops over the clients of a mask, a few per vmap, as long as the mask has bits set."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Shaped

from rookery.types import Tree

WIDTH = 32
"""The most clients in one vmap unless the engine is told otherwise; it fills vector units."""


def width(n_clients: int, clients_at_once: int | None, usual: int | None = None) -> int:
    """How many clients go through one vmap.

    >>> width(n_clients=100, clients_at_once=None, usual=5)
    5

    Args:
        n_clients: how many clients there are.
        clients_at_once: what the engine was told, or None.
        usual: how many bits a mask usually has, or None if nobody knows. A wider vmap would compute
            results that nobody uses.
    """
    return min(usual or WIDTH, clients_at_once or WIDTH, n_clients)


def visit_some(
    who: Bool[Array, " clients"],
    width: int,
    visit: Callable[[jax.Array, jax.Array, Tree], Tree],
    carry: Tree,
) -> Tree:
    """Apply ``carry = visit(ids, active, carry)`` until every client of a mask had its turn.

    Args:
        who: the mask.
        width: how many clients ``visit`` is given.
        visit: ``ids`` are clients in ascending order; the last call may have inactive slots.
        carry: the first value.
    """
    (n,) = who.shape
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


def _finder(who: Bool[Array, " clients"]) -> Callable[[jax.Array], jax.Array]:
    """A function from a client to the next set bit after it, or to n if there is none.

    It takes O(sqrt n): the mask is a sqrt n x sqrt n table; scan the rest of the current row,
    otherwise jump to the first later row with any bit set.
    """
    (n,) = who.shape
    side = math.isqrt(n - 1) + 1
    columns, rows = jnp.arange(side, dtype=jnp.int32), jnp.arange(-(-n // side), dtype=jnp.int32)
    have_any = by_row(who, side, jnp.any)

    def first_in(row, least):
        """The first set bit of a row at or after ``least``, or n."""
        begin, bits = row_of(who, row, side)
        return jnp.min(jnp.where(bits & (begin + columns >= least), begin + columns, n))

    def next_after(last):
        row = (last + 1) // side
        here = first_in(row, last + 1)
        later = jnp.min(jnp.where(have_any & (rows > row), rows, side))
        there = first_in(later, later * side)
        found = jnp.where(later < side, there, n)
        return jnp.where(here < n, here, found).astype(jnp.int32)

    return next_after


def by_row(
    values: Shaped[Array, " n"], side: int, reduce: Callable[..., jax.Array]
) -> Shaped[Array, " rows"]:
    """A reduction of each row of a table with ``side`` columns; the last row may be shorter.

    >>> by_row(jnp.arange(5), 2, jnp.max).tolist()
    [1, 3, 4]
    """
    full = values.shape[0] // side
    each = reduce(values[: full * side].reshape(full, side), axis=1)
    if full * side == values.shape[0]:
        return each
    return jnp.append(each, reduce(values[full * side :]))


def row_of(
    values: Shaped[Array, " n"], row: Int[Array, ""], side: int
) -> tuple[Int[Array, ""], Shaped[Array, " side"]]:
    """Where a row begins in ``values``, and ``side`` of them from there.

    The last row is moved back if it is shorter, or if there is no such row: it then begins with the
    end of the one before.
    """
    begin = jnp.minimum(row * side, values.shape[0] - side).astype(jnp.int32)
    return begin, lax.dynamic_slice(values, (begin,), (side,))


def written(
    table: Tree, ids: Int[Array, " slots"], active: Bool[Array, " slots"], rows: Tree
) -> Tree:
    """The table with new rows; those of inactive slots point past the end and are dropped."""

    def write(all, new):
        at = jnp.where(active, ids, all.shape[0])
        return all.at[at].set(new, mode="drop")

    return jax.tree.map(write, table, rows)


def weighted_sum(
    weights: Float[Array, " clients"],
    ids: Int[Array, " slots"],
    active: Bool[Array, " slots"],
    rows: Tree,
) -> Tree:
    """The sum of the rows of active slots, by the weights of their clients."""
    weights = jnp.where(active, weights[ids], 0.0)
    return jax.tree.map(lambda r: jnp.tensordot(weights.astype(r.dtype), r, 1), rows)
