"""Exponential back-off of clients that time out.

Without it, every exchange would wait for a slow client until the deadline, and the client would
work through a growing queue of requests whose exchanges are over.
"""

import time
from collections.abc import Iterable

_MAX_FACTOR = 16  # longest back-off, in deadlines


class Backoff:
    """Clients in back-off: for one deadline at first, doubled at each further timeout.

    Args:
        wait_for: the deadline, in seconds.

    >>> backoff = Backoff(wait_for=60.0)
    >>> backoff.begin([3])
    >>> backoff.clients()
    {3}
    >>> backoff.end(3)
    >>> backoff.clients()
    set()
    """

    def __init__(self, wait_for: float):
        self._wait_for = wait_for
        self._until: dict[int, tuple[float, float]] = {}  # by client: end and length

    def clients(self) -> set[int]:
        """The clients that are in back-off now."""
        now = time.monotonic()
        return {client for client, (until, _) in self._until.items() if until > now}

    def begin(self, clients: Iterable[int]) -> None:
        """Start, or double, the back-off of clients that timed out.

        A client already in back-off keeps its deadline.
        """
        now = time.monotonic()
        for client in set(clients):
            until, length = self._until.get(client, (0.0, self._wait_for / 2))
            if until <= now:
                length = min(2 * length, _MAX_FACTOR * self._wait_for)
                self._until[client] = now + length, length

    def end(self, client: int) -> None:
        """The client replied in time."""
        self._until.pop(client, None)
