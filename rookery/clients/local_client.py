"""What a client step receives: the client's own data, key and loop."""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int, Integer

from rookery import uint64
from rookery.clients.population import Population
from rookery.loss import Batch
from rookery.rng import below, distinct
from rookery.samples import (
    ROW_KEYS,
    AllPairs,
    Deal,
    DrawnPairs,
    Gather,
    OneBatch,
    check_batch,
    first_row_shape,
    gathered_row_shape,
    keys_for,
    rows_per_draw,
)
from rookery.types import BatchSize, Key, Sample, Tree

BLOCK = 1024
"""Rows of a whole-client sample that are in memory at once."""

Count = int | Int[Array, ""]
"""A whole number, perhaps traced."""

Draw = tuple[str, int | None, int]
"""What a step draws: split, rows of a sample (None: all), and batches that these are dealt into."""

Bounds = tuple[float, float]
"""The least and the most; infinity is no bound."""

RowsOf = Callable[[int], Bounds]
"""From the number of rows that a client has of the split to the number that is evaluated."""

Fn = Callable[[Tree, Float[Array, " rows"]], Tree]
"""A function of rows and their weights."""

KeyedFn = Callable[[Tree, Float[Array, " rows"], Key], Tree]
"""A function of rows, their weights and one key per row."""


@runtime_checkable
class Loop(Protocol):
    """How an engine repeats: ``body(i, value)`` n times, starting from ``init``."""

    def __call__(self, n: Count, body: Callable[[Count, Tree], Tree], init: Tree, /) -> Tree:
        """The last value."""
        ...


class Evaluations(NamedTuple):
    """What a step evaluates, as far as it is known when the step is traced.

    Attributes:
        split: whose rows.
        rows: how many of them, by the number that the client has.
        gradients: of each row.
        hessian_vectors: products of each row.
        times: how often, by the lengths of the loops around it.
    """

    split: str
    rows: RowsOf
    gradients: int
    hessian_vectors: int
    times: Bounds = (1, 1)

    def repeated(self, times: Bounds) -> "Evaluations":
        """The same within a loop."""
        return self._replace(times=(self.times[0] * times[0], _product(self.times[1], times[1])))

    def work(self, has_rows: Bounds) -> tuple[Bounds, Bounds]:
        """Gradients and Hessian-vector products of a client with this number of rows of the split.

        >>> Evaluations("train", lambda n: (n, n), 2, 0, (1, 3)).work((10, 10))
        ((20, 60), (0, 0))
        """
        least, most = self.rows(int(has_rows[0]))[0], self.rows(int(has_rows[1]))[1]
        low, high = self.times[0] * least, _product(self.times[1], most)
        of_gradients, of_products = (
            (low * each, _product(high, each)) for each in (self.gradients, self.hessian_vectors)
        )
        return of_gradients, of_products


class LocalClient:
    """One client while one step runs on it.

    The object lives as long as the step does. It counts the rows that were evaluated; inside
    :meth:`repeat` the counts travel with the loop. ``draws`` has what was drawn, once each, and
    ``evaluations`` what was counted, of a loop once.

    Args:
        population: where the client's rows are.
        id: the client's number.
        key: of the step on this client; None if the step draws nothing.
        loop: how the engine repeats.

    >>> from rookery.program.step import python_loop
    >>> population = Population.stacked(np.array([[1.0, 3.0], [5.0, 7.0]]))
    >>> client = LocalClient(population, 1, jax.random.key(0), python_loop)
    >>> sample = client.draw("train", None, client.key)
    >>> float(sample.average(lambda rows, weights: jnp.dot(weights, rows)))
    6.0
    """

    def __init__(self, population: Population, id: Count | np.integer, key: Key | None, loop: Loop):
        self.id = id
        self.work = uint64.zeros(2)  # gradients and Hessian-vector products
        self.draws: set[Draw] = set()
        self.evaluations: list[Evaluations] = []
        self._population = population
        self._key = key
        self._loop = loop

    @property
    def key(self) -> Key:
        """The key of this step on this client, or an error if the step was given none."""
        if self._key is None:
            raise ValueError(
                "this step draws random numbers: pass key= to the fed call that ran it."
            )
        return self._key

    def draw(self, split: str, size: BatchSize, key: Key, prepared: Tree = None) -> Sample:
        """A sample handle: ``size`` rows of a split, or all of them if ``size`` is None.

        Rows are drawn uniformly with replacement. If ``size`` is at least the client's number of
        rows, the sample is all its rows, each once. The keys that losses get are made from ``key``
        too, so one sample gives the same keys at every point. With ``prepared`` the same rows are
        taken from what :meth:`prepare` returned. ``size`` may have a number for each split.
        """
        return self._draw(split, size, key, prepared, is_distinct=False)

    def draw_distinct(self, split: str, size: BatchSize, key: Key) -> Sample:
        """The same without replacement: every set of different rows is equally likely."""
        return self._draw(split, size, key, None, is_distinct=True)

    def _draw(
        self, split: str, size: BatchSize, key: Key, prepared: Tree, is_distinct: bool
    ) -> Sample:
        size = rows_per_draw(size, split)
        self.draws.add((split, size, 1))
        _, count, largest = self._where(split)
        rows = self._rows_of(split, prepared)
        charge = _Charge(self, split, partial(_at_most, size=math.inf if size is None else size))
        if size is None or size >= largest:
            return _Whole(charge, rows, count, min(largest, BLOCK), largest, size, key)
        return _Drawn(charge, rows, count, size, key, is_distinct)

    def deal(self, split: str, size: int | None, key: Key, prepared: Tree = None) -> Deal:
        """All rows of a split, dealt at random into batches of at most ``size`` rows; None is one.

        Batches of a client differ by one row at most. Some are empty where a client has fewer rows
        than the largest one has batches.
        """
        size = rows_per_draw(size, split)
        _, count, largest = self._where(split)
        n = 1 if size is None else -(-largest // size)
        self.draws.add((split, None, n))
        bits = jax.random.bits(key, (largest,), jnp.uint32)
        is_row = jnp.arange(largest, dtype=count.dtype) < count
        last = jnp.full_like(bits, 2**32 - 1)  # what is no row comes last
        order = jnp.argsort(jnp.where(is_row, bits >> jnp.uint32(1), last)).astype(count.dtype)
        slots = jnp.arange(-(-largest // n), dtype=count.dtype)
        charge = _Charge(self, split, lambda rows: (rows // n, -(-rows // n)))

        def places(b: Count) -> Int[Array, " slots"]:
            return jnp.asarray(b).astype(count.dtype) + n * slots

        def sample(b: Count) -> Sample:
            place = places(b)
            position = order[jnp.minimum(place, largest - 1)]
            rows = self._rows_of(split, prepared)(jnp.minimum(position, count - 1))
            return _Dealt(charge, rows, place < count, jax.random.fold_in(key, b))

        def fraction(b: Count) -> Float[Array, ""]:
            size = jnp.sum(places(b) < count, dtype=jnp.int32)
            return size.astype(float) / count.astype(float)

        return Deal(n, sample, fraction)

    def most_rows(self, split: str) -> int:
        """The number of rows of the largest client, of which this one has no more."""
        return self._where(split)[2]

    def prepare(self, split: str, fn: Callable[[Tree], Tree]) -> Tree:
        """``fn`` of every row of a split, stacked; the last one again where others have more."""
        start, count, largest = self._where(split)
        position = jnp.minimum(jnp.arange(largest, dtype=count.dtype), count - 1)
        if largest <= BLOCK:
            return jax.vmap(fn)(self.rows(start + position))
        return lax.map(
            lambda p: jax.tree.map(lambda a: a[0], jax.vmap(fn)(self.rows(start + p[None]))),
            position,
            batch_size=BLOCK,
        )

    def _rows_of(self, split: str, prepared: Tree) -> Gather:
        """How to take rows of a split by position, from the data or as they were prepared."""
        start, _, _ = self._where(split)

        def rows(position: Int[Array, " rows"]) -> Tree:
            if prepared is None:
                return self.rows(start + position)
            return jax.tree.map(lambda a: a.at[position].get(mode="promise_in_bounds"), prepared)

        return rows

    def _where(self, split: str) -> tuple[Int[Array, ""], Int[Array, ""], int]:
        """Where the rows of a split begin, how many there are, and how many of any client."""
        s = self._population.split_index(split)
        place = self._population.place(self.id)
        start = jnp.asarray(self._population.offsets)[s, place]
        count = jnp.asarray(self._population.counts)[s, place]
        return start, count, max(self._population.largest[s], 1)  # 0 at a server that only traces

    def repeat(
        self,
        n: Count,
        body: Callable[[Count, Tree], Tree],
        init: Tree,
        *,
        most: int | None = None,
    ) -> Tree:
        """``body(i, value)`` n times, starting from ``init``; n may be a traced number.

        ``most`` bounds a traced n.
        """
        before = self.evaluations

        def once(i: Count, carry: tuple) -> tuple:
            value, self.work = carry
            self.evaluations = []  # not those of an earlier turn: a body may be traced twice
            value = body(i, value)
            return value, self.work

        self.evaluations = []
        value, self.work = self._loop(n, once, (init, self.work))
        times = (0, math.inf if most is None else most)
        if not isinstance(n, Tracer):
            times = int(n), int(n)
        self.evaluations = before + [inner.repeated(times) for inner in self.evaluations]
        return value

    def rows(self, index: Int[Array, " rows"]) -> Tree:
        """The rows at these positions of the flat arrays, which must be in bounds."""
        return jax.tree.map(
            lambda a: jnp.asarray(a).at[index].get(mode="promise_in_bounds"), self._population.data
        )

    def charge(
        self, rows: Integer[Array, ""], evaluations: Evaluations, *, most: int | None = None
    ) -> None:
        """Add evaluations, counted in rows; ``most`` bounds these, if not the largest client."""
        most = max(*self._population.largest, 1) if most is None else most
        each = evaluations.gradients, evaluations.hessian_vectors
        self.work = uint64.plus(self.work, uint64.products(each, rows, most))
        self.evaluations.append(evaluations)


class _Charge(NamedTuple):
    """How the evaluations of a sample are billed."""

    client: LocalClient
    split: str
    rows: RowsOf

    def __call__(
        self,
        rows: Integer[Array, ""],
        gradients: int,
        hessian_vectors: int,
        *,
        most: int | None = None,
    ) -> None:
        evaluations = Evaluations(self.split, self.rows, gradients, hessian_vectors)
        self.client.charge(rows, evaluations, most=most)

    def of_pairs(self, slots: float) -> "_Charge":
        """The same for pairs of the rows, of which at most ``slots`` are evaluated."""

        def pairs(n: int) -> Bounds:
            low, high = (int(rows) * max(int(rows) - 1, 1) for rows in self.rows(n))
            return min(low, slots), min(high, slots)

        return self._replace(rows=pairs)


def _at_most(n: int, size: float = math.inf) -> Bounds:
    return min(n, size), min(n, size)


def _product(a: float, b: float) -> float:
    """Where nothing is done infinitely often, nothing is done."""
    return a * b if a and b else 0


class _Batch:
    """Some rows of a client, with weights that sum to one."""

    _charge: _Charge
    _rows: Tree
    _weights: Float[Array, " rows"]
    _key: Key
    size: Int[Array, ""]

    def average(self, fn: Fn, /) -> Tree:
        return fn(self._rows, self._weights)

    def average_with_keys(self, fn: KeyedFn, /) -> Tree:
        slots = jnp.arange(self._weights.shape[0], dtype=jnp.uint32)
        return fn(self._rows, self._weights, keys_for(self._key, ROW_KEYS, slots))

    def batch(self) -> Sample:
        def charge(gradients: int, hessian_vectors: int) -> None:
            self._charge(self.size, gradients, hessian_vectors)

        return OneBatch(Batch(self._rows, self._weights), self._key, charge)

    def row_shape(self) -> Tree:
        return first_row_shape(self._rows)

    def charge(self, *, gradients: int = 0, hessian_vectors: int = 0) -> None:
        self._charge(self.size, gradients, hessian_vectors)


class _Drawn(_Batch):
    """A mini-batch; its rows are gathered once, however many functions are averaged over them."""

    def __init__(
        self,
        charge: _Charge,
        rows: Gather,
        count: Int[Array, ""],
        size: int,
        key: Key,
        is_distinct: bool,
    ):
        small = count <= size
        position = jnp.arange(size, dtype=count.dtype)
        if is_distinct:
            drawn = distinct(key, size, jnp.maximum(count, size)).astype(count.dtype)
        else:
            drawn = below(key, (size,), count).astype(count.dtype)
        index = jnp.where(small, jnp.minimum(position, count - 1), drawn)
        self.size = jnp.minimum(count, size)
        self._weights = jnp.where(small & (position >= count), 0.0, 1.0) / self.size.astype(float)
        self._charge, self._gather, self._count = charge, rows, count
        self._slots, self._key = size, key
        self._rows = rows(index)

    def pairs(self) -> Sample:
        charge = self._charge._replace(rows=_at_most).of_pairs(self._slots)
        return DrawnPairs(self._gather, self._count, self._slots, self._key, charge)


class _Dealt(_Batch):
    """One batch of a deal: the rows that count, each once."""

    def __init__(self, charge: _Charge, rows: Tree, counts: Bool[Array, " rows"], key: Key):
        self.size = jnp.sum(counts, dtype=jnp.int32)
        whole = jnp.maximum(self.size, 1).astype(float)
        self._weights = jnp.where(counts, 1.0, 0.0) / whole
        self._charge, self._rows, self._key = charge, rows, key

    def pairs(self) -> Sample:
        def rows(position: Int[Array, " rows"]) -> Tree:
            return jax.tree.map(lambda a: a[position], self._rows)

        slots, one = self._weights.shape[0], jnp.ones_like(self.size)
        count = jnp.maximum(self.size, one)
        return DrawnPairs(rows, count, slots, self._key, self._charge.of_pairs(slots))


class _Whole:
    """All rows of a client, a block at a time; the last block is masked to the true count."""

    def __init__(
        self,
        charge: _Charge,
        rows: Gather,
        count: Int[Array, ""],
        block: int,
        largest: int,
        size: int | None,
        key: Key,
    ):
        self._charge, self._gather, self._count = charge, rows, count
        self._block, self._largest = block, largest
        self._size, self._key = size, key

    def average(self, fn: Fn, /) -> Tree:
        return self._sum(lambda b: fn(*self._part(b)))

    def average_with_keys(self, fn: KeyedFn, /) -> Tree:
        def part(b: Count) -> Tree:
            position = self._positions(b).astype(jnp.uint32)
            return fn(*self._part(b), keys_for(self._key, ROW_KEYS, position))

        return self._sum(part)

    def pairs(self) -> Sample:
        rows, count, size = self._gather, self._count, self._size
        charge = self._charge._replace(rows=_at_most).of_pairs(math.inf if size is None else size)
        if self._size is not None and self._size < self._largest * (self._largest - 1):
            return DrawnPairs(rows, count, self._size, self._key, charge)
        return AllPairs(rows, count, self._largest, self._key, charge)

    def batch(self) -> Sample:
        check_batch(self._largest)
        position = jnp.arange(self._largest, dtype=self._count.dtype)

        def charge(gradients: int, hessian_vectors: int) -> None:
            self._charge(self._count, gradients, hessian_vectors)

        return OneBatch(Batch(*self._at(position)), self._key, charge)

    def row_shape(self) -> Tree:
        return gathered_row_shape(self._gather)

    def charge(self, *, gradients: int = 0, hessian_vectors: int = 0) -> None:
        self._charge(self._count, gradients, hessian_vectors)

    def _sum(self, part: Callable[[Count], Tree]) -> Tree:
        if self._largest <= self._block:
            return part(0)
        shapes = jax.eval_shape(lambda: part(0))
        zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
        blocks = -(-self._count // self._block)
        return lax.fori_loop(
            0, blocks, lambda b, total: jax.tree.map(jnp.add, total, part(b)), zeros
        )

    def _positions(self, b: Count) -> Int[Array, " rows"]:
        return b * self._block + jnp.arange(self._block, dtype=self._count.dtype)

    def _part(self, b: Count) -> tuple[Tree, Float[Array, " rows"]]:
        return self._at(self._positions(b))

    def _at(self, position: Int[Array, " rows"]) -> tuple[Tree, Float[Array, " rows"]]:
        rows = self._gather(jnp.minimum(position, self._count - 1))
        inside = jnp.where(position < self._count, 1.0, 0.0)
        return rows, inside / self._count.astype(float)
