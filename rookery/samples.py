"""Samples of pairs and of whole batches, made from the rows of one client or of the server.

Both have the interface of :class:`rookery.types.Sample`; their rows are :class:`rookery.loss.Pair`
and :class:`rookery.loss.Batch`.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Integer

from rookery.loss import Batch, Pair
from rookery.rng import below
from rookery.types import BatchSize, Count, Key, Sample, Tree

TILE = 32
"""All pairs are evaluated in tiles of this many rows by this many rows."""

MOST_ROWS_IN_PAIRS = 2**16
"""All pairs of more rows are refused; their number would not fit in 32 bits."""

MOST_ROWS_IN_BATCH = 8192
"""A whole client of more rows is not made into one batch."""

# What a key of a draw is used for, so that no two uses share random bits. The row numbers of a draw
# come from the key itself.
ROW_KEYS, PAIR_KEYS, BATCH_KEYS, PAIRS, PARTNERS = range(2**31, 2**31 + 5)

Gather = Callable[[Int[Array, " rows"]], Tree]
"""The rows at these positions, from 0 to the number of rows."""


class Deal(NamedTuple):
    """All rows of a client, dealt into batches.

    Attributes:
        batches: how many; the same number for all clients.
        sample: a handle of batch b.
        fraction: of all rows that batch b has; all fractions sum to one.
    """

    batches: int
    sample: Callable[[Count], Sample]
    fraction: Callable[[Count], Float[Array, ""]]


class Charge(Protocol):
    """How a sample bills its evaluations."""

    def __call__(
        self, rows: Integer[Array, ""], gradients: int, hessian_vectors: int, *, most: int
    ) -> None:
        """Bill this many evaluations on each of some rows, of which there are at most ``most``."""
        ...


def rows_per_draw(batch_size: BatchSize, split: str) -> int | None:
    """The batch size of a split.

    >>> rows_per_draw({"train": 64, "validation": None}, "train"), rows_per_draw(8, "test")
    (64, 8)
    """
    if not isinstance(batch_size, Mapping):
        return batch_size
    if split not in batch_size:
        raise ValueError(
            f"batch_size has no number for the split {split!r}, got {dict(batch_size)}. Give one "
            "for each split that the problem reads; None means all rows."
        )
    return batch_size[split]


def keys_for(key: Key, use: int, numbers: Integer[Array, " examples"]) -> Key:
    """One key for each of the numbers, from the key of a draw.

    >>> keys_for(jax.random.key(0), ROW_KEYS, jnp.arange(3)).shape
    (3,)
    """
    return jax.vmap(partial(jax.random.fold_in, jax.random.fold_in(key, use)))(numbers)


def first_row_shape(rows: Tree) -> Tree:
    """The shape and type of one of several rows, of arrays or of shapes.

    >>> first_row_shape(jnp.zeros((5, 3), "float32"))
    ShapeDtypeStruct(shape=(3,), dtype=float32)
    """
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), rows)


def gathered_row_shape(rows: Gather) -> Tree:
    """The same of rows that were not gathered yet.

    >>> gathered_row_shape(lambda positions: jnp.zeros((5, 3), "float32")[positions])
    ShapeDtypeStruct(shape=(3,), dtype=float32)
    """
    return first_row_shape(jax.eval_shape(rows, jax.ShapeDtypeStruct((1,), jnp.int32)))


class _NotOfRows:
    """A sample of pairs or of a batch, of which neither can be made again."""

    examples: ClassVar[str]

    def pairs(self) -> Sample:
        """Refused."""
        raise self._refusal()

    def batch(self) -> Sample:
        """Refused."""
        raise self._refusal()

    def _refusal(self) -> TypeError:
        return TypeError(f"this sample is of {self.examples} already, not of rows.")


class DrawnPairs(_NotOfRows):
    """Pairs drawn uniformly with replacement; all of them, each once, if there are no more.

    Args:
        rows: where the rows are.
        count: how many rows there are.
        size: how many pairs are drawn.
        key: of the draw.
        charge: how evaluations are billed.
    """

    examples: ClassVar[str] = "pairs"

    def __init__(self, rows: Gather, count: Int[Array, ""], size: int, key: Key, charge: Charge):
        partners = jnp.maximum(count - 1, 1)
        is_small = partners <= size // count  # n (n - 1) <= size, without overflow
        position = jnp.arange(size, dtype=count.dtype)
        self._number = jnp.where(is_small, count * partners, size)
        listed = jnp.minimum(position, self._number - 1)
        first = below(jax.random.fold_in(key, PAIRS), (size,), count).astype(count.dtype)
        other = below(jax.random.fold_in(key, PARTNERS), (size,), partners).astype(count.dtype)
        first = jnp.where(is_small, listed // partners, first)
        other = jnp.where(is_small, listed % partners, other)
        second = jnp.minimum(other + (other >= first).astype(count.dtype), count - 1)
        counts = jnp.where(position < self._number, 1.0, 0.0)
        self._weights = counts / self._number.astype(float)
        self._pairs = Pair(rows(first), rows(second))
        self._size, self._key, self._charge = size, key, charge

    def average(self, fn: Callable[[Tree, Float[Array, " pairs"]], Tree], /) -> Tree:
        """``fn`` of all pairs."""
        return fn(self._pairs, self._weights)

    def average_with_keys(self, fn: Callable[[Tree, Float[Array, " pairs"], Key], Tree], /) -> Tree:
        """``fn`` of all pairs with a key each."""
        numbers = jnp.arange(self._size, dtype=jnp.uint32)
        return fn(self._pairs, self._weights, keys_for(self._key, PAIR_KEYS, numbers))

    def row_shape(self) -> Tree:
        """Of a pair."""
        return first_row_shape(self._pairs)

    def charge(self, *, gradients: int = 0, hessian_vectors: int = 0) -> None:
        """Two rows for each pair."""
        self._charge(self._number, 2 * gradients, 2 * hessian_vectors, most=self._size)


class AllPairs(_NotOfRows):
    """All pairs of different rows, tile by tile, so that memory stays bounded.

    Args:
        rows: where the rows are.
        count: how many rows there are.
        largest: a bound on ``count``, known when tracing.
        key: of the draw; None if there is none, and then losses get no keys.
        charge: how evaluations are billed.
    """

    examples: ClassVar[str] = "pairs"

    def __init__(
        self,
        rows: Gather,
        count: Int[Array, ""],
        largest: int,
        key: Key | None,
        charge: Charge,
    ):
        if largest > MOST_ROWS_IN_PAIRS:
            raise ValueError(
                f"all pairs of {largest} rows were asked for; the limit is {MOST_ROWS_IN_PAIRS}. "
                "Set a batch size, the number of pairs to draw; measure a metric on fewer rows."
            )
        self._rows, self._count, self._key, self._charge = rows, count, key, charge
        self._partners = jnp.maximum(count - 1, 1)
        self._largest, self._side = largest, min(largest, TILE)

    def average(self, fn: Callable[[Tree, Float[Array, " pairs"]], Tree], /) -> Tree:
        """The sum of ``fn`` over the tiles."""
        return self._sum(lambda pairs, weights, _: fn(pairs, weights))

    def average_with_keys(self, fn: Callable[[Tree, Float[Array, " pairs"], Key], Tree], /) -> Tree:
        """The same with a key for each pair."""
        key = need_key(self._key)
        return self._sum(
            lambda pairs, weights, numbers: fn(pairs, weights, keys_for(key, PAIR_KEYS, numbers))
        )

    def row_shape(self) -> Tree:
        """Of a pair."""
        one = gathered_row_shape(self._rows)
        return Pair(one, one)

    def charge(self, *, gradients: int = 0, hessian_vectors: int = 0) -> None:
        """Two rows for each pair."""
        number = self._count.astype(jnp.uint32) * self._partners.astype(jnp.uint32)
        most = self._largest * max(self._largest - 1, 1)
        self._charge(number, 2 * gradients, 2 * hessian_vectors, most=most)

    def _sum(self, fn: Callable[[Tree, Array, Array], Tree]) -> Tree:
        def part(tile):
            tiles = -(-self._count // self._side)
            return fn(*self._tile(tile // tiles, tile % tiles))

        if self._largest <= self._side:
            return part(jnp.zeros_like(self._count))
        shapes = jax.eval_shape(lambda: part(jnp.zeros_like(self._count)))
        zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
        tiles = (-(-self._count // self._side)) ** 2
        return lax.fori_loop(
            0, tiles, lambda t, total: jax.tree.map(jnp.add, total, part(t)), zeros
        )

    def _tile(self, down: Array, across: Array) -> tuple[Pair, Array, Array]:
        """The pairs of a tile, their weights and their numbers."""
        n, side = self._count, jnp.arange(self._side, dtype=self._count.dtype)
        first = jnp.repeat(down * self._side + side, self._side)
        second = jnp.tile(across * self._side + side, self._side)
        counts = (first < n) & (second < n) & ((first != second) | (n == 1))
        # a pair of weight zero is still evaluated: at two equal rows a loss may have no derivative
        first, second = jnp.minimum(first, n - 1), jnp.minimum(second, n - 1)
        second = jnp.where(first == second, (first + 1) % n, second)
        number = first * self._partners + second - (second > first).astype(n.dtype)
        total = n.astype(float) * self._partners.astype(float)
        weights = jnp.where(counts, 1.0, 0.0) / total
        return Pair(self._rows(first), self._rows(second)), weights, number.astype(jnp.uint32)


class OneBatch(_NotOfRows):
    """All rows of a sample together, as one example.

    Args:
        batch: the rows and their weights.
        key: of the draw; None if there is none, and then losses get no key.
        charge: how one evaluation on all rows is billed.
    """

    examples: ClassVar[str] = "a batch"

    def __init__(self, batch: Batch, key: Key | None, charge: Callable[[int, int], None]):
        self._batch = jax.tree.map(lambda a: jnp.asarray(a)[None], batch)
        self._key, self._charge = key, charge

    def average(self, fn: Callable[[Tree, Float[Array, " one"]], Tree], /) -> Tree:
        """``fn`` of the batch, whose weight is one."""
        return fn(self._batch, jnp.ones(1))

    def average_with_keys(self, fn: Callable[[Tree, Float[Array, " one"], Key], Tree], /) -> Tree:
        """The same with one key."""
        key = keys_for(need_key(self._key), BATCH_KEYS, jnp.zeros(1, jnp.uint32))
        return fn(self._batch, jnp.ones(1), key)

    def row_shape(self) -> Tree:
        """Of the batch."""
        return first_row_shape(self._batch)

    def charge(self, *, gradients: int = 0, hessian_vectors: int = 0) -> None:
        """As many rows as the batch has."""
        self._charge(gradients, hessian_vectors)


def check_batch(largest: int) -> None:
    """Raise if a whole client has too many rows for one batch."""
    if largest > MOST_ROWS_IN_BATCH:
        raise ValueError(
            f"a loss or metric over a batch would see all {largest} rows of the largest client at "
            f"once; the limit is {MOST_ROWS_IN_BATCH}. Set a batch size; measure a metric on fewer "
            "rows."
        )


def need_key(key: Key | None) -> Key:
    """The key, or an error that says why one is needed."""
    if key is None:
        raise ValueError(
            "this loss has a parameter named key, and these rows were made without one. Write "
            "Rows(rows, key=jax.random.key(0)), or use a loss without randomness."
        )
    return key
