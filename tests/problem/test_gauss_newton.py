"""Gauss-Newton products against dense matrices, and what they change in algorithms."""

import functools
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import rookery as rk
from rookery.algorithms.shared.curvature import curvature_of
from rookery.problem import GaussNewton, OverBatch, OverPairs
from rookery.problem.sample import Rows

RNG = np.random.default_rng(0)
ROWS = {
    "inputs": jnp.asarray(RNG.normal(size=(6, 3))),
    "labels": jnp.asarray(RNG.integers(0, 3, 6)),
}
X = jnp.asarray(RNG.normal(size=3))
Y = {"a": jnp.asarray(RNG.normal(size=(3, 4))), "b": jnp.asarray(RNG.normal(size=(4, 3)))}
V = jax.tree.map(lambda leaf: jnp.asarray(RNG.normal(size=leaf.shape)), Y)
RIDGE = 0.01


def logits(x, y, row):
    return jnp.tanh(row["inputs"] @ y["a"]) @ y["b"] + x


def cross_entropy(z, row):
    return -jax.nn.log_softmax(z)[row["labels"]]


def ridge(x, y, row):
    return RIDGE / 2 * (jnp.sum(y["a"] ** 2) + jnp.sum(y["b"] ** 2))


def plain(x, y, row):
    return cross_entropy(logits(x, y, row), row) + ridge(x, y, row)


EXACT = rk.Bilevel(plain, plain)
BENT = rk.Bilevel(plain, GaussNewton(logits, cross_entropy, ridge))


FLAT, BACK = ravel_pytree(Y)


@functools.cache
def dense():
    """The mean of  J' (diag(p) - p p') J,  and the ridge."""
    outputs = jax.jit(jax.vmap(lambda w, row: logits(X, BACK(w), row), in_axes=(None, 0)))
    Js, zs = jax.jit(jax.jacobian(outputs))(FLAT, ROWS), outputs(FLAT, ROWS)
    total = RIDGE * np.eye(FLAT.size)
    for J, z in zip(np.asarray(Js), np.asarray(zs), strict=True):
        p = np.exp(z) / np.exp(z).sum()
        total += J.T @ (np.diag(p) - np.outer(p, p)) @ J / len(zs)
    return total


@functools.cache
def hessian():
    return np.asarray(
        jax.jit(jax.hessian(lambda w: EXACT.inner_value(X, BACK(w), Rows(ROWS))))(FLAT)
    )


def test_a_product_is_that_of_the_dense_matrix_which_is_definite_where_the_hessian_is_not():
    v = np.asarray(ravel_pytree(V)[0])
    for product, matrix in ((BENT.inner_hvp, dense()), (BENT.exact_inner_hvp, hessian())):
        got = ravel_pytree(jax.jit(product)(X, Y, V, Rows(ROWS)))[0]
        np.testing.assert_allclose(got, matrix @ v, rtol=1e-9)
    assert np.linalg.eigvalsh(hessian()).min() < -RIDGE
    assert np.linalg.eigvalsh(dense()).min() > 0.99 * RIDGE


@pytest.mark.slow
def test_everything_else_is_exact_also_with_prepared_rows():
    sample = Rows(ROWS)
    for name in ("inner_value", "inner_grad_x", "inner_grad_y"):
        got, wanted = (ravel_pytree(getattr(p, name)(X, Y, sample))[0] for p in (BENT, EXACT))
        np.testing.assert_allclose(got, wanted, rtol=1e-12)
    g_y, g_xy, g_yy = BENT.inner_derivatives(X, Y, V, sample)
    np.testing.assert_allclose(g_xy, EXACT.inner_cross(X, Y, V, sample), rtol=1e-12)
    product = ravel_pytree(BENT.inner_hvp(X, Y, V, sample))[0]
    np.testing.assert_allclose(ravel_pytree(g_yy)[0], product, rtol=1e-12)
    np.testing.assert_allclose(g_y["a"], EXACT.inner_grad_y(X, Y, sample)["a"], rtol=1e-12)

    def doubled(x, row):
        return row | {"inputs": 2 * row["inputs"]}

    ready = rk.Bilevel(plain, BENT.inner, prepare=doubled)
    twice = Rows(ROWS | {"inputs": 2 * ROWS["inputs"]})
    got, wanted = ready.inner_hvp(X, Y, V, sample), BENT.inner_hvp(X, Y, V, twice)
    np.testing.assert_allclose(got["a"], wanted["a"], rtol=1e-12)


def test_linear_outputs_have_no_bias():
    def linear(x, y, row):
        return row["inputs"] @ y["a"] @ jnp.ones((4, 3)) + x

    def whole(x, y, row):
        return cross_entropy(linear(x, y, row), row) + ridge(x, y, row)

    one, other = (
        rk.Bilevel(whole, whole),
        rk.Bilevel(whole, GaussNewton(linear, cross_entropy, ridge)),
    )
    got, wanted = (p.inner_hvp(X, Y, V, Rows(ROWS))["a"] for p in (other, one))
    np.testing.assert_allclose(got, wanted, rtol=1e-10)


@pytest.mark.slow
def test_the_adjoint_of_a_network_is_that_of_the_dense_system():
    rows = [np.arange(6)]
    population = rk.Population.from_parts(ROWS, {"train": rows, "validation": rows})
    still = rk.SOBA(outer_lr=1e-30, inner_lr=(1e-30, 0.5))  # v alone moves
    state = rk.run(still, BENT, population, (X, Y), rounds=4000, guard=None).state
    f_y = ravel_pytree(BENT.outer_grad_y(X, Y, Rows(ROWS)))[0]
    wanted = np.linalg.solve(dense(), f_y)
    np.testing.assert_allclose(ravel_pytree(state.v)[0], wanted, rtol=1e-4, atol=1e-6)


def test_the_measured_curvature_is_that_of_the_steeper_matrix():
    client: Any = SimpleNamespace(repeat=lambda n, body, init: jax.lax.fori_loop(0, n, body, init))
    view, samples = rk.parts.BilevelView(), (Rows(ROWS), Rows(ROWS))
    how = {"view": view, "iterations": 100}
    found = jax.jit(lambda key: curvature_of(client, BENT, (X, Y, V), samples, 1, **how, key=key))
    both = (np.abs(np.linalg.eigvalsh(matrix)).max() for matrix in (hessian(), dense()))
    assert found(jax.random.key(0)) == pytest.approx(max(both), rel=1e-3)


MAKE: Any = GaussNewton  # with what it must refuse


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: MAKE(3.0, cross_entropy), "outputs must be a function, got 3.0"),
        (lambda: GaussNewton(logits, OverPairs(plain)), "loss .* got OverPairs"),
        (lambda: MAKE(lambda x, y, row, key: y, cross_entropy), "outputs .* key"),
        (lambda: rk.Bilevel(plain, OverBatch(BENT.inner)), "OverBatch .* GaussNewton"),
    ],
)
def test_wrong_parts_say_so(make, match):
    with pytest.raises(TypeError, match=match):
        make()
