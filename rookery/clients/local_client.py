"""What a client step receives: the client's own data, key and loop."""

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rookery.clients.population import Population
from rookery.rng import below
from rookery.types import Key, Sample, Tree

BLOCK = 1024
"""Rows of a whole-client sample that are in memory at once."""


class LocalClient:
    """One client while one step runs on it.

    The object lives as long as the step does. It notes how many rows were evaluated; inside
    :meth:`repeat` that note travels with the loop.
    """

    def __init__(self, population: Population, id, key: Key | None, loop: Callable):
        self.id = id
        self.work = (jnp.zeros((), jnp.uint32), jnp.zeros((), jnp.uint32))
        self._population = population
        self._key = key
        self._loop = loop

    @property
    def key(self) -> Key:
        """The key of this step on this client, or an error if the step was given none."""
        if self._key is None:
            raise ValueError("this step draws random numbers; pass key= to fed.map")
        return self._key

    def draw(self, split: str, size: int | None, key: Key) -> Sample:
        """A sample handle: ``size`` rows of a split, or all of them if ``size`` is None.

        Rows are drawn uniformly with replacement. A size that reaches the client's number of rows
        gives all its rows, each once: nothing is drawn twice from a client that is too small.
        """
        s = self._population.split_index(split)
        start = jnp.asarray(self._population.offsets)[s, self.id]
        count = jnp.asarray(self._population.counts)[s, self.id]
        largest = max(self._population.largest[s], 1)  # where rows are elsewhere, shapes are traced
        if size is None or size >= largest:
            return _Whole(self, start, count, min(largest, BLOCK), largest)
        return _Drawn(self, start, count, size, key)

    def repeat(self, n, body: Callable[[Any, Tree], Tree], init: Tree) -> Tree:
        """``body(i, value)`` n times over, starting from ``init``; n may be a traced number."""

        def once(i, carry):
            value, self.work = carry
            value = body(i, value)
            return value, self.work

        value, self.work = self._loop(n, once, (init, self.work))
        return value

    def rows(self, index: jax.Array) -> Tree:
        """The rows at positions of the flat arrays, which the caller knows to be in bounds."""
        return jax.tree.map(
            lambda a: jnp.asarray(a).at[index].get(mode="promise_in_bounds"), self._population.data
        )

    def charge(self, rows, gradients: int, hessian_vectors: int) -> None:
        """Add evaluations, counted in rows."""
        rows = rows.astype(jnp.uint32)
        more = (rows * jnp.uint32(gradients), rows * jnp.uint32(hessian_vectors))
        self.work = tuple(map(operator.add, self.work, more))


class _Drawn:
    """A mini-batch: its rows are gathered once, whatever is evaluated on them."""

    def __init__(self, client: LocalClient, start, count, size: int, key: Key):
        small = count <= size
        position = jnp.arange(size, dtype=count.dtype)
        drawn = below(key, (size,), count).astype(count.dtype)
        index = start + jnp.where(small, jnp.minimum(position, count - 1), drawn)
        self.size = jnp.minimum(count, size)
        self._weights = jnp.where(small & (position >= count), 0.0, 1.0) / self.size.astype(float)
        self._rows = client.rows(index)
        self.charge = functools.partial(_charge, client, self.size)

    def average(self, fn, /):
        return fn(self._rows, self._weights)


class _Whole:
    """All rows of a client, a block at a time; the last block is masked to the true count."""

    def __init__(self, client: LocalClient, start, count, block: int, largest: int):
        self._client, self._start, self._count = client, start, count
        self._block, self._largest = block, largest
        self.charge = functools.partial(_charge, client, count)

    def average(self, fn, /):
        if self._largest <= self._block:
            return self._part(fn, 0)
        shapes = jax.eval_shape(lambda: self._part(fn, 0))
        zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
        blocks = -(-self._count // self._block)
        return lax.fori_loop(
            0, blocks, lambda b, total: jax.tree.map(jnp.add, total, self._part(fn, b)), zeros
        )

    def _part(self, fn, b):
        position = b * self._block + jnp.arange(self._block, dtype=self._count.dtype)
        rows = self._client.rows(self._start + jnp.minimum(position, self._count - 1))
        inside = jnp.where(position < self._count, 1.0, 0.0)
        return fn(rows, inside / self._count.astype(float))


def _charge(client: LocalClient, rows, *, gradients: int = 0, hessian_vectors: int = 0) -> None:
    client.charge(rows, gradients, hessian_vectors)
