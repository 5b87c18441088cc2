"""The measurements and costs of one run, and the directory that keeps them if there is one."""

import json
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from rookery.engines.engine import Event
from rookery.program.ledger import Ledger, total
from rookery.runner.best import Best
from rookery.runner.checkpoint import Checkpoint, load_all, remove_after, save
from rookery.runner.guard import Watch
from rookery.runner.history import ClientHistory, History, HistoryFile, Row, replace_file, to_json
from rookery.runner.lock import locked
from rookery.runner.solution_file import remove_solutions, save_own, save_solution
from rookery.runner.tracker import Tracker
from rookery.types import Tree

FORMAT = 1
"""Version of the run directory; raised when older directories can no longer be read."""
GUARD = "guard"
"""What events call the guard, in place of a client step."""
LINES = ("history", "per_client", "timing", "events")
DOCUMENTS = ("config", "summary", "async_traces", "diagnosis")


@dataclass
class RunRecord:
    """The history, the ledger and the events of one run, in memory and in its directory."""

    directory: Path | None
    console: Console
    history: History = field(default_factory=History)
    per_client: ClientHistory = field(default_factory=ClientHistory)
    ledger: Ledger = field(default_factory=Ledger)
    began: float = field(default_factory=time.monotonic)
    tracker: Tracker | None = None
    events: list[Event] = field(default_factory=list)
    status: str | None = None
    """How the run ended; None while it runs."""
    spent: Callable[[int], dict[str, float]] = lambda round: {}
    """What the run has spent besides, by name: the privacy of a private run."""

    def locked(self) -> AbstractContextManager[None]:
        """Keep other processes out of the directory."""
        return nullcontext() if self.directory is None else locked(self.directory, self.say)

    def open(self, title: str, configuration: dict[str, object], overwrite: bool) -> None:
        """Set up the directory, or check that it belongs to this run."""
        if self.directory is None:
            return
        path = self.directory / "config.json"
        if overwrite:
            remove_after(self.directory / "checkpoints", -1)
            remove_solutions(self.directory)
            for name in (*(f"{n}.jsonl" for n in LINES), *(f"{n}.json" for n in DOCUMENTS)):
                (self.directory / name).unlink(missing_ok=True)
        if path.exists():
            before = read_config(self.directory)
            differing = [k for k in configuration if before["run"].get(k) != configuration[k]]
            if differing:
                raise ValueError(
                    f"{self.directory} holds a run with another {', '.join(differing)}. "
                    "Choose another directory, or pass overwrite=True (--overwrite)."
                )
            now = versions()
            changed = {k: v for k, v in before["versions"].items() if now.get(k) != v}
            if changed:
                self.say(
                    f"Warning: {self.directory} was started with {changed}, and this is "
                    f"{ {k: now.get(k) for k in changed} }. The last digits may differ."
                )
            return
        content = {
            "format": FORMAT,
            "title": title,
            "run": configuration,
            "versions": versions(),
        }
        replace_file(path, json.dumps(content, indent=2).encode())

    def checkpoints(self, like: Tree, solution: tuple[Tree, ...]) -> list[Checkpoint]:
        """The checkpoints that can be resumed, newest first; warns of those that cannot.

        A checkpoint is usable if it is undamaged and the history still has all rows it had then.
        """
        if self.directory is None:
            return []
        found, warnings = load_all(self.directory / "checkpoints", like, solution)
        history, broken = self._file().read()
        for warning in [*warnings, *([broken] if broken else [])]:
            self.say(f"Warning: {warning}")
        good = [c for c in found if c.rows <= sum(row["round"] <= c.round for row in history)]
        for short in (c for c in found if c not in good):
            self.say(
                f"Warning: the history in {self.directory} ends before the checkpoint of round "
                f"{short.round}; the checkpoint is skipped."
            )
        return good

    def say(self, text: str) -> None:
        """Print a message literally: a path may contain what a console takes for markup."""
        self.console.print(text, markup=False, highlight=False)

    def rows_until(self, round: int, is_due: Callable[[int], bool]) -> list[Row]:
        """The rows of the history on disk that a resumed run keeps."""
        return [] if self.directory is None else self._rows_until("history", round, is_due)

    def remove_checkpoints_after(self, round: int) -> None:
        """Remove the checkpoints of rounds that the run has given up."""
        if self.directory is not None:
            remove_after(self.directory / "checkpoints", round)

    def remove_solutions(self) -> None:
        """Remove the solution of an earlier, shorter run: this one continues."""
        if self.directory is not None:
            remove_solutions(self.directory)

    def leave(
        self,
        which: Literal["last", "best"],
        solution: tuple[Tree, ...],
        variables: tuple[str, ...],
        round: int,
    ) -> None:
        """Write a solution as a file of its own."""
        if self.directory is not None:
            save_solution(self.directory, which, solution, variables, round)

    def leave_own(
        self,
        own: tuple[Tree, ...],
        solution: tuple[Tree, ...],
        variables: tuple[str, ...],
        clients: tuple[str, ...] | None,
        round: int,
    ) -> None:
        """Write the clients' own leaves as a file of their own."""
        if self.directory is not None:
            save_own(self.directory, own, solution, variables, clients, round)

    def cut_back_to(self, checkpoint: Checkpoint | None, is_due: Callable[[int], bool]) -> None:
        """Drop everything recorded after a checkpoint; without one, everything.

        Args:
            checkpoint: where to resume.
            is_due: whether a run of the present length measures after a round. A shorter run also
                measured at its end, and that row is dropped.
        """
        if self.directory is None:
            return
        round = 0 if checkpoint is None else checkpoint.round
        remove_after(self.directory / "checkpoints", round)
        events, _ = self._file("events").read()
        kept = [row for row in events if row["step"] != GUARD or 0 < row["round"] <= round]
        self._rewrite("events", kept)
        if checkpoint is None:
            self._rewrite("history", [])
            self._rewrite("per_client", [])
            return
        self.ledger = checkpoint.ledger
        self.history = History(self._rows_until("history", round, is_due))
        self._rewrite("history", self.history.rows)
        self.per_client = ClientHistory(self._rows_until("per_client", round, is_due))
        self._rewrite("per_client", self.per_client.rows)
        self.say(f"Resuming from round {round} in {self.directory}.")

    def _rewrite(self, name: str, rows: list[Row]) -> None:
        if rows or self._file(name).path.exists():
            self._file(name).rewrite(rows)

    def _rows_until(self, name: str, round: int, is_due: Callable[[int], bool]) -> list[Row]:
        rows, _ = self._file(name).read()
        return [row for row in rows if row["round"] <= round and is_due(row["round"])]

    @contextmanager
    def tracked(
        self, tracker: Tracker, title: str, configuration: dict[str, object]
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

    def measure(self, round: int, numbers: dict[str, float]) -> dict[str, float]:
        """Add a row: the round, the costs so far and the measured numbers."""
        costs = {"round": round, **self.ledger.as_dict(), **self.spent(round)}
        if taken := sorted(set(costs) & set(numbers)):
            raise ValueError(
                f"a metric cannot be called {', '.join(taken)}: the costs have a column of that "
                "name. Rename the metric."
            )
        row = {**costs, **numbers}
        self.history.rows.append(row)
        if self.directory is not None:
            self._file().append(row)
            # kept apart from the history, which must be equal for two runs of one seed
            timing = {"round": round, "wall_seconds": time.monotonic() - self.began}
            self._file("timing").append(timing, is_synced=False)
        if self.tracker is not None:
            self.tracker.log(row)
        return row

    def measure_clients(self, round: int, metrics: Mapping[str, dict[str, float]]) -> None:
        """Add a row per metric with one number per client, by name.

        Called before :meth:`measure`: a history with a row then has its clients' rows too.
        """
        for metric, clients in metrics.items():
            row = {"round": round, "metric": metric, "clients": clients}
            self.per_client.rows.append(row)
            if self.directory is not None:
                self._file("per_client").append(row)

    def add_costs(self, ledgers: list[Ledger]) -> None:
        """Add the costs of some rounds."""
        self.ledger = total(ledgers, self.ledger)

    def note(self, event: Event, client: str | None = None) -> None:
        """Record an event at once, with the client's name; resuming does not remove a failure."""
        self.events.append(event)
        if self.directory is not None:
            row = asdict(event) if client is None else {**asdict(event), "name": client}
            self._file("events").append(row)
        who = "" if client is None else f", {client}"
        self.say(f"Round {event.round}, {event.step}{who}: {event.reason}")

    def save(self, done: int, state: Tree, best: Best | None, watched: Watch | None) -> None:
        """Write a checkpoint."""
        if self.directory is not None:
            now = Checkpoint(done, state, self.ledger, len(self.history), best, watched)
            save(self.directory / "checkpoints", now)

    def close(
        self,
        status: str,
        done: int,
        message: str,
        async_traces: Mapping[str, Mapping[str, object]],
        note: Mapping[str, object],
    ) -> None:
        """Write the summary, with a note, and, for an asynchronous run, who worked when."""
        self.status = status
        if self.directory is None:
            return
        summary = {
            "status": status,
            "rounds": done,
            "message": message,
            **self.ledger.as_dict(),
            **note,
            "last": to_json(self.history.rows[-1]) if len(self.history) else {},
        }
        path = self.directory / "summary.json"
        replace_file(path, json.dumps(summary, indent=2).encode())
        if async_traces:
            replace_file(self.directory / "async_traces.json", json.dumps(async_traces).encode())

    def _file(self, name: str = "history") -> HistoryFile:
        assert self.directory is not None
        return HistoryFile(self.directory / f"{name}.jsonl")


def versions() -> dict[str, str]:
    """The versions of everything that the numbers may depend on."""
    packages = {name: version(name) for name in ("rookery", "jax", "equinox", "numpy")}
    return {**packages, "python": platform.python_version(), "machine": platform.machine()}


def read_config(directory: Path) -> dict[str, Any]:  # decoded JSON
    """The ``config.json`` of a run directory, or an error that says what is wrong with it."""
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
