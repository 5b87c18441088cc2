"""A function of a conditional expectation: its plug-in, the bias of that, and what is billed."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery import uint64
from rookery.clients.local_client import LocalClient
from rookery.problem import Conditional
from rookery.problem.sample import Rows
from rookery.program.step import traced_loop

ZOO = rk.zoo.conditional_quadratic(n_clients=1, size=2, rows=2, noise=0.3, draws=5)
ROWS = {name: a[0] for name, a in ZOO.data.items()}
W = jnp.array([0.7, -0.4])


@pytest.mark.parametrize("m_in", [1, 2, 4])
def test_the_plug_in_is_biased_by_the_variance_over_m(m_in):
    problem = Conditional(ZOO.problem.inner, ZOO.problem.outer, m_in=m_in)
    keys = jax.random.split(jax.random.key(m_in), 4000)

    def at(key):
        sample = Rows(ROWS, key)
        return problem.value(W, sample), problem.gradient(W, sample)

    values, gradients = jax.jit(jax.vmap(at))(keys)
    N = ZOO.N[0].reshape(-1, 2, 2)
    variance = np.mean([np.sum((n @ W) ** 2) for n in N])  # its trace, and outer'' is one
    exact = ZOO.problem.value(W, Rows(ROWS))
    error = float(np.std(values)) / np.sqrt(len(keys))
    assert np.mean(values) - exact == pytest.approx(variance / (2 * m_in), abs=4 * error)
    assert variance / (2 * m_in) > 10 * error
    wanted = replace(ZOO, m_in=m_in).plug_in_gradient(np.asarray(W))
    error = np.std(gradients, axis=0).max() / np.sqrt(len(keys))
    np.testing.assert_allclose(np.mean(gradients, axis=0), wanted, atol=4 * error)


def test_as_many_draws_as_a_row_has_are_all_of_them_once():
    every = Conditional(ZOO.problem.inner, ZOO.problem.outer, m_in=5)
    exact = ZOO.problem.gradient(W, Rows(ROWS))
    np.testing.assert_allclose(every.gradient(W, Rows(ROWS, jax.random.key(0))), exact, rtol=1e-12)
    np.testing.assert_allclose(exact, ZOO.gradient(np.asarray(W)), rtol=1e-12)


@pytest.mark.slow
def test_meta_learning_is_its_deterministic_case():
    """Where the draws of every row are all rows of the client, and inner adapts w to one."""
    maml = rk.zoo.cubic_maml(n_clients=1, size=2, rows=3, noise=0.4)
    rows, loss = {name: a[0] for name, a in maml.data.items()}, maml.problem.loss

    def inner(w, example, draw):
        return w - maml.adaptation_lr * jax.grad(loss)(w, draw)

    draws = jax.tree.map(lambda a: np.broadcast_to(a, (3, *a.shape)), rows)
    problem = Conditional(inner, loss)
    got = problem.gradient(W, Rows({**rows, "draws": draws}))
    np.testing.assert_allclose(got, maml.problem.gradient(W, Rows(rows), Rows(rows)), rtol=1e-12)


def test_levels_may_be_random_and_the_same_sample_gives_the_same_draws():
    def inner(w, example, draw, key):
        return w * jax.random.normal(key, w.shape)

    problem = Conditional(inner, lambda u, example: u @ u, m_in=3)
    first, again, other = (problem.value(W, Rows(ROWS, jax.random.key(seed))) for seed in (0, 0, 1))
    assert first == again != other


@pytest.mark.parametrize(("m_in", "inner"), [(2, 2), (None, 5)])
def test_an_example_is_billed_as_one_row_and_one_for_each_draw(m_in, inner):
    problem = Conditional(ZOO.problem.inner, ZOO.problem.outer, m_in=m_in)
    client = LocalClient(rk.Population.stacked(ZOO.data), 0, jax.random.key(0), traced_loop)
    problem.gradient(W, client.draw("train", None, client.key))
    assert uint64.read(client.work) == [2 * (1 + inner), 0]


def test_bad_problems_are_refused():
    good = ZOO.problem
    with pytest.raises(ValueError, match="m_in must be at least 1, got 0"):
        Conditional(good.inner, good.outer, m_in=0)
    with pytest.raises(ValueError, match="field 'views'"):
        Conditional(good.inner, good.outer, draws="views").check((W,), lambda _: ROWS)
    row = {name: a[0] for name, a in ROWS.items()}
    with pytest.raises(ValueError, match="first axis of equal length"):
        good.check((W,), lambda _: {**row, "draws": {"a": np.ones(2), "b": np.ones(3)}})
    with pytest.raises(ValueError, match="outer must return one floating-point number"):
        Conditional(good.inner, lambda u, example: u).check((W,), lambda _: row)
