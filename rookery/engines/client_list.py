"""Lists of some of all clients, and loops over them, a few clients per vmap."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from rookery.engines.blocks import (
    LEAST,
    SIDE,
    blocks_at_once,
    by_block,
    clients_of,
    first_true,
    n_blocks,
)
from rookery.types import Tree

WIDTH = 32
"""The most clients in one vmap unless the engine is told otherwise; it fills vector units."""


class ClientList(NamedTuple):
    """Some clients, in ascending order.

    Attributes:
        ids: of the clients; from ``size`` on other clients, or the same again.
        size: how many there are.
    """

    ids: Int[Array, " clients"]
    size: Int[Array, ""]


def list_of(who: Bool[Array, " clients"], usual: int) -> ClientList:
    """The clients of a mask.

    >>> clients = list_of(jnp.array([False, True, False, True]), usual=2)
    >>> clients.ids[:2].tolist(), int(clients.size)
    ([1, 3], 2)

    Args:
        who: the mask.
        usual: how many it usually has.
    """
    return list_by_blocks(who.shape[0], by_block(who, jnp.any), lambda ids: who[ids], usual)


def list_by_blocks(
    n: int,
    have_any: Bool[Array, " blocks"],
    are_in: Callable[[jax.Array], jax.Array],
    usual: int,
    buffer: ClientList | None = None,
) -> ClientList:
    """The clients of a set that is known block by block (:mod:`rookery.engines.blocks`).

    Args:
        n: how many clients there are.
        have_any: the blocks with a client of the set.
        are_in: whether clients are in the set.
        usual: how many it usually has.
        buffer: a list that is not needed any more, to be written over.
    """
    size = blocks_at_once(n, usual)
    most = min(size * min(SIDE, n), 2 * max(usual, LEAST))
    every = jnp.arange(n_blocks(n), dtype=jnp.int32)
    slots = jnp.arange(most, dtype=jnp.int32)

    def once(carry):
        _, begin, last, ids, count = carry
        blocks, n_found = first_true(have_any & (every >= begin), size)
        blocks = jnp.where(every[:size] < n_found, blocks, n_blocks(n))
        clients, are_clients = clients_of(blocks, n)
        bits = are_clients & are_in(clients) & (clients > last)
        at, more = first_true(bits, most)
        found = clients[at]
        # these blocks may have more, or are done with
        begin = jnp.where(more == most, begin, blocks[-1] + 1)
        last = jnp.where(more > 0, found[jnp.maximum(more - 1, 0)], last)
        is_left = (more == most) | (n_found == size)
        ids = ids.at[count + slots].set(found, mode="drop")  # what is no client may be past the end
        return is_left, begin, last, ids, count + more

    none = jnp.zeros((), jnp.int32)
    ids = jnp.zeros(n, jnp.int32) if buffer is None else buffer.ids
    start = (jnp.array(True), none, none - 1, ids, none)
    *_, ids, count = lax.while_loop(lambda carry: carry[0], once, start)
    return ClientList(ids, count)


def width(n_clients: int, clients_at_once: int | None, usual: int | None = None) -> int:
    """How many clients go through one vmap.

    >>> width(n_clients=100, clients_at_once=None, usual=5)
    5

    Args:
        n_clients: how many clients there are.
        clients_at_once: what the engine was told, or None.
        usual: how many clients a list usually has, or None if unknown. A wider vmap would
            compute results that are not used.
    """
    return min(usual or WIDTH, clients_at_once or WIDTH, n_clients)


def visit_some(
    clients: ClientList,
    width: int,
    visit: Callable[[jax.Array, jax.Array, Tree], Tree],
    carry: Tree,
) -> Tree:
    """Apply ``carry = visit(ids, active, carry)`` until every client of a list had its turn.

    XLA copies a table whose old rows a loop reads unless what it writes depends on what it read.

    Args:
        clients: the list.
        width: how many clients ``visit`` is given.
        visit: ``ids`` are clients in ascending order; the last call may have inactive slots.
        carry: the first value.
    """
    slots, n = jnp.arange(width, dtype=jnp.int32), clients.ids.shape[0]

    def once(turn, carry):
        at = turn * width + slots
        active = at < clients.size
        return visit(jnp.where(active, clients.ids[jnp.minimum(at, n - 1)], 0), active, carry)

    return lax.fori_loop(0, -(-clients.size // width), once, carry)


def written(
    table: Tree, ids: Int[Array, " slots"], active: Bool[Array, " slots"], rows: Tree
) -> Tree:
    """The table with new rows; those of inactive slots point past the end and are dropped."""

    def write(all, new):
        at = jnp.where(active, ids, all.shape[0])
        return all.at[at].set(new, mode="drop")

    return jax.tree.map(write, table, rows)


def weighted_sum(
    weights: Float[Array, " slots"], active: Bool[Array, " slots"], rows: Tree
) -> Tree:
    """The sum of the rows of active slots, by weights."""
    weights = jnp.where(active, weights, 0.0)
    return jax.tree.map(lambda r: jnp.tensordot(weights.astype(r.dtype), r, 1), rows)
