"""How many clients of a cohort are computed at once, and sums over them group by group."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from rookery.types import Tree

WORKING_SET = 5 << 18
"""Bytes of models that clients computed at once should have together: about a core's cache.

Measured with FedAvg, 100 clients per round and 1 MB of second-level cache, as parts of the time of
all clients at once: an MLP of 621 KB takes 0.82 with one client, 0.70 with two, 0.67 with four,
0.74 with eight; one of 99 KB 1.08 with one, 0.90 with 16; a CNN of 203 KB, whose activations are
larger than its parameters, 0.55 with one, 0.63 with four, 0.73 with ten. This is a compromise.
"""

SUMMED_BYTES = 1 << 28
"""Replies of a cohort that have more bytes together are summed as they come."""


def group_size(nbytes: int, n_slots: int) -> int:
    """How many clients go through one vmap, by the bytes that one of them is sent.

    It depends on shapes alone, not on a measurement, because it can change the last digits: a run
    that is resumed, perhaps on another day, must continue with the same numbers. An accelerator
    takes the whole cohort, which it needs to be busy.

    >>> group_size(nbytes=4_000, n_slots=100), group_size(nbytes=600_000, n_slots=100)
    (100, 2)

    Args:
        nbytes: of the values that one client's step takes.
        n_slots: of the cohort.
    """
    wanted = max(1, WORKING_SET // max(nbytes, 1))
    if wanted >= n_slots or jax.default_backend() != "cpu":
        return n_slots
    # groups of equal size need one program; a last smaller one would need a second
    divisors = [d for d in range(1, n_slots + 1) if n_slots % d == 0]
    nearest = min(divisors, key=lambda d: max(d / wanted, wanted / d))
    return nearest if wanted / 2 <= nearest <= 2 * wanted else wanted


def computed_and_summed(
    one: Callable[[Tree], tuple[Tree, Tree]],
    slots: Tree,
    weights: Float[Array, " slots"],
    size: int,
) -> tuple[Tree, Tree, Tree]:
    """``one`` of every slot, and the weighted sum of its first result, group by group.

    If only the sum is used, the compiler removes the rest, and no more than a group of replies is
    in memory.

    Args:
        one: what to compute for a slot.
        slots: what ``one`` takes, stacked along the first axis.
        weights: of the slots.
        size: of a group.

    Returns:
        Both results stacked, and the sum; None in the place of what is not a floating-point number.
    """
    (n_slots,) = weights.shape
    turns = -(-n_slots // size)
    at = jnp.minimum(jnp.arange(turns * size), n_slots - 1).reshape(turns, size)
    counted = jnp.pad(weights, (0, turns * size - n_slots)).reshape(turns, size)

    def add(total, part, own):
        return None if total is None else total + jnp.tensordot(own.astype(part.dtype), part, 1)

    def group(total, turn):
        indices, own = turn
        replies, rest = jax.vmap(one)(jax.tree.map(lambda a: a[indices], slots))
        total = jax.tree.map(
            lambda t, part: add(t, part, own), total, replies, is_leaf=lambda leaf: leaf is None
        )
        return total, (replies, rest)

    shape = jax.eval_shape(one, jax.tree.map(lambda a: a[0], slots))[0]
    zeros = jax.tree.map(
        lambda a: jnp.zeros(a.shape, a.dtype) if jnp.issubdtype(a.dtype, jnp.floating) else None,
        shape,
    )
    total, results = lax.scan(group, zeros, (at, counted))
    replies, rest = jax.tree.map(lambda a: a.reshape(turns * size, *a.shape[2:])[:n_slots], results)
    return replies, rest, total
