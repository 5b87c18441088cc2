"""The linear system  g_yy v = f_y  at one point (x, y), of all clients together or of one alone.

A solver sees its right side and its products with a vector, never a matrix, and so need not know
whose system it solves.
"""

import abc
from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import tree
from rookery.algorithms.shared import levels
from rookery.algorithms.shared.context import Context
from rookery.algorithms.shared.levels import TwoLevel
from rookery.problem.bilevel import AbstractBilevel
from rookery.program.federation import Cached, Client
from rookery.program.participation import Cohort
from rookery.samples import Deal, rows_per_draw
from rookery.types import BatchSize, Count, Key, Sample, Tree


class AbstractSystem(eqx.Module):
    """A linear system known by its products."""

    @abc.abstractmethod
    def right_side(self, key: Key) -> Tree:
        """f_y."""

    @abc.abstractmethod
    def product(self, p: Tree, key: Key) -> Tree:
        """g_yy p."""

    @abc.abstractmethod
    def repeat(
        self, n: Count, body: Callable[[jax.Array, Tree], Tree], init: Tree, *, most: int
    ) -> Tree:
        """``body(i, value)``, n times, of which there are at most ``most``."""


class GlobalSystem(AbstractSystem):
    """The system of the mean Hessian. Every right side and every product is one exchange.

    Every exchange has a fresh cohort and fresh samples: with one cohort throughout, the mean of a
    product would not be the product of the means. A client keeps (x, y) for as long as the system
    is in use, so the point is sent to newcomers only.
    """

    context: Context
    point: Cached

    def on_one_sample(self, key: Key) -> "OneSampleSystem":
        """The system of a cohort drawn now, with one sample for all products."""
        who, sample_key = jax.random.split(key)
        return OneSampleSystem(self.context, self.point, self.context.sample(who), sample_key)

    def right_side(self, key):
        """The mean of f_y over a fresh cohort."""
        who, sample_key = jax.random.split(key)
        cohort = self.context.sample(who)
        point = self.context.fed.broadcast(cohort, self.point)  # ------------ down  x, y
        f_y = self.context.map(outer_gradient_y, point, key=sample_key)
        return self.context.fed.mean(f_y)  # --------------------------------- up    f_y

    def product(self, p, key):
        """The mean of g_yy p over a fresh cohort."""
        who, sample_key = jax.random.split(key)
        cohort = self.context.sample(who)
        point, p = self.context.fed.broadcast(cohort, self.point, p)  # ------ down  p (and x, y)
        product = self.context.map(hessian_vector, point, p, key=sample_key)
        return self.context.fed.mean(product)  # ----------------------------- up    g_yy p

    def repeat(self, n, body, init, *, most):
        """A loop at the server."""
        return self.context.fed.repeat(n, body, init)


class OneSampleSystem(AbstractSystem):
    """The system of one cohort's mean Hessian on one sample of each client.

    All products are with one matrix. A compiled program computes what they share, such as the
    forward pass of a network, once before the loop over the products: the Hessian is linear in the
    vector, and XLA moves everything else out of the loop.
    """

    context: Context
    point: Cached
    cohort: Cohort
    key: Key

    def right_side(self, key):
        """The cohort's mean of f_y; ``key`` is not used."""
        fed = self.context.fed
        point = fed.broadcast(self.cohort, self.point)  # -------------------- down  x, y
        f_y = self.context.map(outer_gradient_y, point, key=jax.random.fold_in(self.key, 0))
        return fed.mean(f_y)  # ---------------------------------------------- up    f_y

    def product(self, p, key):
        """The cohort's mean of g_yy p; ``key`` is not used."""
        fed = self.context.fed
        point, p = fed.broadcast(self.cohort, self.point, p)  # -------------- down  p
        product = self.context.map(hessian_vector, point, p, key=jax.random.fold_in(self.key, 1))
        return fed.mean(product)  # ------------------------------------------ up    g_yy p

    def repeat(self, n, body, init, *, most):
        """A loop at the server."""
        return self.context.fed.repeat(n, body, init)


class LocalSystem(AbstractSystem):
    """The system of one client's own Hessian at its own (x, y), solved by that client."""

    client: Client
    problem: TwoLevel
    x: Tree
    y: Tree
    batch_size: BatchSize
    prepared: Tree = None  # the client's inner rows, if they were prepared at x

    def prepared_for(self, draws: int | None) -> "LocalSystem":
        """The system for this many inner samples at x: their rows are prepared once, if that pays.

        It pays if all samples together have as many rows as the client; None means all rows.
        """
        problem, client = self.problem, self.client
        if not isinstance(problem, AbstractBilevel) or problem.prepare is None:
            return self
        split = problem.inner_split
        size = rows_per_draw(self.batch_size, split)
        if size is not None and draws is not None and draws * size < client.most_rows(split):
            return self
        rows = client.prepare(split, partial(problem.prepare, self.x))
        problem = problem.on_prepared_rows()
        return LocalSystem(client, problem, self.x, self.y, self.batch_size, rows)

    def moved_to(self, x: Tree) -> "LocalSystem":
        """The same client's system at another x."""
        return LocalSystem(self.client, self.problem, x, self.y, self.batch_size)

    def at_inner(self, y: Tree) -> "LocalSystem":
        """The same client's system at another y."""
        return LocalSystem(self.client, self.problem, self.x, y, self.batch_size, self.prepared)

    def outer_sample(self, key: Key) -> Sample:
        """Rows of the outer level."""
        return self.client.draw(levels.outer_split(self.problem), self.batch_size, key)

    def inner_sample(self, key: Key) -> Sample:
        """Rows of the inner level."""
        split = levels.inner_split(self.problem)
        return self.client.draw(split, self.batch_size, key, self.prepared)

    def dealt_inner_rows(self, key: Key) -> Deal:
        """All rows of the inner level in batches."""
        split = levels.inner_split(self.problem)
        return self.client.deal(split, self.batch_size, key, self.prepared)

    def right_side(self, key):
        """The client's f_y(x, y; ξ)."""
        return levels.outer_gradient_y(self.problem, self.x, self.y, self.outer_sample(key))

    def product(self, p, key):
        """The client's g_yy(x, y; ζ) p."""
        return levels.hessian_vector(self.problem, self.x, self.y, p, self.inner_sample(key))

    def repeat(self, n, body, init, *, most):
        """A loop on the client."""
        return self.client.repeat(n, body, init, most=most)


def outer_gradient_y(
    client: Client, point: tuple[Tree, Tree], *, problem: TwoLevel, batch_size: BatchSize
) -> Tree:
    """f_y(x, y; ξ)."""
    return LocalSystem(client, problem, *point, batch_size).right_side(client.key)


def hessian_vector(
    client: Client, point: tuple[Tree, Tree], p: Tree, *, problem: TwoLevel, batch_size: BatchSize
) -> Tree:
    """g_yy(x, y; ζ) p."""
    return LocalSystem(client, problem, *point, batch_size).product(p, client.key)


def product_of_series(system: AbstractSystem, terms: int, hops, L: jax.Array, key: Key) -> Tree:
    """One product  (N/L) (I - g_yy/L)^hops f_y.

    With hops uniform on 0..N-1 its mean is the sum of the first N terms of the Neumann series
    g_yy^{-1} = (1/L) Σ_n (I - g_yy/L)^n,  which needs L above half the largest eigenvalue.
    """
    start_key, hop_key = jax.random.split(key)

    def hop(n, p):
        product = system.product(p, jax.random.fold_in(hop_key, n))
        return tree.axpy(-1 / L, product, p)

    start = tree.scale(terms / L, system.right_side(start_key))
    return system.repeat(hops, hop, start, most=terms)


def sum_of_series(system: AbstractSystem, terms: int, L: jax.Array, key: Key) -> Tree:
    """The first N + 1 terms  (1/L) Σ_n (I - g_yy/L)^n f_y,  by N hops."""
    start_key, hop_key = jax.random.split(key)

    def hop(n, carry):
        t, v = carry
        t = tree.axpy(-1 / L, system.product(t, jax.random.fold_in(hop_key, n)), t)
        return t, tree.add(v, t)

    t = tree.scale(1 / L, system.right_side(start_key))
    return system.repeat(terms, hop, (t, t), most=terms)[1]


def conjugate_gradients(
    system: AbstractSystem, r: Tree, iterations: int, key_of: Callable[[Count], Key]
) -> Tree:
    """A fixed number of conjugate-gradient iterations from zero for  g_yy v = r.

    Args:
        system: whose products are taken, one in an iteration.
        r: the right side.
        iterations: as many as v has numbers give it exactly.
        key_of: the key of the product of an iteration.
    """

    def iterate(k, carry):
        v, r, p, rr = carry
        image = system.product(p, key_of(k))
        step = _ratio(rr, tree.dot(p, image))
        v, r = tree.axpy(step, p, v), tree.axpy(-step, image, r)
        new_rr = tree.dot(r, r)
        return v, r, tree.axpy(_ratio(new_rr, rr), p, r), new_rr

    start = tree.zeros_like(r), r, r, tree.dot(r, r)
    return system.repeat(iterations, iterate, start, most=iterations)[0]


def _ratio(a: jax.Array, b: jax.Array) -> jax.Array:
    """The quotient a / b, or zero where a solved system leaves nothing to divide by."""
    return jnp.where(b > 0, a / jnp.where(b > 0, b, jnp.ones_like(b)), jnp.zeros_like(a))
