"""Means over the parts of an example that are there: sequences padded to a common length."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def masked_mean(values: Float[Array, "*places"], mask: Bool[Array, "*places"]) -> Float[Array, ""]:
    """The mean of the values where the mask is true; 0 if it is nowhere.

    Use it inside a loss of one example. Values outside the mask do not change the mean, not even
    NaN, and the gradient in them is zero:

    >>> def loss(w, row):
    ...     errors = (row["input"]["values"] @ w - row["target"]) ** 2  # one per place
    ...     return masked_mean(errors, row["input"]["mask"])
    >>> masked_mean(jnp.array([1.0, 3.0, jnp.nan]), jnp.array([True, True, False])).item()
    2.0

    The gradient in the parameters of a model is another matter: zero times a derivative that is
    NaN or infinite is NaN. So the model must be finite and differentiable at the padding. If it is
    not at zero, as the logarithm, fill in other inputs *before* the model:

    >>> import jax
    >>> def log_loss(w, values, mask):
    ...     return masked_mean(jnp.log(w * jnp.where(mask, values, 1.0)), mask)
    >>> jax.grad(log_loss)(2.0, jnp.array([3.0, 0.0]), jnp.array([True, False])).item()
    0.5

    Args:
        values: numbers, one per place.
        mask: of the same shape; true where a place is there.
    """
    kept = jnp.where(mask, values, jnp.zeros_like(values))
    count = jnp.maximum(jnp.sum(mask, dtype=jnp.int32), 1)
    return jnp.sum(kept) / count.astype(values.dtype)
