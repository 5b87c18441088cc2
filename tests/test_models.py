import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rookery import models

IMAGE = (8, 12, 3)


def normal(*shape):
    return jnp.asarray(np.random.default_rng(0).normal(size=shape))


def cnn_params():
    rng = np.random.default_rng(1)
    return models.cnn_init(rng, IMAGE, (4, 5, 6), 7, dtype=np.float64)


def reference_cnn(params, image):
    """The same network with XLA's convolution and window maximum."""
    image = image[None]
    for layer in params["convolutions"]:
        kernel = jnp.reshape(layer["w"], (3, 3, image.shape[-1], -1))
        image = lax.conv_general_dilated(
            image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        image = jax.nn.relu(image + jnp.reshape(layer["b"], (1, 1, 1, -1)))
        image = lax.reduce_window(image, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    hidden = jax.nn.relu(image.ravel() @ params["head"][0]["w"] + params["head"][0]["b"])
    return hidden @ params["head"][1]["w"] + params["head"][1]["b"]


def test_the_cnn_is_that_of_xla():
    params, image = cnn_params(), normal(*IMAGE)
    got = models.cnn(params, image)
    assert got.shape == (7,)
    np.testing.assert_allclose(got, reference_cnn(params, image), atol=1e-12)


@pytest.mark.parametrize("wrt", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_so_are_its_gradients(wrt):
    def loss(network):
        def of(params, image):
            return models.cross_entropy(network(params, image), jnp.int32(2))

        return jax.jit(jax.grad(of, wrt))

    point = cnn_params(), normal(*IMAGE)
    got, want = loss(models.cnn)(*point), loss(reference_cnn)(*point)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), got, want)


def test_no_convolution_is_left_to_xla():
    text = str(jax.make_jaxpr(jax.grad(lambda p, i: models.cnn(p, i).sum()))(
        cnn_params(), normal(*IMAGE)))  # fmt: skip
    assert "conv_general" not in text and "reduce_window" not in text and "select_and" not in text


def test_pooling_takes_the_largest_of_four():
    image = jnp.arange(16.0).reshape(4, 4, 1)
    assert models.max_pool(image).ravel().tolist() == [5, 7, 13, 15]


def test_mlp_of_two_sizes_is_softmax_regression():
    params = models.mlp_init(np.random.default_rng(0), (5, 3), np.float64)
    inputs = normal(5)
    np.testing.assert_array_equal(models.mlp(params, inputs), models.dense(params[0], inputs))


def test_mlp_by_hand():
    params = (
        {"w": np.eye(2), "b": np.zeros(2)},
        {"w": np.array([[1.0, 2.0], [3.0, 4.0]]), "b": np.array([0.5, 0.0])},
    )
    assert models.mlp(params, jnp.array([-1.0, 2.0])).tolist() == [6.5, 8]


def test_initial_values_lie_within_one_over_the_root_of_the_inputs():
    layer = models.dense_init(np.random.default_rng(0), 400, 30)
    assert {a.dtype for a in layer.values()} == {np.dtype("float32")}
    assert 0.049 < abs(layer["w"]).max() <= 0.05
    assert layer["b"].shape == (30,)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
def test_cross_entropy_and_accuracy_for_any_type_of_label(dtype):
    logits = jnp.array([0.0, 1.0, 3.0])
    want = np.log(np.exp([0.0, 1.0, 3.0]).sum()) - 1
    np.testing.assert_allclose(models.cross_entropy(logits, dtype(1)), want)
    assert models.is_correct(logits, dtype(2)) == 1
    assert models.is_correct(logits, dtype(1)) == 0
    assert models.at_label(logits, dtype(2)) == 3


def test_bad_sizes():
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"sizes .*inputs .*logits"):
        models.mlp_init(rng, (3,))
    with pytest.raises(ValueError, match="multiples of 4, got 30 x 32"):
        models.cnn_init(rng, (30, 32, 3), (1, 1, 1), 2)
    with pytest.raises(ValueError, match="widths must be three numbers"):
        models.cnn_init(rng, (32, 32, 3), (1, 1), 2)
