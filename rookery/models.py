"""Small models as plain functions on pytrees: parameters in, logits of one example out."""

import jax
import jax.numpy as jnp
import numpy as np

from rookery._types import Tree


def dense_init(rng: np.random.Generator, n_in: int, n_out: int, dtype=np.float32) -> Tree:
    """Weights and biases of one layer, uniform within 1/sqrt(n_in) of zero."""
    bound = 1 / np.sqrt(n_in)
    return {
        "w": rng.uniform(-bound, bound, (n_in, n_out)).astype(dtype),
        "b": rng.uniform(-bound, bound, n_out).astype(dtype),
    }


def dense(layer: Tree, inputs: jax.Array) -> jax.Array:
    """One affine layer."""
    return inputs @ layer["w"] + layer["b"]


def cross_entropy(logits: jax.Array, label: jax.Array) -> jax.Array:
    """Minus the log-probability of the label."""
    # by a comparison and not by indexing: its derivative is then no scatter
    chosen = jnp.arange(logits.shape[-1]) == label
    return jax.nn.logsumexp(logits) - jnp.sum(jnp.where(chosen, logits, jnp.zeros_like(logits)))


def is_correct(logits: jax.Array, label: jax.Array) -> jax.Array:
    """One if the label has the largest logit, else zero."""
    return (jnp.argmax(logits) == label).astype(logits.dtype)
