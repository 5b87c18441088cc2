"""What the remote engine adds to Ray: an exchange that does nothing, and one of FedNest.

An empty exchange sends an array to every client and has it back. Through the engine that is a
broadcast, a step and a stack; the raw call hands a buffer of the same size to an actor that returns
it. Both take turns, so that a slow moment meets both. Wanted: at most 1.3 times the raw call, at
1 KB and at 1 MB, with 4 clients. The same exchange written by hand, in which a compiled function
has the array on the client and the server stacks what comes back, takes turns with them: what the
engine adds to that is messages, checks and books.

For FedNest, the time of a round on Ray is held against that of the same messages answered in this
thread, one client after another, and against the compiled engine, which is the computation alone.

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
from rookery.program.cohort import Everyone
from rookery.remote import Policy, Remote, Worker
from rookery.remote.draft import Holdings
from rookery.remote.federation import RemoteFederation
from rookery.remote.inprocess import own_worker
from rookery.remote.ray import Ray

CLIENTS, WANTED = 4, 1.3
REPEATS = {1_000: 200, 1_000_000: 60}
SMALL: dict[str, Any] = {"cpus_per_actor": 0.25, "object_store_memory": 400_000_000}


class State(NamedTuple):
    """What goes to and fro."""

    value: Any


class Echo(rk.AbstractAlgorithm):
    """One empty exchange per round."""

    def check(self, problem, n_clients):
        """Anything goes."""

    def init(self, problem, value):
        """The value."""
        return State(value)

    def round(self, fed, problem, state, key):
        """There and back."""
        cohort = fed.sample(Everyone(), key)
        rows = fed.stack(fed.map(same, fed.broadcast(cohort, state.value)))
        return State(rows[0])

    def solution(self, state):
        """The value."""
        return (state.value,)


def same(client, value):
    """What came."""
    return value


class Raw:
    """An actor that returns a buffer."""

    def answer(self, client: int, message: bytes) -> bytes:
        """The same bytes."""
        return message


class ByHand:
    """An actor that puts an array through a compiled function."""

    def __init__(self):
        self._same = jax.jit(lambda a: jnp.asarray(a))

    def answer(self, client: int, message: bytes) -> bytes:
        """The same numbers."""
        return np.asarray(self._same(np.frombuffer(message, np.float32))).tobytes()


def by_hand(actors: list, value) -> None:
    message, rows = np.asarray(value).tobytes(), {}
    waiting = {actor.answer.remote(i, message): i for i, actor in enumerate(actors)}
    while waiting:
        ready, _ = ray.wait(list(waiting), num_returns=1)
        rows[waiting.pop(ready[0])] = np.frombuffer(ray.get(ready[0]), np.float32)
    jax.block_until_ready(jnp.asarray(np.stack([rows[i] for i in sorted(rows)])))


def raw_exchange(actors: list, buffer: bytes) -> None:
    waiting = [actor.answer.remote(i, buffer) for i, actor in enumerate(actors)]
    while waiting:
        ready, waiting = ray.wait(waiting, num_returns=1)
        ray.get(ready[0])


def engine_exchange(size: int):
    """A call that makes one empty exchange through the engine, and the runner to close."""
    zoo = rk.zoo.quadratic_losses(n_clients=CLIENTS, size=2, rows=1)
    people = rk.Population.stacked(zoo.data)
    program = Program(zoo.problem, people, rk.Clock(), rk.Mean())
    state = State(jnp.zeros(size // 4, jnp.float32))
    runner: Any = Remote(Ray(**SMALL), Policy(wait_for=600.0)).prepare(program, [Echo()])
    runner.advance([state], [jax.random.key(0)], 0, [3])
    plan, session = runner._opened
    holdings, value = Holdings(), jax.block_until_ready(jnp.ones(size // 4, jnp.float32))
    fed = RemoteFederation(program, 0, session, plan, holdings, False)
    cohort = fed.sample(Everyone(), jax.random.key(0))

    def exchange() -> None:
        holdings.values.clear()
        jax.block_until_ready(fed.stack(fed.map(same, fed.broadcast(cohort, value))))

    return exchange, runner


def empty_exchanges() -> None:
    for size, repeats in REPEATS.items():
        exchange, runner = engine_exchange(size)
        raw, hand = (
            [ray.remote(num_cpus=0.25)(kind).remote() for _ in range(CLIENTS)]
            for kind in (Raw, ByHand)
        )
        buffer = np.random.default_rng(0).bytes(size)
        value = jax.block_until_ready(jnp.ones(size // 4, jnp.float32))
        ways = (exchange, partial(raw_exchange, raw, buffer), partial(by_hand, hand, value))
        times = [[] for _ in ways]
        for i in range(repeats + 10):
            for way, mine in zip(ways, times, strict=True):
                began = time.perf_counter()
                way()
                if i >= 10:
                    mine.append(time.perf_counter() - began)
        runner.close()
        for actor in (*raw, *hand):
            ray.kill(actor)
        a, b, c = (statistics.median(mine) for mine in times)
        print(
            f"  {size:>9,} bytes: engine {a * 1e3:.2f} ms, raw {b * 1e3:.2f} ms, ratio {a / b:.2f} "
            f"(wanted: at most {WANTED}); by hand {c * 1e3:.2f} ms, ratio {a / c:.2f}"
        )


class Inline:
    """Clients in this thread: what the steps and messages take without a network."""

    def open(self, program, algorithm, state, plan):
        """One worker for each."""
        everyone = range(program.population.n_clients)
        return _Inline([own_worker(i, program, algorithm, state, plan) for i in everyone])


class _Inline:
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
    algorithm = rk.FedNest(0.01, 0.05, inner_steps=5, ihgp=rk.FedIHGPSum(5, 5.0), batch_size=8)
    people = rk.Population.stacked(zoo.data)
    program = Program(zoo.problem, people, rk.Clock(), rk.Mean())
    state = first_state(numbers_to_arrays(algorithm), zoo.problem, CLIENTS, zoo.start)
    key, rounds, times, exchanges = jax.random.key(0), 5, ([], [], []), 1
    remote = [Remote(t, Policy(wait_for=600.0)) for t in (Ray(**SMALL), Inline())]
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
    far, near, alone = (statistics.median(mine) / exchanges * 1e3 for mine in times)
    print(
        f"  FedNest, {exchanges} exchanges a round, ms per exchange: {far:.2f} on Ray, "
        f"{near:.2f} in this thread, {alone:.3f} compiled"
    )


def main() -> None:
    print(
        f"jax {jax.__version__}, ray {ray.__version__}, Python {platform.python_version()}, "
        f"{platform.machine()}, {CLIENTS} clients"
    )
    transport = Ray(**SMALL)
    transport._join(ray, 3 * CLIENTS)
    empty_exchanges()
    fednest()
    ray.shutdown()


if __name__ == "__main__":
    main()
