"""What one run has measured and paid, and the directory that keeps it if there is one."""

import json
import platform
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from rookery._types import Tree
from rookery.program.ledger import Ledger
from rookery.run.checkpoint import Checkpoint, load_all, save
from rookery.run.history import History, HistoryFile, replace_file, to_json

FORMAT = 1
"""Of a run directory; raised when an older one can no longer be read."""


@dataclass
class Book:
    """The history and the ledger of one run."""

    directory: Path | None
    console: Console
    history: History = field(default_factory=History)
    ledger: Ledger = field(default_factory=Ledger)
    began: float = field(default_factory=time.monotonic)

    def open(self, title: str, configuration: dict[str, Any], overwrite: bool) -> None:
        """Make the directory this run's own, or raise if it is another's."""
        if self.directory is None:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / "config.json"
        if overwrite:
            for old in [*self.directory.glob("checkpoints/*"), *self.directory.glob("*.json*")]:
                old.unlink()
        if path.exists():
            before = read_config(self.directory)
            differing = [k for k in configuration if before["run"].get(k) != configuration[k]]
            if differing:
                raise ValueError(
                    f"{self.directory} holds a run with another {', '.join(differing)}. "
                    "Choose another directory, or overwrite it."
                )
            return
        content = {
            "format": FORMAT,
            "title": title,
            "run": configuration,
            "versions": versions(),
        }
        replace_file(path, json.dumps(content, indent=2).encode())

    def checkpoints(self, like: Tree) -> list[Checkpoint]:
        """The good checkpoints, newest first; a damaged one is passed over, and it says so."""
        if self.directory is None:
            return []
        found, warnings = load_all(self.directory / "checkpoints", like)
        for warning in warnings:
            self.console.print(f"[yellow]Warning:[/] {warning}")
        return found

    def diverged_in(self) -> int | None:
        """After how many rounds the run is known to have diverged, if it has."""
        path = None if self.directory is None else self.directory / "summary.json"
        if path is None or not path.exists():
            return None
        summary = json.loads(path.read_text(encoding="utf-8"))
        return summary["rounds"] if summary["status"] == "diverged" else None

    def go_back_to(self, found: Checkpoint | None) -> None:
        """Cut the history back to a checkpoint, or to nothing."""
        if self.directory is None:
            return
        history, broken = self._file().read()
        if broken:
            self.console.print(f"[yellow]Warning:[/] {broken}")
        if found is None:
            self._file().keep(History())
            return
        self.ledger = found.ledger
        self.history = History([row for row in history if row["round"] <= found.round])
        self._file().keep(self.history)
        self.console.print(f"Going on from round {found.round} in {self.directory}.")

    def measure(self, round: int, numbers: dict[str, float]) -> dict[str, Any]:
        """Add a row: the round, the costs so far and the measured numbers."""
        row = {"round": round, **self.ledger.as_dict(), **numbers}
        self.history.rows.append(row)
        if self.directory is not None:
            self._file().append(row)
            # kept apart from the history, which two runs of one seed must have in common
            timing = {"round": round, "wall_seconds": time.monotonic() - self.began}
            HistoryFile(self.directory / "timing.jsonl").append(timing)
        return row

    def pay(self, ledgers: list[Ledger]) -> None:
        """Add the costs of some rounds."""
        self.ledger = sum(ledgers, start=self.ledger)

    def save(self, done: int, state: Tree) -> None:
        """Write a checkpoint."""
        if self.directory is not None:
            save(self.directory / "checkpoints", Checkpoint(done, state, self.ledger))

    def close(self, status: str, done: int) -> None:
        """Write the summary."""
        if self.directory is None:
            return
        summary = {
            "status": status,
            "rounds": done,
            **self.ledger.as_dict(),
            "last": to_json(self.history.rows[-1]) if len(self.history) else {},
        }
        path = self.directory / "summary.json"
        replace_file(path, json.dumps(summary, indent=2).encode())

    def _file(self) -> HistoryFile:
        assert self.directory is not None
        return HistoryFile(self.directory / "history.jsonl")


def versions() -> dict[str, str]:
    """Of everything that numbers may depend on."""
    packages = {name: version(name) for name in ("rookery", "jax", "equinox", "numpy")}
    return {**packages, "python": platform.python_version(), "machine": platform.machine()}


def read_config(directory: Path) -> dict[str, Any]:
    """The configuration that a run directory holds, or an error that says what is wrong."""
    path = directory / "config.json"
    if not path.exists():
        raise ValueError(f"{directory} is not a run directory: it has no config.json.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if content.get("format") != FORMAT:
        raise ValueError(
            f"{directory} was written in format {content.get('format')} (rookery "
            f"{content.get('versions', {}).get('rookery', 'unknown')}); this rookery reads format "
            f"{FORMAT}. Run the experiment again, or read it with the version that wrote it."
        )
    return content
