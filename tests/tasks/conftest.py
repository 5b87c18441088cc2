"""A small data set among five clients, and checks that several tasks share."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import rookery as rk
from rookery.clients import client as client_module
from rookery.run.loop import _evaluate


@pytest.fixture(scope="session")
def digits():
    """A third of the training rows, to be quick, and all test rows."""
    pytest.importorskip("sklearn", reason="pip install rookery[digits]")
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
        return rk.Rows(in_float64(task.population.rows(client, split)))

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

        agrees_with_differences(outer_x, x, problem.outer_grad_x(x, y, validation))
        agrees_with_differences(outer_y, y, problem.outer_grad_y(x, y, validation))
        agrees_with_differences(inner_y, y, problem.inner_grad_y(x, y, train))
        agrees_with_differences(inner_slope_y, y, problem.inner_hvp(x, y, v, train))
        agrees_with_differences(inner_slope_x, x, problem.inner_cross(x, y, v, train))

    return check


def dot(a, b):
    return jnp.vdot(ravel_pytree(a)[0], ravel_pytree(b)[0])


@pytest.fixture
def outer_loss():
    """The mean over clients of a bilevel task's outer loss on their validation rows."""

    def loss(task, solution):
        def of_client(client):
            sample = rk.Rows(task.population.rows(client, "validation"))
            return task.problem.outer_value(*solution, sample)

        return float(np.mean([of_client(i) for i in range(task.population.n_clients)]))

    return loss


@pytest.fixture
def descend():
    """A few rounds of FedNest with the task's own evaluation."""

    def run(task, rounds=5, **settings):
        settings = {"inner_steps": 5, "ihgp": rk.FedIHGPSum(terms=5), **settings}
        result = rk.run(
            rk.FedNest(**settings), task.problem, task.population, task.start(0), rounds=rounds,
            evaluate=task.evaluate, evaluate_every=rounds,
        )  # fmt: skip
        assert result.status == "finished"
        return result

    return run


@pytest.fixture
def measure():
    """The numbers that a task's evaluations give at a solution."""

    def numbers(task, solution):
        found = {}
        for evaluation in task.evaluate:
            found |= evaluation(solution, task.population, jax.random.key(0))
        return {name: float(value) for name, value in found.items()}

    return numbers
