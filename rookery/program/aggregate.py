"""How the clients' replies become one value: a plug under ``fed.mean``."""

from typing import Protocol

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery._types import Tree


class Aggregate(Protocol):
    """Anything that joins stacked replies into one; robust and private means fit here."""

    def __call__(self, replies: Tree, weights: jax.Array) -> Tree:
        """Join replies.

        Args:
            replies: pytree of arrays [slots, ...].
            weights: [slots], not negative, summing to one; zero for a slot that is switched off.
        """
        ...


class Mean(eqx.Module):
    """The weighted mean."""

    def __call__(self, replies: Tree, weights: jax.Array) -> Tree:
        """Sum of weight times reply, in the order of the slots."""
        return _mean(replies, weights)


@jax.jit  # where nothing else is compiled, as on a server by messages, it is still one call
def _mean(replies: Tree, weights: jax.Array) -> Tree:
    return jax.tree.map(lambda r: jnp.tensordot(weights.astype(r.dtype), r, 1), replies)
