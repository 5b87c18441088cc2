"""When clients can be reached: models of availability in virtual time.

A client that has delivered its result starts its next job at once if it is available, otherwise as
soon as it is. A client that becomes available waits for the server. Times are seconds since the run
began.
"""

import abc
import csv
import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check

_GOLDEN = (math.sqrt(5) - 1) / 2  # its multiples fill the circle evenly, however many there are


class AbstractAvailability(eqx.Module):
    """When a client that could start now is available.

    >>> isinstance(AlwaysOn(), AbstractAvailability)
    True
    """

    @abc.abstractmethod
    def comes(self, key: jax.Array, client: jax.Array, now: jax.Array) -> jax.Array:
        """The first time, ``now`` or later, at which the client is available."""

    @abc.abstractmethod
    def check(self, n_clients: int) -> None:
        """Raise unless the model fits ``n_clients`` clients."""


class AlwaysOn(AbstractAvailability):
    """Every client is always available.

    >>> AlwaysOn().comes(None, 0, 2.5)
    2.5
    """

    def comes(self, key, client, now):
        """Now."""
        return now

    def check(self, n_clients):
        """Always fits."""


class BernoulliOn(AbstractAvailability):
    """Available with probability p at each attempt; retries every ``retry`` seconds.

    The mean wait is retry * (1 - p) / p seconds.

    >>> BernoulliOn(probability=0.8, retry=10.0).retry
    10.0

    Args:
        probability: p.
        retry: seconds from one attempt to the next.
    """

    probability: float
    retry: float

    def __check_init__(self):
        check.fraction("BernoulliOn.probability", self.probability)
        check.positive("BernoulliOn.retry", self.retry)

    def comes(self, key, client, now):
        """After the attempts that fail."""
        luck = 1 - jax.random.uniform(key, ())  # above 0, at most 1
        return now + self.retry * jnp.floor(jnp.log(luck) / jnp.log1p(-self.probability))

    def check(self, n_clients):
        """Always fits."""


class DiurnalOn(AbstractAvailability):
    """Available for a fixed fraction of every period (a day, say), with a phase per client.

    >>> DiurnalOn(period=86_400.0, fraction=0.3).phases is None
    True

    Args:
        period: seconds.
        fraction: of a period for which the client is available.
        phases: one per client, in periods; None spreads them evenly.
    """

    period: float
    fraction: float = 0.5
    phases: tuple[float, ...] | None = None

    def __check_init__(self):
        check.positive("DiurnalOn.period", self.period)
        check.fraction("DiurnalOn.fraction", self.fraction)
        for phase in self.phases or ():
            check.not_negative("DiurnalOn.phases", phase)

    def comes(self, key, client, now):
        """Now, or when the next available interval begins."""
        phase = jnp.asarray(client).astype(now.dtype) * _GOLDEN
        if self.phases is not None:
            phase = jnp.asarray(self.phases, now.dtype)[client]
        # the available interval is centred at a quarter of the period; counted from its beginning
        passed = (now / self.period + phase - 0.25 + self.fraction / 2) % 1.0
        return jnp.where(passed < self.fraction, now, now + (1 - passed) * self.period)

    def check(self, n_clients):
        """There must be one phase per client."""
        if self.phases is not None and len(self.phases) != n_clients:
            raise ValueError(
                f"DiurnalOn.phases has {len(self.phases)} for {n_clients} clients: give one each."
            )


class TraceOn(AbstractAvailability):
    """Available in the intervals that a file lists; the trace repeats.

    Args:
        path: a CSV file with the header ``client,start,end``. Each line is an interval in which a
            client is available, in seconds.
        period: seconds after which the trace repeats; the latest end if not given.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "trace.csv")
    >>> _ = path.write_text(chr(10).join(["client,start,end", "0,0,10", "1,5,20"]))
    >>> TraceOn(path).period
    20.0
    """

    path: str
    period: float
    starts: jax.Array
    ends: jax.Array
    absent: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, path: str | Path, period: float | None = None):
        intervals = read_trace(path)
        latest = max(end for row in intervals.values() for _, end in row)
        if period is not None and period < latest:
            raise ValueError(f"{path}: the period is {period}, but an interval ends at {latest}.")
        n, most = max(intervals) + 1, max(len(row) for row in intervals.values())

        def table(which: int) -> jax.Array:
            rows = [[interval[which] for interval in intervals.get(i, ())] for i in range(n)]
            return jnp.array([row + [math.inf] * (most - len(row)) for row in rows])

        self.path = str(path)
        self.period = float(latest if period is None else check.positive("period", period))
        self.starts, self.ends = table(0), table(1)
        self.absent = tuple(i for i in range(n) if i not in intervals)

    def comes(self, key, client, now):
        """Now, or when the next interval begins."""
        starts, ends = self.starts[client].astype(now.dtype), self.ends[client].astype(now.dtype)
        passed = now % self.period
        next = jnp.min(jnp.where(ends > passed, jnp.maximum(starts, passed), jnp.inf))
        wait = jnp.where(jnp.isinf(next), self.period + starts[0], next) - passed
        return now + wait

    def check(self, n_clients):
        """Every client must come at some time, and no other."""
        if self.starts.shape[0] > n_clients:
            raise ValueError(
                f"{self.path} names client {self.starts.shape[0] - 1}, "
                f"but there are {n_clients} clients (0 to {n_clients - 1})."
            )
        never = [*self.absent, *range(self.starts.shape[0], n_clients)]
        if never:
            raise ValueError(f"{self.path} has no interval for {_some(never)}: they never come.")


def read_trace(path: str | Path) -> dict[int, list[tuple[float, float]]]:
    """The intervals of each client in a trace file, in the order of time.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "trace.csv")
    >>> _ = path.write_text(chr(10).join(["client,start,end", "0,0,10", "0,15,20"]))
    >>> read_trace(path)
    {0: [(0.0, 10.0), (15.0, 20.0)]}
    """
    intervals: dict[int, list[tuple[float, float, int]]] = {}
    with Path(path).open(newline="", encoding="utf-8") as file:
        lines = csv.reader(file)
        header = [name.strip() for name in next(lines, [])]
        if header != ["client", "start", "end"]:
            raise ValueError(f"{path}, line 1: must be client,start,end, got {','.join(header)!r}.")
        for fields in lines:
            if not any(field.strip() for field in fields):
                continue
            where = f"{path}, line {lines.line_num}"
            client, start, end = _interval(fields, where)
            intervals.setdefault(client, []).append((start, end, lines.line_num))
    if not intervals:
        raise ValueError(f"{path} lists no intervals.")
    for client, rows in intervals.items():
        rows.sort()
        for (_, end, first), (start, _, second) in itertools.pairwise(rows):
            if start < end:
                raise ValueError(
                    f"{path}, lines {first} and {second}: two intervals of client {client} overlap."
                )
    return {client: [(start, end) for start, end, _ in rows] for client, rows in intervals.items()}


def _interval(fields: list[str], where: str) -> tuple[int, float, float]:
    if len(fields) != 3:
        raise ValueError(f"{where}: wanted client,start,end, got {len(fields)} fields.")
    try:
        client, start, end = int(fields[0]), float(fields[1]), float(fields[2])
    except ValueError:
        raise ValueError(f"{where}: {','.join(fields)!r} is not three numbers.") from None
    if client < 0:
        raise ValueError(f"{where}: no client has the number {client}.")
    if not 0 <= start < end < math.inf:
        raise ValueError(f"{where}: an interval needs 0 <= start < end, got {start} to {end}.")
    return client, start, end


def _some(clients: Sequence[int]) -> str:
    more = f" and {len(clients) - 5} more" if len(clients) > 5 else ""
    return f"client {', '.join(map(str, clients[:5]))}{more}"
