"""Clients as Ray actors: one owner's machines, from a workstation to a cluster.

Our messages travel as plain bytes, in order; an actor answers for its clients, and its steps stay
compiled. Problem, algorithm and shapes go to an actor when it is started, by Ray's own means. Ray
trusts everyone who reaches the cluster: it is for machines of one owner.
"""

import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rookery import _check
from rookery._types import Tree
from rookery.clients.population import Population
from rookery.engines.engine import Program
from rookery.program.algorithm import AbstractAlgorithm
from rookery.remote.plan import Plan
from rookery.remote.port import Failure, Port
from rookery.remote.rehearsal import rehearse
from rookery.remote.together import finish
from rookery.remote.worker import Worker

Load = Callable[[int], Mapping[str, Tree]]

_LOOPBACK = "127.0.0.1"
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "warning"}


class Ray(eqx.Module):
    """Clients in processes of a Ray cluster. Needs ``pip install rookery[ray]``.

    A cluster that is already joined is used as it is, and left alone. Otherwise one is joined or
    started when a run begins, and left or stopped when it ends.

    Args:
        address: of the cluster, such as ``auto`` or ``host:6379``; None starts one on this machine,
            reachable from nowhere else.
        clients_per_actor: how many clients share a process, where they are computed together, and
            are lost together when it dies. None spreads them over one process for each free CPU.
        clients_at_once: how many of them go through one vmap and answer at the same time; the rest
            wait their turn. None takes all who are asked. A smaller number bounds memory; a program
            in real time, which is to go on with the first who are ready, wants 1.
        load: a module-level function that gives a client's rows by split, ``load(client)``. It runs
            where the client does. If not given, the server's rows are sent when a process starts.
        cpus_per_actor: CPUs that Ray reserves for a process; a number for planning, no limit.
        restarts: how often a process that died is started again.
        start_within: seconds in which all processes must be up.
        object_store_memory: bytes of shared memory of a cluster that is started here.
    """

    address: str | None = None
    clients_per_actor: int | None = None
    clients_at_once: int | None = None
    load: Load | None = None
    cpus_per_actor: float = 1.0
    restarts: int = 10
    start_within: float = 300.0
    object_store_memory: int = 200_000_000

    def __check_init__(self):
        for name in ("clients_per_actor", "clients_at_once"):
            if getattr(self, name) is not None:
                _check.count(f"Ray.{name}", getattr(self, name))
        _check.not_negative("Ray.cpus_per_actor", self.cpus_per_actor)
        _check.count("Ray.restarts", self.restarts, least=0)
        _check.positive("Ray.start_within", self.start_within)
        if "<locals>" in getattr(self.load, "__qualname__", ""):
            raise ValueError("Ray.load must be a module-level function: actors import it by name.")
        self._ray()

    def open(self, program: Program, algorithm: AbstractAlgorithm, state: Tree, plan: Plan) -> Port:
        """Start the actors, and wait until they are up."""
        ray, people = self._ray(), program.population
        if self.load is None:
            people.check_rows("Ray without load")
        is_ours = not ray.is_initialized()
        try:
            return self._open(ray, program, algorithm, state, is_ours)
        except BaseException:
            if is_ours:
                ray.shutdown()
            raise

    def _open(self, ray: Any, program: Program, algorithm: Any, state: Tree, is_ours: bool) -> Port:
        people = program.population
        if is_ours and self.address is not None:
            self._join(ray, self.address)
        groups = self._groups(ray, people.n_clients)
        if not ray.is_initialized():
            self._start_cluster(ray, len(groups))
        shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), state)
        # known before anything is unpacked there, as float64 would become float32 on the way
        precision = {"JAX_ENABLE_X64": str(int(jnp.zeros(()).dtype == jnp.float64))}
        actor = ray.remote(
            num_cpus=self.cpus_per_actor, max_restarts=0, runtime_env={"env_vars": precision}
        )(Host)

        def start(clients: tuple[int, ...]) -> Any:
            rows = people.only(*clients) if self.load is None else people.without_rows()
            return actor.remote(
                clients, rows, self.load, program.problem, algorithm, shapes, self.clients_at_once
            )

        port = _Actors(ray, groups, start, self.restarts, self.clients_at_once, is_ours)
        try:
            port.wait_until_up(self.start_within)
        except BaseException:
            port.close()
            raise
        return port

    def _groups(self, ray: Any, n_clients: int) -> list[tuple[int, ...]]:
        """The clients of each process."""
        if self.clients_per_actor is not None:
            n_actors = math.ceil(n_clients / self.clients_per_actor)
        else:
            cpus = ray.available_resources().get("CPU", 1) if ray.is_initialized() else _cpus()
            n_actors = max(1, min(n_clients, int(cpus / (self.cpus_per_actor or 1.0))))
        return [tuple(group.tolist()) for group in np.array_split(np.arange(n_clients), n_actors)]

    def _join(self, ray: Any, address: str) -> None:
        if address.partition(":")[0] not in (_LOOPBACK, "localhost"):
            ray.init(address=address, **_QUIET)
            return
        with _on_this_machine(ray):
            ray.init(address=address, _node_ip_address=_LOOPBACK, **_QUIET)

    def _start_cluster(self, ray: Any, n_actors: int) -> None:
        with _on_this_machine(ray):
            ray.init(
                address="local",
                _node_ip_address=_LOOPBACK,
                num_cpus=max(1, math.ceil(n_actors * self.cpus_per_actor)),
                object_store_memory=self.object_store_memory,
                include_dashboard=False,
                **_QUIET,
            )
        if (bound := ray.nodes()[0]["NodeManagerAddress"]) != _LOOPBACK:
            ray.shutdown()
            raise RuntimeError(
                f"this version of Ray listens at {bound} and not on this machine alone. Start a "
                "cluster of your own and give its address."
            )

    def _ray(self) -> Any:
        try:
            import ray  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ImportError("Ray needs the package ray: pip install rookery[ray]") from error
        return ray


class Host:
    """The process of some clients; Ray makes an actor of it."""

    def __init__(
        self,
        clients: tuple[int, ...],
        people: Population,
        load: Load | None,
        problem: Any,
        algorithm: AbstractAlgorithm,
        state: Tree,
        at_once: int | None,
    ):
        if load is not None:
            people = people.with_rows({client: load(client) for client in clients})
        plan = rehearse(algorithm, problem, people, state)
        people = jax.device_put(people)  # once for all of them
        self._workers = {
            client: Worker(client, problem, algorithm, people, state, plan, is_checked=False)
            for client in clients
        }
        self._at_once = at_once

    def answer(self, client: int, message: bytes) -> bytes:
        """The reply of one client."""
        return self._workers[client].answer(message)

    def answer_together(self, clients: tuple[int, ...], *messages: bytes) -> list[bytes]:
        """The replies of several, in order."""
        pairs = zip(clients, messages, strict=True)
        return finish([self._workers[c].answering(m) for c, m in pairs], self._at_once)

    def process(self) -> int:
        """Its number on its machine."""
        return os.getpid()


class _Actors:
    """The port of :class:`Ray`."""

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
        return frozenset(c for c, group in self._group.items() if group in self._actors)

    def exchange(
        self, step: str, messages: Iterable[tuple[int, bytes]], wait_for: float
    ) -> Iterator[tuple[int, bytes | Failure]]:
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
                self._bury(client, actor, _first_line(error))
            except self._ray.exceptions.RayError as error:
                yield client, Failure(f"Ray could not have it answer: {_first_line(error)}")
            else:
                yield client, reply

    def close(self) -> None:
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

    def _bury(self, client: int, dead: Any, reason: str) -> None:
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


def _cpus() -> int:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def _on_this_machine(ray: Any) -> Iterator[None]:
    """Have Ray listen on loopback alone, and its processes import what this one can.

    Ray takes a public address instead of loopback, unless it believes that clusters are not for
    this machine. It reads the variable when it is imported, its processes when they are started.
    """
    constants = ray._private.ray_constants
    was, before = constants.ENABLE_RAY_CLUSTER, dict(os.environ)
    constants.ENABLE_RAY_CLUSTER = False
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    os.environ["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    try:
        with warnings.catch_warnings():
            # what Ray forks becomes another program at once, and takes no thread of JAX along
            warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called")
            yield
    finally:
        constants.ENABLE_RAY_CLUSTER = was
        for name in ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "PYTHONPATH"):
            os.environ.pop(name)
            if name in before:
                os.environ[name] = before[name]
