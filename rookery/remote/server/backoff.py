"""Clients that were silent, and for how long they are left alone.

Asked all the same, a slow client would never be done with questions that are long settled, and
everybody would wait for it each time.
"""

import time
from collections.abc import Iterable

_LONGEST = 16  # deadlines for which a client is left alone, at most


class Backoff:
    """Who is left alone: for one deadline, and for twice as long each time it is silent again.

    Args:
        wait_for: the deadline, in seconds.
    """

    def __init__(self, wait_for: float):
        self._wait_for = wait_for
        self._until: dict[int, tuple[float, float]] = {}  # by client: the end, how long it was

    def alone(self) -> set[int]:
        """The clients that are not to be asked now."""
        now = time.monotonic()
        return {client for client, (until, _) in self._until.items() if until > now}

    def begin(self, clients: Iterable[int]) -> None:
        """These have not answered; who was asked although it is left alone has no new term."""
        now = time.monotonic()
        for client in set(clients):
            until, span = self._until.get(client, (0.0, self._wait_for / 2))
            if until <= now:
                span = min(2 * span, _LONGEST * self._wait_for)
                self._until[client] = now + span, span

    def end(self, client: int) -> None:
        """It has answered in time."""
        self._until.pop(client, None)
