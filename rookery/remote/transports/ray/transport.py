"""Clients as Ray actors: one owner's machines, from a workstation to a cluster.

Our messages travel as plain bytes, in order; an actor answers for its clients, and its steps stay
compiled. Problem, algorithm and shapes go to an actor when it is started, by Ray's own means. Ray
trusts everyone who reaches the cluster: it is for machines of one owner.
"""

import math
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rookery import check
from rookery.clients.population import Population
from rookery.engines.engine import Program
from rookery.program.algorithm import AbstractAlgorithm
from rookery.remote.client.batching import finish
from rookery.remote.client.worker import Worker
from rookery.remote.protocol.plan import Plan
from rookery.remote.protocol.tracing import trace_round
from rookery.remote.transports.port import Port
from rookery.remote.transports.ray import cluster
from rookery.remote.transports.ray.actors import Actors
from rookery.types import Tree

Load = Callable[[int], Mapping[str, Tree]]


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
                check.count(f"Ray.{name}", getattr(self, name))
        check.not_negative("Ray.cpus_per_actor", self.cpus_per_actor)
        check.count("Ray.restarts", self.restarts, least=0)
        check.positive("Ray.start_within", self.start_within)
        if "<locals>" in getattr(self.load, "__qualname__", ""):
            raise ValueError("Ray.load must be a module-level function: actors import it by name.")
        self._ray()

    def open(self, program: Program, algorithm: AbstractAlgorithm, state: Tree, plan: Plan) -> Port:
        """Start the actors, and wait until they are up."""
        ray, people = self._ray(), program.population
        if self.load is None:
            people.check_rows("Ray without load")
        is_ours = not ray.is_initialized()
        with ExitStack() as otherwise:
            if is_ours:
                otherwise.callback(ray.shutdown)
            if is_ours and self.address is not None:
                cluster.join(ray, self.address)
            groups = self._groups(ray, people.n_clients)
            if not ray.is_initialized():
                self._start_cluster(ray, len(groups))
            start = self._starter(ray, program, algorithm, state)
            port = Actors(ray, groups, start, self.restarts, self.clients_at_once, is_ours)
            otherwise.callback(port.close)
            port.wait_until_up(self.start_within)
            otherwise.pop_all()
            return port

    def _starter(
        self, ray: Any, program: Program, algorithm: AbstractAlgorithm, state: Tree
    ) -> Callable[[tuple[int, ...]], Any]:
        """What starts the process of some clients."""
        people = program.population
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

        return start

    def _groups(self, ray: Any, n_clients: int) -> list[tuple[int, ...]]:
        """The clients of each process."""
        if self.clients_per_actor is not None:
            n_actors = math.ceil(n_clients / self.clients_per_actor)
        else:
            places = int(cluster.free_cpus(ray) / (self.cpus_per_actor or 1.0))
            n_actors = max(1, min(n_clients, places))
        return [tuple(group.tolist()) for group in np.array_split(np.arange(n_clients), n_actors)]

    def _start_cluster(self, ray: Any, n_actors: int) -> None:
        cpus = max(1, math.ceil(n_actors * self.cpus_per_actor))
        cluster.start(ray, cpus, self.object_store_memory)

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
        plan = trace_round(algorithm, problem, people, state)
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
