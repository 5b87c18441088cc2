"""Overhead of the remote engine over Ray: an empty exchange, and a round of FedNest.

An empty exchange sends an array to every client and gets it back. Through the engine that is a
broadcast, a step and a stack; the raw call hands a buffer of the same size to an actor that returns
it. The variants alternate, so that a slow moment affects all of them. Target: at most 1.3 times the
raw call, at 1 KB and at 1 MB, with 4 clients. Each client has a process, as the raw call's actors
do, or shares one with another client, the default on two CPUs. The same exchange written by hand,
with a compiled function on the client and a stack on the server, shows what JAX alone adds.

For FedNest, a round on Ray is compared with the same messages answered in this thread, one client
after another, and with the compiled engine, which is the computation alone.

Run it with ``make bench-remote``.
"""

import platform
import statistics
import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import ray  # pyright: ignore[reportMissingImports]

import rookery as rk
from rookery.engines.engine import Program
from rookery.program.algorithm import first_state, numbers_to_arrays
from rookery.program.participation import Everyone
from rookery.remote import Policy, Remote, Worker
from rookery.remote.transports.in_process import own_worker
from rookery.remote.transports.ray.transport import Ray

CLIENTS, TARGET = 4, 1.3
REPEATS = {1_000: 200, 1_000_000: 60}
SMALL: dict[str, Any] = {"cpus_per_actor": 0.25, "object_store_memory": 400_000_000}


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

    def answer(self, client: int, message: bytes) -> bytes:
        """The same bytes."""
        return message


class ByHand:
    """An actor that passes an array through a compiled function."""

    def __init__(self):
        self._same = jax.jit(lambda a: jnp.asarray(a))

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


def empty_exchanges() -> None:
    for size, repeats in REPEATS.items():
        (alone, one), (shared, two) = (engine_exchange(size, n) for n in (1, 2))
        raw, hand = (
            [ray.remote(num_cpus=0.25)(kind).remote() for _ in range(CLIENTS)]
            for kind in (Raw, ByHand)
        )
        buffer = np.random.default_rng(0).bytes(size)
        value = jax.block_until_ready(jnp.ones(size // 4, jnp.float32))
        ways = {
            "the raw call": partial(raw_exchange, raw, buffer),
            "the engine, a process for each client": alone,
            "the engine, a process for two clients": shared,
            "by hand, a process for each client": partial(by_hand, hand, value),
        }
        times = {name: [] for name in ways}
        for i in range(repeats + 10):
            for name, way in ways.items():
                began = time.perf_counter()
                way()
                if i >= 10:
                    times[name].append(time.perf_counter() - began)
        one.close()
        two.close()
        for actor in (*raw, *hand):
            ray.kill(actor)
        print(f"  {size:,} bytes (target for the engine: at most {TARGET})")
        base = statistics.median(times["the raw call"])
        for name, mine in times.items():
            middle = statistics.median(mine)
            print(f"    {name}: {middle * 1e3:.2f} ms, {middle / base:.2f} times the raw call")


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


def fednest() -> None:
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
    print(
        f"  FedNest, {exchanges} exchanges a round, ms per exchange: {far:.2f} on Ray, "
        f"{paired:.2f} with two clients in a process, {near:.2f} in this thread, "
        f"{alone:.3f} compiled"
    )


def main() -> None:
    print(
        f"jax {jax.__version__}, ray {ray.__version__}, Python {platform.python_version()}, "
        f"{platform.machine()}, {CLIENTS} clients"
    )
    transport = Ray(**SMALL)
    transport.start_cluster(ray, 4 * CLIENTS)
    empty_exchanges()
    fednest()
    ray.shutdown()


if __name__ == "__main__":
    main()
