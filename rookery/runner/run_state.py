"""One run: what is asked for, where it stands, what it has come to."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rookery.engines.engine import Event
from rookery.program.algorithm import AbstractAlgorithm
from rookery.program.ledger import Ledger
from rookery.program.polling import diaries
from rookery.runner.checkpoint import Checkpoint
from rookery.runner.history import History
from rookery.runner.run_record import RunRecord
from rookery.runner.tracker import Tracker
from rookery.types import Tree


@dataclass(frozen=True)
class Run:
    """One run of a sweep: what it does not share with the others.

    Attributes:
        algorithm: the server program.
        start: initial values of the problem's variables.
        seed: of all randomness except the delays.
        directory: where configuration, history and checkpoints are kept; nothing if None.
        title: what the progress bar says.
        tracker: what follows the run, besides its history; each run needs one of its own.
    """

    algorithm: AbstractAlgorithm
    start: tuple[Tree, ...]
    seed: int = 0
    directory: str | Path | None = None
    title: str = ""
    tracker: Tracker | None = None


@dataclass(frozen=True)
class Result:
    """What a run has come to.

    Attributes:
        status: ``finished``, or ``diverged`` if a round left something that is not finite.
        rounds: how many rounds were done.
        solution: the problem's variables.
        state: the algorithm's state, of which the solution is a part.
        history: what was measured.
        ledger: what it cost.
        message: why a run that diverged has stopped, and what to try; empty if it finished.
        events: what befell clients, on engines where something can.
        diaries: of an asynchronous algorithm, by kind of jobs: who worked when on which version.
    """

    status: str
    rounds: int
    solution: tuple[Tree, ...]
    state: Tree
    history: History
    ledger: Ledger
    message: str = ""
    events: tuple[Event, ...] = ()
    diaries: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass
class RunState:
    """A job with its book and its state, begun or read back from its directory."""

    job: Run
    book: RunRecord
    state: Tree
    found: dict[int, Checkpoint]
    status: str = "finished"
    end: int = 0
    is_over: bool = False
    measured: tuple[int, Tree, Ledger] | None = None

    @property
    def name(self) -> str:
        """The job's title, or else its algorithm."""
        return self.job.title or self.job.algorithm.name

    @property
    def message(self) -> str:
        """Why the run has stopped before its last round, if it has."""
        if self.status == "finished":
            return ""
        return (
            f"{self.name} stopped in round {self.end - 1}: a value is no longer finite. "
            f"{self.job.algorithm.remedy()}"
        )

    def remember(self, done: int) -> None:
        """Where the run stands at a measurement."""
        self.measured = done, self.state, self.book.ledger

    def go_back(self) -> None:
        """End the run at its last measurement: what it has done since then came too late."""
        assert self.measured is not None
        self.end, self.state, self.book.ledger = self.measured
        self.is_over = True

    def close(self) -> None:
        """Write the summary."""
        self.book.close(self.status, self.end, self.message, diaries(self.state))

    def result(self) -> Result:
        """What the run has come to."""
        solution, book = self.job.algorithm.solution(self.state), self.book
        return Result(
            self.status, self.end, solution, self.state, book.history, book.ledger, self.message,
            tuple(book.events), diaries(self.state),
        )  # fmt: skip
