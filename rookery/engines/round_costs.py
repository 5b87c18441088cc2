"""The ledger of one round as arrays inside a compiled program.

It is independent of :class:`rookery.program.accounting.CostMeter`, which the other engines use:
that both give the same ledger is a check of both.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Integer, UInt32

from rookery import uint64
from rookery.program.ledger import LEDGER_FIELDS, Ledger
from rookery.uint64 import Counters

COUNTED = LEDGER_FIELDS[:-1]
"""What is counted, in the order of the counters; a client's work is the last two."""


class RoundCosts(NamedTuple):
    """Costs of one round so far.

    Attributes:
        counters: one for each of :data:`COUNTED`.
        seconds: since the round began.
    """

    counters: Counters
    seconds: Float[Array, ""]

    @classmethod
    def zero(cls) -> "RoundCosts":
        """Nothing has been spent."""
        return cls(uint64.zeros(len(COUNTED)), jnp.zeros(()))

    @property
    def exchanges(self) -> UInt32[Array, ""]:
        """How many exchanges there were."""
        return self.counters.low[0]

    def sent(self, nbytes: int, times: Integer[Array, ""], most: int) -> "RoundCosts":
        """``nbytes`` bytes more have gone down to each of some clients.

        Args:
            nbytes: bytes to one of them.
            times: how many clients there are.
            most: a bound on that, known when tracing.
        """
        more = uint64.products((0, 0, nbytes, 0, 0, 0), times, most)
        return self._replace(counters=uint64.plus(self.counters, more))

    def replied(
        self, nbytes: int, times: Integer[Array, ""], most: int, seconds: Float[Array, ""]
    ) -> "RoundCosts":
        """One exchange has ended: some clients sent ``nbytes`` bytes each.

        Args:
            nbytes: bytes of one reply.
            times: how many clients replied.
            most: a bound on that, known when tracing.
            seconds: since the round began.
        """
        one = uint64.products((1, 0, 0, 0, 0, 0), jnp.uint32(1), 1)
        more = uint64.products((0, 2, 0, nbytes, 0, 0), times, most)
        more = uint64.plus(more, one)
        return RoundCosts(uint64.plus(self.counters, more), seconds)

    def worked(self, active: Bool[Array, " n"], work: Counters) -> "RoundCosts":
        """The active clients have made evaluations, of two kinds, counted per slot."""
        counted = jax.tree.map(lambda w: jnp.where(active[:, None], w, jnp.uint32(0)), work)
        before = len(COUNTED) - 2
        more = jax.tree.map(lambda w: jnp.pad(w, (before, 0)), uint64.total(counted))
        return self._replace(counters=uint64.plus(self.counters, more))


def ledgers(costs: RoundCosts) -> list[Ledger]:
    """The ledgers out of costs whose leaves have one row per round."""
    counters, seconds = jax.device_get(costs)
    if _are_equal(counters.low) and _are_equal(counters.high) and _are_equal(seconds):
        one = jax.tree.map(lambda rows: rows[:1], counters)  # many short rounds often cost the same
        return [Ledger(*[*row, seconds[0].item()]) for row in uint64.read(one)] * len(seconds)
    columns = uint64.read(jax.tree.map(np.transpose, counters))
    return [Ledger(*row) for row in zip(*columns, seconds.tolist(), strict=True)]


def _are_equal(rows: np.ndarray) -> bool:
    """Whether there are rows, all of them the same."""
    return len(rows) > 0 and bool(np.all(rows == rows[0]))
