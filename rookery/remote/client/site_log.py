"""The site's log: what has left the site, what it refused, and which errors it had.

Append-only JSON lines, flushed to the disk before a reply leaves. The log never leaves the site: it
has the text of errors, of which the server learns only the kind and a reference.
"""

import json
import math
import os
import secrets
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

NAME = "log.jsonl"
"""The file's name in the site's folder."""

Record = dict[str, Any]  # from JSON
"""One line: time, client, event, and what the event has to tell."""


class SiteLog:
    """A log that several threads of one process append to.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = SiteLog(Path(folder))
    ...     log.append("refused", client=1, step="gradient", reason="too many requests")
    ...     [record["reason"] for record in read(log.file)]
    ['too many requests']

    Args:
        folder: where the log is; made if it does not exist.
    """

    def __init__(self, folder: str | Path):
        self.file = Path(folder) / NAME
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()

    def append(self, event: str, **content: object) -> None:
        """Add a line; it is on the disk when this returns.

        Args:
            event: ``sent``, ``repeated``, ``not_finite``, ``refused``, ``failed``, ``error`` or
                ``joined``.
            content: what there is to tell.
        """
        record = {"time": time.time(), "event": event, **content}
        line = json.dumps(record) + "\n"
        with self._lock, self.file.open("ab") as file:
            if file.tell() and not _ends_a_line(self.file):
                file.write(b"\n")  # the last write was interrupted
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())

    def error(self, step: str, error: Exception, **content: object) -> str:
        """Add an error with its text; returns what the server may know of it.

        Args:
            step: what was being done.
            error: the error.
            content: what else there is to tell.
        """
        reference, kind = secrets.token_hex(4), type(error).__name__
        text = "".join(traceback.format_exception(error))
        self.append("error", step=step, reference=reference, kind=kind, text=text, **content)
        return f"{kind} at the site; its log has the text, reference {reference}"


def read(file: str | Path) -> Iterator[Record]:
    """The records of a log; a line that an interrupted write has broken is skipped."""
    with Path(file).open("rb") as lines:
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and isinstance(record.get("event"), str):
                yield record


@dataclass
class Traffic:
    """What left under one step's name.

    Attributes:
        replies: how many replies.
        shapes: types and shapes of their arrays.
        largest_norm: the largest Euclidean norm of a reply.
        nbytes: bytes of the messages.
    """

    replies: int = 0
    shapes: set[str] = field(default_factory=set)
    largest_norm: float = 0.0
    nbytes: int = 0


@dataclass
class Summary:
    """The totals of a log.

    Attributes:
        first, last: when the log begins and ends; None if it is empty.
        traffic: by client and step.
        epsilon: by client, the last one known; None if it is not known.
        not_finite: by client, how many replies were not finite: noise left in their place.
        refused: how often, by client, step and reason; requests that failed are counted too.
        errors: reference, client and kind of each.
        joined: name and content hash of each study.
    """

    first: datetime | None = None
    last: datetime | None = None
    traffic: dict[tuple[int, str], Traffic] = field(default_factory=dict)
    epsilon: dict[int, float | None] = field(default_factory=dict)
    not_finite: dict[int, int] = field(default_factory=dict)
    refused: dict[tuple[int, str, str], int] = field(default_factory=dict)
    errors: list[tuple[str, int, str]] = field(default_factory=list)
    joined: list[tuple[str, str]] = field(default_factory=list)


def summarise(file: str | Path) -> Summary:
    """The totals of a log; raises ``ValueError`` if a record is not one of a site's log."""
    summary = Summary()
    for record in read(file):
        try:
            _add(summary, record)
        except (KeyError, TypeError, ValueError, OverflowError, OSError) as error:
            raise ValueError(f"{file} is not a site's log: {error!r} in {record}") from None
    return summary


# a record comes from JSON: what has the wrong type raises above
def _add(summary: Summary, record: Record) -> None:
    at = datetime.fromtimestamp(record["time"], UTC)
    summary.first, summary.last = summary.first or at, at
    client, step = int(record.get("client", -1)), str(record.get("step", ""))
    match record["event"]:
        case "sent" | "repeated":
            traffic = summary.traffic.setdefault((client, step), Traffic())
            traffic.replies += 1
            traffic.nbytes += int(record["bytes"])
            if record["event"] == "sent":
                traffic.shapes |= {str(shape) for shape in record["shapes"]}
                traffic.largest_norm = max(traffic.largest_norm, float(record["norm"]))
                if record["shapes"]:
                    epsilon = record["epsilon"]
                    summary.epsilon[client] = None if epsilon is None else float(epsilon)
        case "not_finite":
            summary.not_finite[client] = summary.not_finite.get(client, 0) + 1
        case "refused" | "failed":
            key = client, step, str(record["reason"])
            summary.refused[key] = summary.refused.get(key, 0) + 1
        case "error":
            summary.errors.append((str(record["reference"]), client, str(record["kind"])))
        case "joined":
            summary.joined.append((str(record["study"]), str(record["hash"])))


def spent(file: Path) -> dict[int, float]:
    """By client, the zCDP of all that has left; infinite where a reply had no noise."""
    total: dict[int, float] = {}
    for record in read(file) if file.exists() else ():
        client, rho = record.get("client"), record.get("rho")
        if record["event"] == "sent" and isinstance(client, int) and record.get("shapes"):
            cost = float(rho) if isinstance(rho, int | float) else math.inf
            total[client] = total.get(client, 0.0) + cost
    return total


def request_times(file: Path, since: float) -> dict[int, list[float]]:
    """By client, the times of the requests in the log, after a given time."""
    times: dict[int, list[float]] = {}
    for record in read(file) if file.exists() else ():
        client, at = record.get("client"), record.get("time")
        # a request with an error also "failed", one that is not finite was also "sent"
        is_request = record["event"] not in ("error", "not_finite")
        if is_request and isinstance(client, int) and isinstance(at, int | float) and at > since:
            times.setdefault(client, []).append(float(at))
    return times


def _ends_a_line(file: Path) -> bool:
    with file.open("rb") as end:
        end.seek(-1, os.SEEK_END)
        return end.read(1) == b"\n"
