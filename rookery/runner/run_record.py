"""The measurements and costs of one run, and the directory that keeps them if there is one."""

import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Literal, NotRequired, TypedDict

from rich.console import Console

from rookery.engines.engine import Event
from rookery.program.ledger import Ledger, total
from rookery.runner.atomic_file import replace_file
from rookery.runner.best import Best, Goal
from rookery.runner.checkpoint import Checkpoint, has_checkpoints, load_all, remove_after, save
from rookery.runner.documents import Json, read_document, require_no_links
from rookery.runner.guard import GuardState
from rookery.runner.history import ClientHistory, History, HistoryFile, Row, RowsDigest, to_json
from rookery.runner.lock import locked
from rookery.runner.solution_file import remove_solutions, save_own, save_solution
from rookery.runner.tracker import Tracker
from rookery.types import Tree

FORMAT = 1
"""Version of the run directory; raised when older directories can no longer be read."""
GUARD = "guard"
"""What events call the guard, in place of a client step."""
LINES = ("history", "per_client", "timing", "events")
MEASURED = ("history", "per_client")
"""The files whose rows a resumed run must find as it left them."""
DOCUMENTS = ("config", "summary", "async_traces", "diagnosis")


class _Run(TypedDict):
    algorithm: dict
    seed: int
    float: str


class _Config(TypedDict):
    format: int
    title: str
    run: _Run
    versions: dict[str, str]
    goals: NotRequired[dict[str, Goal]]


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
    _files: dict[str, HistoryFile] = field(default_factory=dict)
    _digests: dict[str, RowsDigest] = field(default_factory=dict)
    _identity: bytes = b""
    """What the digests of the rows begin with: the configuration, so that no other run's fit."""

    def locked(self) -> AbstractContextManager[None]:
        """Keep other processes out of the directory."""
        if self.directory is None:
            return nullcontext()
        require_no_links(self.directory)
        return locked(self.directory, self.say)

    def open(
        self,
        title: str,
        configuration: dict[str, object],
        overwrite: bool,
        goals: Mapping[str, Goal],
    ) -> None:
        """Set up the directory, or check that it belongs to this run.

        Args:
            title: of the run, for reports.
            configuration: what makes it this run.
            overwrite: discard what the directory holds.
            goals: which way metrics are better, as far as it is known; for reports.
        """
        if self.directory is None:
            return
        path = self.directory / "config.json"
        self._identity = json.dumps(configuration, sort_keys=True).encode()
        if overwrite:
            remove_after(self.directory / "checkpoints", -1)
            remove_solutions(self.directory)
            for name in (*(f"{n}.jsonl" for n in LINES), *(f"{n}.json" for n in DOCUMENTS)):
                (self.directory / name).unlink(missing_ok=True)
        if os.path.lexists(path):
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
        if self._file().path.exists() or has_checkpoints(self.directory / "checkpoints"):
            raise ValueError(
                f"{self.directory} holds a run without its config.json: what was run is not known. "
                "Restore the file, choose another directory, or pass overwrite=True (--overwrite)."
            )
        content = {
            "format": FORMAT,
            "title": title,
            "run": configuration,
            "versions": versions(),
            "goals": dict(goals),
        }
        replace_file(path, json.dumps(content, indent=2).encode())

    def checkpoints(self, like: Tree, solution: tuple[Tree, ...]) -> list[Checkpoint]:
        """The checkpoints that can be resumed, newest first; warns of those that cannot.

        A checkpoint is usable if it is undamaged and the measurements of before are what they were.
        """
        if self.directory is None:
            return []
        found, warnings = load_all(self.directory / "checkpoints", like, solution)
        read = {name: self._file(name).read() for name in MEASURED}
        for warning in [*warnings, *(broken for _, broken in read.values() if broken)]:
            self.say(f"Warning: {warning}")
        good = []
        for one in found:
            changed = [
                name
                for name, had in (("history", one.history), ("per_client", one.per_client))
                if RowsDigest(self._identity, read[name][0].rows[: had.rows]).extent != had
            ]
            if not changed:
                good.append(one)
                continue
            self.say(
                f"Warning: {changed[0]}.jsonl in {self.directory} has lost or changed rows since "
                f"the checkpoint of round {one.round}; the checkpoint is skipped."
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
        events, broken = self._file("events").read()
        if broken:
            self.say(f"Warning: {broken}")
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
        self._digests[name] = RowsDigest(self._identity, rows)

    def _append(self, name: str, rows: list[Row]) -> None:
        """Write the last of some rows; all of them if the file is not what this run has written."""
        if self.directory is None:
            return
        self._digest(name).add(rows[-1])
        if not self._file(name).append(rows[-1]):
            self.say(
                f"Warning: {self._file(name).path} was changed or deleted while the run wrote to "
                "it; it is written again."
            )
            self._file(name).rewrite(rows)

    def _rows_until(self, name: str, round: int, is_due: Callable[[int], bool]) -> list[Row]:
        rows, _ = self._file(name).read()
        kept: dict[tuple[int, str | None], Row] = {}
        for row in rows:
            if row["round"] <= round and is_due(row["round"]):
                # a round has one row, of each client metric; a checkpoint vouches for the first
                metric = row["metric"] if name == "per_client" else None
                kept.setdefault((row["round"], metric), row)
        return list(kept.values())

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
            self._append("history", self.history.rows)
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
            self._append("per_client", self.per_client.rows)

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

    def save(
        self, done: int, state: Tree, best: Best | None, guard_state: GuardState | None
    ) -> None:
        """Write a checkpoint."""
        if self.directory is not None:
            history, per_client = (self._digest(name).extent for name in MEASURED)
            now = Checkpoint(done, state, self.ledger, history, per_client, best, guard_state)
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
        return self._files.setdefault(name, HistoryFile(self.directory / f"{name}.jsonl"))

    def _digest(self, name: str) -> RowsDigest:
        return self._digests.setdefault(name, RowsDigest(self._identity))


def versions() -> dict[str, str]:
    """The versions of everything that the numbers may depend on."""
    packages = {name: version(name) for name in ("rookery", "jax", "equinox", "numpy")}
    return {**packages, "python": platform.python_version(), "machine": platform.machine()}


def read_config(directory: Path) -> dict[str, Json]:
    """The ``config.json`` of a run directory, or an error that says what is wrong with it."""
    path = directory / "config.json"
    if not os.path.lexists(path):
        raise ValueError(f"{directory} is not a run directory: it has no config.json.")
    remedy = "Restore it from a copy, or run again with another directory or --overwrite."
    content = read_document(path, dict, remedy)
    if content.get("format") == FORMAT:
        return read_document(path, _Config, remedy)
    writer = content.get("versions")
    writer = writer.get("rookery", "unknown") if isinstance(writer, Mapping) else "unknown"
    raise ValueError(
        f"{directory} was written in format {content.get('format')} (rookery {writer}); this "
        f"rookery reads format {FORMAT}. Run the experiment again, or read it with the version "
        "that wrote it."
    )
