"""Derivatives of the meta-learning problem, and what it is billed for them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery import uint64
from rookery.clients.local_client import LocalClient
from rookery.problem.sample import Rows
from rookery.program.step import traced_loop

NOISY = rk.zoo.cubic_maml(n_clients=1, size=3, rows=5, noise=0.4)
# rows differ in A too, or else it would not matter which of them the Hessian is taken on
ZOO = dataclasses.replace(NOISY, A=NOISY.A * np.linspace(0.5, 1.5, 5)[:, None, None])
W = np.array([0.2, -0.3, 0.4])


def test_the_gradient_against_differences(differences):
    """F.6 (f): w'Aw/2 + b'w + sum w^3 / 6, with different rows inside and outside."""
    inner, outer = (Rows({k: a[0, rows] for k, a in ZOO.data.items()})
                    for rows in (slice(0, 2), slice(2, 5)))  # fmt: skip
    problem = ZOO.problem
    numeric = differences(lambda w: problem.value(jnp.asarray(w), inner, outer), W)
    got = problem.gradient(jnp.asarray(W), inner, outer)
    np.testing.assert_allclose(got, numeric, rtol=1e-8, atol=1e-9)


def test_three_samples_each_have_their_place():
    a = ZOO.adaptation_lr
    samples = [Rows({k: a[0, i : i + 1] for k, a in ZOO.data.items()}) for i in range(3)]
    (A0, b0), (A1, b1), (A2, _) = ((ZOO.A[0, i], ZOO.b[0, i]) for i in range(3))
    u = W - a * (A0 @ W + b0 + W**2 / 2)
    g = A1 @ u + b1 + u**2 / 2
    wanted = g - a * (A2 @ g + W * g)
    got = ZOO.problem.gradient(jnp.asarray(W), *samples)
    np.testing.assert_allclose(got, wanted, rtol=1e-12)


def test_work_is_counted_in_rows():
    population = jax.tree.map(jnp.asarray, rk.Population.stacked(ZOO.data))
    client = LocalClient(population, 0, jax.random.key(0), traced_loop)
    inner, outer, hessian = (client.draw("train", n, jax.random.key(n)) for n in (2, 3, 4))
    ZOO.problem.gradient(jnp.asarray(W), inner, outer, hessian)
    assert uint64.read(client.work) == [2 + 3, 4]
    ZOO.problem.value(jnp.asarray(W), inner, outer)
    assert uint64.read(client.work) == [2 + 3 + 2, 4]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_type_is_kept(dtype):
    zoo = rk.zoo.cubic_maml(n_clients=1, dtype=dtype)
    rows = Rows({k: a[0] for k, a in zoo.data.items()})
    (w,) = map(jnp.asarray, zoo.start)
    assert zoo.problem.gradient(w, rows, rows).dtype == dtype
    assert zoo.problem.value(w, rows, rows).dtype == dtype
