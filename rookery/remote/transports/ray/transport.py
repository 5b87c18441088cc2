"""Clients as Ray actors: one owner's machines, from a workstation to a cluster.

Messages are plain bytes and arrive in order. An actor answers for its clients, and its steps stay
compiled. Ray itself sends problem, algorithm and shapes when an actor starts, by pickle. Ray trusts
everyone who can reach the cluster, so all machines must have one owner.
"""

import math
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack

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
from rookery.remote.protocol import wire
from rookery.remote.protocol.plan import Plan
from rookery.remote.protocol.secure import SecureAggregation
from rookery.remote.protocol.tracing import trace_round
from rookery.remote.transports.port import Port
from rookery.remote.transports.ray import cluster
from rookery.remote.transports.ray.actors import Actor, Actors, Replies, to_ray
from rookery.types import Problem, Tree

Load = Callable[[int], Mapping[str, Tree]]


class Ray(eqx.Module):
    """Clients in processes of a Ray cluster. Needs ``pip install -e '.[ray]'``.

    If this process has already joined a cluster, that one is used and left as it is. Otherwise a
    cluster is joined or started when a run begins, and left or stopped when it ends. It is given
    to an engine, and the engine to ``rk.run(..., engine=engine)``:

    >>> from rookery.remote import Policy, Remote
    >>> engine = Remote(Ray(clients_per_actor=4), Policy(min_replies=0.9))
    >>> engine.transport.clients_per_actor
    4

    Args:
        address: address of the cluster, such as ``auto`` or ``host:6379``. None starts one on this
            machine that is reachable only from it.
        clients_per_actor: how many clients share a process. They are batched, and fail together
            when it dies. None makes one process per free CPU.
        clients_at_once: how many clients of a process go through one vmap and reply together; None
            is all that are requested. A smaller number bounds memory. Use 1 for a program in real
            time, which continues with the first replies.
        load: a module-level function that returns a client's rows by split, ``load(client)``. It
            runs in the client's process. None sends the server's rows when a process starts.
        cpus_per_actor: CPUs that Ray reserves per process; for scheduling, not a limit.
        restarts: how often a dead process is restarted.
        start_within: seconds in which all processes must have started.
        object_store_memory: bytes of shared memory, for a cluster started here.
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
            raise ValueError(
                f"Ray.load must be a module-level function, which actors import, got {self.load!r}."
            )
        self.package()

    def open(self, program: Program, algorithm: AbstractAlgorithm, state: Tree, plan: Plan) -> Port:
        """Start the actors, and wait until they run."""
        ray, population = self.package(), program.population
        if self.load is None:
            population.check_rows("Ray without load")
        is_ours = not ray.is_initialized()
        with ExitStack() as on_failure:
            if is_ours:
                on_failure.callback(ray.shutdown)
            if is_ours and self.address is not None:
                cluster.join(ray, self.address)
            groups = self.groups(ray, population.n_clients)
            if not ray.is_initialized():
                self.start_cluster(ray, len(groups))
            start = self._starter(ray, program, algorithm, state, plan.secure)
            port = Actors(ray, groups, start, self.restarts, self.clients_at_once, is_ours)
            on_failure.callback(port.close)
            port.wait_until_up(self.start_within)
            on_failure.pop_all()
            return port

    def _starter(
        self,
        ray: cluster.Package,
        program: Program,
        algorithm: AbstractAlgorithm,
        state: Tree,
        secure: SecureAggregation | None,
    ) -> Callable[[tuple[int, ...]], Actor]:
        """A function that starts the actor of a group of clients."""
        population = program.population
        shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), state)
        # set before anything is unpickled there: otherwise float64 would become float32
        precision = {"JAX_ENABLE_X64": str(int(jnp.zeros(()).dtype == jnp.float64))}
        actor = ray.remote(
            num_cpus=self.cpus_per_actor, max_restarts=0, runtime_env={"env_vars": precision}
        )(Host)

        def start(clients: tuple[int, ...]) -> Actor:
            rows = population.only(*clients) if self.load is None else population.without_rows()
            return actor.remote(
                clients, rows, self.load, program.problem, algorithm, shapes, self.clients_at_once,
                secure,
            )  # fmt: skip

        return start

    def groups(self, ray: cluster.Package, n_clients: int) -> list[tuple[int, ...]]:
        """The clients of each actor."""
        if self.clients_per_actor is not None:
            n_actors = math.ceil(n_clients / self.clients_per_actor)
        else:
            slots = int(cluster.free_cpus(ray) / (self.cpus_per_actor or 1.0))
            n_actors = max(1, min(n_clients, slots))
        return [tuple(group.tolist()) for group in np.array_split(np.arange(n_clients), n_actors)]

    def start_cluster(self, ray: cluster.Package, n_actors: int) -> None:
        """Start a cluster on this machine with CPUs for a number of actors."""
        cpus = max(1, math.ceil(n_actors * self.cpus_per_actor))
        cluster.start(ray, cpus, self.object_store_memory)

    def package(self) -> cluster.Package:
        """The package ``ray``, or an error that says how to install it."""
        try:
            import ray  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ImportError(
                "Ray needs the package ray: pip install -e '.[ray]' in rookery's checkout."
            ) from error
        return ray


class Host:
    """Answers for the clients of one process; Ray makes an actor of it."""

    def __init__(
        self,
        clients: tuple[int, ...],
        population: Population,
        load: Load | None,
        problem: Problem,
        algorithm: AbstractAlgorithm,
        state: Tree,
        max_batch: int | None,
        secure: SecureAggregation | None,
    ):
        if load is not None:
            population = population.with_rows({client: load(client) for client in clients})
        plan = trace_round(algorithm, problem, population, state, secure=secure)
        population = jax.device_put(population)  # shared by all workers, so they are batched
        self._workers = {
            client: Worker(client, problem, algorithm, population, state, plan, is_checked=False)
            for client in clients
        }
        self._max_batch = max_batch

    def answer(self, message: bytes) -> Replies:
        """The reply of one client to a flat message."""
        return to_ray(finish([self._workers[wire.client_of(message)].answering(message)]))

    def answer_batch(self, places: list[list[int]], *parts: wire.Buffer) -> Replies:
        """The replies to several messages, in order.

        Args:
            places: for each message, its parts by their places among all parts.
            parts: the parts of all messages.
        """
        messages = [[parts[place] for place in mine] for mine in places]
        answering = [self._workers[wire.client_of(m[0])].answering(m) for m in messages]
        return to_ray(finish(answering, self._max_batch))

    def process(self) -> int:
        """The id of this process."""
        return os.getpid()
