"""Pools of scores: what clients made in the last round, by step and batch, merged at the server.

A pool stands for everybody's rows. Its entries count by shares: a client's weight over the number
of its entries, where padding of smaller batches counts nothing.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rookery.loss import Batch
from rookery.program.participation import Cohort
from rookery.types import Count, Key


class Pools(NamedTuple):
    """What clients made in a round of K steps: of one client, or of all along a first axis.

    Attributes:
        positive: scores of P, [K, B1].
        u: of the same rows.
        negative: scores of N, [K, B2].
        positives: how many of the B1 are rows; the rest is padding of smaller clients.
        negatives: the same of B2.
    """

    positive: Float[Array, "*clients steps b1"]
    u: Float[Array, "*clients steps b1"]
    negative: Float[Array, "*clients steps b2"]
    positives: Float[Array, "*clients"]
    negatives: Float[Array, "*clients"]


def no_pools(steps: int, b1: int, b2: int, dtype: jnp.dtype) -> Pools:
    """One client's before its first step."""
    positive, none = jnp.zeros((steps, b1), dtype), jnp.zeros((), dtype)
    return Pools(positive, positive, jnp.zeros((steps, b2), dtype), none, none)


def with_batch(
    made: Pools, k: Count, first: Batch, second: Batch, h: Array, u: Array, other: Array
) -> Pools:
    """The pools with what step k made; batches of smaller clients are padded."""

    def put(pool: Array, scores: Array) -> Array:
        scores = jnp.pad(scores.astype(pool.dtype), (0, pool.shape[1] - scores.shape[0]))
        return pool.at[k].set(scores)

    dtype = made.u.dtype
    return Pools(
        put(made.positive, h),
        put(made.u, u),
        put(made.negative, other),
        jnp.sum(first.weights > 0).astype(dtype),
        jnp.sum(second.weights > 0).astype(dtype),
    )


def entries(
    scores: Float[Array, "clients steps b"],
    counts: Float[Array, " clients"],
    weights: Float[Array, " clients"],
) -> tuple[Array, Array]:
    """All pool entries in a row, and how much each counts: the client's weight over its entries."""
    _, steps, b = scores.shape
    of_client = weights.astype(scores.dtype) / (steps * jnp.maximum(counts, 1))
    is_row = jnp.arange(b).astype(counts.dtype)[None, :] < counts[:, None]
    share = jnp.where(is_row, of_client[:, None], jnp.zeros_like(of_client)[:, None])
    return scores.ravel(), jnp.broadcast_to(share[:, None, :], scores.shape).ravel()


def some_of(
    size: int | None, key: Key, share: Array, *pools: Array
) -> tuple[tuple[Array, ...], Array]:
    """Entries drawn by their shares with replacement, equal in weight; or all of them."""
    if size is None:
        return pools, share
    chosen = jax.random.choice(key, share.shape[0], (size,), p=share)
    return tuple(pool[chosen] for pool in pools), jnp.full(size, 1 / size, share.dtype)


def written(rows: Pools, cohort: Cohort, new: Pools) -> Pools:
    """Everybody's pools after those that took part have sent theirs."""
    at = jnp.where(cohort.active, cohort.ids, rows.u.shape[0])  # beyond: dropped
    return jax.tree.map(lambda all, some: all.at[at].set(some, mode="drop"), rows, new)
