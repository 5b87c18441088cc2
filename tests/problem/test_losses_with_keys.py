"""Losses with a parameter named key: who gets which key, and where it must be the same."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.algorithms.fedmsa.fedmsa import local_steps, own_difference
from rookery.algorithms.fednest.fedinn import corrected_inner_steps
from rookery.algorithms.fednest.fedout import corrected_outer_steps
from rookery.algorithms.prometheus.prometheus import estimates
from rookery.algorithms.shared.local import LocalPlan
from rookery.clients.local_client import LocalClient
from rookery.loss import wants_key
from rookery.problem import OverPairs, oracles
from rookery.problem.sample import Rows
from rookery.program.step import python_loop

D = 40
ROWS = np.zeros((3, 1))
POPULATION = rk.Population.stacked(np.zeros((2, 5, 1)))


def mask(key):
    return jnp.where(jax.random.bernoulli(key, 0.5, (D,)), 2.0, 0.0)


def dropped_out(w, row, key):
    """1/2 |mask w|^2: the gradient is mask^2 w, the Hessian diag(mask^2)."""
    return jnp.sum((mask(key) * w) ** 2) / 2


def client(key=0) -> Any:  # steps want the protocol of clients
    return LocalClient(POPULATION, 0, jax.random.key(key), python_loop)


def keys_of(size, key):
    @jax.jit
    def run():
        sample = client().draw("train", size, jax.random.key(key))
        return [sample.average_with_keys(lambda r, w, k: jax.random.key_data(k)) for _ in range(2)]

    first, second = run()
    np.testing.assert_array_equal(first, second)
    return np.asarray(first)


class Layer(eqx.Module):
    def __call__(self, w, row, *, key=None):
        return w


@pytest.mark.parametrize(
    ("fn", "wanted"),
    [
        (lambda w, row: w, False),
        (lambda w, row, key: w, True),
        (lambda w, row, *, key: w, True),
        (lambda w, row, **key: w, False),
        (Layer(), True),
        (jax.jit(dropped_out), True),
        (functools.partial(dropped_out, key=jax.random.key(0)), False),
        (OverPairs(lambda w, a, b, key: w), True),
        (np.sin, False),
    ],
)
def test_a_parameter_named_key_is_found_by_the_signature(fn, wanted):
    assert wants_key(fn) == wanted


def test_a_key_that_cannot_be_passed_by_keyword_is_refused():
    with pytest.raises(TypeError, match="by position only"):
        rk.SingleLevel(lambda w, row, key, /: w).value(jnp.array(0.0), Rows(ROWS))


def test_rows_without_a_key_are_refused():
    with pytest.raises(ValueError, match="parameter named key"):
        rk.SingleLevel(dropped_out).value(jnp.ones(D), Rows(ROWS))


def test_a_loss_with_a_key_is_checked_before_the_run():
    problem = rk.SingleLevel(dropped_out)
    problem.check((np.ones(D),), POPULATION.example)
    with pytest.raises(ValueError, match="cannot be evaluated"):
        problem.check((np.ones(D + 1),), POPULATION.example)


def test_every_row_and_every_draw_has_a_key_of_its_own():
    drawn, again, whole = keys_of(3, 1), keys_of(3, 2), keys_of(None, 1)
    assert len(np.unique(np.concatenate([drawn, again, whole]), axis=0)) == 3 + 3 + 5 - 3
    np.testing.assert_array_equal(drawn, whole[:3])  # a key belongs to a slot, whatever the size


def test_a_small_client_has_the_same_keys_as_a_whole_batch_and_as_blocks(monkeypatch):
    monkeypatch.setattr("rookery.clients.local_client.BLOCK", 2)
    ragged = rk.Population.from_parts(np.arange(8.0), {"train": [np.arange(3), np.arange(3, 8)]})

    def noise(n):
        small = LocalClient(ragged, 0, jax.random.key(0), python_loop)
        sample = small.draw("train", n, small.key)
        return oracles.value(lambda row, key: jax.random.normal(key), (), sample)

    values = [jax.jit(noise, static_argnums=0)(n) for n in (4, 5, None)]
    np.testing.assert_allclose(values, values[0], rtol=1e-15)


def test_gradient_and_hessian_vector_product_see_the_same_mask():
    problem, sample = (
        rk.Bilevel(*[lambda x, y, row, key: dropped_out(y, row, key)] * 2),
        Rows(ROWS, jax.random.key(3)),
    )
    x, y, v = jnp.zeros(1), jnp.arange(1.0, D + 1), jnp.ones(D)
    squares = oracles.map_value(lambda row, key: mask(key) ** 2, (), sample)
    assert 0 < np.unique(squares).size
    np.testing.assert_allclose(problem.inner_grad_y(x, y, sample), squares * y, rtol=1e-14)
    np.testing.assert_allclose(problem.inner_hvp(x, y, v, sample), squares, rtol=1e-14)


def test_noise_cancels_in_the_differences_of_fedinn_and_fedout():
    def noisy(x, y, row, key):  # gradients x + noise and y + noise
        noise = jax.random.normal(key, (D,))
        return x @ x / 2 + y @ y / 2 + (x + y) @ noise

    problem, q, start = rk.Bilevel(noisy, noisy, outer_split="train"), jnp.ones(D), jnp.zeros(D)
    plan = LocalPlan(problem, batch_size=2, lr=0.5, steps=3)
    for steps in (corrected_inner_steps, corrected_outer_steps):
        got, _ = steps(client(), start, start, q, plan=plan, round=0)
        w = 0.0
        for _ in range(3):
            w = w - 0.5 * (w - 0.0 + 1.0)
        np.testing.assert_allclose(got, w, rtol=1e-14)


def test_both_points_of_fedmsa_have_the_same_dropout_mask():
    problem = rk.MultiSequence(
        main=lambda blocks, row, key: mask(key) * blocks[0],
        sequences=[lambda blocks, row: blocks[1]],
    )
    msa = rk.FedMSA(outer_lr=0.5, inner_lr=0.5, renewal=0.25, local_steps=3, batch_size=1)
    u, h = (jnp.ones(D), jnp.ones(1)), (jnp.zeros(D), jnp.zeros(1))
    difference, _ = own_difference(
        client(), u, u, problem=problem, algorithm=msa, batch_size=1, renewal=0.25, round=1
    )
    assert set(np.asarray(difference).tolist()) == {0.0, 0.5}  # 2 - (1 - 1/4) 2 where the mask is 2
    moved, _ = local_steps(client(), u, h, problem=problem, algorithm=msa, round=0, steps=3)
    np.testing.assert_array_equal(moved[0], u[0])  # along h = 0 nothing moves, so no difference may


def test_two_estimates_of_prometheus_have_the_same_noise():
    def noisy(x, y, row, key):
        return y @ y / 2 + (x + y) @ jax.random.normal(key, (D,))

    problem = rk.Bilevel(noisy, noisy, outer_split="train")
    adjoint = rk.parts.LocalNeumannSum(terms=1, lipschitz=1.0)
    g, _ = estimates(client(), problem, jnp.zeros(D), jnp.zeros(D), adjoint, 2)
    moved, _ = estimates(client(), problem, jnp.zeros(D), jnp.ones(D), adjoint, 2)
    np.testing.assert_allclose(moved - g, 1.0, rtol=1e-13)


def test_layers_and_metrics_get_keys_too():
    chain = rk.Composition((lambda x, row, key: mask(key) * x, lambda z, row: jnp.sum(z)))
    chain.check((np.ones(D),), POPULATION.example)
    sample = client().draw("train", None, jax.random.key(0))
    z = chain.layer(0, jnp.ones(D), sample)
    np.testing.assert_allclose(chain.layer_vjp(0, jnp.ones(D), jnp.ones(D), sample), z, rtol=1e-14)

    def metric(w, row, key):
        return jax.random.uniform(key)

    def plain(w, row):
        return w

    for evaluation in (
        rk.metrics.OnServer({"m": metric, "p": plain}, ROWS),
        rk.metrics.OnClients(losses={"m": metric, "p": plain}, split="train", label="m"),
    ):
        first, same, other = (
            evaluation((jnp.array(7.0),), POPULATION, jax.random.key(k)) for k in (0, 0, 1)
        )
        name = next(iter(first))
        assert first == same and first[name] != other[name] and 0 < first[name] < 1
