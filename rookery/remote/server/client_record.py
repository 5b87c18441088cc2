"""What the server knows about each client: what it has, has confirmed, remembers and still owes."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import count

import numpy as np
from jax.typing import ArrayLike

from rookery.remote.protocol.instructions import MemoryChange, Ref
from rookery.remote.protocol.plan import Call
from rookery.remote.server.remote_values import RemoteValue

JobId = tuple[int, bytes]
"""Identifies a job of one client: the call's number in the plan, and the job's random key."""


class PendingJob:
    """A job that was sent to a client and has not been answered.

    Args:
        result: the leaves of its result.

    Attributes:
        result: the leaves of its result.
        number: number of the exchange in which its reply will come.
        sent_at: when it was last sent, by the monotonic clock.
        calls: the steps of the message that was last built.
    """

    def __init__(self, result: list[RemoteValue]):
        self.result = result
        self.number, self.sent_at = 0, 0.0
        self.calls: Sequence[Call] = ()
        self._round, self._confirm = -1, _nothing

    def built(self, round: int, calls: Sequence[Call], confirm: Callable[[], None]) -> None:
        """A message with the job was built in a round; ``confirm`` is to be called on its reply."""
        self._round, self.calls, self._confirm = round, calls, confirm

    def sent(self, number: int) -> None:
        """The job was sent, for the first time or again."""
        self.number, self.sent_at = number, time.monotonic()

    def answered(self, round: int) -> None:
        """The reply has come. The client still has what it was sent in the same round."""
        if round == self._round:
            self._confirm()


class ClientRecord:
    """What the server knows about one client.

    A reply confirms everything that its request carried. Nothing is assumed to have arrived before.

    >>> record = ClientRecord()
    >>> record.confirmed(values=[4])
    >>> record.has(4)
    True
    >>> record.lost_values()
    >>> record.has(4)
    False
    """

    def __init__(self):
        self._values: set[int] = set()
        self._carriers: dict[int, int] = {}
        self._has_memory = False
        self._changes: list[MemoryChange] = []
        self._has_new_memory = False
        self._jobs: dict[JobId, PendingJob] = {}

    # ---- values of the current round

    def has(self, token: int) -> bool:
        """Whether the client has confirmed a value of this round."""
        return token in self._values

    def holdings(self) -> tuple[frozenset[int], bool] | None:
        """What a message to the client depends on; None if that also is its own memory's changes.

        Clients with equal holdings are sent equal messages, but for values of their own.
        """
        return None if self._changes else (frozenset(self._values), self._has_memory)

    def is_carried(self, token: int, slot: int) -> bool:
        """Whether the message of another slot carries a value in this exchange.

        If none does, the message of this slot will.
        """
        return self._carriers.setdefault(token, slot) != slot

    def confirmed(
        self,
        values: Collection[int] = (),
        changes: Collection[MemoryChange] = (),
        *,
        has_memory: bool = False,
    ) -> None:
        """The client has replied to a request.

        Args:
            values: tokens of the values that it has now.
            changes: the memory changes that it was told to make.
            has_memory: whether the request restored its memory.
        """
        self._values.update(values)
        self._has_memory = self._has_memory or has_memory
        stamps = {stamp for _, stamp, _ in changes}
        self._changes = [change for change in self._changes if change[1] not in stamps]

    def new_round(self) -> None:
        """A round begins: the client drops the values of the last one."""
        self._values.clear()

    def new_exchange(self) -> None:
        """An exchange begins: none of its messages has been built."""
        self._carriers.clear()

    # ---- memory

    @property
    def has_memory(self) -> bool:
        """Whether the client has its rows of all memories."""
        return self._has_memory

    @property
    def has_new_memory(self) -> bool:
        """Whether the client's memory has changed since the server last collected it."""
        return self._has_new_memory

    @property
    def unconfirmed_changes(self) -> tuple[MemoryChange, ...]:
        """Memory changes that the client has not confirmed; every message repeats them."""
        return tuple(self._changes)

    def changes_memory(self, number: int, stamp: int, leaves: list[Ref]) -> None:
        """The client is to replace its row of a memory; it is told with its next message."""
        self._changes.append((number, stamp, leaves))
        self._has_new_memory = True

    def memory_collected(self) -> None:
        """The server has the client's memory as it is now."""
        self._has_new_memory = False

    # ---- jobs

    def job(self, id: JobId) -> PendingJob | None:
        """The pending job of an identity, if the client was sent it."""
        return self._jobs.get(id)

    def starts_job(self, id: JobId, job: PendingJob) -> None:
        """The client is about to be sent a job."""
        self._jobs[id] = job

    def finished_job(self, id: JobId) -> None:
        """A job was answered or given up."""
        del self._jobs[id]

    def cancelled_jobs(self) -> None:
        """No pending job is of interest any more."""
        self._jobs.clear()

    # ---- losses

    def lost_values(self) -> None:
        """The client has lost the values of this round."""
        self._values.clear()
        self._carriers.clear()

    def lost_memory(self) -> None:
        """The client has lost its memory, with the changes since it was last collected."""
        self._has_memory = self._has_new_memory = False
        self._changes.clear()

    def restarted(self) -> None:
        """The client was restarted and has nothing. Its pending jobs are sent again."""
        self.lost_values()
        self.lost_memory()


class ClientRecords:
    """The records of all clients, and the server's copy of their memories.

    Args:
        n_clients: number of clients.
    """

    def __init__(self, n_clients: int):
        self._records = [ClientRecord() for _ in range(n_clients)]
        self._memories: list[list[np.ndarray]] = []
        self._tokens, self._stamps = count(1), count(1)

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, client: int) -> ClientRecord:
        return self._records[client]

    def __iter__(self) -> Iterator[ClientRecord]:
        return iter(self._records)

    def new_tokens(self, n: int = 1) -> int:
        """The first of n consecutive tokens that were never used."""
        first = next(self._tokens)
        for _ in range(n - 1):
            next(self._tokens)
        return first

    def new_stamp(self) -> int:
        """A stamp larger than all before."""
        return next(self._stamps)

    def new_round(self) -> None:
        """A round begins."""
        for record in self._records:
            record.new_round()

    def new_exchange(self) -> None:
        """An exchange begins."""
        for record in self._records:
            record.new_exchange()

    @property
    def memories(self) -> Sequence[Sequence[np.ndarray]]:
        """Per memory its leaves, each with one row per client, as last collected."""
        return self._memories

    @property
    def with_new_memory(self) -> list[int]:
        """Clients whose memory has changed since it was last collected."""
        return [client for client, record in enumerate(self._records) if record.has_new_memory]

    def restore(self, memories: Sequence[Sequence[ArrayLike]]) -> None:
        """Start from the memories of a checkpoint: clients get their rows when they need them."""
        self._memories = [[np.array(leaf) for leaf in leaves] for leaves in memories]
        for record in self._records:
            record.lost_memory()
            record.cancelled_jobs()

    def collected(self, client: int, leaves: Sequence[ArrayLike]) -> None:
        """A client has sent the leaves of all its memories."""
        mine = iter(leaves)
        for rows in self._memories:
            for row in rows:
                row[client] = next(mine)
        self._records[client].memory_collected()


def _nothing() -> None:
    """Confirms nothing: no message was built yet."""
