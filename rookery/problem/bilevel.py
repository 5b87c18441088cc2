"""Bilevel problems: minimise an outer loss at the minimiser of an inner loss.

:class:`Bilevel` has one inner problem, the mean of all clients'. :class:`PersonalBilevel` has one
for each client, and so an inner variable of each client's own.
"""

import dataclasses
from collections.abc import Callable

import equinox as eqx

from rookery.loss import Prepared, wants_key
from rookery.problem import oracles, validation
from rookery.problem.constraints import projections
from rookery.problem.gauss_newton import GaussNewton, check_outermost
from rookery.problem.splits import AbstractTwoSplits
from rookery.types import Loss, Sample, Scalar, Tree


class AbstractBilevel(AbstractTwoSplits):
    """Two losses of ``(x, y, example)`` and their derivatives; see :class:`Bilevel`."""

    outer: Loss
    inner: Loss
    outer_split: str = eqx.field(static=True, default="validation", kw_only=True)
    inner_split: str = eqx.field(static=True, default="train", kw_only=True)
    prepare: Callable[[Tree, Tree], Tree] | None = eqx.field(default=None, kw_only=True)

    def __check_init__(self):
        validation.check_function("outer", self.outer)
        validation.check_function("inner", self.inner)
        check_outermost(self.inner)
        if self.prepare is not None:
            validation.check_function("prepare", self.prepare)
            if wants_key(self.prepare):
                raise TypeError(
                    "prepare has a parameter named key, but a prepared row is used in many steps. "
                    "Draw random numbers in the losses, which get a key for every example."
                )
        if "y" in projections(self):
            raise ValueError(
                f"project has 'y'. The hypergradient of a {type(self).__name__} problem needs a "
                "free inner variable: constrain x alone, or write the constraint of y as a penalty."
            )

    @property
    def variables(self) -> tuple[str, str]:
        """x and y."""
        return "x", "y"

    def check(self, start: tuple[Tree, ...], example: Callable[[str], Tree]) -> None:
        """Raise unless both losses return one number at ``start`` for an example of their split."""
        validation.check_start(self, start)
        outer_row, inner_row = example(self.outer_split), example(self.inner_split)
        if self.prepare is not None:
            validation.check_prepare("prepare", self.prepare, start[0], outer_row)
            validation.check_prepare("prepare", self.prepare, start[0], inner_row)
        validation.check_scalar_loss("outer", self._outer, start, outer_row)
        validation.check_scalar_loss("inner", self._inner, start, inner_row)

    def on_prepared_rows(self) -> "AbstractBilevel":
        """The problem whose rows are prepared already.

        It has the same derivatives in y as long as x is where the rows were prepared.
        """
        return dataclasses.replace(self, prepare=None)

    @property
    def _outer(self) -> Loss:
        return self.outer if self.prepare is None else Prepared(self.outer, self.prepare)

    @property
    def _inner(self) -> Loss:
        return self.inner if self.prepare is None else Prepared(self.inner, self.prepare)

    def outer_value(self, x: Tree, y: Tree, sample: Sample) -> Scalar:
        """The mean outer loss, f."""
        return oracles.value(self._outer, (x, y), sample)

    def inner_value(self, x: Tree, y: Tree, sample: Sample) -> Scalar:
        """The mean inner loss, g."""
        return oracles.value(self._inner, (x, y), sample)

    def outer_grad_x(self, x: Tree, y: Tree, sample: Sample) -> Tree:
        """f_x."""
        return oracles.gradient(self._outer, (x, y), 0, sample)

    def outer_grad_y(self, x: Tree, y: Tree, sample: Sample) -> Tree:
        """f_y."""
        return oracles.gradient(self._outer, (x, y), 1, sample)

    def outer_gradients(self, x: Tree, y: Tree, sample: Sample) -> tuple[Tree, Tree]:
        """f_x and f_y, which share their passes over the rows."""
        f_x, f_y = oracles.gradients(self._outer, (x, y), sample)
        return f_x, f_y

    def inner_grad_x(self, x: Tree, y: Tree, sample: Sample) -> Tree:
        """g_x, needed by penalty methods only."""
        return oracles.gradient(self._inner, (x, y), 0, sample)

    def inner_grad_y(self, x: Tree, y: Tree, sample: Sample) -> Tree:
        """g_y."""
        return oracles.gradient(self._inner, (x, y), 1, sample)

    @property
    def has_exact_hessian(self) -> bool:
        """Whether :meth:`inner_hvp` has the Hessian of the inner loss: not with GaussNewton."""
        return not isinstance(self.inner, GaussNewton)

    def inner_hvp(self, x: Tree, y: Tree, v: Tree, sample: Sample) -> Tree:
        """g_yy v, of the shape of y; a Gauss-Newton product if the loss asks for it."""
        if isinstance(self.inner, GaussNewton):
            loss = self.inner.linearised
            loss = loss if self.prepare is None else Prepared(loss, self.prepare)
            return oracles.second_derivative(loss, (x, y, y), 2, 2, v, sample)
        return self.exact_inner_hvp(x, y, v, sample)

    def exact_inner_hvp(self, x: Tree, y: Tree, v: Tree, sample: Sample) -> Tree:
        """The Hessian of the inner loss times v: the curvature that steps of y meet."""
        return oracles.second_derivative(self._inner, (x, y), 1, 1, v, sample)

    def inner_derivatives(
        self, x: Tree, y: Tree, v: Tree, sample: Sample
    ) -> tuple[Tree, Tree, Tree]:
        """g_y, g_xy v and g_yy v, which share their passes over the rows."""
        if not self.has_exact_hessian:
            g_y, g_xy = self.inner_grad_y(x, y, sample), self.inner_cross(x, y, v, sample)
            return g_y, g_xy, self.inner_hvp(x, y, v, sample)
        return oracles.gradient_and_products(self._inner, (x, y), v, sample)

    def inner_cross(self, x: Tree, y: Tree, v: Tree, sample: Sample) -> Tree:
        """g_xy v, of the shape of x."""
        return oracles.second_derivative(self._inner, (x, y), 0, 1, v, sample)


class Bilevel(AbstractBilevel):
    """min over x of  mean outer(x, y*(x))  where  y*(x) = argmin over y of  mean inner(x, y).

    Both losses take ``(x, y, example)`` and return one number; ``x``, ``y`` and the example are any
    pytrees. Means run over the examples of a client, then over clients. The inner loss must be
    strongly convex in ``y``. With v solving  inner_yy v = outer_y,  the hypergradient is
    outer_x - inner_xy v.

    Args:
        outer: loss of the outer level.
        inner: loss of the inner level; :class:`~rookery.problem.GaussNewton` for a network.
        outer_split: the split of a client's data that the outer loss is averaged over.
        inner_split: the split that the inner loss is averaged over.
        prepare: ``prepare(x, row)`` makes of a row what both losses take in its place, such as the
            features of a network whose last layer is y. Where an algorithm moves y alone, it
            prepares the rows of a client once instead of in every step. None leaves rows as they
            are.
        project: the set of x, see :class:`Constrained`; y is free.

    >>> import jax.numpy as jnp
    >>> from rookery.problem.sample import Rows
    >>> problem = Bilevel(
    ...     outer=lambda x, y, row: (y - row) ** 2 / 2,
    ...     inner=lambda x, y, row: (y - x) ** 2 / 2,
    ... )
    >>> x, y, rows = jnp.array(1.0), jnp.array(3.0), Rows(jnp.array([0.0, 2.0]))
    >>> float(problem.outer_grad_y(x, y, rows)), float(problem.inner_grad_y(x, y, rows))
    (2.0, 2.0)
    >>> prepared = Bilevel(
    ...     outer=lambda x, y, feature: (y * feature) ** 2 / 2,
    ...     inner=lambda x, y, feature: (y * feature - 1) ** 2 / 2,
    ...     prepare=lambda x, row: x * row,
    ... )
    >>> float(prepared.outer_grad_x(x, y, rows))  # the mean of x (y row)^2
    18.0
    """


class PersonalBilevel(AbstractBilevel):
    """min over x of  mean outer_i(x, y_i*(x))  where  y_i*(x) = argmin over y of  inner_i(x, y).

    Every client i has an inner variable y_i of its own: a head on shared features, a model near a
    shared one. Losses are those of :class:`Bilevel`, whose inner problem all clients have together;
    the two problems differ unless the clients are alike. The hypergradient is the mean of the
    clients' own  outer_x - inner_xy v_i,  inner_yy v_i = outer_y,  each at the client's y_i and
    computed by the client alone. So y_i and v_i need not be sent, and algorithms for this class
    keep them in the clients' memory. Arguments are those of :class:`Bilevel`; the start of y is
    that of every client.

    >>> problem = PersonalBilevel(
    ...     outer=lambda x, y, row: (y - row) ** 2 / 2,
    ...     inner=lambda x, y, row: (y - row) ** 2 / 2 + (y - x) ** 2,
    ... )
    >>> problem.variables
    ('x', 'y')
    """
