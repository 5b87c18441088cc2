"""What runs on a client: a step, and what it is given first."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

import jax
import jax.numpy as jnp
from jax import lax

from rookery.samples import Deal
from rookery.types import BatchSize, Count, Key, Sample, Tree


class Client(Protocol):
    """What a client step receives first: the client's own data, key and loop.

    A step that takes some steps of descent on mini-batches of two rows:

    >>> def descend(client: Client, w, *, problem, lr, steps):
    ...     def one(i, w):
    ...         key = jax.random.fold_in(client.key, i)
    ...         return w - lr * problem.gradient(w, client.draw("train", 2, key))
    ...     return client.repeat(steps, one, w)
    >>> import rookery as rk
    >>> from rookery.clients.local_client import LocalClient
    >>> problem = rk.SingleLevel(lambda w, row: (w - row) ** 2)
    >>> rows = rk.Population.stacked(jnp.full((1, 8), 3.0))
    >>> client = LocalClient(rows, 0, jax.random.key(0), python_loop)
    >>> round(float(descend(client, jnp.zeros(()), problem=problem, lr=0.25, steps=20)), 3)
    3.0

    A round calls it by ``fed.map(descend, w_i, key=key, problem=problem, lr=0.1, steps=5)``.
    """

    @property
    def id(self) -> Count:
        """The client's number."""
        ...

    @property
    def key(self) -> Key:
        """The key of this step on this client."""
        ...

    def draw(self, split: str, size: BatchSize, key: Key, prepared: Tree = None) -> Sample:
        """A handle to ``size`` rows of a split, or to all of them if ``size`` is None.

        ``prepared`` is what :meth:`prepare` made of all rows, if they are to be taken from it.
        """
        ...

    def draw_distinct(self, split: str, size: BatchSize, key: Key) -> Sample:
        """The same with different rows."""
        ...

    def deal(self, split: str, size: BatchSize, key: Key, prepared: Tree = None) -> Deal:
        """All rows of a split, dealt at random into batches of at most ``size`` rows."""
        ...

    def most_rows(self, split: str) -> int:
        """A bound on the rows of a split, known when a program is traced."""
        ...

    def prepare(self, split: str, fn: Callable[[Tree], Tree]) -> Tree:
        """``fn`` of every row of a split, stacked."""
        ...

    def repeat(
        self,
        n: int | jax.Array,
        body: Callable[[jax.Array, Tree], Tree],
        init: Tree,
        *,
        most: int | None = None,
    ) -> Tree:
        """``body(i, value)`` n times over; n may differ between clients.

        ``most`` bounds an n that is not known when a program is traced: a server checks the work
        that clients claim against it.
        """
        ...


Step = Callable[..., Tree]
"""``step(client, *values, **settings)``: a module-level function, known by its name."""

Settings = Mapping[str, object]
"""Keyword arguments of a step: configuration that the server and the clients both have."""

NO_SETTINGS: Settings = MappingProxyType({})


def python_loop(n: int | jax.Array, body: Callable[[jax.Array, Tree], Tree], init: Tree) -> Tree:
    """Apply ``value = body(i, value)`` n times, one operation after another.

    >>> int(python_loop(3, lambda i, total: total + i, 0))
    3
    """
    value = init
    for i in range(int(n)):
        value = body(jnp.asarray(i, jnp.int32), value)
    return value


def traced_loop(n: int | jax.Array, body: Callable[[jax.Array, Tree], Tree], init: Tree) -> Tree:
    """The same as one operation of a compiled program; n may be traced."""
    return lax.fori_loop(0, n, body, init)


def client_key(
    key: Key | None, id: int | jax.Array, occurrence: int | jax.Array | None
) -> Key | None:
    """The key of one slot: a function of the client alone, never of the cohort's order."""
    if key is None:
        return None
    key = jax.random.fold_in(key, id)
    return key if occurrence is None else jax.random.fold_in(key, occurrence)
