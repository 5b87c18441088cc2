"""Who answers, how long it takes and how many bytes go each way, shown while a run goes on."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import equinox as eqx
from rich.console import Console

from rookery import check
from rookery.engines.engine import Program
from rookery.program.algorithm import AbstractAlgorithm
from rookery.remote.protocol.plan import Plan
from rookery.remote.transports.port import Failure, Port, Transport
from rookery.types import Tree


class Monitored(eqx.Module):
    """A transport that tells a console about another one's traffic: a line per client.

    Args:
        transport: what carries the messages.
        console: where to show it.
        names: by client, what to call it; its number if not given.
        every: seconds between two reports.
    """

    transport: Transport
    console: Console = eqx.field(static=True)
    names: Mapping[int, str] = eqx.field(default_factory=dict)
    every: float = 5.0

    def __check_init__(self):
        check.positive("Monitored.every", self.every)

    def open(self, program: Program, algorithm: AbstractAlgorithm, state: Tree, plan: Plan) -> Port:
        """Open the other's port, and watch it."""
        port = self.transport.open(program, algorithm, state, plan)
        names = [self.names.get(c, f"client {c}") for c in range(program.population.n_clients)]
        return _MonitoredPort(port, self.console, names, self.every)


@dataclass
class _Traffic:
    """Of one client."""

    asked: int = 0
    answered: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    down: int = 0
    up: int = 0
    trouble: str = ""


class _MonitoredPort:
    """The port of :class:`Monitored`."""

    def __init__(self, port: Port, console: Console, names: list[str], every: float):
        self._port, self._console, self._names, self._every = port, console, names, every
        self._traffic = [_Traffic() for _ in names]
        self.is_reliable = getattr(port, "is_reliable", False)
        self._last = time.monotonic()

    def alive(self) -> frozenset[int]:
        return self._port.alive()

    def exchange(
        self, step: str, messages: Iterable[tuple[int, bytes]], wait_for: float
    ) -> Iterator[tuple[int, bytes | Failure]]:
        began = time.monotonic()
        if began - self._last > self._every:
            self._report(step)
        for client, arrival in self._port.exchange(step, self._counted(messages), wait_for):
            self._arrived(self._traffic[client], arrival, time.monotonic() - began)
            yield client, arrival

    def close(self) -> None:
        self._report("")
        self._port.close()

    def _counted(self, messages: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
        """The messages as they leave; they may be made one by one."""
        for client, message in messages:
            self._traffic[client].asked += 1
            self._traffic[client].down += len(message)
            yield client, message

    def _arrived(self, traffic: _Traffic, arrival: bytes | Failure, seconds: float) -> None:
        if isinstance(arrival, Failure):
            traffic.trouble = arrival.reason
            return
        traffic.answered += 1
        traffic.seconds += seconds
        traffic.slowest = max(traffic.slowest, seconds)
        traffic.up += len(arrival)
        traffic.trouble = ""

    def _report(self, step: str) -> None:
        self._last = time.monotonic()
        alive = self._port.alive()
        title = f"Before {step.rpartition('.')[2]}" if step else "At the end"
        lines = [f"{title}, {len(alive)} of {len(self._names)} clients alive:"]
        for client, (name, t) in enumerate(zip(self._names, self._traffic, strict=True)):
            mean = 1e3 * t.seconds / max(t.answered, 1)
            lines.append(
                f"  {name}: {t.answered} of {t.asked} answered, in {mean:.0f} ms, at most "
                f"{1e3 * t.slowest:.0f} ms; {_size(t.down)} down, {_size(t.up)} up"
            )
            if trouble := t.trouble or ("" if client in alive else "not reached"):
                lines[-1] += f"; {trouble}"
        self._console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e6:.2f} MB" if nbytes >= 1e5 else f"{nbytes / 1e3:.1f} kB"
