"""The measurements of a run: a table in memory, JSON lines on disk."""

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from rookery import check
from rookery.program.ledger import LEDGER_FIELDS
from rookery.runner.atomic_file import replace_file, sync_directory, with_name
from rookery.runner.documents import parse, require_file

EPSILON = "epsilon"
"""The column of private runs that tells how much privacy they have spent."""
COSTS = ("round", *LEDGER_FIELDS, EPSILON)
"""Columns that are not measured."""

Row = dict[str, Any]  # the columns have types of their own
"""A line of a table: the round and what was measured; None for a number that was not finite."""


class _Rows:
    """Rows of measurements, in the order in which they were made."""

    def __init__(self, rows: list[Row] | None = None):
        self.rows: list[Row] = list(rows or [])

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)


class History(_Rows):
    """Rows of named numbers, in the order they were measured.

    >>> history = History([{"round": 0, "loss": 2.0}, {"round": 10, "loss": 1.0}])
    >>> history["loss"].tolist(), history.last("loss")
    ([2.0, 1.0], 1.0)
    """

    def __getitem__(self, name: str) -> np.ndarray:
        """One column; NaN where a row lacks it or the value was not finite."""
        if name not in self.names:
            raise KeyError(f"no column {name!r}; there are {', '.join(self.names)}.")
        values = [row.get(name) for row in self.rows]
        return np.array([np.nan if v is None else v for v in values], float)

    @property
    def names(self) -> list[str]:
        """The columns, in the order of their first appearance."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def last(self, name: str) -> float:
        """The newest value of a column."""
        return float(self[name][-1])

    def metrics_of(self, row: Row) -> dict[str, float]:
        """What a row measured: all but the round and the costs."""
        own = {name: v for name, v in row.items() if name not in COSTS}
        return {name: math.nan if v is None else v for name, v in own.items()}

    def to_table(self) -> dict[str, np.ndarray]:
        """One array per column, which pandas, polars and Arrow turn into a table.

        Counts are integers. A number that is missing or not finite is NaN.

        >>> table = History([{"round": 0, "loss": 2.0}, {"round": 10, "loss": None}]).to_table()
        >>> table["round"].tolist(), table["loss"].tolist()
        ([0, 10], [2.0, nan])
        """
        return columns(self.rows)


def columns(rows: Sequence[Row]) -> dict[str, np.ndarray]:
    """Rows as arrays by column: integers, floating-point numbers with NaN for gaps, or objects.

    >>> table = columns([{"n": 1, "x": 0, "who": "Oslo"}, {"n": 2, "x": 0.5, "who": "Lund"}])
    >>> {name: array.dtype.kind for name, array in table.items()}
    {'n': 'i', 'x': 'f', 'who': 'O'}
    """
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _column([row.get(name) for row in rows]) for name in names}


def _column(values: list[object]) -> np.ndarray:
    if any(isinstance(v, bool) or not isinstance(v, int | float | None) for v in values):
        return np.array(values, object)
    if all(isinstance(v, int) for v in values):
        return np.array(values, np.int64)
    return np.array([np.nan if v is None else v for v in values], float)


class ClientHistory(_Rows):
    """Measurements per client: at each evaluation and for each metric one number per client.

    >>> clients = ClientHistory()
    >>> clients.rows.append({"round": 10, "metric": "loss", "clients": {"Lund": 0.5, "Oslo": 0.25}})
    >>> clients.last("loss")
    {'Lund': 0.5, 'Oslo': 0.25}
    >>> clients.of("loss", "Oslo")
    ([10], [0.25])
    """

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics, in the order of their first appearance."""
        return list(dict.fromkeys(row["metric"] for row in self.rows))

    def last(self, metric: str) -> dict[str, float]:
        """The newest values of a metric, by client name."""
        return dict(self._rows_of(metric)[-1]["clients"])

    def of(self, metric: str, client: str) -> tuple[list[int], list[float]]:
        """The rounds and the values of one client."""
        rows = self._rows_of(metric)
        return [row["round"] for row in rows], [row["clients"][client] for row in rows]

    def to_table(self) -> dict[str, np.ndarray]:
        """One row per evaluation, metric and client, as in :meth:`History.to_table`.

        >>> clients = {"Lund": 0.5, "Oslo": 0.25}
        >>> table = ClientHistory([{"round": 9, "metric": "f", "clients": clients}]).to_table()
        >>> table["client"].tolist(), table["value"].tolist()
        (['Lund', 'Oslo'], [0.5, 0.25])
        """
        return columns(
            [
                {"round": row["round"], "metric": row["metric"], "client": name, "value": value}
                for row in self.rows
                for name, value in row["clients"].items()
            ]
        )

    def _rows_of(self, metric: str) -> list[Row]:
        if metric not in self.metrics:
            raise KeyError(
                f"no metric {metric!r} per client; there are {', '.join(self.metrics) or 'none'}."
            )
        return [row for row in self.rows if row["metric"] == metric]


class _Round(TypedDict):
    round: int


class _ClientRow(_Round):
    metric: str
    clients: dict[str, float | None]


class _EventRow(_Round):
    step: str
    client: int | None
    reason: str


class HistoryFile:
    """A file of JSON lines; every row is flushed as it is written.

    Args:
        path: the file. Its name tells what its rows are: of a history (``history.jsonl``), of the
            clients (``per_client.jsonl``), events (``events.jsonl``) or times (``timing.jsonl``).

    >>> import tempfile
    >>> file = HistoryFile(Path(tempfile.mkdtemp(), "timing.jsonl"))
    >>> file.append({"round": 0, "wall_seconds": 1.5})
    True
    >>> file.read()[0].rows
    [{'round': 0, 'wall_seconds': 1.5}]
    """

    def __init__(self, path: Path):
        self.path = path
        self._size = 0

    def read(self) -> tuple[History, str | None]:
        """All rows before the first broken one, and a warning if there is a broken one.

        >>> HistoryFile(Path("nowhere") / "history.jsonl").read()[1] is None
        True
        """
        rows: list[Row] = []
        if not os.path.lexists(self.path):
            return History(), None
        require_file(self.path)
        for number, line in enumerate(self.path.read_bytes().split(b"\n"), start=1):
            if not line:
                continue
            try:
                row = parse(line)
                self._check(row)
            except (ValueError, TypeError):
                return History(rows), (
                    f"{self.path}: line {number} is broken (an interrupted write, or damage); "
                    f"using the {len(rows)} rows before it."
                )
            rows.append(row)
        return History(rows), None

    def rewrite(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Replace the file's content atomically."""
        content = b"".join(map(line_of, rows))
        replace_file(self.path, content)
        self._size = len(content)

    def append(self, row: Mapping[str, object], *, is_synced: bool = True) -> bool:
        """Add one row; returns whether the file was as this object had left it.

        Args:
            row: the row.
            is_synced: whether to wait until the row is on the disk, so that it outlives a power
                failure.
        """
        line, is_new = line_of(row), not self.path.exists()
        try:
            with self.path.open("ab") as file:
                size_before = file.tell()
                file.write(line)
                file.flush()
                if is_synced:
                    os.fsync(file.fileno())
        except OSError as error:
            raise with_name(error, self.path) from error
        if is_new and is_synced:
            sync_directory(self.path.parent)
        is_as_left = size_before == self._size
        self._size = size_before + len(line)
        return is_as_left

    def _check(self, row: object) -> None:
        """Raise unless a row is of the kind that this file has."""
        kinds = {"history": _Round, "per_client": _ClientRow, "events": _EventRow}
        check.typed("the row", row, kinds.get(self.path.stem, _Round))
        assert isinstance(row, Mapping)
        check.count("round", row["round"], least=0)
        if self.path.stem == "history":
            check.typed("the row", row, dict[str, float | None])
            for name in LEDGER_FIELDS:
                check.not_negative(name, row.get(name))


def line_of(row: Mapping[str, object]) -> bytes:
    r"""A row as a line of a file.

    >>> line_of({"round": 3, "loss": math.nan})
    b'{"round": 3, "loss": null}\n'
    """
    return (json.dumps(to_json(row)) + "\n").encode()


@dataclass(frozen=True)
class Extent:
    """How many rows a file had at some time, and a digest of them."""

    rows: int
    sha256: str


NOTHING = Extent(0, "")


class RowsDigest:
    """A running digest of rows: tells later whether they are still what they were.

    >>> digest = RowsDigest(b"", [{"round": 0}])
    >>> digest.add({"round": 10})
    >>> digest.extent == RowsDigest(b"", [{"round": 0}, {"round": 10}]).extent
    True

    Args:
        begin: what else the digest depends on.
        rows: the first rows.
    """

    def __init__(self, begin: bytes, rows: Iterable[Mapping[str, object]] = ()):
        self._sha, self._rows = hashlib.sha256(begin), 0
        for row in rows:
            self.add(row)

    def add(self, row: Mapping[str, object]) -> None:
        """Take one more row."""
        self._sha.update(line_of(row))
        self._rows += 1

    @property
    def extent(self) -> Extent:
        """The rows so far."""
        return Extent(self._rows, self._sha.hexdigest())


def to_json(row: Mapping[str, object]) -> dict[str, object]:
    """A row that JSON can hold: NaN and infinity become null.

    >>> to_json({"loss": math.nan, "clients": {"Lund": math.inf, "Oslo": 1.0}})
    {'loss': None, 'clients': {'Lund': None, 'Oslo': 1.0}}
    """
    return {name: _to_json(value) for name, value in row.items()}


def _to_json(value: object) -> object:
    if isinstance(value, Mapping):
        return to_json(value)
    if isinstance(value, list):
        return [_to_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
