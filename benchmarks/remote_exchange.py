"""The remote engine over Ray against raw calls that carry the same bytes.

An empty exchange sends an array to each of four clients and gets it back. Through the engine that
is a broadcast, a step and a stack; the raw call hands a buffer of the same size to an actor that
returns it. Clients have a process each, or two share one; the raw call then goes to two actors,
with the bytes of two clients. The same exchange written by hand, with a compiled function on the
client and a stack on the server, shows what JAX alone adds.

The ways take turns, in blocks of exchanges, all in one process. Medians over the blocks count: wall
time, and CPU time of the server's process, of the actors and of Ray's daemon of the node. For
FedNest, a round on Ray is compared with the same messages answered in this thread, one client after
another, and with the compiled engine, which is the computation alone.

It needs Ray, which has an environment of its own: ``make bench-remote`` runs this script, and
``make bench`` collects its rows by ``ray_exchange.py``.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import ray  # pyright: ignore[reportMissingImports]
from timing import Row, at_most, print_rows

import rookery as rk
from rookery.engines.engine import Program
from rookery.program.algorithm import first_state, numbers_to_arrays
from rookery.program.participation import Everyone
from rookery.remote import Policy, Remote, Worker
from rookery.remote.transports.in_process import own_worker
from rookery.remote.transports.ray.transport import Ray

CLIENTS, GOAL = 4, 1.3
BLOCKS, PER_BLOCK = 20, {1_000: 20, 1_000_000: 6}
SIZES = {1_000: "1 KB", 1_000_000: "1 MB"}
SMALL: dict[str, Any] = {"cpus_per_actor": 0.25, "object_store_memory": 400_000_000}


# what was tried, and where cProfile finds the rest; shown when a goal is missed
WHERE = {
    1_000: "Built: equal messages once, one argument per call, one wait for replies that come "
    "together. The rest is Python on both sides: an answer is 205 calls, 0.14 ms in a tight loop "
    "and 0.5 ms in an actor that was just woken. By cProfile the compiled step is 26 % of it, "
    "encoding 17 %, decoding 12 %; instructions, checks and bookkeeping are the rest. JAX by hand "
    "and the goal leave 0.14 ms for both sides of a client",
    1_000_000: "Built: what is equal for all clients is stored once, and both sides read arrays in "
    "place. A process of two clients also stacks their arguments for one vmap and splits the "
    "results; the server checks replies for NaN and stacks them",
}


class State(NamedTuple):
    """The array that is exchanged."""

    value: Any


class Echo(rk.AbstractAlgorithm):
    """One empty exchange per round."""

    def check(self, problem, n_clients):
        """Anything goes."""

    def init(self, problem, value):
        """The value."""
        return State(value)

    def round(self, fed, problem, state, key):
        """Send it and get it back."""
        cohort = fed.sample(Everyone(), key)
        rows = fed.stack(fed.map(same, fed.broadcast(cohort, state.value)))
        return State(rows[0])

    def solution(self, state):
        """The value."""
        return (state.value,)


def same(client, value):
    """The argument."""
    return value


class Raw:
    """An actor that returns a buffer."""

    def process(self) -> int:
        """The id of its process."""
        return os.getpid()

    def answer(self, client: int, message: bytes) -> bytes:
        """The same bytes."""
        return message


class ByHand:
    """An actor that passes an array through a compiled function."""

    def __init__(self):
        self._same = jax.jit(lambda a: jnp.asarray(a))

    def process(self) -> int:
        """The id of its process."""
        return os.getpid()

    def answer(self, client: int, message: bytes) -> bytes:
        """The same numbers."""
        return np.asarray(self._same(np.frombuffer(message, np.float32))).tobytes()


def by_hand(actors: list, value) -> None:
    message, rows = np.asarray(value).tobytes(), {}
    pending = {actor.answer.remote(i, message): i for i, actor in enumerate(actors)}
    while pending:
        ready, _ = ray.wait(list(pending), num_returns=1)
        rows[pending.pop(ready[0])] = np.frombuffer(ray.get(ready[0]), np.float32)
    jax.block_until_ready(jnp.asarray(np.stack([rows[i] for i in sorted(rows)])))


def raw_exchange(actors: list, buffer: bytes) -> None:
    pending = [actor.answer.remote(i, buffer) for i, actor in enumerate(actors)]
    while pending:
        ready, pending = ray.wait(pending, num_returns=1)
        ray.get(ready[0])


def engine_exchange(size: int, per_actor: int):
    """A function that makes one empty exchange through the engine, and the runner to close."""
    zoo = rk.zoo.quadratic_losses(n_clients=CLIENTS, size=2, rows=1)
    population = rk.Population.stacked(zoo.data)
    program = Program(zoo.problem, population, rk.delays.Clock(), rk.aggregate.Mean())
    state = State(jnp.zeros(size // 4, jnp.float32))
    transport = Ray(clients_per_actor=per_actor, **SMALL)
    runner: Any = Remote(transport, Policy(wait_for=600.0)).prepare(program, [Echo()])
    runner.advance([state], [jax.random.key(0)], 0, [3])
    value = jax.block_until_ready(jnp.ones(size // 4, jnp.float32))
    fed = runner.federation(0)
    cohort = fed.sample(Everyone(), jax.random.key(0))

    def exchange() -> None:
        runner.session.begin_round(0)
        jax.block_until_ready(fed.stack(fed.map(same, fed.broadcast(cohort, value))))

    return exchange, runner


@dataclass
class Way:
    """One way to exchange, and what was measured of it: milliseconds per exchange, by block."""

    exchange: Callable[[], None]
    actors: list[int]
    wall: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)
    clients: list[float] = field(default_factory=list)
    daemon: list[float] = field(default_factory=list)

    def run(self, count: int, daemons: list[int]) -> None:
        """One block."""
        clients, daemon = cpu_of(self.actors), cpu_of(daemons)
        server, began = time.process_time(), time.perf_counter()
        for _ in range(count):
            self.exchange()
        self.wall.append((time.perf_counter() - began) / count * 1e3)
        self.server.append((time.process_time() - server) / count * 1e3)
        self.clients.append((cpu_of(self.actors) - clients) / count * 1e3)
        self.daemon.append((cpu_of(daemons) - daemon) / count * 1e3)

    @property
    def cpu(self) -> float:
        """Median CPU time of all processes."""
        return statistics.median(map(sum, zip(self.server, self.clients, self.daemon, strict=True)))

    def parts(self) -> str:
        """The medians, in words."""
        server, clients, daemon = map(statistics.median, (self.server, self.clients, self.daemon))
        return f"server {server:.2f}, actors {clients:.2f}, Ray's daemon {daemon:.2f}"


def cpu_of(processes: list[int]) -> float:
    """CPU seconds of processes so far, to the nanosecond."""
    total = 0
    for process in processes:
        for thread in Path(f"/proc/{process}/task").iterdir():
            try:
                total += int((thread / "schedstat").read_text().split()[0])
            except (FileNotFoundError, ProcessLookupError):
                continue  # a thread has ended
    return total / 1e9


def raylets() -> list[int]:
    """The processes of Ray's daemon that this process has started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                before, _, after = (entry / "stat").read_text().rpartition(")")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if before.endswith("(raylet") and int(after.split()[1]) == os.getpid():
                found.append(int(entry.name))
    return found


def actors_of(kind: type, count: int) -> tuple[list, list[int]]:
    """New actors, and the ids of their processes."""
    actors = [ray.remote(num_cpus=0.25)(kind).remote() for _ in range(count)]
    return actors, ray.get([actor.process.remote() for actor in actors])


def exchange_rows(size: int) -> list[Row]:
    """The rows of one size."""
    (alone, one), (shared, two) = (engine_exchange(size, n) for n in (1, 2))
    raw, raw_ids = actors_of(Raw, CLIENTS)
    hand, hand_ids = actors_of(ByHand, CLIENTS)
    buffer = np.random.default_rng(0).bytes(size)
    value = jax.block_until_ready(jnp.ones(size // 4, jnp.float32))
    half = CLIENTS // 2
    ways = {
        "raw": Way(partial(raw_exchange, raw, buffer), raw_ids),
        "engine": Way(alone, sorted(set(one.session.port.processes().values()))),
        "by hand": Way(partial(by_hand, hand, value), hand_ids),
        "raw to half": Way(partial(raw_exchange, raw[:half], buffer * 2), raw_ids[:half]),
        "engine, shared": Way(shared, sorted(set(two.session.port.processes().values()))),
    }
    daemons = raylets()
    for i in range(BLOCKS + 2):
        for way in ways.values():
            if i == 2:  # the first blocks warm up
                way.wall, way.server, way.clients, way.daemon = [], [], [], []
            way.run(PER_BLOCK[size], daemons)
    one.close()
    two.close()
    for actor in (*raw, *hand):
        ray.kill(actor)
    rows = []
    for what, name, base in (
        (f"{CLIENTS} clients, a process each", "engine", "raw"),
        (f"{CLIENTS} clients, two in a process", "engine, shared", "raw to half"),
    ):
        mine, other, jax_alone = ways[name], ways[base], ways["by hand"]
        title = f"An exchange over Ray, {SIZES[size]}, {what}: engine / raw call"
        figure = mine.cpu / other.cpu
        note = f"ms of CPU: {mine.parts()}; the raw call: {other.parts()}"
        if name == "engine":
            note += f"; by hand with JAX: {jax_alone.cpu / other.cpu:.2f} of it"
        if figure > GOAL:
            note += f". {WHERE[size]}"
        unit = "of the raw call's"
        rows.append(Row(f"{title}, CPU time", figure, unit, at_most(GOAL), note))
        walls = [statistics.median(way.wall) for way in (mine, other)]
        note = f"{walls[0]:.1f} ms against {walls[1]:.1f}" + (
            "; see CPU time for where it goes" if walls[0] > GOAL * walls[1] else ""
        )
        rows.append(Row(f"{title}, wall time", walls[0] / walls[1], unit, at_most(GOAL), note))
    return rows


class Inline:
    """Clients in this thread: the cost of steps and messages without a network."""

    def open(self, program, algorithm, state, plan):
        """One worker per client."""
        everyone = range(program.population.n_clients)
        return _Inline([own_worker(i, program, algorithm, state, plan) for i in everyone])


class _Inline:
    is_reliable = True

    def __init__(self, workers: list[Worker]):
        self._workers = workers

    def alive(self):
        return frozenset(range(len(self._workers)))

    def exchange(self, step, messages, wait_for):
        for client, message in messages:
            yield client, self._workers[client].answer(message)

    def close(self):
        pass


def fednest_rows() -> list[Row]:
    """An exchange of FedNest, on Ray and without a network."""
    zoo = rk.zoo.quadratic_bilevel(n_clients=CLIENTS, x_size=20, y_size=20, rows=50, noise=0.1)
    algorithm = rk.FedNest(
        outer_lr=0.01,
        inner_lr=0.05,
        inner_steps=5,
        ihgp=rk.parts.FedIHGPSum(terms=5, lipschitz=5.0),
        batch_size=8,
    )
    population = rk.Population.stacked(zoo.data)
    program = Program(zoo.problem, population, rk.delays.Clock(), rk.aggregate.Mean())
    state = first_state(numbers_to_arrays(algorithm), zoo.problem, CLIENTS, zoo.start)
    key, rounds, times, exchanges = jax.random.key(0), 5, ([], [], [], []), 1
    transports = (*(Ray(clients_per_actor=n, **SMALL) for n in (1, 2)), Inline())
    remote = [Remote(transport, Policy(wait_for=600.0)) for transport in transports]
    runners = [engine.prepare(program, [algorithm]) for engine in (*remote, rk.Compiled())]
    for i in range(6):
        for runner, mine in zip(runners, times, strict=True):
            began = time.perf_counter()
            (progress,) = runner.advance([state], [key], 0, [rounds])
            if i:  # the first compiles
                mine.append((time.perf_counter() - began) / rounds)
            exchanges = progress.ledgers[0].exchanges
    for runner in runners:
        runner.close()
    far, paired, near, alone = (statistics.median(mine) / exchanges * 1e3 for mine in times)
    what = f"An exchange of FedNest, {exchanges} a round, {CLIENTS} clients"
    ways = {
        "on Ray, a process each": far,
        "on Ray, two in a process": paired,
        "the same messages in one thread": near,
        "compiled, no messages": alone,
    }
    return [Row(f"{what}: {way}", ms, "ms of wall time") for way, ms in ways.items()]


def measured() -> list[Row]:
    """All rows; starts a cluster on this machine and stops it."""
    Ray(**SMALL).start_cluster(ray, 5 * CLIENTS)
    try:
        return [row for size in SIZES for row in exchange_rows(size)] + fednest_rows()
    finally:
        ray.shutdown()


if __name__ == "__main__":
    found = measured()
    if len(sys.argv) > 1:  # where to write them, for ray_exchange.py
        Path(sys.argv[1]).write_text(json.dumps([row.to_json() for row in found]))
    else:
        print_rows(found)
