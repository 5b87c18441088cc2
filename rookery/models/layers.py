"""Small models as plain functions of pytrees: parameters and one example in, logits out."""

import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int
from numpy.typing import DTypeLike

from rookery.types import Tree


def dense_init(
    rng: np.random.Generator, n_in: int, n_out: int, dtype: DTypeLike = np.float32
) -> Tree:
    """Weights and biases of one layer, uniform between -1/sqrt(n_in) and 1/sqrt(n_in).

    >>> dense_init(np.random.default_rng(0), 3, 2)["w"].shape
    (3, 2)
    """
    bound = 1 / np.sqrt(n_in)
    return {
        "w": rng.uniform(-bound, bound, (n_in, n_out)).astype(dtype),
        "b": rng.uniform(-bound, bound, n_out).astype(dtype),
    }


def dense(layer: Tree, inputs: Float[Array, " n_in"]) -> Float[Array, " n_out"]:
    """One affine layer; with cross-entropy it is softmax regression.

    >>> dense({"w": np.eye(2), "b": np.ones(2)}, jnp.array([1.0, 2.0])).tolist()
    [2.0, 3.0]
    """
    return inputs @ layer["w"] + layer["b"]


def mlp_init(rng: np.random.Generator, sizes: Sequence[int], dtype: DTypeLike = np.float32) -> Tree:
    """Layers from ``sizes[0]`` inputs to ``sizes[-1]`` logits.

    >>> [layer["w"].shape for layer in mlp_init(np.random.default_rng(0), (784, 200, 10))]
    [(784, 200), (200, 10)]
    """
    if len(sizes) < 2:
        raise ValueError(
            f"sizes must hold at least the numbers of inputs and of logits, got {sizes}."
        )
    return tuple(dense_init(rng, n_in, n_out, dtype) for n_in, n_out in itertools.pairwise(sizes))


def mlp(params: Tree, inputs: Float[Array, " n_in"]) -> Float[Array, " n_out"]:
    """Affine layers with ReLU between them.

    >>> mlp(mlp_init(np.random.default_rng(0), (3, 4, 2)), jnp.ones(3, "float32")).shape
    (2,)
    """
    *hidden, last = params
    for layer in hidden:
        inputs = jax.nn.relu(dense(layer, inputs))
    return dense(last, inputs)


def cnn_init(
    rng: np.random.Generator,
    shape: tuple[int, int, int],
    widths: Sequence[int],
    n_classes: int,
    dtype: DTypeLike = np.float32,
) -> Tree:
    """Two convolutions and two dense layers.

    Args:
        rng: generator of the random numbers.
        shape: height, width and channels of an image; height and width are multiples of four.
        widths: channels of the two convolutions, and units of the hidden dense layer.
        n_classes: number of logits.
        dtype: data type of the parameters.

    >>> params = cnn_init(np.random.default_rng(0), (32, 32, 3), (16, 32, 64), 10)
    >>> params["head"][0]["w"].shape
    (2048, 64)
    """
    height, width, channels = shape
    if height % 4 or width % 4:
        raise ValueError(f"height and width must be multiples of 4, got {height} x {width}.")
    if len(widths) != 3:
        raise ValueError(f"widths must be three numbers (channels, channels, units), got {widths}.")
    first, second, hidden = widths
    flat = (height // 4) * (width // 4) * second
    return {
        "convolutions": (
            dense_init(rng, 9 * channels, first, dtype),
            dense_init(rng, 9 * first, second, dtype),
        ),
        "head": mlp_init(rng, (flat, hidden, n_classes), dtype),
    }


def cnn(params: Tree, image: Float[Array, "h w c"]) -> Float[Array, " n_classes"]:
    """Convolution, pooling and ReLU, twice, then a network with one hidden layer.

    >>> params = cnn_init(np.random.default_rng(0), (4, 4, 1), (2, 2, 3), 10)
    >>> cnn(params, jnp.ones((4, 4, 1), "float32")).shape
    (10,)
    """
    for layer in params["convolutions"]:
        image = jax.nn.relu(max_pool(convolution(layer, image)))
    return mlp(params["head"], image.ravel())


def convolution(layer: Tree, image: Float[Array, "h w c"]) -> Float[Array, "h w n_out"]:
    """A 3 x 3 convolution that keeps height and width, by zero padding.

    Row ``(3 i + j) c + k`` of the weights belongs to pixel (i, j) and channel k of the window.

    >>> layer = dense_init(np.random.default_rng(0), 9, 2)
    >>> convolution(layer, jnp.ones((4, 4, 1), "float32")).shape
    (4, 4, 2)
    """
    # patches and one matrix product: XLA's convolutions are very slow inside loops on a CPU
    height, width, channels = image.shape
    padded = jnp.pad(image, ((1, 1), (1, 1), (0, 0)))
    shifted = [padded[i : i + height, j : j + width] for i in range(3) for j in range(3)]
    patches = jnp.concatenate(shifted, axis=2).reshape(height * width, 9 * channels)
    pixels = jax.vmap(dense, in_axes=(None, 0))(layer, patches)
    return pixels.reshape(height, width, -1)


def max_pool(image: Float[Array, "h w c"]) -> Float[Array, "h/2 w/2 c"]:
    """The maximum of every 2 x 2 window.

    >>> max_pool(jnp.arange(4.0).reshape(2, 2, 1)).tolist()
    [[[3.0]]]
    """
    height, width, channels = image.shape
    # rows first, then columns: half the time of one maximum over both axes
    rows = image.reshape(height // 2, 2, width, channels)
    columns = jnp.maximum(rows[:, 0], rows[:, 1]).reshape(height // 2, width // 2, 2, channels)
    return jnp.maximum(columns[:, :, 0], columns[:, :, 1])


def cross_entropy(
    logits: Float[Array, " n_classes"], label: Int[ArrayLike, ""]
) -> Float[Array, ""]:
    """Minus the log-probability of the label.

    >>> round(float(cross_entropy(jnp.zeros(10), jnp.array(3))), 3)
    2.303
    """
    return jax.nn.logsumexp(logits) - at_label(logits, label)


def at_label(values: Float[Array, " n_classes"], label: Int[ArrayLike, ""]) -> Float[Array, ""]:
    """The value of the label's class.

    >>> float(at_label(jnp.array([5.0, 6.0, 7.0]), jnp.array(1)))
    6.0
    """
    # a comparison instead of indexing, whose derivative would be a scatter
    chosen = jnp.arange(values.shape[-1], dtype=jnp.result_type(label)) == label
    return jnp.sum(jnp.where(chosen, values, jnp.zeros_like(values)))


def is_correct(logits: Float[Array, " n_classes"], label: Int[ArrayLike, ""]) -> Float[Array, ""]:
    """One if the label has the largest logit, otherwise zero.

    >>> float(is_correct(jnp.array([0.1, 0.9]), jnp.array(1)))
    1.0
    """
    predicted = jnp.argmax(logits).astype(jnp.result_type(label))
    return (predicted == label).astype(logits.dtype)
