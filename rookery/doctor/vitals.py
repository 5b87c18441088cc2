"""Measures a problem at a point of a run: curvature, series, noise, drift.

Everything is computed on the clients' own rows, as far as they are here; nothing is added to the
rounds. Vectors are those of the run, so a figure describes this run and not the worst case.
"""

from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rookery import tree
from rookery.clients.local_client import LocalClient
from rookery.clients.population import Population
from rookery.doctor.settings_of import Settings
from rookery.problem import oracles
from rookery.problem.bilevel import Bilevel
from rookery.problem.single_level import SingleLevel
from rookery.program.step import traced_loop
from rookery.types import BatchSize, Key, Tree

ITERATIONS = 30
"""Steps of power iteration: within a few per cent of the eigenvalue for most spectra."""
SOLVES = 100
"""Most steps of conjugate gradients."""
DRAWS = 4
"""Mini-batches of each client."""
SAFETY = 1.1
"""What algorithms that estimate L multiply the estimate by."""


@dataclass(frozen=True)
class Vitals:
    """Measured at one point; None where a figure does not exist for the problem.

    >>> at_start = Vitals(round=0, largest=4.0, smallest=0.5, L=5.0)
    >>> at_start.largest / at_start.smallest  # the condition number of the mean Hessian
    8.0

    Attributes:
        round: the point's.
        largest: eigenvalue of the mean Hessian of the inner level, or of the only one.
        smallest: the same.
        L: the largest curvature of a mini-batch of one client, which local steps meet.
        gradient: norm of the gradient of that level.
        distance: how far the inner variable is from its solution, relative to its norm.
        drift: how far the mean of the clients' local steps is from as many steps on the mean loss,
            relative to the variable's norm.
        hops: largest factor from one term of the series to the next.
        series_error: of the series that the algorithm sums, relative to the adjoint.
        v: norm of the adjoint.
        amplification: |v| L / |f_y|; the condition number is its limit.
        signal: norm of the hypergradient, or of the gradient.
        noise: of a cohort's mini-batches, relative to the signal.
    """

    round: int
    largest: float
    smallest: float
    L: float
    gradient: float | None = None
    distance: float | None = None
    drift: float | None = None
    hops: float | None = None
    series_error: float | None = None
    v: float | None = None
    amplification: float | None = None
    signal: float | None = None
    noise: float | None = None


Kind = Bilevel | SingleLevel


class Examination(eqx.Module):
    """The inner level of a problem (or its only one) at a point, on all clients.

    Args:
        problem: bilevel or single-level.
        population: the clients.
        point: the variables.
        batch_size: rows of one evaluation.
        key: of all mini-batches.
    """

    problem: Kind
    population: Population
    point: tuple[Tree, ...]
    batch_size: BatchSize = eqx.field(static=True)
    key: Key

    @property
    def variable(self) -> Tree:
        """The variable of the level."""
        return self.point[-1]

    def each(self, fn: Callable[[LocalClient], Tree], draw: int = 0) -> Tree:
        """What a function gives on each client, along the first axis."""
        key = jax.random.fold_in(self.key, draw)

        def one(id):
            own = jax.random.fold_in(key, id)
            return fn(LocalClient(self.population, id, own, traced_loop))

        return lax.map(one, jnp.arange(self.population.n_clients))

    def mean(self, fn: Callable[[LocalClient], Tree]) -> Tree:
        """The weighted mean over all clients."""
        weights = jnp.asarray(self.population.weights)
        weights = weights / jnp.sum(weights)
        return jax.tree.map(lambda a: jnp.tensordot(weights.astype(a.dtype), a, 1), self.each(fn))

    def gradient_of(self, client: LocalClient, w: Tree, size: BatchSize) -> Tree:
        """A client's gradient of the level at a value of its variable."""
        if isinstance(self.problem, Bilevel):
            sample = client.draw(self.problem.inner_split, size, client.key)
            return self.problem.inner_grad_y(self.point[0], w, sample)
        return self.problem.gradient(w, client.draw(self.problem.split, size, client.key))

    def hvp_of(self, client: LocalClient, p: Tree, size: BatchSize) -> Tree:
        """A client's Hessian of the level times a vector."""
        if isinstance(self.problem, Bilevel):
            sample = client.draw(self.problem.inner_split, size, client.key)
            return self.problem.inner_hvp(self.point[0], self.point[1], p, sample)
        sample = client.draw(self.problem.split, size, client.key)
        loss = self.problem.loss
        return oracles.second_derivative(loss, self.point, 0, 0, p, sample)

    @eqx.filter_jit
    def gradient(self, w: Tree) -> Tree:
        """The gradient of the mean loss."""
        return self.mean(lambda client: self.gradient_of(client, w, None))

    @eqx.filter_jit
    def hvp(self, p: Tree) -> Tree:
        """The Hessian of the mean loss times a vector."""
        return self.mean(lambda client: self.hvp_of(client, p, None))

    @eqx.filter_jit
    def batch_curvature(self) -> jax.Array:
        """The largest curvature of any client's mini-batch, over some draws."""

        def one(client):
            return _stretch(lambda p: self.hvp_of(client, p, self.batch_size), self.variable,
                            client.key)  # fmt: skip

        draws = range(1 if self.batch_size is None else DRAWS)
        return jnp.max(jnp.stack([jnp.max(self.each(one, draw)) for draw in draws]))

    @eqx.filter_jit
    def extremes(self) -> tuple[jax.Array, jax.Array]:
        """The largest and the smallest eigenvalue of the mean Hessian."""
        size = _stretch(self.hvp, self.variable, self.key) * SAFETY
        low = size - _stretch(
            lambda p: tree.axpy(-1, self.hvp(p), tree.scale(size, p)), self.variable, self.key
        )
        high = _stretch(
            lambda p: tree.add(self.hvp(p), tree.scale(size, p)), self.variable, self.key
        )
        return high - size, low

    @eqx.filter_jit
    def local_steps(self, step: jax.Array, n: int) -> tuple[Tree, Tree]:
        """The mean of the clients' variables after local steps, and as many on the mean loss."""

        def steps(gradient):
            return lax.fori_loop(
                0, n, lambda _, w: tree.axpy(-step.astype(_dtype(w)), gradient(w), w), self.variable
            )

        local = self.mean(lambda client: steps(lambda w: self.gradient_of(client, w, None)))
        return local, steps(self.gradient)

    @eqx.filter_jit
    def directions(self, v: Tree, size: BatchSize, draw: int) -> Tree:
        """Each client's term of the hypergradient (or gradient), given the adjoint."""

        def one(client):
            if not isinstance(self.problem, Bilevel):
                return self.gradient_of(client, self.variable, size)
            outer = client.draw(self.problem.outer_split, size, client.key)
            inner = client.draw(self.problem.inner_split, size, jax.random.fold_in(client.key, 1))
            f_x = self.problem.outer_grad_x(self.point[0], self.point[1], outer)
            return tree.sub(f_x, self.problem.inner_cross(self.point[0], self.point[1], v, inner))

        return self.each(one, draw)

    @eqx.filter_jit
    def f_y(self) -> Tree:
        """The right side of the adjoint's system."""
        problem = self.problem
        assert isinstance(problem, Bilevel)

        def one(client):
            sample = client.draw(problem.outer_split, None, client.key)
            return problem.outer_grad_y(self.point[0], self.point[1], sample)

        return self.mean(one)


def measure(
    problem: Kind,
    population: Population,
    point: tuple[Tree, ...],
    settings: Settings,
    *,
    round: int = 0,
    is_whole: bool = True,
    seed: int = 0,
) -> Vitals:
    """Measure a problem at a point.

    Args:
        problem: bilevel or single-level.
        population: the clients.
        point: the variables.
        settings: of the algorithm.
        round: of the point.
        is_whole: whether to measure everything; otherwise the curvature alone.
        seed: of the mini-batches and of the starts of power iterations.
    """
    size = settings.batch_size if not isinstance(settings.batch_size, dict) else None
    at = Examination(problem, population, point, size, jax.random.key(seed))
    high, low = map(float, at.extremes())
    L = float(at.batch_curvature())
    if not is_whole:
        return Vitals(round, high, low, L)
    g, norm = at.gradient(at.variable), max(_norm(at.variable), 1e-30)
    distance = _norm(_solve(at.hvp, g)) / norm
    drift = None
    if settings.step is not None and settings.local_steps > 1:
        local, central = at.local_steps(jnp.asarray(settings.step), settings.local_steps)
        drift = _norm(tree.sub(local, central)) / norm
    v, own = tree.zeros_like(at.variable), {}
    if isinstance(problem, Bilevel):
        f_y = at.f_y()
        v = _solve(at.hvp, f_y)
        own = {"v": _norm(v), "amplification": _norm(v) * abs(high) / max(_norm(f_y), 1e-30)}
        if settings.series is not None:
            given = settings.series.lipschitz
            used = float(given) if isinstance(given, float) else SAFETY * L
            found = _series(at.hvp, f_y, v, used, settings.series.terms)
            if settings.is_warm:  # it continues where it ended, so its length truncates nothing
                del found["series_error"]
            own |= found
    signal, noise = _noise(at, v, settings)
    return Vitals(round, high, low, L, _norm(g), distance, drift, signal=signal, noise=noise, **own)


def _noise(at: Examination, v: Tree, settings: Settings) -> tuple[float, float]:
    """The norm of the mean direction, and the deviation of a cohort's mean relative to it."""
    weights = np.asarray(at.population.weights, float)
    weights = weights / weights.sum()
    whole = _flat(at.directions(v, None, 0))
    mean = weights @ whole
    draws = 1 if at.batch_size is None else DRAWS
    errors = [
        weights @ np.sum((_flat(at.directions(v, at.batch_size, draw)) - mean) ** 2, axis=1)
        for draw in range(1, draws + 1)
    ]
    n, population = settings.cohort, at.population.n_clients
    variance = float(np.mean(errors)) / n
    if at.batch_size is None:  # without replacement; the cohort of all clients has no error
        variance *= (population - n) / max(population - 1, 1)
    signal = float(np.linalg.norm(mean))
    return signal, float(np.sqrt(variance)) / max(signal, 1e-30)


def _series(
    hvp: Callable[[Tree], Tree], f_y: Tree, v: Tree, L: float, terms: int
) -> dict[str, float]:
    """How the terms of a Neumann series shrink, and how far its sum is from the adjoint."""
    t = tree.scale(1 / L, f_y)
    total, largest = t, 0.0
    for _ in range(terms):
        new = tree.axpy(-1 / L, hvp(t), t)
        largest = max(largest, _norm(new) / max(_norm(t), 1e-30))
        t, total = new, tree.add(total, new)
    return {"hops": largest, "series_error": _norm(tree.sub(total, v)) / max(_norm(v), 1e-30)}


def _solve(hvp: Callable[[Tree], Tree], right: Tree) -> Tree:
    """Conjugate gradients, until the residual is small or a direction of no curvature is met."""
    w, r = tree.zeros_like(right), right
    p, rr = r, float(tree.dot(r, r))
    least = 1e-12 * rr
    for _ in range(SOLVES):
        if rr <= least:
            break
        Hp = hvp(p)
        curvature = float(tree.dot(p, Hp))
        if curvature <= 0:
            break
        step = rr / curvature
        w, r = tree.axpy(step, p, w), tree.axpy(-step, Hp, r)
        new = float(tree.dot(r, r))
        p, rr = tree.axpy(new / rr, p, r), new
    return w


def _stretch(product: Callable[[Tree], Tree], like: Tree, key: Key) -> jax.Array:
    """By how much a symmetric map stretches its leading direction."""
    start = tree.random_normal(key, like)

    def step(_, carry):
        direction, _ = carry
        image = product(direction)
        length = tree.norm(image)
        return tree.scale(1 / jnp.maximum(length, jnp.finfo(length.dtype).tiny), image), length

    norm = tree.norm(start)
    first = (tree.scale(1 / norm, start), jnp.zeros_like(norm))
    return lax.fori_loop(0, ITERATIONS, step, first)[1]


def _norm(a: Tree) -> float:
    return float(tree.norm(a))


def _flat(rows: Tree) -> np.ndarray:
    """One row per client, all leaves side by side."""
    leaves = [np.asarray(leaf, float) for leaf in jax.tree.leaves(rows)]
    return np.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in leaves], axis=1)


def _dtype(a: Tree) -> jnp.dtype:
    return jnp.result_type(*jax.tree.leaves(a))
