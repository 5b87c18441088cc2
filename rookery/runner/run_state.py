"""One run: its description, its state while it runs, its result."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rookery.engines.engine import Event
from rookery.program.algorithm import AbstractAlgorithm
from rookery.program.ledger import Ledger
from rookery.program.polling import async_traces
from rookery.runner.checkpoint import Checkpoint
from rookery.runner.finite import not_finite_in_state
from rookery.runner.history import ClientHistory, History
from rookery.runner.run_record import RunRecord
from rookery.runner.tracker import Tracker
from rookery.types import Tree


class DivergenceWarning(UserWarning):
    """A run ended early because its state is no longer finite.

    Turn it into an error with ``warnings.simplefilter("error", DivergenceWarning)``.
    """


@dataclass(frozen=True)
class Run:
    """One run of a sweep: whatever differs from run to run.

    >>> import rookery as rk
    >>> zoo = rk.zoo.scalar_bilevel()
    >>> runs = [
    ...     rk.Run(rk.FedNest(outer_lr=lr, inner_lr=0.1), zoo.start, seed)
    ...     for lr in (0.1, 0.2) for seed in (0, 1)
    ... ]
    >>> len(runs), runs[-1].seed
    (4, 1)

    Attributes:
        algorithm: the server program.
        start: initial values of the problem's variables.
        seed: seed of all randomness except the delays, which have their own in the clock.
        directory: where to keep configuration, history and checkpoints; None keeps nothing.
        title: name of the run in the progress bar and in reports; the algorithm's name if empty.
        tracker: receives the run's measurements; each run needs its own.
    """

    algorithm: AbstractAlgorithm
    start: tuple[Tree, ...]
    seed: int = 0
    directory: str | Path | None = None
    title: str = ""
    tracker: Tracker | None = None

    @property
    def name(self) -> str:
        """The title, or the algorithm's name."""
        return self.title or self.algorithm.name


@dataclass(frozen=True)
class Result:
    """The outcome of a run.

    Attributes:
        status: ``finished``; ``diverged`` if a round left a value that is not finite; or
            ``stopped`` if the callback ended the run.
        rounds: number of rounds done.
        solution: the problem's variables.
        state: the algorithm's state, which contains the solution.
        history: the measurements.
        ledger: the total costs.
        message: for a run that diverged: in which round, which values, and what to try.
        events: client failures, on engines that have them.
        async_traces: for asynchronous algorithms: which client worked when, and on which version.
        per_client: measurements per client, from evaluations with ``per_client=True``.
    """

    status: str
    rounds: int
    solution: tuple[Tree, ...]
    state: Tree
    history: History
    ledger: Ledger
    message: str = ""
    events: tuple[Event, ...] = ()
    # the traces of asynchronous work are JSON documents, see rookery.program.async_trace
    async_traces: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    per_client: ClientHistory = field(default_factory=ClientHistory)


@dataclass(frozen=True)
class Snapshot:
    """What a callback sees of a run between two rounds.

    Attributes:
        run: which run of the sweep.
        round: number of rounds done.
        state: the algorithm's state after them.
        ledger: the costs so far.
        history: the measurements so far.
        cohorts: the clients of every exchange of the last round, in order, on engines that record
            them (:class:`rookery.Eager`); None on the others.
    """

    run: Run
    round: int
    state: Tree
    ledger: Ledger
    history: History
    cohorts: tuple[tuple[int, ...], ...] | None = None

    @property
    def solution(self) -> tuple[Tree, ...]:
        """The problem's variables."""
        return self.run.algorithm.solution(self.state)


Callback = Callable[[Snapshot], bool | None]
"""Called between rounds; the run ends if it returns True."""


@dataclass
class RunState:
    """A run in progress: new, or read back from its directory."""

    run: Run
    record: RunRecord
    state: Tree
    checkpoints: dict[int, Checkpoint]
    status: str = "running"
    round: int = 0
    cohorts: tuple[tuple[int, ...], ...] | None = None
    last_evaluated: tuple[int, Tree, Ledger] | None = None

    @property
    def is_running(self) -> bool:
        """Whether there are rounds left to do."""
        return self.status == "running"

    @property
    def message(self) -> str:
        """What went wrong, for a run that diverged."""
        if self.status != "diverged":
            return ""
        where = ", ".join(not_finite_in_state(self.state)) or "the state"
        return (
            f"{self.run.name} (seed {self.run.seed}) diverged in round {self.round - 1}: {where} "
            f"is no longer finite. {self.run.algorithm.remedy()}"
        )

    def resume(self, done: int, is_due: Callable[[int], bool]) -> None:
        """Continue from the checkpoint after ``done`` rounds, or start at round 0."""
        checkpoint = self.checkpoints.get(done)
        self.record.cut_back_to(checkpoint, is_due)
        if checkpoint is not None:
            self.state = checkpoint.state
        self.round = done
        self.mark_evaluated()

    def mark_evaluated(self) -> None:
        """Remember the present state as the one last measured."""
        self.last_evaluated = self.round, self.state, self.record.ledger

    def end_at_last_evaluation(self) -> None:
        """Finish with the state last measured: the rounds since then exceed the time budget."""
        assert self.last_evaluated is not None
        self.round, self.state, self.record.ledger = self.last_evaluated
        self.status = "finished"

    def save(self) -> None:
        """Write a checkpoint."""
        self.record.save(self.round, self.state)

    def close(self) -> None:
        """Write the summary."""
        self.record.close(self.status, self.round, self.message, async_traces(self.state))

    def snapshot(self) -> Snapshot:
        """The present state, for a callback."""
        record = self.record
        return Snapshot(
            self.run, self.round, self.state, record.ledger, record.history, self.cohorts
        )

    def result(self) -> Result:
        """The outcome."""
        return Result(
            status=self.status,
            rounds=self.round,
            solution=self.run.algorithm.solution(self.state),
            state=self.state,
            history=self.record.history,
            ledger=self.record.ledger,
            message=self.message,
            events=tuple(self.record.events),
            async_traces=async_traces(self.state),
            per_client=self.record.per_client,
        )
