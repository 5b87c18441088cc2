"""The two networks in plain JAX, for the programs that are written in it.

Convolutions are matrix products of patches: inside compiled loops on a processor, XLA's own are
many times slower.
"""

import jax
import jax.numpy as jnp


def convolved(params, image):
    """The image after both convolutions, with pooling and ReLU."""
    for w, b in params:
        height, width, channels = image.shape
        padded = jnp.pad(image, ((1, 1), (1, 1), (0, 0)))
        shifted = [padded[i : i + height, j : j + width] for i in range(3) for j in range(3)]
        patches = jnp.concatenate(shifted, axis=2).reshape(height * width, 9 * channels)
        windows = (patches @ w + b).reshape(height // 2, 2, width // 2, 2, -1)
        image = jax.nn.relu(windows.max((1, 3)))
    return image


def loss(params, images, labels):
    """Mean cross-entropy of a batch; the first layers are convolutions if there are four."""
    if len(params) == 4:
        images = jax.vmap(convolved, in_axes=(None, 0))(params[:2], images)
    (w0, b0), (w1, b1) = params[-2:]
    logits = jax.nn.relu(images.reshape(len(images), -1) @ w0 + b0) @ w1 + b1
    logs = jax.nn.log_softmax(logits)
    return -jnp.mean(jnp.take_along_axis(logs, labels[:, None], axis=1))
