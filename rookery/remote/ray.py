"""Clients as Ray actors: one owner's machines, from a workstation to a cluster.

Our messages travel as plain bytes, in order, and an actor answers them one after another; its steps
stay compiled. Problem, algorithm and shapes go to an actor once, when it is started, by Ray's own
means. Ray trusts everyone who reaches the cluster: it is for machines of one owner.
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

from rookery import _check
from rookery._types import Tree
from rookery.clients.population import Population
from rookery.engines.engine import Program
from rookery.program.algorithm import AbstractAlgorithm
from rookery.remote.plan import Plan
from rookery.remote.port import Failure, Port
from rookery.remote.rehearsal import rehearse
from rookery.remote.worker import Worker

Load = Callable[[int], Mapping[str, Tree]]

_LOOPBACK = "127.0.0.1"


class Ray(eqx.Module):
    """Clients in processes of a Ray cluster. Needs ``pip install rookery[ray]``.

    A cluster that is already joined is used as it is, and left alone. Otherwise one is joined or
    started when a run begins, and left or stopped when it ends.

    Args:
        address: of the cluster, such as ``auto`` or ``host:6379``; None starts one on this machine,
            reachable from nowhere else.
        clients_per_actor: how many clients share a process, where they take turns.
        load: a module-level function that gives a client's rows by split, ``load(client)``. It runs
            where the client does. If not given, the server's rows are sent once, at the start.
        cpus_per_actor: CPUs that Ray reserves for a process; a number for planning, no limit.
        restarts: how often a process that died is started again.
        start_within: seconds in which all processes must be up.
        object_store_memory: bytes of shared memory of a cluster that is started here.
    """

    address: str | None = None
    clients_per_actor: int = 1
    load: Load | None = None
    cpus_per_actor: float = 1.0
    restarts: int = 10
    start_within: float = 300.0
    object_store_memory: int = 200_000_000

    def __check_init__(self):
        _check.count("Ray.clients_per_actor", self.clients_per_actor)
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
        size, everyone = self.clients_per_actor, range(people.n_clients)
        groups = [tuple(everyone[i : i + size]) for i in range(0, people.n_clients, size)]
        is_ours = not ray.is_initialized()
        if is_ours:
            self._join(ray, len(groups))
        shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), state)
        # known before anything is unpacked there, as float64 would become float32 on the way
        precision = {"JAX_ENABLE_X64": str(int(jnp.zeros(()).dtype == jnp.float64))}
        actor = ray.remote(
            num_cpus=self.cpus_per_actor, max_restarts=0, runtime_env={"env_vars": precision}
        )(Host)

        def start(clients: tuple[int, ...]) -> Any:
            rows = {
                c: people.only(c) if self.load is None else people.without_rows() for c in clients
            }
            return actor.remote(rows, self.load, program.problem, algorithm, shapes)

        port = _Actors(ray, groups, start, self.restarts, is_ours)
        try:
            port.wait_until_up(self.start_within)
        except BaseException:
            port.close()
            raise
        return port

    def _join(self, ray: Any, n_actors: int) -> None:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "warning"}
        if self.address is not None:
            ray.init(address=self.address, **quiet)
            return
        with _on_this_machine(ray):
            ray.init(
                address="local",
                _node_ip_address=_LOOPBACK,
                num_cpus=max(1, math.ceil(n_actors * self.cpus_per_actor)),
                object_store_memory=self.object_store_memory,
                include_dashboard=False,
                **quiet,
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
        rows: dict[int, Population],
        load: Load | None,
        problem: Any,
        algorithm: AbstractAlgorithm,
        state: Tree,
    ):
        if load is not None:
            rows = {
                client: people.with_rows(client, load(client)) for client, people in rows.items()
            }
        plan = rehearse(algorithm, problem, next(iter(rows.values())), state)
        self._workers = {
            client: Worker(client, problem, algorithm, people, state, plan, is_checked=False)
            for client, people in rows.items()
        }

    def answer(self, client: int, message: bytes) -> bytes:
        """A client's reply."""
        return self._workers[client].answer(message)

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
        is_ours: bool,
    ):
        self._ray, self._start, self._is_ours = ray, start, is_ours
        self._group = {client: group for group in groups for client in group}
        self._left = dict.fromkeys(groups, restarts)
        self._actors = {group: start(group) for group in groups}
        self._pending: dict[Any, tuple[int, Any]] = {}  # reply to come: client, actor

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
        gone = []
        for client, message in messages:
            actor = self._actors.get(self._group[client])
            if actor is None:
                gone.append(client)
            else:
                self._pending[actor.answer.remote(client, message)] = client, actor
        for client in gone:
            yield client, Failure("its process is gone, and was restarted often enough")
        while self._pending:
            left = max(until - time.monotonic(), 0)
            ready, _ = self._ray.wait(list(self._pending), num_returns=1, timeout=left)
            if not ready:
                return
            yield self._reply(ready[0])

    def close(self) -> None:
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors, self._pending = {}, {}
        if self._is_ours:
            self._ray.shutdown()

    def _reply(self, ready: Any) -> tuple[int, bytes | Failure]:
        client, actor = self._pending.pop(ready)
        try:
            return client, self._ray.get(ready)
        except self._ray.exceptions.RayError as error:
            reason = f"its process is gone: {str(error).splitlines()[0]}"
            return client, Failure(f"{reason} {self._restarted(self._group[client], actor)}")

    def _restarted(self, group: tuple[int, ...], dead: Any) -> str:
        """Start a process anew unless it was done before; what it is asked from now on, it does."""
        if self._actors.get(group) is dead:
            del self._actors[group]
            if self._left[group] > 0:
                self._left[group] -= 1
                self._actors[group] = self._start(group)
        return "It is started again." if group in self._actors else "It stays away."


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
