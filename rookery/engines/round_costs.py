"""The ledger of one round as arrays inside a compiled program.

It is independent of :class:`rookery.program.accounting.CostMeter`, which the other engines use:
that both give the same ledger is a check of both.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, UInt32

from rookery import uint64
from rookery.program.ledger import Ledger

Work = tuple[jax.Array, ...]
"""Gradients and Hessian-vector products, two wide counters [slots, 2]."""


class RoundCosts(NamedTuple):
    """Costs of one round so far; wide counters are of :mod:`rookery.uint64`."""

    exchanges: UInt32[Array, ""]
    messages: UInt32[Array, ""]
    bytes_down: UInt32[Array, "2"]
    bytes_up: UInt32[Array, "2"]
    gradients: UInt32[Array, "2"]
    hessian_vectors: UInt32[Array, "2"]
    seconds: Float[Array, ""]

    @classmethod
    def zero(cls) -> "RoundCosts":
        """Nothing has been spent."""
        small, wide = jnp.zeros((), jnp.uint32), uint64.zero()
        return cls(small, small, wide, wide, wide, wide, jnp.zeros(()))

    def sent(self, nbytes: int, to: Bool[Array, " n"]) -> "RoundCosts":
        """``nbytes`` bytes more have gone down to each of the clients where ``to`` is true."""
        times = jnp.sum(to, dtype=jnp.uint32)
        return self._replace(bytes_down=uint64.add(self.bytes_down, nbytes, times, to.shape[0]))

    def replied(
        self, nbytes: int, who: Bool[Array, " n"], seconds: Float[Array, ""]
    ) -> "RoundCosts":
        """One exchange has ended: the clients where ``who`` is true sent ``nbytes`` bytes each.

        Args:
            nbytes: bytes of one reply.
            who: which clients replied.
            seconds: since the round began.
        """
        messages = jnp.sum(who, dtype=jnp.uint32)
        return self._replace(
            exchanges=self.exchanges + jnp.uint32(1),
            messages=self.messages + jnp.uint32(2) * messages,
            bytes_up=uint64.add(self.bytes_up, nbytes, messages, who.shape[0]),
            seconds=seconds,
        )

    def worked(self, active: Bool[Array, " n"], work: Work) -> "RoundCosts":
        """The active clients have made evaluations."""
        gradients, products = (jnp.where(active[:, None], w, jnp.uint32(0)) for w in work)
        return self._replace(
            gradients=uint64.add_all(self.gradients, gradients),
            hessian_vectors=uint64.add_all(self.hessian_vectors, products),
        )


def ledgers(costs: RoundCosts) -> list[Ledger]:
    """The ledgers out of costs whose leaves have one row per round."""

    def plain(column):
        return (uint64.read_all(column) if column.ndim == 2 else column).tolist()

    return [Ledger(*row) for row in zip(*map(plain, jax.device_get(costs)), strict=True)]
