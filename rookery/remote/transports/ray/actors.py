"""The port to clients in Ray actors: calls, their replies, and restarts of dead actors."""

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeGuard

import numpy as np

from rookery.remote.protocol.wire import Buffer, Parts, joined
from rookery.remote.transports.port import Data, Failure
from rookery.remote.transports.ray.cluster import Package

Actor = Any  # Ray has no type for it
"""A Ray actor of :class:`~rookery.remote.transports.ray.transport.Host`."""

Reference = Hashable
"""A Ray reference to an object."""

Replies = bytes | list[bytes] | list[list[Buffer]]
"""The replies of one call: a flat one, several flat ones, or several in parts."""

_TOGETHER = 0.005  # seconds within which replies are taken together


class Actors:
    """The port of :class:`~rookery.remote.transports.ray.transport.Ray`; restarts dead actors.

    Args:
        ray: the package.
        groups: the clients of each actor.
        start: starts the actor of a group, a
            :class:`~rookery.remote.transports.ray.transport.Host`.
        restarts: how often a dead actor is restarted.
        max_batch: how many clients one call of an actor has at most; None means all.
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
        self._pending: dict[Reference, tuple[list[int], Actor]] = {}  # clients and their actor
        self._failed: dict[int, Failure] = {}  # by client, not reported yet
        self._arrived: deque[tuple[int, Data | Failure]] = deque()  # not reported yet

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
        self, step: str, messages: Iterable[tuple[int, Parts]], wait_for: float
    ) -> Iterator[tuple[int, Data | Failure]]:
        """Call the actors, once for all requested clients of each."""
        until = time.monotonic() + wait_for
        batches: dict[tuple[int, ...], list[tuple[int, Parts]]] = {g: [] for g in self._left}
        shared = _Shared(self._ray)
        for client, message in messages:
            group = self._group[client]
            self._failed.pop(client, None)  # of an earlier request
            if group not in self._actors:
                reason = "its process has died, and Ray.restarts are used up"
                self._failed[client] = Failure(reason)
                continue
            batches[group].append((client, message))
            if len(batches[group]) == (self._max_batch or len(group)):
                self._send(group, batches[group], shared)  # while the next are being built
                batches[group] = []
        for group, batch in batches.items():
            if batch:
                self._send(group, batch, shared)
        while self._failed or self._arrived or self._pending:
            if self._failed:
                yield self._failed.popitem()
            elif self._arrived:
                yield self._arrived.popleft()
            elif not self._receive(max(until - time.monotonic(), 0)):
                return

    def close(self) -> None:
        """Kill the actors, and leave or stop the cluster if it is ours."""
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors, self._pending, self._failed = {}, {}, {}
        self._arrived.clear()
        if self._is_ours:
            self._ray.shutdown()

    def _send(
        self, group: tuple[int, ...], batch: Sequence[tuple[int, Parts]], shared: "_Shared"
    ) -> None:
        actor, clients = self._actors[group], [client for client, _ in batch]
        messages = [message for _, message in batch]
        if len(batch) == 1 and not any(map(_is_large, messages[0])):
            replies = actor.answer.remote(joined(messages[0]))
        else:
            parts = {id(part): part for message in messages for part in message}  # each once
            places = {key: place for place, key in enumerate(parts)}
            where = [[places[id(part)] for part in message] for message in messages]
            given = [shared.stored(p) if _is_large(p) else p for p in parts.values()]
            replies = actor.answer_batch.remote(where, *given)
        self._pending[replies] = clients, actor

    def _receive(self, seconds: float) -> bool:
        """Take the replies of the first calls to end; False if none ends in time."""
        wait, refs = self._ray.wait, list(self._pending)
        # replies that come at almost the same time cost one wait, not one each
        ready, _ = wait(refs, num_returns=len(refs), timeout=min(seconds, _TOGETHER))
        if not ready and seconds > _TOGETHER:
            ready, _ = wait(refs, num_returns=1, timeout=seconds - _TOGETHER)
        for ref in ready:
            if ref not in self._pending:  # its actor has died
                continue
            clients, actor = self._pending.pop(ref)
            try:
                replies = self._ray.get(ref)
            except self._ray.exceptions.RayActorError as error:
                self._restart(clients, actor, _first_line(error))
            except self._ray.exceptions.RayError as error:
                failure = Failure(f"Ray could not deliver its reply: {_first_line(error)}")
                self._arrived.extend((client, failure) for client in clients)
            else:
                replies = [replies] if isinstance(replies, bytes) else replies
                self._arrived.extend(zip(clients, replies, strict=True))
        return bool(ready)

    def _restart(self, clients: Sequence[int], dead: Actor, reason: str) -> None:
        """Fail every pending request of a dead actor once, then restart it."""
        group = self._group[clients[0]]
        lost = {r: some for r, (some, actor) in self._pending.items() if actor is dead}
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
        for some in (clients, *lost.values()):
            self._failed |= dict.fromkeys(some, failure)


class _Shared:
    """Large parts of an exchange's messages, which Ray's object store gets once.

    Args:
        ray: the package.
    """

    def __init__(self, ray: Package):
        self._ray = ray
        self._refs: dict[tuple[int, int], tuple[np.ndarray, Reference]] = {}

    def stored(self, part: np.ndarray) -> Reference:
        """The reference to a part; views of the same memory have the same."""
        key = part.__array_interface__["data"][0], len(part)
        if key not in self._refs:
            # the array is kept too, as its address is in use only as long as it lives
            self._refs[key] = part, self._ray.put(part)
        return self._refs[key][1]


def to_ray(replies: Sequence[Parts]) -> Replies:
    """The replies of a call as Ray carries them fastest.

    Ray needs no pickle for bytes and lists of them, and reads large arrays in place.
    """
    if any(_is_large(part) for parts in replies for part in parts):
        return [list(parts) for parts in replies]
    flat = [joined(parts) for parts in replies]
    return flat[0] if len(flat) == 1 else flat


def _is_large(part: Buffer) -> TypeGuard[np.ndarray]:
    return isinstance(part, np.ndarray)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
