"""What the words cost, by the rules of the simulation: the remote engine's ledger of one round."""

import time
from collections.abc import Sequence

import numpy as np

from rookery import tree
from rookery.program.delays import Clock, NoDelay
from rookery.program.federation import Cached
from rookery.program.ledger import Ledger
from rookery.program.participation import Cohort
from rookery.program.polling import nbytes_of
from rookery.types import Tree


class Bills:
    """Counts with Python integers, as values move.

    Attributes:
        ledger: of the round so far.
        now: seconds since the round began: those of the clock, or real ones.
    """

    def __init__(self, clock: Clock, round: int, in_real_time: bool = False):
        self.ledger = Ledger()
        self.now = 0.0
        self._clock = clock
        self._round = round
        self._began = time.monotonic() if in_real_time else None
        self._holders: dict[int, set[int]] = {}  # shared value -> clients
        self._pending: dict[int, np.ndarray] = {}  # cohort -> bytes since its last reply

    def hold(self, shared: Cached, clients: set[int]) -> None:
        """Clients that hold a shared value from the beginning."""
        self._holders[shared.token] = clients

    def send(self, cohort: Cohort, slots: np.ndarray, nbytes: int) -> None:
        """Bytes going down to some slots."""
        pending = self._pending.setdefault(cohort.token, np.zeros(len(cohort)))
        pending[slots] += nbytes
        self.ledger += Ledger(bytes_down=nbytes * int(slots.sum()))

    def send_to_newcomers(self, cohort: Cohort, shared: Cached) -> None:
        """A shared value going down to the clients that do not hold it."""
        holders = self._holders.setdefault(shared.token, set())
        slots = np.zeros(len(cohort), bool)
        for slot, (id, is_active) in enumerate(
            zip(cohort.ids.tolist(), cohort.active.tolist(), strict=True)
        ):
            slots[slot] = is_active and id not in holders
            if is_active:
                holders.add(id)
        self.send(cohort, slots, tree.nbytes(shared.value))

    def to_send(self, client: int, values: Sequence[Tree | Cached]) -> int:
        """Bytes of the values that a client does not hold."""
        return sum(
            nbytes_of(value.value if isinstance(value, Cached) else value)
            for value in values
            if not isinstance(value, Cached) or client not in self._holders.get(value.token, ())
        )

    def send_job(self, client: int, values: Sequence[Tree | Cached]) -> None:
        """The values of a job going down to one client, which then holds those that are shared."""
        self.ledger += Ledger(bytes_down=self.to_send(client, values))
        for value in values:
            if isinstance(value, Cached):
                self._holders.setdefault(value.token, set()).add(client)

    def exchange(self, kind: str, cohort: Cohort, nbytes: int) -> None:
        """A reply of so many bytes from every active slot."""
        pending = self._pending.pop(cohort.token, np.zeros(len(cohort)))
        active = sum(cohort.active.tolist())
        self.replied(active, nbytes, self.now + self._seconds(kind, cohort, pending + nbytes))

    def replied(self, messages: int, nbytes: int, then: float) -> None:
        """So many replies of so many bytes each, which end an exchange at a time of the round."""
        if self._began is not None:
            then = time.monotonic() - self._began
        self.ledger += Ledger(
            exchanges=1,
            messages=2 * messages,
            bytes_up=nbytes * messages,
            seconds=then - self.now,
        )
        self.now = then

    def work(self, gradients: int, hessian_vectors: int) -> None:
        """Evaluations on a client."""
        self.ledger += Ledger(gradients=gradients, hessian_vectors=hessian_vectors)

    def _seconds(self, kind: str, cohort: Cohort, nbytes: np.ndarray) -> float:
        if self._began is not None:
            return 0.0  # what it took is seen when it is over
        clock = self._clock
        if isinstance(clock.delay, NoDelay) and clock.outer_delay is clock.bandwidth is None:
            return 0.0
        return float(
            self._clock.exchange_seconds(
                kind, self._round, self.ledger.exchanges, cohort.ids, cohort.active, nbytes
            )
        )
