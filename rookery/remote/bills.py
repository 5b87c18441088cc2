"""What the words cost, by the rules of the simulation: the remote engine's ledger of one round."""

import numpy as np

from rookery import _tree
from rookery.program.clock import Clock, NoDelay
from rookery.program.cohort import Cohort
from rookery.program.federation import Shared
from rookery.program.ledger import Ledger


class Bills:
    """Counts with Python integers, as values move."""

    def __init__(self, clock: Clock, round: int):
        self.ledger = Ledger()
        self._clock = clock
        self._round = round
        self._holders: dict[int, set[int]] = {}  # shared value -> clients
        self._pending: dict[int, np.ndarray] = {}  # cohort -> bytes since its last reply

    def send(self, cohort: Cohort, slots: np.ndarray, nbytes: int) -> None:
        """Bytes going down to some slots."""
        pending = self._pending.setdefault(cohort.token, np.zeros(len(cohort)))
        pending[slots] += nbytes
        self.ledger += Ledger(bytes_down=nbytes * int(slots.sum()))

    def send_to_newcomers(self, cohort: Cohort, shared: Shared) -> None:
        """A shared value going down to the clients that do not hold it."""
        holders = self._holders.setdefault(shared.token, set())
        slots = np.zeros(len(cohort), bool)
        for slot, (id, is_active) in enumerate(
            zip(cohort.ids.tolist(), cohort.active.tolist(), strict=True)
        ):
            slots[slot] = is_active and id not in holders
            if is_active:
                holders.add(id)
        self.send(cohort, slots, _tree.nbytes(shared.value))

    def exchange(self, kind: str, cohort: Cohort, nbytes: int) -> None:
        """A reply of so many bytes from every active slot."""
        pending = self._pending.pop(cohort.token, np.zeros(len(cohort)))
        active = sum(cohort.active.tolist())
        self.ledger += Ledger(
            exchanges=1,
            messages=2 * active,
            bytes_up=nbytes * active,
            seconds=self._seconds(kind, cohort, pending + nbytes),
        )

    def work(self, gradients: int, hessian_vectors: int) -> None:
        """Evaluations on a client."""
        self.ledger += Ledger(gradients=gradients, hessian_vectors=hessian_vectors)

    def _seconds(self, kind: str, cohort: Cohort, nbytes: np.ndarray) -> float:
        if isinstance(self._clock.delay, NoDelay) and self._clock.bandwidth is None:
            return 0.0
        return float(
            self._clock.exchange_seconds(
                kind, self._round, self.ledger.exchanges, cohort.ids, cohort.active, nbytes
            )
        )
