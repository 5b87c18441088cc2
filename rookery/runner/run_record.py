"""What one run has measured and paid, and the directory that keeps it if there is one."""

import json
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from rookery.engines.engine import Event
from rookery.program.ledger import Ledger
from rookery.runner.checkpoint import Checkpoint, load_all, remove_after, save
from rookery.runner.history import History, HistoryFile, replace_file, to_json
from rookery.runner.lock import locked
from rookery.runner.tracker import Tracker
from rookery.types import Tree

FORMAT = 1
"""Of a run directory; raised when an older one can no longer be read."""


@dataclass
class RunRecord:
    """The history and the ledger of one run."""

    directory: Path | None
    console: Console
    history: History = field(default_factory=History)
    ledger: Ledger = field(default_factory=Ledger)
    began: float = field(default_factory=time.monotonic)
    tracker: Tracker | None = None
    events: list[Event] = field(default_factory=list)
    status: str | None = None
    """How the run has ended, once it has."""

    def locked(self) -> AbstractContextManager[None]:
        """Have the directory to ourselves for a while."""
        return nullcontext() if self.directory is None else locked(self.directory, self.say)

    def open(self, title: str, configuration: dict[str, Any], overwrite: bool) -> None:
        """Make the directory this run's own, or raise if it is another's."""
        if self.directory is None:
            return
        path = self.directory / "config.json"
        if overwrite:
            remove_after(self.directory / "checkpoints", -1)
            for name in ("history", "timing", "events"):
                (self.directory / f"{name}.jsonl").unlink(missing_ok=True)
            for name in ("config", "summary", "diary"):
                (self.directory / f"{name}.json").unlink(missing_ok=True)
        if path.exists():
            before = read_config(self.directory)
            differing = [k for k in configuration if before["run"].get(k) != configuration[k]]
            if differing:
                raise ValueError(
                    f"{self.directory} holds a run with another {', '.join(differing)}. "
                    "Choose another directory, or overwrite it."
                )
            now = versions()
            changed = {k: v for k, v in before["versions"].items() if now.get(k) != v}
            if changed:
                self.say(
                    f"Warning: {self.directory} was begun with {changed}; now it is "
                    f"{ {k: now.get(k) for k in changed} }. Last digits may differ."
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
        """The checkpoints to go on from, newest first; a bad one is passed over, and it says so.

        A checkpoint is good if it is whole and the history has all the rows it had then.
        """
        if self.directory is None:
            return []
        found, warnings = load_all(self.directory / "checkpoints", like)
        history, broken = self._file().read()
        for warning in [*warnings, *([broken] if broken else [])]:
            self.say(f"Warning: {warning}")
        good = [c for c in found if c.rows <= sum(row["round"] <= c.round for row in history)]
        for short in (c for c in found if c not in good):
            self.say(
                f"Warning: the history in {self.directory} ends before the checkpoint of round "
                f"{short.round}; it is passed over."
            )
        return good

    def say(self, text: str) -> None:
        """Print a message as it is: paths may hold what a console would take for markup."""
        self.console.print(text, markup=False, highlight=False)

    def diverged_in(self) -> int | None:
        """After how many rounds the run is known to have diverged, if it has."""
        path = None if self.directory is None else self.directory / "summary.json"
        if path is None or not path.exists():
            return None
        summary = json.loads(path.read_text(encoding="utf-8"))
        return summary["rounds"] if summary["status"] == "diverged" else None

    def go_back_to(self, found: Checkpoint | None, is_due: Callable[[int], bool]) -> None:
        """Cut the history and the checkpoints back to one of them, or to nothing.

        Args:
            found: where to go on from.
            is_due: whether a run of the present length measures at a round; one that was shorter
                had measured at its end.
        """
        if self.directory is None:
            return
        remove_after(self.directory / "checkpoints", 0 if found is None else found.round)
        if found is None:
            self._file().keep(History())
            return
        self.ledger = found.ledger
        history, _ = self._file().read()
        until = [row for row in history if row["round"] <= found.round]
        self.history = History([row for row in until if is_due(row["round"])])
        self._file().keep(self.history)
        self.say(f"Going on from round {found.round} in {self.directory}.")

    @contextmanager
    def tracked(
        self, tracker: Tracker, title: str, configuration: dict[str, Any]
    ) -> Iterator[None]:
        """Start a tracker, log to it, and finish it however the run ends."""
        tracker.start(title, configuration)
        self.tracker, otherwise = tracker, "failed"
        try:
            yield
        except KeyboardInterrupt:
            otherwise = "interrupted"
            raise
        finally:
            tracker.finish(self.status or otherwise)

    def measure(self, round: int, numbers: dict[str, float]) -> dict[str, Any]:
        """Add a row: the round, the costs so far and the measured numbers."""
        costs = {"round": round, **self.ledger.as_dict()}
        if taken := sorted(set(costs) & set(numbers)):
            raise ValueError(f"a metric cannot be called {', '.join(taken)}; that is a cost.")
        row = {**costs, **numbers}
        self.history.rows.append(row)
        if self.directory is not None:
            self._file().append(row)
            # kept apart from the history, which two runs of one seed must have in common
            timing = {"round": round, "wall_seconds": time.monotonic() - self.began}
            HistoryFile(self.directory / "timing.jsonl").append(timing)
        if self.tracker is not None:
            self.tracker.log(row)
        return row

    def pay(self, ledgers: list[Ledger]) -> None:
        """Add the costs of some rounds."""
        self.ledger = sum(ledgers, start=self.ledger)

    def note(self, event: Event) -> None:
        """Write down what befell a client, at once; resuming does not take it back."""
        self.events.append(event)
        if self.directory is not None:
            HistoryFile(self.directory / "events.jsonl").append(asdict(event))
        who = "" if event.client is None else f", client {event.client}"
        self.say(f"Round {event.round}, {event.step}{who}: {event.reason}")

    def save(self, done: int, state: Tree) -> None:
        """Write a checkpoint."""
        if self.directory is not None:
            now = Checkpoint(done, state, self.ledger, len(self.history))
            save(self.directory / "checkpoints", now)

    def close(
        self, status: str, done: int, message: str, diaries: dict[str, dict[str, Any]]
    ) -> None:
        """Write the summary, and who worked when if the run was asynchronous."""
        self.status = status
        if self.directory is None:
            return
        summary = {
            "status": status,
            "rounds": done,
            "message": message,
            **self.ledger.as_dict(),
            "last": to_json(self.history.rows[-1]) if len(self.history) else {},
        }
        path = self.directory / "summary.json"
        replace_file(path, json.dumps(summary, indent=2).encode())
        if diaries:
            replace_file(self.directory / "diary.json", json.dumps(diaries).encode())

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
