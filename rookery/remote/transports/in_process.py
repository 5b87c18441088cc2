"""Clients as threads of this process: real messages, no network. For tests and debugging."""

import queue
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from rookery import check
from rookery.engines.engine import Program
from rookery.program.algorithm import AbstractAlgorithm
from rookery.remote.client.worker import Worker
from rookery.remote.protocol import wire
from rookery.remote.protocol.plan import Plan
from rookery.remote.transports.port import Data, Failure, Port
from rookery.types import Tree

MakeWorker = Callable[[int, Program, AbstractAlgorithm, Tree, Plan], Worker]


class Faults(eqx.Module):
    """Injected faults, drawn from a seed; probabilities are per message.

    >>> Faults(drop=0.05, crashes={2: 10}, seed=1).drop
    0.05

    Args:
        drop: probability that a request or a reply is lost.
        duplicate: probability that a reply arrives twice.
        reorder: probability that a reply is held back until after the client's next one.
        corrupt: probability that some bytes of a request or a reply are changed.
        delays: by client, seconds by which its replies are late.
        crashes: by client, the number of requests after which its process ends.
        restarts: by client, the number of the request before which it loses everything.
        poison: clients whose replies hold NaN.
        scale: by client, a factor on its replies.
        seed: seed of the random faults.
    """

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    delays: Mapping[int, float] = eqx.field(default_factory=dict)
    crashes: Mapping[int, int] = eqx.field(default_factory=dict)
    restarts: Mapping[int, int] = eqx.field(default_factory=dict)
    poison: tuple[int, ...] = eqx.field(converter=tuple, default=())
    scale: Mapping[int, float] = eqx.field(default_factory=dict)
    seed: int = 0

    def __check_init__(self):
        for name in ("drop", "duplicate", "reorder", "corrupt"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(
                    f"Faults.{name} must be a probability below 1, got {getattr(self, name)}."
                )
        check.count("Faults.seed", self.seed, least=0)


class InProcess(eqx.Module):
    """A thread per client, with the same messages as other transports; can inject faults.

    >>> InProcess(Faults(drop=0.05)).faults.drop
    0.05

    Args:
        faults: the faults to inject; none by default.
        make_worker: makes a client's worker. By default it has the server's problem and algorithm,
            and the client's own rows.
    """

    faults: Faults = eqx.field(default_factory=Faults)
    make_worker: MakeWorker | None = None

    def open(self, program: Program, algorithm: AbstractAlgorithm, state: Tree, plan: Plan) -> Port:
        """Start the threads."""
        make = self.make_worker
        if make is None:
            program.population.check_rows("a client in this process")
            make = own_worker

        def worker(client: int) -> Worker:
            return make(client, program, algorithm, state, plan)

        return _Threads(program.population.n_clients, worker, self.faults)


def own_worker(
    client: int, program: Program, algorithm: AbstractAlgorithm, state: Tree, plan: Plan
) -> Worker:
    """A worker with the server's problem, algorithm and plan, and the client's own rows."""
    rows = program.population.only(client)
    return Worker(client, program.problem, algorithm, rows, state, plan)


class _Threads:
    """The port of :class:`InProcess`."""

    is_reliable = False  # faults may corrupt messages

    def __init__(self, n_clients: int, make: Callable[[int], Worker], faults: Faults):
        self._outbox: queue.Queue = queue.Queue()
        self._dead: dict[int, Failure] = {}
        self._inboxes = {client: queue.Queue() for client in range(n_clients)}
        self._threads = [
            threading.Thread(
                target=_report_failure,
                args=(client, self._outbox, partial(_answer_all, client, make, faults, inbox)),
                daemon=True,
            )
            for client, inbox in self._inboxes.items()
        ]
        for thread in self._threads:
            thread.start()

    def alive(self) -> frozenset[int]:
        return frozenset(self._inboxes) - self._dead.keys()

    def exchange(
        self, step: str, messages: Iterable[tuple[int, wire.Parts]], wait_for: float
    ) -> Iterator[tuple[int, Data | Failure]]:
        until = time.monotonic() + wait_for
        for client, message in messages:
            if client in self._dead:
                self._outbox.put((client, self._dead[client]))
            else:
                self._inboxes[client].put(message)
        while True:
            try:
                client, arrival = self._outbox.get(timeout=max(until - time.monotonic(), 0))
            except queue.Empty:
                return
            if isinstance(arrival, Failure):
                self._dead[client] = arrival
            yield client, arrival

    def close(self) -> None:
        for inbox in self._inboxes.values():
            inbox.put(None)
        for thread in self._threads:
            thread.join(timeout=5)


def _report_failure(
    client: int, outbox: queue.Queue, answer_all: Callable[[queue.Queue], None]
) -> None:
    """Answer requests into the outbox; an exception goes there too."""
    try:
        answer_all(outbox)
    except Exception as error:  # otherwise the server would wait until its deadline
        outbox.put((client, Failure(f"its thread has ended: {type(error).__name__}: {error}")))


def _answer_all(
    client: int,
    make: Callable[[int], Worker],
    faults: Faults,
    inbox: queue.Queue,
    outbox: queue.Queue,
) -> None:
    """Answer requests until the client crashes or the port is closed."""
    rng = random.Random(faults.seed * 1_000_003 + client)
    worker, held = make(client), None
    for count in range(1, 1 << 62):
        request = inbox.get()
        if request is None:
            return
        if count > faults.crashes.get(client, 1 << 62):
            outbox.put((client, Failure("its process has died")))
            return
        if faults.restarts.get(client) == count:
            worker = make(client)
        if rng.random() < faults.drop:
            continue
        reply = worker.answer_in_parts(_corrupted(request, rng, faults.corrupt))
        reply = _corrupted(_falsified(reply, client, faults), rng, faults.corrupt)
        time.sleep(faults.delays.get(client, 0.0))
        if rng.random() < faults.drop:
            continue
        if held is None and rng.random() < faults.reorder:
            held = reply
            continue
        copies = 2 if rng.random() < faults.duplicate else 1
        for one in [reply] * copies + ([held] if held is not None else []):
            outbox.put((client, one))
        # a large model is not kept while the next request is answered
        held = request = reply = one = None


def _corrupted(data: Data, rng: random.Random, probability: float) -> Data:
    if rng.random() >= probability:
        return data
    corrupted = bytearray(data if isinstance(data, bytes) else wire.joined(data))
    for _ in range(3):
        corrupted[rng.randrange(len(corrupted))] ^= 1 << rng.randrange(8)
    return bytes(corrupted)


def _falsified(reply: Data, client: int, faults: Faults) -> Data:
    """A well-formed reply with falsified numbers."""
    if client not in faults.poison and client not in faults.scale:
        return reply
    message = wire.decode(reply)
    factor = np.nan if client in faults.poison else faults.scale[client]

    def changed(path: str, array: Any) -> wire.Leaf:  # keys have no arithmetic
        is_number = path.startswith("reply/") and jnp.issubdtype(array.dtype, jnp.floating)
        return (array * factor).astype(array.dtype) if is_number else array

    arrays = {path: changed(path, array) for path, array in message.arrays.items()}
    return wire.encode(replace(message, arrays=arrays))
