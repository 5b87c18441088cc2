"""Server values on their way to clients: each becomes a remote value when it is first placed."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from rookery.program.federation import Cached
from rookery.program.memory import Memory
from rookery.remote.server.remote_values import Copied, RemoteValue, Sent, remote_values
from rookery.types import Tree


class ServerValues:
    """The server values of one round, as clients will have them.

    Args:
        n_clients: number of clients.
        new_tokens: gives the first of n unused tokens.
    """

    def __init__(self, n_clients: int, new_tokens: Callable[[int], int]):
        self._n_clients, self._new_tokens = n_clients, new_tokens
        self._cached: dict[int, Tree] = {}
        self._copies: dict[int, tuple[Memory, Copied]] = {}

    def same(self, value: Tree | Cached, *, is_counted: bool = True) -> Tree:
        """A value that all clients get; a cached one has the same remote values every time."""
        if not isinstance(value, Cached):
            return self._sent(value, None, is_counted)
        if value.token not in self._cached:
            self._cached[value.token] = self._sent(value.value, None, is_counted)
        return self._cached[value.token]

    def rows(self, rows: Tree, slots: int) -> Tree:
        """Rows of which each slot of a cohort gets its own."""
        return self._sent(rows, slots, True)

    def recalled(self, memory: Memory) -> Tree:
        """The rows of a memory that a round has made itself of server values.

        A client got its row in this round, as a cached value, or in an earlier round and has
        dropped it since. It is not counted again.
        """
        row = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), memory.rows)
        if id(memory) not in self._copies:
            leaves, structure = jax.tree.flatten(jax.tree.map(np.asarray, memory.rows))
            sent: dict[int, list[RemoteValue]] = {}
            for cached in self._cached.values():
                values = jax.tree.leaves(cached)
                if jax.tree.structure(cached) == structure:
                    same = [_equal_rows(a, v) for a, v in zip(leaves, values, strict=True)]
                    sent |= dict.fromkeys(np.flatnonzero(np.all(same, axis=0)).tolist(), values)
            token = self._new_tokens(self._n_clients)
            rows = Sent(token, leaves, are_rows=True, is_counted=False)
            # the memory is kept too, as its id is in use only as long as it lives
            self._copies[id(memory)] = memory, Copied(rows, sent)
        return remote_values(self._copies[id(memory)][1], row)

    def _sent(self, value: Tree, slots: int | None, is_counted: bool) -> Tree:
        leaves = [_to_numpy(leaf) for leaf in jax.tree.leaves(value)]
        token = self._new_tokens(slots or 1)
        shapes = [np.shape(a)[1:] if slots else np.shape(a) for a in leaves]
        like = [jax.ShapeDtypeStruct(s, a.dtype) for s, a in zip(shapes, leaves, strict=True)]
        source = Sent(token, leaves, slots is not None, is_counted)
        return remote_values(source, jax.tree.unflatten(jax.tree.structure(value), like))


def _equal_rows(rows: np.ndarray, value: RemoteValue) -> np.ndarray:
    """[clients], whether a client's row equals a value that was sent."""
    assert isinstance(value.source, Sent)
    sent = np.asarray(value.source.leaves[value.leaf])
    if rows.shape[1:] != sent.shape or rows.dtype != sent.dtype:
        return np.zeros(len(rows), bool)
    return (rows == sent).reshape(len(rows), -1).all(axis=1)


def _to_numpy(leaf: ArrayLike) -> np.ndarray | jax.Array:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return leaf
    return np.asarray(leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf))
