"""Small models as plain functions on pytrees: parameters in, logits of one example out."""

import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from rookery.types import Tree


def dense_init(
    rng: np.random.Generator, n_in: int, n_out: int, dtype: DTypeLike = np.float32
) -> Tree:
    """Weights and biases of one layer, uniform within 1/sqrt(n_in) of zero."""
    bound = 1 / np.sqrt(n_in)
    return {
        "w": rng.uniform(-bound, bound, (n_in, n_out)).astype(dtype),
        "b": rng.uniform(-bound, bound, n_out).astype(dtype),
    }


def dense(layer: Tree, inputs: jax.Array) -> jax.Array:
    """One affine layer; alone it is softmax regression."""
    return inputs @ layer["w"] + layer["b"]


def mlp_init(rng: np.random.Generator, sizes: Sequence[int], dtype: DTypeLike = np.float32) -> Tree:
    """Layers from ``sizes[0]`` inputs to ``sizes[-1]`` logits.

    >>> [layer["w"].shape for layer in mlp_init(np.random.default_rng(0), (784, 200, 10))]
    [(784, 200), (200, 10)]
    """
    if len(sizes) < 2:
        raise ValueError(f"sizes must name the inputs and the logits at least, got {sizes}.")
    return tuple(dense_init(rng, n_in, n_out, dtype) for n_in, n_out in itertools.pairwise(sizes))


def mlp(params: Tree, inputs: jax.Array) -> jax.Array:
    """Affine layers with ReLU between them."""
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
        rng: of the random numbers.
        shape: height, width and channels of an image; the first two are multiples of four.
        widths: channels of the two convolutions, and units of the hidden dense layer.
        n_classes: how many logits.
        dtype: of the parameters.

    >>> params = cnn_init(np.random.default_rng(0), (32, 32, 3), (16, 32, 64), 10)
    >>> params["head"][0]["w"].shape
    (2048, 64)
    """
    height, width, channels = shape
    if height % 4 or width % 4:
        raise ValueError(f"height and width must be multiples of 4, got {height} x {width}.")
    if len(widths) != 3:
        raise ValueError(f"widths must be three numbers, two of channels, one of units: {widths}.")
    first, second, hidden = widths
    flat = (height // 4) * (width // 4) * second
    return {
        "convolutions": (
            dense_init(rng, 9 * channels, first, dtype),
            dense_init(rng, 9 * first, second, dtype),
        ),
        "head": mlp_init(rng, (flat, hidden, n_classes), dtype),
    }


def cnn(params: Tree, image: jax.Array) -> jax.Array:
    """Two times convolution, pooling and ReLU, then a network with one hidden layer."""
    for layer in params["convolutions"]:
        image = jax.nn.relu(max_pool(convolution(layer, image)))
    return mlp(params["head"], image.ravel())


def convolution(layer: Tree, image: jax.Array) -> jax.Array:
    """A 3 x 3 convolution of an image [h, w, c] that keeps its height and width.

    Row ``(3 i + j) c + k`` of the weights belongs to pixel (i, j) and channel k of the window.
    """
    # patches and one matrix product: XLA's own convolutions crawl inside loops on a CPU
    height, width, channels = image.shape
    padded = jnp.pad(image, ((1, 1), (1, 1), (0, 0)))
    shifted = [padded[i : i + height, j : j + width] for i in range(3) for j in range(3)]
    patches = jnp.concatenate(shifted, axis=2).reshape(height * width, 9 * channels)
    pixels = jax.vmap(dense, in_axes=(None, 0))(layer, patches)
    return pixels.reshape(height, width, -1)


def max_pool(image: jax.Array) -> jax.Array:
    """The largest value of every 2 x 2 window of an image [h, w, c]."""
    height, width, channels = image.shape
    # pairs of rows, then of columns: half the time of a maximum over two axes
    rows = image.reshape(height // 2, 2, width, channels)
    columns = jnp.maximum(rows[:, 0], rows[:, 1]).reshape(height // 2, width // 2, 2, channels)
    return jnp.maximum(columns[:, :, 0], columns[:, :, 1])


def cross_entropy(logits: jax.Array, label: jax.Array) -> jax.Array:
    """Minus the log-probability of the label."""
    return jax.nn.logsumexp(logits) - at_label(logits, label)


def at_label(values: jax.Array, label: jax.Array) -> jax.Array:
    """The label's entry out of one value per class."""
    # by a comparison and not by indexing: its derivative is then no scatter
    chosen = jnp.arange(values.shape[-1], dtype=jnp.result_type(label)) == label
    return jnp.sum(jnp.where(chosen, values, jnp.zeros_like(values)))


def is_correct(logits: jax.Array, label: jax.Array) -> jax.Array:
    """One if the label has the largest logit, else zero."""
    predicted = jnp.argmax(logits).astype(jnp.result_type(label))
    return (predicted == label).astype(logits.dtype)
