"""The way to clients in Ray actors: calls, what comes of them, and actors that die."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from rookery.remote.transports.port import Failure


class Actors:
    """The port of :class:`~rookery.remote.transports.ray.transport.Ray`: processes that die are started anew.

    Args:
        ray: the package.
        groups: the clients of each process.
        start: starts the process of some clients, a :class:`~rookery.remote.transports.ray.transport.Host`.
        restarts: how often a process that died is started again.
        at_once: how many clients a process is asked for in one call, at most; None is all.
        is_ours: whether to leave the cluster at the end.
    """

    is_reliable = True

    def __init__(
        self,
        ray: Any,
        groups: Sequence[tuple[int, ...]],
        start: Callable[[tuple[int, ...]], Any],
        restarts: int,
        at_once: int | None,
        is_ours: bool,
    ):
        self._ray, self._start, self._is_ours = ray, start, is_ours
        self._at_once = at_once
        self._group = {client: group for group in groups for client in group}
        self._left = dict.fromkeys(groups, restarts)
        self._actors = {group: start(group) for group in groups}
        self._pending: dict[Any, tuple[int, Any]] = {}  # reply to come: client, actor
        self._failed: dict[int, Failure] = {}  # to be told, by client

    def wait_until_up(self, seconds: float) -> None:
        """Raise unless all actors are up in time; what their own start has raised is told."""
        try:
            self._ray.get([a.process.remote() for a in self._actors.values()], timeout=seconds)
        except self._ray.exceptions.GetTimeoutError as error:
            raise TimeoutError(
                f"not all of the {len(self._actors)} processes of clients were up within "
                f"{seconds:g} s. The cluster may have too few free CPUs for them: lower "
                "Ray.cpus_per_actor, raise Ray.clients_per_actor, or give them time by "
                "Ray.start_within."
            ) from error

    def processes(self) -> dict[int, int]:
        """By client, the number of its process; it waits for whatever they do now."""
        calls = {group: actor.process.remote() for group, actor in self._actors.items()}
        return {client: self._ray.get(calls[group]) for client, group in self._group.items()}

    def alive(self) -> frozenset[int]:
        """Those whose process is there, or is being started."""
        return frozenset(c for c, group in self._group.items() if group in self._actors)

    def exchange(
        self, step: str, messages: Iterable[tuple[int, bytes]], wait_for: float
    ) -> Iterator[tuple[int, bytes | Failure]]:
        """Call the processes, those of several clients once for all that are asked there."""
        until = time.monotonic() + wait_for
        asked: dict[tuple[int, ...], list[tuple[int, bytes]]] = {group: [] for group in self._left}
        for client, message in messages:
            group = self._group[client]
            self._failed.pop(client, None)  # that was another request's
            if group not in self._actors:
                reason = "its process is gone, and was restarted often enough"
                self._failed[client] = Failure(reason)
                continue
            asked[group].append((client, message))
            if len(asked[group]) == (self._at_once or len(group)):
                self._send(group, asked[group])  # on its way while the next are put together
                asked[group] = []
        for group, some in asked.items():
            if some:
                self._send(group, some)
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
                yield client, Failure(f"Ray could not have it answer: {_first_line(error)}")
            else:
                yield client, reply

    def close(self) -> None:
        """End the processes, and leave or stop the cluster if it is ours."""
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors, self._pending, self._failed = {}, {}, {}
        if self._is_ours:
            self._ray.shutdown()

    def _send(self, group: tuple[int, ...], asked: Sequence[tuple[int, bytes]]) -> None:
        actor = self._actors[group]
        clients, messages = zip(*asked, strict=True)
        if len(asked) == 1:
            replies = [actor.answer.remote(clients[0], messages[0])]
        else:
            together = actor.answer_together.options(num_returns=len(asked))
            replies = together.remote(clients, *messages)
        self._pending |= {r: (c, actor) for r, c in zip(replies, clients, strict=True)}

    def _restart(self, client: int, dead: Any, reason: str) -> None:
        """Have all whom a dead process was to answer for fail once, and start it anew."""
        group = self._group[client]
        lost = {r: c for r, (c, actor) in self._pending.items() if actor is dead}
        self._pending = {r: what for r, what in self._pending.items() if r not in lost}
        if self._actors.get(group) is dead:
            del self._actors[group]
            if self._left[group] > 0:
                self._left[group] -= 1
                self._actors[group] = self._start(group)
        now = "It is started again." if group in self._actors else "It stays away."
        failure = Failure(f"its process is gone: {reason} {now}")
        self._failed |= dict.fromkeys((client, *lost.values()), failure)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
