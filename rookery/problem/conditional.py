"""Conditional problems: a function of an expectation given the outer example."""

from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check
from rookery.loss import wants_key
from rookery.problem import oracles, validation
from rookery.problem.splits import AbstractOneSplit, AbstractOneVariable
from rookery.rng import below
from rookery.types import Key, Loss, Sample, Scalar, Tree


class Conditional(AbstractOneVariable, AbstractOneSplit):
    """min over w of  mean over examples ξ of  outer( mean over draws η of ξ of inner(w, ξ, η), ξ ).

    Every row carries its own inner draws: ``row["draws"]`` has them along its first axis, and the
    example ξ is the rest of the row. The rows of one task in meta-learning, or noisy views of one
    image, are such draws. With ``m_in`` draws in place of all, the mean of a few stands inside
    ``outer`` (the plug-in), which is biased by O(1 / m_in): for a quadratic ``outer`` the value by
    half the trace of  outer'' Var(inner) / m_in.

    ``inner`` and ``outer`` may have a parameter named ``key``. An example counts in the ledger as
    one row for ``outer`` and one for each of its draws.

    Args:
        inner: ``inner(w, example, draw)``, any pytree u.
        outer: ``outer(u, example)``, one number.
        m_in: draws per evaluation of an example, uniformly with replacement; None, or as many as
            the row has, is every draw once, and then nothing is biased.
        draws: the field of a row that holds its draws.
        split: the split of a client's data that the outer level is averaged over.
        project: the set of w, see :class:`Constrained`.

    >>> from rookery.problem.sample import Rows
    >>> rows = Rows({"target": jnp.zeros(1), "draws": jnp.array([[1.0, 3.0]])})
    >>> def inner(w, example, draw):
    ...     return w * draw
    >>> def outer(u, example):
    ...     return (u - example["target"]) ** 2 / 2
    >>> problem = Conditional(inner, outer)
    >>> float(problem.value(jnp.array(1.0), rows)), float(problem.gradient(jnp.array(1.0), rows))
    (2.0, 4.0)
    """

    inner: Callable[..., Tree]
    outer: Loss
    m_in: int | None = eqx.field(static=True, default=None, kw_only=True)
    draws: str = eqx.field(static=True, default="draws", kw_only=True)
    split: str = eqx.field(static=True, default="train", kw_only=True)

    def __check_init__(self):
        validation.check_function("inner", self.inner)
        validation.check_function("outer", self.outer)
        if self.m_in is not None:
            check.count("m_in", self.m_in)

    def check(self, start: tuple[Tree, ...], example: Callable[[str], Tree]) -> None:
        """Raise unless rows have draws, the levels fit together and the outer one is a scalar."""
        validation.check_start(self, start)
        row = example(self.split)
        if not isinstance(row, Mapping) or self.draws not in row:
            raise ValueError(
                f"Conditional reads the inner draws of a row from its field {self.draws!r}, got a "
                f"row {validation.describe(row)}. Put them there, or name their field with draws=."
            )
        pool = row[self.draws]
        lengths = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(pool)}
        if len(lengths) != 1 or () in lengths:
            raise ValueError(
                f"the draws of a row must lie along a first axis of equal length, got "
                f"{validation.describe(pool)} in field {self.draws!r}."
            )
        one = jax.eval_shape(lambda pool: jax.tree.map(lambda a: a[0], pool), pool)
        known = {"example": self._example(row), "draw": one}
        u = validation.check_map("inner", _OfOneDraw(self.inner), start[0], known)
        validation.check_scalar_loss("outer", self.outer, (u,), known["example"])

    def value(self, w: Tree, sample: Sample) -> Scalar:
        """The mean loss, with the plug-in if ``m_in`` is less than a row has draws."""
        return oracles.value(self._loss, (w,), sample)

    def gradient(self, w: Tree, sample: Sample) -> Tree:
        """The gradient of :meth:`value`; the same draws at every point for one sample."""
        sample.charge(gradients=self._draws_of(sample))
        return oracles.gradient(self._loss, (w,), 0, sample)

    @property
    def _loss(self) -> Loss:
        is_random = self.m_in is not None or wants_key(self.inner) or wants_key(self.outer)
        return self._with_key if is_random else self._whole

    def _whole(self, w: Tree, row: Tree) -> Scalar:
        example = self._example(row)
        each = jax.vmap(lambda draw: self.inner(w, example, draw))(row[self.draws])
        return self.outer(jax.tree.map(lambda u: jnp.mean(u, 0), each), example)

    def _with_key(self, w: Tree, row: Tree, key: Key) -> Scalar:
        example, pool = self._example(row), row[self.draws]
        which, inner_key, outer_key = jax.random.split(key, 3)
        size = _first_axis(pool)
        if self.m_in is not None and self.m_in < size:
            chosen = below(which, (self.m_in,), size)
            pool, size = jax.tree.map(lambda a: a[chosen], pool), self.m_in

        def one(draw: Tree, key: Key) -> Tree:
            named = {"key": key} if wants_key(self.inner) else {}
            return self.inner(w, example, draw, **named)

        each = jax.vmap(one)(pool, jax.random.split(inner_key, size))
        named = {"key": outer_key} if wants_key(self.outer) else {}
        return self.outer(jax.tree.map(lambda u: jnp.mean(u, 0), each), example, **named)

    def _example(self, row: Tree) -> Tree:
        """The row without its draws."""
        return {name: field for name, field in row.items() if name != self.draws}

    def _draws_of(self, sample: Sample) -> int:
        """How many inner evaluations an example takes, from the shape of a row."""
        size = _first_axis(sample.row_shape()[self.draws])
        return size if self.m_in is None else min(self.m_in, size)


class _OfOneDraw(eqx.Module):
    """``inner`` as a map of w and one example that has a draw."""

    inner: Callable[..., Tree]

    def __call__(self, w: Tree, known: Tree) -> Tree:
        key = {"key": jax.random.key(0)} if wants_key(self.inner) else {}
        return self.inner(w, known["example"], known["draw"], **key)


def _first_axis(pool: Tree) -> int:
    return jax.tree.leaves(pool)[0].shape[0]
