"""What the words of a round cost, counted with Python integers while values move.

The compiled engine counts independently, with arrays inside the program
(:class:`rookery.engines.round_costs.RoundCosts`). That both agree is a check of both.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp

from rookery import tree
from rookery.program.aggregate import Aggregate
from rookery.program.delays import Clock
from rookery.program.federation import AbstractFederation
from rookery.program.ledger import Ledger
from rookery.program.participation import Cohort
from rookery.program.polling import nbytes_of
from rookery.program.values import Cached
from rookery.types import Tree


class CostMeter:
    """Costs of one round for engines that run values one by one: the eager and the remote engine.

    Call ``cache`` when a value is cached, ``send`` and ``send_job`` when values go down, ``work``
    for evaluations on clients, and ``end_exchange`` or ``end_poll`` when replies are in.

    >>> from rookery.program.delays import Clock
    >>> from rookery.program.participation import Everyone
    >>> meter = CostMeter(Clock(), round=0)
    >>> cohort = Everyone().draw(None, 3, None)
    >>> meter.send(cohort, jnp.zeros(2, "float32"))
    >>> meter.end_exchange("inner", cohort, nbytes=4)
    >>> meter.ledger.bytes_down, meter.ledger.bytes_up, meter.ledger.messages
    (24, 12, 6)

    Attributes:
        ledger: the costs so far.
        now: seconds since the round began, virtual or real.
    """

    def __init__(self, clock: Clock, round: int, timer: Callable[[], float] | None = None):
        """Count from zero.

        Args:
            clock: virtual time.
            round: number of the round.
            timer: real seconds since the round began; None counts virtual time by the clock.
        """
        self.ledger = Ledger()
        self.now = 0.0
        self._clock, self._round, self._timer = clock, round, timer
        self._holders: dict[int, set[int]] = {}  # cached value -> clients
        self._pending: dict[int, list[float]] = {}  # cohort -> bytes since its last reply
        self._work: dict[int, dict[int, list[float]]] = {}  # cohort -> slot -> work since then

    def cache(self, cached: Cached, holders: Iterable[int]) -> None:
        """Note which clients hold a cached value from the beginning."""
        self._holders[cached.token] = set(holders)

    def send(self, cohort: Cohort, value: Tree | Cached, *, as_rows: bool = False) -> None:
        """Count a value going down to a cohort.

        A client that stands in two slots is sent a value once, and a cached value only if it does
        not hold it. Of ``as_rows`` every slot is sent its own row.
        """
        active, ids = cohort.active.tolist(), cohort.ids.tolist()
        if as_rows:
            slots, nbytes = active, tree.nbytes(value) // len(cohort)
        else:
            plain = value.value if isinstance(value, Cached) else value
            holders = self._holders[value.token] if isinstance(value, Cached) else set[int]()
            slots, nbytes = [], tree.nbytes(plain)
            for id, is_active in zip(ids, active, strict=True):
                slots.append(is_active and id not in holders)
                if is_active:
                    holders.add(id)
        pending = self._pending.setdefault(cohort.token, [0.0] * len(cohort))
        for slot, is_sent in enumerate(slots):
            if is_sent:
                pending[slot] += nbytes
        self.ledger += Ledger(bytes_down=nbytes * sum(slots))

    def end_exchange(self, kind: str, cohort: Cohort, nbytes: int) -> None:
        """Count one exchange in which every active slot replies with ``nbytes`` bytes."""
        pending = self._pending.pop(cohort.token, [0.0] * len(cohort))
        worked, none = self._work.pop(cohort.token, {}), [0.0, 0.0]
        seconds = 0.0
        if self._timer is None and not self._clock.is_instant:
            moved = jnp.array(pending) + nbytes
            exchange = self.ledger.exchanges
            work = jnp.array([worked.get(slot, none) for slot in range(len(cohort))])
            seconds = self._clock.exchange_seconds(
                kind, self._round, exchange, cohort.ids, cohort.active, moved, work
            )
        self.end_poll(sum(cohort.active.tolist()), nbytes, self.now + float(seconds))

    def unsent(self, client: int, values: Sequence[Tree | Cached]) -> int:
        """Bytes of those values that a client does not hold."""
        return sum(
            nbytes_of(value.value if isinstance(value, Cached) else value)
            for value in values
            if not isinstance(value, Cached) or client not in self._holders[value.token]
        )

    def send_job(self, client: int, values: Sequence[Tree | Cached]) -> None:
        """Count the values of a job going down to one client."""
        self.ledger += Ledger(bytes_down=self.unsent(client, values))
        for value in values:
            if isinstance(value, Cached):
                self._holders[value.token].add(client)

    def end_poll(self, messages: int, nbytes: int, then: float) -> None:
        """Count a poll that ends at time ``then``: ``messages`` replies of ``nbytes`` bytes."""
        then = then if self._timer is None else self._timer()
        self.ledger += Ledger(exchanges=1, messages=2 * messages, bytes_up=nbytes * messages)
        self.ledger = replace(self.ledger, seconds=then)
        self.now = then

    def work(
        self, gradients: int, hessian_vectors: int, cohort: Cohort | None = None, slot: int = 0
    ) -> None:
        """Count evaluations on a client, in rows.

        Those in a slot of a cohort take time until its next reply; jobs have times of their own.
        """
        if cohort is not None:
            worked = self._work.setdefault(cohort.token, {}).setdefault(slot, [0.0, 0.0])
            worked[0] += gradients
            worked[1] += hessian_vectors
        self.ledger += Ledger(gradients=gradients, hessian_vectors=hessian_vectors)


class AbstractMeteredFederation(AbstractFederation):
    """A federation whose values are plain arrays and whose costs a :class:`CostMeter` counts."""

    def __init__(
        self, n_clients: int, weights: jax.Array, round: int, aggregate: Aggregate, clock: Clock
    ):
        super().__init__(n_clients, weights, round, aggregate)
        self.costs = CostMeter(clock, round)

    def _new_cohort(self, cohort: Cohort) -> None:
        """Nothing: the meter counts from a cohort's first message on."""

    def _new_cached(self, cached: Cached, holders: jax.Array) -> None:
        self.costs.cache(cached, (id for id, holds in enumerate(holders.tolist()) if holds))

    def _send(self, cohort: Cohort, value: Tree | Cached, *, as_rows: bool) -> Tree:
        self.costs.send(cohort, value, as_rows=as_rows)
        return value.value if isinstance(value, Cached) else value
