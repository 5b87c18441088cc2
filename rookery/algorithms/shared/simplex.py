"""Client weights in the simplex: not negative, summing to one."""

import jax
import jax.numpy as jnp

PROJECTED = (
    "The weights of the clients are projected to the simplex after every step, and an optimiser "
    "that scales each of them differently would not climb within it."
)
"""Why steps of the clients' weights have a size and no optimiser."""


def project(v: jax.Array) -> jax.Array:
    """The point of the simplex nearest to v.

    It is max(v - θ, 0) with the one θ that makes it sum to one. If the k largest entries stay above
    zero, θ is (their sum - 1) / k; k is the greatest number for which they do.
    """
    v = v - jnp.max(v)  # a number added to all entries changes nothing but costs digits
    largest_first = jnp.sort(v)[::-1]
    k = jnp.arange(1, v.size + 1).astype(v.dtype)
    theta = (jnp.cumsum(largest_first) - 1) / k
    stays = jnp.sum(largest_first > theta)
    return jnp.maximum(v - theta[stays - 1], 0)


def raise_to(floor, v: jax.Array) -> jax.Array:
    """No entry below ``floor``, and the sum one again."""
    raised = jnp.maximum(v, jnp.asarray(floor).astype(v.dtype))
    return raised / jnp.sum(raised)
