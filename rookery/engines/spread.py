"""How the clients of an exchange are spread over devices, inside a compiled program.

Every device runs the same program: it holds the server's values and does the server's work. Only
client steps are divided. Their replies are gathered in the order of the slots, so that a sum over
them is the sum that one device would compute, and all devices continue with the same numbers.
"""

import abc
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from rookery.engines.client_list import list_of, visit_some, written
from rookery.types import Tree

CLIENTS = "clients"
"""The axis of a mesh along which client steps are divided."""


class AbstractSpread(abc.ABC):
    """Which device computes which client of an exchange, and where clients' memory is."""

    @abc.abstractmethod
    def compute(
        self,
        one: Callable[[Tree], Tree],
        ids: Int[Array, " slots"],
        slots: Tree,
        clients_at_once: int | None,
    ) -> Tree:
        """``one`` of every slot, stacked in the order of the slots, on every device.

        Args:
            one: what to compute for a slot.
            ids: the client of each slot.
            slots: what ``one`` takes, stacked along the first axis.
            clients_at_once: the most slots of one vmap on one device; None means all of them.
        """

    @abc.abstractmethod
    def read(self, table: Tree, ids: Int[Array, " slots"], n_clients: int) -> Tree:
        """The rows of some clients out of a table with a row for each client."""

    @abc.abstractmethod
    def write(
        self,
        table: Tree,
        ids: Int[Array, " slots"],
        active: Bool[Array, " slots"],
        rows: Tree,
        n_clients: int,
    ) -> Tree:
        """The table with new rows of the clients in active slots."""

    @abc.abstractmethod
    def all_agree(self, flag: Bool[Array, ""]) -> Bool[Array, ""]:
        """Whether a flag holds on every device."""


@dataclass(frozen=True)
class OneDevice(AbstractSpread):
    """All clients on one device.

    >>> OneDevice().compute(lambda x: 2 * x, jnp.arange(3), jnp.arange(3), None).tolist()
    [0, 2, 4]
    """

    def compute(self, one, ids, slots, clients_at_once):
        """One vmap, or several one after another."""
        return _mapped(one, slots, ids.shape[0], clients_at_once)

    def read(self, table, ids, n_clients):
        """A gather of rows."""
        return jax.tree.map(lambda a: a[ids], table)

    def write(self, table, ids, active, rows, n_clients):
        """A scatter of rows."""
        return written(table, ids, active, rows)

    def all_agree(self, flag):
        """The flag."""
        return flag


@dataclass(frozen=True)
class AnyDevice(AbstractSpread):
    """All devices hold all rows: each takes an equal number of slots, whatever their clients.

    Attributes:
        n_devices: of the mesh's axis :data:`CLIENTS`.
    """

    n_devices: int

    def compute(self, one, ids, slots, clients_at_once):
        """The device's own slots, then a gather; padding repeats the last slot."""
        n_slots = ids.shape[0]
        share = -(-n_slots // self.n_devices)
        first = lax.axis_index(CLIENTS) * share
        at = jnp.minimum(first + jnp.arange(share, dtype=jnp.int32), n_slots - 1)
        own = jax.tree.map(lambda a: a[at], slots)
        replies = _mapped(one, own, share, clients_at_once)
        gathered = _as_numbers(lambda a: lax.all_gather(a, CLIENTS, tiled=True), replies)
        return jax.tree.map(lambda a: a[:n_slots], gathered)

    def read(self, table, ids, n_clients):
        """A gather of rows, which every device has."""
        return jax.tree.map(lambda a: a[ids], table)

    def write(self, table, ids, active, rows, n_clients):
        """A scatter of rows, on every device the same."""
        return written(table, ids, active, rows)

    def all_agree(self, flag):
        """The least flag: a loop must not end on one device alone."""
        return _all(flag)


@dataclass(frozen=True)
class ByClient(AbstractSpread):
    """Each device holds the rows and the memory of some clients, and computes for these.

    Device d has the clients from ``d * block`` on. A table may also be whole on every device, as
    those of clients at work are; its length tells.

    Attributes:
        n_devices: of the mesh's axis :data:`CLIENTS`.
        block: how many clients a device has; the last may have fewer.
    """

    n_devices: int
    block: int

    def compute(self, one, ids, slots, clients_at_once):
        """The slots of the own clients, some at a time, then a sum with zeros of the others."""
        n_slots = ids.shape[0]
        width = min(self._width(n_slots), clients_at_once or n_slots)
        shape = jax.eval_shape(one, jax.tree.map(lambda a: a[0], slots))
        empty = jax.tree.map(lambda a: jnp.zeros((n_slots, *a.shape), a.dtype), shape)

        def visit(at, active, table):
            own = jax.tree.map(lambda a: a[at], slots)
            return written(table, at, active, jax.vmap(one)(own))

        mine = visit_some(list_of(self._position(ids)[1], width), width, visit, empty)
        return _as_numbers(lambda a: lax.psum(a, CLIENTS), mine)

    def read(self, table, ids, n_clients):
        """The owner's rows, to every device."""
        at, is_mine = self._position(ids)

        def pick(rows):
            own = jnp.where(_along(is_mine, rows), rows[at], jnp.zeros_like(rows[at]))
            return lax.psum(own, CLIENTS)

        if _n_rows(table) == n_clients:
            return jax.tree.map(lambda a: a[ids], table)
        return _as_numbers(pick, table)

    def write(self, table, ids, active, rows, n_clients):
        """Every device writes the rows of its own clients."""
        if _n_rows(table) == n_clients:
            return written(table, ids, active, rows)
        at, is_mine = self._position(ids)
        return written(table, at, active & is_mine, rows)

    def all_agree(self, flag):
        """The least flag: each device has seen its own part of the memory."""
        return _all(flag)

    def _width(self, n_slots: int) -> int:
        """How many slots go through one vmap: half of an even share, or all if everybody replies.

        A device that has more than its share needs another vmap, and half of one wastes less.
        """
        if n_slots > self.block * (self.n_devices - 1):
            return min(n_slots, self.block)
        return -(-n_slots // (2 * self.n_devices))

    def _position(
        self, ids: Int[Array, " slots"]
    ) -> tuple[Int[Array, " slots"], Bool[Array, " slots"]]:
        """Where clients are in the tables of this device, and whether they are."""
        at = ids - (lax.axis_index(CLIENTS) * self.block).astype(ids.dtype)
        is_mine = (at >= 0) & (at < self.block)
        return jnp.where(is_mine, at, jnp.zeros_like(at)), is_mine


def _mapped(
    one: Callable[[Tree], Tree], slots: Tree, n_slots: int, clients_at_once: int | None
) -> Tree:
    if clients_at_once is None or n_slots <= clients_at_once:
        return jax.vmap(one)(slots)
    return lax.map(one, slots, batch_size=clients_at_once)


def _as_numbers(collective: Callable[[jax.Array], jax.Array], tree: Tree) -> Tree:
    """Apply a collective to arrays of any type; it knows numbers only."""

    def one(leaf):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            data = collective(jax.random.key_data(leaf))
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
        if leaf.dtype == bool:
            return collective(leaf.astype(jnp.uint32)).astype(bool)
        return collective(leaf)

    return jax.tree.map(one, tree)


def _all(flag: Bool[Array, ""]) -> Bool[Array, ""]:
    return lax.pmin(flag.astype(jnp.int32), CLIENTS).astype(bool)


def _along(mask: Bool[Array, " slots"], rows: jax.Array) -> jax.Array:
    return mask.reshape((-1,) + (1,) * (rows.ndim - 1))


def _n_rows(table: Tree) -> int:
    leaves = jax.tree.leaves(table)
    return leaves[0].shape[0] if leaves else 0
