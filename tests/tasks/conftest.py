"""A small data set among five clients, and checks that several tasks share."""

import importlib.util

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import rookery as rk
from rookery.problem.sample import Rows


@pytest.fixture(scope="session")
def digits():
    """A third of the training rows, to be quick, and all test rows."""
    if importlib.util.find_spec("sklearn") is None:
        pytest.skip("the package that carries digits is missing: the extra digits")
    dataset = rk.datasets.load("digits")
    return dataset.keep(np.arange(0, len(dataset.train["labels"]), 3))


@pytest.fixture(scope="session")
def parts(digits):
    """Five clients with mostly different classes; both splits."""
    rows = rk.partition.heterogeneity(digits.train["labels"], 5, q=0.3)
    return rk.partition.split(rows, fractions={"train": 0.6, "validation": 0.4})


def in_float64(tree):
    def cast(a):
        a = jnp.asarray(a)
        return a.astype(jnp.float64) if jnp.issubdtype(a.dtype, jnp.floating) else a

    return jax.tree.map(cast, tree)


@pytest.fixture
def rows_of():
    """All rows of a client's split as a sample, in float64."""

    def rows(task, client, split):
        return Rows(in_float64(task.population.rows(client, split)))

    return rows


@pytest.fixture
def moved_start():
    """Initial values in float64 with noise on them, so that nothing is zero by chance."""

    def start(task, seed=0):
        flat, unravel = ravel_pytree(in_float64(task.start(seed)))
        return unravel(flat + 0.1 * np.random.default_rng(seed).normal(size=flat.size))

    return start


@pytest.fixture
def agrees_with_differences():
    """Compare <derivative, e> with central differences of ``fn`` at a few coordinates e."""

    def check(fn, at, derivative, n=6, h=1e-5):
        """``fn`` gives a number, of which ``derivative`` is the gradient at ``at``."""
        flat, unravel = ravel_pytree(at)
        slope = np.asarray(ravel_pytree(derivative)[0])
        fn = jax.jit(fn)
        # where the derivative is largest, and anywhere
        chosen = [*np.argsort(-abs(slope))[: n // 2], *np.arange(0, slope.size, 7)[: n // 2]]
        for i in chosen:
            high, low = (fn(unravel(flat.at[i].add(step))) for step in (h, -h))
            np.testing.assert_allclose((high - low) / (2 * h), slope[i], rtol=1e-6, atol=1e-8)

    return check


@pytest.fixture
def check_bilevel(rows_of, moved_start, agrees_with_differences):
    """All oracles of a bilevel task against differences, on one client's rows."""

    def check(task):
        problem = task.problem
        problem.check(task.start(0), task.population.example)
        x, y = moved_start(task)
        v = jax.tree.map(lambda a: jnp.cos(3 * a), y)
        train, validation = rows_of(task, 1, "train"), rows_of(task, 1, "validation")

        def outer_x(x):
            return problem.outer_value(x, y, validation)

        def outer_y(y):
            return problem.outer_value(x, y, validation)

        def inner_y(y):
            return problem.inner_value(x, y, train)

        def inner_slope_y(y):
            return dot(problem.inner_grad_y(x, y, train), v)

        def inner_slope_x(x):
            return dot(problem.inner_grad_y(x, y, train), v)

        @jax.jit
        def oracles(x, y, v):
            return (
                problem.outer_grad_x(x, y, validation),
                problem.outer_grad_y(x, y, validation),
                problem.inner_grad_y(x, y, train),
                problem.inner_hvp(x, y, v, train),
                problem.inner_cross(x, y, v, train),
            )

        outer_grad_x, outer_grad_y, inner_grad_y, inner_hvp, inner_cross = oracles(x, y, v)
        agrees_with_differences(outer_x, x, outer_grad_x)
        agrees_with_differences(outer_y, y, outer_grad_y)
        agrees_with_differences(inner_y, y, inner_grad_y)
        agrees_with_differences(inner_slope_y, y, inner_hvp)
        agrees_with_differences(inner_slope_x, x, inner_cross)

    return check


def dot(a, b):
    return jnp.vdot(ravel_pytree(a)[0], ravel_pytree(b)[0])


@pytest.fixture
def descend():
    """A few rounds of FedNest with the task's own evaluation."""

    def run(task, rounds=5, **settings):
        # a known bound of the Hessian: estimating one would double the time to compile
        ihgp = rk.parts.FedIHGPSum(terms=5, lipschitz=5.0)
        settings = {"inner_steps": 5, "ihgp": ihgp, **settings}
        result = rk.run(
            rk.FedNest(**settings), task.problem, task.population, task.start(0), rounds=rounds,
            evaluate=task.evaluate, evaluate_every=rounds,
        )  # fmt: skip
        assert result.status == "finished"
        return result

    return run


@pytest.fixture
def lower_the_outer_loss(descend):
    """A few rounds that lower the outer loss, and lower than rounds that leave x where it is."""

    def run(task, **settings):
        result = descend(task, **settings)
        at_rest = descend(task, **{**settings, "outer_lr": 1e-9})
        clients = range(task.population.n_clients)
        samples = [Rows(task.population.rows(i, "validation")) for i in clients]

        @jax.jit
        def outer_loss(x, y):
            return jnp.stack([task.problem.outer_value(x, y, s) for s in samples]).mean()

        before = outer_loss(*jax.tree.map(jnp.asarray, task.start(0)))
        assert outer_loss(*result.solution) < outer_loss(*at_rest.solution) < before
        return result

    return run


@pytest.fixture
def measure():
    """The numbers that a task's evaluations give at a solution."""

    @eqx.filter_jit
    def all_of_them(evaluate, solution, population):
        found = {}
        for evaluation in evaluate:
            found |= evaluation(solution, population, jax.random.key(0))
        return found

    def numbers(task, solution):
        found = all_of_them(task.evaluate, solution, task.population)
        return {name: float(value) for name, value in found.items()}

    return numbers
