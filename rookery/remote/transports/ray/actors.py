"""The port to clients in Ray actors: calls, their replies, and restarts of dead actors."""

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

from rookery.remote.transports.port import Failure
from rookery.remote.transports.ray.cluster import Package

Actor = Any  # Ray has no type for it
"""A Ray actor of :class:`~rookery.remote.transports.ray.transport.Host`."""


class Actors:
    """The port of :class:`~rookery.remote.transports.ray.transport.Ray`; restarts dead actors.

    Args:
        ray: the package.
        groups: the clients of each actor.
        start: starts the actor of a group, a
            :class:`~rookery.remote.transports.ray.transport.Host`.
        restarts: how often a dead actor is restarted.
        max_batch: how many clients one call of an actor has at most; None is all.
        is_ours: whether to leave the cluster when the port is closed.
    """

    is_reliable = True

    def __init__(
        self,
        ray: Package,
        groups: Sequence[tuple[int, ...]],
        start: Callable[[tuple[int, ...]], Actor],
        restarts: int,
        max_batch: int | None,
        is_ours: bool,
    ):
        self._ray, self._start, self._is_ours = ray, start, is_ours
        self._max_batch = max_batch
        self._group = {client: group for group in groups for client in group}
        self._left = dict.fromkeys(groups, restarts)
        self._actors = {group: start(group) for group in groups}
        self._pending: dict[Hashable, tuple[int, Actor]] = {}  # by Ray reference: client, actor
        self._failed: dict[int, Failure] = {}  # by client, not reported yet

    def wait_until_up(self, seconds: float) -> None:
        """Raise unless all actors start in time; passes on an error of their own start."""
        try:
            self._ray.get([a.process.remote() for a in self._actors.values()], timeout=seconds)
        except self._ray.exceptions.GetTimeoutError as error:
            raise TimeoutError(
                f"not all of the {len(self._actors)} actors started within {seconds:g} s. The "
                "cluster may have too few free CPUs: lower Ray.cpus_per_actor, raise "
                "Ray.clients_per_actor, or raise Ray.start_within."
            ) from error

    def processes(self) -> dict[int, int]:
        """By client, the id of its process; waits for running calls."""
        calls = {group: actor.process.remote() for group, actor in self._actors.items()}
        return {client: self._ray.get(calls[group]) for client, group in self._group.items()}

    def alive(self) -> frozenset[int]:
        """Clients whose actor is running or starting."""
        return frozenset(c for c, group in self._group.items() if group in self._actors)

    def exchange(
        self, step: str, messages: Iterable[tuple[int, bytes]], wait_for: float
    ) -> Iterator[tuple[int, bytes | Failure]]:
        """Call the actors, once for all requested clients of each."""
        until = time.monotonic() + wait_for
        batches: dict[tuple[int, ...], list[tuple[int, bytes]]] = {g: [] for g in self._left}
        for client, message in messages:
            group = self._group[client]
            self._failed.pop(client, None)  # of an earlier request
            if group not in self._actors:
                reason = "its process has died, and Ray.restarts are used up"
                self._failed[client] = Failure(reason)
                continue
            batches[group].append((client, message))
            if len(batches[group]) == (self._max_batch or len(group)):
                self._send(group, batches[group])  # on its way while the next are being built
                batches[group] = []
        for group, batch in batches.items():
            if batch:
                self._send(group, batch)
        while self._failed or self._pending:
            if self._failed:
                yield self._failed.popitem()
                continue
            left = max(until - time.monotonic(), 0)
            ready, _ = self._ray.wait(list(self._pending), num_returns=1, timeout=left)
            if not ready:
                return
            client, actor = self._pending.pop(ready[0])
            try:
                reply = self._ray.get(ready[0])
            except self._ray.exceptions.RayActorError as error:
                self._restart(client, actor, _first_line(error))
            except self._ray.exceptions.RayError as error:
                yield client, Failure(f"Ray could not deliver its reply: {_first_line(error)}")
            else:
                yield client, reply

    def close(self) -> None:
        """Kill the actors, and leave or stop the cluster if it is ours."""
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors, self._pending, self._failed = {}, {}, {}
        if self._is_ours:
            self._ray.shutdown()

    def _send(self, group: tuple[int, ...], batch: Sequence[tuple[int, bytes]]) -> None:
        actor = self._actors[group]
        clients, messages = zip(*batch, strict=True)
        if len(batch) == 1:
            replies = [actor.answer.remote(clients[0], messages[0])]
        else:
            answer_batch = actor.answer_batch.options(num_returns=len(batch))
            replies = answer_batch.remote(clients, *messages)
        self._pending |= {r: (c, actor) for r, c in zip(replies, clients, strict=True)}

    def _restart(self, client: int, dead: Actor, reason: str) -> None:
        """Fail every pending request of a dead actor once, then restart it."""
        group = self._group[client]
        lost = {r: c for r, (c, actor) in self._pending.items() if actor is dead}
        self._pending = {r: what for r, what in self._pending.items() if r not in lost}
        if self._actors.get(group) is dead:
            del self._actors[group]
            if self._left[group] > 0:
                self._left[group] -= 1
                self._actors[group] = self._start(group)
        now = (
            "restarting it" if group in self._actors else "not restarted: Ray.restarts are used up"
        )
        failure = Failure(f"its process has died ({reason}); {now}")
        self._failed |= dict.fromkeys((client, *lost.values()), failure)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
