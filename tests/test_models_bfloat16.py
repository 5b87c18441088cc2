"""Networks in bfloat16: the error is that of rounding, and parameters stay in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.models import mlp, mlp_init, with_bfloat16

UNIT = 2.0**-8  # the unit roundoff of bfloat16


def dot(w, x):
    return jnp.dot(w, x)


def draw(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def test_a_scalar_product_is_within_the_bound_of_its_rounding():
    w, x = draw(50, 30), draw(30)
    got, want = with_bfloat16(dot)(w, x), w.astype(float) @ x
    bound = (x.size + 3) * UNIT * (np.abs(w) @ np.abs(x))  # two inputs, the sum, the result
    assert got.dtype == jnp.float32
    error = np.abs(np.asarray(got) - want)
    assert (error <= bound).all() and error.max() > UNIT**2  # float32 would be far below


def test_gradients_are_of_the_parameters_type_and_within_the_bound():
    params, x = mlp_init(np.random.default_rng(0), (6, 5, 1)), draw(6)

    def slope(network):
        return jax.grad(lambda p: network(p, x)[0])(params)

    got, want = slope(with_bfloat16(mlp)), slope(mlp)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert g.dtype == w.dtype == jnp.float32
        np.testing.assert_allclose(g, w, rtol=0, atol=16 * UNIT * np.abs(want[1]["w"]).max())
    text = str(jax.make_jaxpr(lambda p: with_bfloat16(mlp)(p, x))(params))
    assert "dot_general" in text and ":f32[5] = dot_general" not in text


def test_numbers_and_keys_that_are_no_floats_pass_and_no_floats_at_all_are_refused():
    def pick(w, at, key):
        return w[at] * jax.random.bernoulli(key).astype(w.dtype), at

    value, at = with_bfloat16(pick)(draw(4), jnp.array(2), key=jax.random.key(3))
    assert value.dtype == jnp.float32 and at.dtype == jnp.array(2).dtype
    with pytest.raises(TypeError, match="floating"):
        with_bfloat16(jnp.negative)(jnp.array(1))


@pytest.mark.slow
def test_a_run_ends_where_rounding_allows(users_settings):
    """Least squares: the gradient's rounding moves the solution by a few units of its size."""
    x, truth = draw(4, 50, 3), draw(3)
    rows = {"x": x, "y": x @ truth}

    def solve(model):
        def loss(w, row):
            return (model(w, row["x"]) - row["y"]) ** 2

        algorithm = rk.FedAvg(lr=0.1, local_steps=1)
        population = rk.Population.stacked(rows)
        result = rk.run(
            algorithm, rk.SingleLevel(loss), population, (np.zeros(3, np.float32),), rounds=100
        )
        return np.asarray(result.solution[0])

    assert np.abs(solve(dot) - truth).max() < 1e-5
    got = solve(with_bfloat16(dot))
    assert got.dtype == np.float32
    error = np.abs(got - truth).max()
    assert 1e-6 < error < 4 * UNIT * np.abs(truth).max()
