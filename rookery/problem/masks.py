"""Means over the parts of an example that are there: sequences padded to a common length."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def masked_mean(values: Float[Array, "*places"], mask: Bool[Array, "*places"]) -> Float[Array, ""]:
    """The mean of the values where the mask is true; 0 if it is nowhere.

    Values outside the mask have no influence, NaN and infinities included, and get no gradient. Use
    it inside a loss of one example:

    >>> def loss(w, row):
    ...     errors = (row["input"]["values"] @ w - row["target"]) ** 2  # one per place
    ...     return masked_mean(errors, row["input"]["mask"])
    >>> masked_mean(jnp.array([1.0, 3.0, jnp.nan]), jnp.array([True, True, False])).item()
    2.0

    Args:
        values: numbers, one per place.
        mask: of the same shape; true where a place is there.
    """
    kept = jnp.where(mask, values, jnp.zeros_like(values))
    count = jnp.maximum(jnp.sum(mask, dtype=jnp.int32), 1)
    return jnp.sum(kept) / count.astype(values.dtype)
