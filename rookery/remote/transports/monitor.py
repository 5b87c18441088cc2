"""Reports each client's replies, latency and bytes while a run is in progress."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import equinox as eqx
from rich.console import Console

from rookery import check
from rookery.engines.engine import Program
from rookery.program.algorithm import AbstractAlgorithm
from rookery.remote.protocol.plan import Plan
from rookery.remote.protocol.wire import Parts
from rookery.remote.transports.port import Data, Failure, Port, Transport
from rookery.types import Tree


class Monitored(eqx.Module):
    """A transport that reports another one's traffic to a console, one line per client.

    >>> from rookery.remote import InProcess
    >>> Monitored(InProcess(), Console(), every=10.0).every
    10.0

    Args:
        transport: carries the messages.
        console: where the reports go.
        names: the clients' names; those of the population by default.
        every: seconds between two reports.
    """

    transport: Transport
    console: Console = eqx.field(static=True)
    names: Sequence[str] | None = None
    every: float = 5.0

    def __check_init__(self):
        check.positive("Monitored.every", self.every)

    def open(self, program: Program, algorithm: AbstractAlgorithm, state: Tree, plan: Plan) -> Port:
        """Open the other transport's port, and count its traffic."""
        port = self.transport.open(program, algorithm, state, plan)
        population = program.population
        names = self.names
        if names is None:
            names = [population.client_name(client) for client in range(population.n_clients)]
        return _MonitoredPort(port, self.console, names, self.every)


@dataclass
class _Traffic:
    """The traffic of one client.

    Attributes:
        requests: number of requests sent.
        replies: number of replies received.
        seconds: total latency of the replies.
        slowest: largest latency.
        down, up: bytes of the messages.
        failure: why the last request failed; empty if it did not.
    """

    requests: int = 0
    replies: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    down: int = 0
    up: int = 0
    failure: str = ""


class _MonitoredPort:
    """The port of :class:`Monitored`."""

    def __init__(self, port: Port, console: Console, names: Sequence[str], every: float):
        self._port, self._console, self._names, self._every = port, console, names, every
        self._traffic = [_Traffic() for _ in names]
        self.is_reliable = port.is_reliable
        self._last = time.monotonic()

    def alive(self) -> frozenset[int]:
        return self._port.alive()

    def exchange(
        self, step: str, messages: Iterable[tuple[int, Parts]], wait_for: float
    ) -> Iterator[tuple[int, Data | Failure]]:
        began = time.monotonic()
        if began - self._last > self._every:
            self._report(step)
        for client, arrival in self._port.exchange(step, self._counted(messages), wait_for):
            self._arrived(self._traffic[client], arrival, time.monotonic() - began)
            yield client, arrival

    def close(self) -> None:
        self._report("")
        self._port.close()

    def _counted(self, messages: Iterable[tuple[int, Parts]]) -> Iterator[tuple[int, Parts]]:
        """The messages, counted as they are sent; they may be built lazily."""
        for client, message in messages:
            self._traffic[client].requests += 1
            self._traffic[client].down += _nbytes(message)
            yield client, message

    def _arrived(self, traffic: _Traffic, arrival: Data | Failure, seconds: float) -> None:
        if isinstance(arrival, Failure):
            traffic.failure = arrival.reason
            return
        traffic.replies += 1
        traffic.seconds += seconds
        traffic.slowest = max(traffic.slowest, seconds)
        traffic.up += _nbytes(arrival)
        traffic.failure = ""

    def _report(self, step: str) -> None:
        self._last = time.monotonic()
        alive = self._port.alive()
        title = f"Before {step.rpartition('.')[2]}" if step else "At the end"
        lines = [f"{title}, {len(alive)} of {len(self._names)} clients alive:"]
        for client, (name, t) in enumerate(zip(self._names, self._traffic, strict=True)):
            mean = 1e3 * t.seconds / max(t.replies, 1)
            lines.append(
                f"  {name}: {t.replies} replies to {t.requests} requests, {mean:.0f} ms on average "
                f"and {1e3 * t.slowest:.0f} ms at most; {_size(t.down)} down, {_size(t.up)} up"
            )
            if failure := t.failure or ("" if client in alive else "unreachable"):
                lines[-1] += f"; {failure}"
        self._console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def _nbytes(message: Data) -> int:
    return len(message) if isinstance(message, bytes) else sum(map(len, message))


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e6:.2f} MB" if nbytes >= 1e5 else f"{nbytes / 1e3:.1f} kB"
