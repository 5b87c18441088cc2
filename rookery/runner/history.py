"""The measurements of a run: a table in memory, one JSON line per evaluation on disk."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np


class History:
    """Rows of named numbers, in the order they were measured.

    >>> history = History([{"round": 0, "loss": 2.0}, {"round": 10, "loss": 1.0}])
    >>> history["loss"].tolist(), history.last("loss")
    ([2.0, 1.0], 1.0)
    """

    def __init__(self, rows: list[dict[str, Any]] | None = None):
        self.rows: list[dict[str, Any]] = list(rows or [])

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

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


class HistoryFile:
    """Appends rows to a file, each on a line of its own and flushed at once."""

    def __init__(self, path: Path):
        self.path = path

    def read(self) -> tuple[History, str | None]:
        """All whole rows, and a warning if the file ends in a broken one."""
        rows: list[dict[str, Any]] = []
        if not self.path.exists():
            return History(), None
        for number, line in enumerate(self.path.read_bytes().split(b"\n"), start=1):
            if not line:
                continue
            try:
                rows.append(json.loads(line))
            except ValueError:
                return History(rows), (
                    f"{self.path}: line {number} is broken, as an interrupted write leaves it; "
                    f"using the {len(rows)} rows before it."
                )
        return History(rows), None

    def keep(self, history: History) -> None:
        """Replace the file's content, in one step that cannot be seen half done."""
        text = "".join(_line(row) for row in history)
        replace_file(self.path, text.encode())

    def append(self, row: Mapping[str, Any]) -> None:
        """Add one row."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(row))
            file.flush()


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(to_json(row)) + "\n"


def to_json(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row that JSON can hold: it knows no NaN and no infinity, so both become null."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }


def replace_file(path: Path, content: bytes) -> None:
    """Write under a temporary name, force it to the disk, then rename."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
