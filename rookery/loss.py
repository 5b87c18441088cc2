"""What a loss is evaluated on: one row, a pair of rows or a batch of rows, with a key if it asks.

A plain function is a loss of one row. :class:`OverPairs` and :class:`OverBatch` mark a function as
a loss of two rows or of a whole batch; they stand wherever a loss stands. A function with a
parameter named ``key`` receives a random key for every example of every draw, by keyword. A sample
gives the same keys whenever it is used, so both points of a difference and the products with a
Hessian see the same dropout masks.
"""

import abc
import functools
import inspect
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rookery.types import Key, Sample, Tree


class Pair(NamedTuple):
    """Two different rows of a client, in this order."""

    first: Tree
    second: Tree


class Batch(NamedTuple):
    """Rows along a first axis, and their weights: they sum to one and are 0 for padding."""

    rows: Tree
    weights: Float[Array, " rows"]


class AbstractOver(eqx.Module):
    """A function whose example is not one row."""

    kind: ClassVar[type[Pair | Batch]]  # of one example

    loss: Callable[..., Tree]

    def __check_init__(self):
        name = type(self).__name__
        if not callable(self.loss):
            raise TypeError(f"{name} needs a function, got {self.loss!r}.")
        if isinstance(self.loss, AbstractOver):
            raise TypeError(
                f"{name} cannot hold {type(self.loss).__name__}: an example is either a pair or a "
                "batch."
            )

    def __call__(self, *arguments: Tree, **key: Key) -> Tree:
        """The loss of one example, of which it gets every part."""
        *point, example = arguments
        if not isinstance(example, self.kind):
            raise TypeError(
                f"{type(self).__name__} was called with a single row. It must be the outermost "
                "wrapper of a loss, so that the problem can see what the loss is evaluated on."
            )
        return self.loss(*point, *example, **key)

    @abc.abstractmethod
    def examples(self, sample: Sample) -> Sample:
        """The examples that a sample of rows stands for."""

    @abc.abstractmethod
    def example(self, row: Tree) -> Tree:
        """Shapes and types of one example, from those of one row."""


class OverPairs(AbstractOver):
    """A loss of two rows, ``loss(*variables, first, second)``: its mean over a client's pairs.

    Pairs are ordered, and of different rows; a client with a single row pairs it with itself. The
    mean over all n (n - 1) pairs is exact if there is no batch size. With a batch size B, B pairs
    are drawn, each uniformly from all of them; a client with no more than B pairs uses every one
    once. A pair counts as two rows in the ledger.

    All pairs of n rows evaluate the model n (n - 1) times twice. If the loss depends on the rows
    through scores, :class:`OverBatch` computes each score once.

    Args:
        loss: of the variables, two rows and, if it has a parameter of that name, a ``key``.

    >>> import rookery as rk
    >>> from rookery.problem.sample import Rows
    >>> def ranking(w, first, second):  # squared hinge: a positive row scores 1 above a negative
    ...     applies = (first["label"] == 1) & (second["label"] == 0)
    ...     margin = w * (first["input"] - second["input"])
    ...     return jnp.where(applies, jnp.maximum(0.0, 1.0 - margin) ** 2, 0.0)
    >>> rows = {"input": jnp.array([2.0, 0.0, 0.0]), "label": jnp.array([1, 0, 0])}
    >>> problem = rk.SingleLevel(OverPairs(ranking))
    >>> round(float(problem.value(jnp.array(0.0), Rows(rows))), 3)  # two pairs of six
    0.333
    """

    kind: ClassVar[type[Pair | Batch]] = Pair

    def examples(self, sample: Sample) -> Sample:
        """Pairs of rows."""
        return sample.pairs()

    def example(self, row: Tree) -> Pair:
        """Two rows."""
        return Pair(row, row)


class OverBatch(AbstractOver):
    """A loss of many rows together, ``loss(*variables, rows, weights)``: contrastive, BatchNorm.

    The rows come stacked along a first axis. Their weights sum to one and are equal for all rows
    that count; padding has weight 0, and the loss must respect it: ``jnp.vdot(weights, each)`` is a
    mean and ``weights > 0`` a mask. Padding appears where clients have unequal numbers of rows.

    With a batch size B the loss sees B drawn rows, or all rows of a client that has no more.
    Without one it sees the whole client as one batch. These are different objectives unless the
    loss is a mean over rows. A batch counts as its rows in the ledger.

    Args:
        loss: of the variables, the rows, their weights and, if it has a parameter of that name, a
            ``key``: one for the whole batch.

    >>> import jax, rookery as rk
    >>> from rookery.problem.sample import Rows
    >>> def contrast(w, rows, weights):  # InfoNCE: one view of a row should find its other view
    ...     scores = (rows["one"] @ w) @ (rows["other"] @ w).T
    ...     scores = jnp.where(weights > 0, scores, -jnp.inf)  # padding is no negative
    ...     return -jnp.vdot(weights, jnp.diag(jax.nn.log_softmax(scores, axis=1)))
    >>> rows = {"one": jnp.eye(3), "other": jnp.eye(3)}
    >>> problem = rk.SingleLevel(OverBatch(contrast))
    >>> round(float(problem.value(jnp.zeros((3, 3)), Rows(rows))), 3)  # log 3
    1.099
    """

    kind: ClassVar[type[Pair | Batch]] = Batch

    def examples(self, sample: Sample) -> Sample:
        """All rows of the sample as one batch."""
        return sample.batch()

    def example(self, row: Tree) -> Batch:
        """Two rows and their weights."""

        def two(leaf: jax.ShapeDtypeStruct | jax.typing.ArrayLike) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((2, *jnp.shape(leaf)), jnp.result_type(leaf))

        return jax.tree.map(two, Batch(row, jnp.zeros(())))


class Prepared(eqx.Module):
    """A loss of prepared rows as a loss of rows: ``loss(x, *others, prepare(x, row))``.

    Derivatives in x go through ``prepare``. Problems make it of their ``prepare=``.

    Args:
        loss: takes the variables, x first, and an example made of prepared rows.
        prepare: of x and one row.

    >>> loss = Prepared(lambda x, y, feature: y * feature, lambda x, row: x * row)
    >>> loss(2.0, 3.0, 5.0)
    30.0
    """

    loss: Callable[..., Tree]
    prepare: Callable[[Tree, Tree], Tree]

    def __call__(self, *arguments: Tree, **key: Key) -> Tree:
        """The loss of one example of rows."""
        x, *others, example = arguments
        match example:
            case Pair(first, second):
                ready = Pair(self.prepare(x, first), self.prepare(x, second))
            case Batch(rows, weights):
                ready = Batch(jax.vmap(self.prepare, in_axes=(None, 0))(x, rows), weights)
            case row:
                ready = self.prepare(x, row)
        return self.loss(x, *others, ready, **key)


def examples(fn: Callable[..., Tree], sample: Sample) -> Sample:
    """The sample as a function sees it: of rows, of pairs or of one batch."""
    fn = fn.loss if isinstance(fn, Prepared) else fn
    return fn.examples(sample) if isinstance(fn, AbstractOver) else sample


def example(fn: Callable[..., Tree], row: Tree) -> Tree:
    """Shapes and types of one example of a function, from those of one row."""
    fn = fn.loss if isinstance(fn, Prepared) else fn
    return fn.example(row) if isinstance(fn, AbstractOver) else row


def wants_key(fn: Callable[..., Tree]) -> bool:
    """Whether a function has a parameter named ``key`` that is still free.

    >>> wants_key(lambda w, row: w), wants_key(lambda w, row, key: w)
    (False, True)
    """
    while isinstance(fn, AbstractOver | Prepared):
        fn = fn.loss
    inner = fn
    while isinstance(inner, functools.partial):
        if "key" in inner.keywords:
            return False
        inner = inner.func
    try:
        parameter = inspect.signature(fn).parameters.get("key")
    except (TypeError, ValueError):  # a built-in function without a signature
        return False
    if parameter is None or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return False
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise TypeError(
            f"{getattr(fn, '__name__', fn)} takes key by position only, but a key is passed by "
            "keyword. Remove the / from its signature."
        )
    return True


def average(
    fn: Callable[..., Tree],
    sample: Sample,
    block: Callable[[Callable[..., Tree], Float[Array, " examples"]], Tree],
) -> Tree:
    """The sum of ``block(each, weights)`` over the blocks of a sample.

    ``each(*point)`` is ``fn`` of every example of the block, stacked. The weights of all blocks sum
    to one.
    """

    def of_block(rows: Tree, weights: Float[Array, " examples"], *keys: Key) -> Tree:
        def each(*point: Tree) -> Tree:
            def one(row: Tree, *key: Key) -> Tree:
                return fn(*point, row, key=key[0]) if key else fn(*point, row)

            return jax.vmap(one)(rows, *keys)

        return block(each, weights)

    seen = examples(fn, sample)
    return seen.average_with_keys(of_block) if wants_key(fn) else seen.average(of_block)
