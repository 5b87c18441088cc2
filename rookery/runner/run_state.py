"""One run: its description, its state while it runs, its result."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

import jax
import numpy as np

from rookery.engines.engine import Event
from rookery.program.algorithm import AbstractAlgorithm
from rookery.program.ledger import Ledger
from rookery.program.polling import async_traces
from rookery.program.step_sizes import scale_steps
from rookery.runner.accountant import NOT_COVERED, AbstractSpending
from rookery.runner.best import Best, Goal, KeepBest, is_better, value_in
from rookery.runner.checkpoint import Checkpoint
from rookery.runner.finite import not_finite_in_state, size_of
from rookery.runner.guard import Good, Guard, GuardState, RollBack
from rookery.runner.history import ClientHistory, History, Row
from rookery.runner.notebook import result_html
from rookery.runner.run_record import GUARD, RunRecord
from rookery.runner.tracker import Tracker
from rookery.types import Key, Tree


class DivergenceWarning(UserWarning):
    """A run ended early because its state is no longer finite, or far larger than its start.

    Turn it into an error with ``warnings.simplefilter("error", rk.stop.DivergenceWarning)``.

    >>> issubclass(DivergenceWarning, UserWarning)
    True
    """


class RollBackWarning(UserWarning):
    """The guard has taken a run back to an earlier state and made its steps smaller.

    Turn it into an error with ``warnings.simplefilter("error", rk.stop.RollBackWarning)``.

    >>> issubclass(RollBackWarning, UserWarning)
    True
    """


class StopRun(Exception):
    """Raised by a callback to end its run; the text becomes ``Result.message``.

    >>> def callback(snapshot):
    ...     if snapshot.metrics.get("loss", 1.0) < 0.01:
    ...         raise StopRun("the loss is small enough")
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

    def keys(self) -> Key:
        """The key of the rounds, and that of the evaluations."""
        return jax.random.split(jax.random.key(self.seed))


@dataclass(frozen=True)
class Result:
    """The outcome of a run.

    Attributes:
        run: the algorithm, start and seed that were run.
        status: ``finished``; ``diverged`` if a round left a value that is not finite, or an
            evaluation found the solution out of scale; or ``stopped`` if a rule of ``stop=``, the
            callback or the guard ended the run.
        rounds: number of rounds done.
        solution: the problem's variables.
        state: the algorithm's state, which contains the solution.
        history: the measurements.
        ledger: the total costs.
        message: for a run that diverged: in which round, which values, and what to try; for one
            that was stopped: why.
        events: roll-backs, and client failures on engines that have them.
        async_traces: for asynchronous algorithms: which client worked when, and on which version.
        per_client: measurements per client, from evaluations with ``per_client=True``.
        kept: what ``keep=`` has kept; see :attr:`best`.
        rollbacks: when and why the guard took the run back to an earlier state.

    >>> import rookery as rk
    >>> zoo = rk.zoo.scalar_bilevel()
    >>> soba = rk.SOBA(outer_lr=0.2, inner_lr=0.3)
    >>> population = rk.Population.stacked(zoo.data)
    >>> result = rk.run(soba, zoo.problem, population, zoo.start, rounds=2)
    >>> result.status, result.rounds, result.ledger.exchanges > 0
    ('finished', 2, True)
    """

    run: Run
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
    kept: Best | None = None
    rollbacks: tuple[RollBack, ...] = ()

    @property
    def step_factor(self) -> float:
        """By what the guard has multiplied all step sizes; 1 if it had nothing to do."""
        return self.rollbacks[-1].factor if self.rollbacks else 1.0

    def __repr__(self) -> str:
        """One line; the solution and the history are too long for a prompt."""
        last = "".join(f", {name} {value:.6g}" for name, value in self.metrics.items())
        return f"<{self.run.name}, seed {self.run.seed}: {self.status}, {self.rounds} rounds{last}>"

    def _repr_html_(self) -> str:
        """For notebooks: status, last values, costs, and the curve of each metric."""
        return result_html(
            self.run.name,
            self.run.seed,
            self.status,
            self.rounds,
            self.message,
            self.history,
            self.ledger,
            self.kept,
        )

    @property
    def best(self) -> Best:
        """The best evaluation, with ``keep=``: ``metric``, ``round``, ``value``, ``solution``."""
        if self.kept is None:
            raise ValueError(
                f"the run of {self.run.name} has kept no best solution. Pass "
                'keep="best:METRIC:max" (or min); a value that is not finite is never the best.'
            )
        return self.kept

    @property
    def metrics(self) -> dict[str, float]:
        """What was measured at the end, by name."""
        return self.history.metrics_of(self.history.rows[-1]) if len(self.history) else {}


Cohorts = tuple[tuple[int, ...], ...]
"""The clients of every exchange of a round, in order."""


@dataclass(frozen=True)
class Snapshot:
    """What a callback sees of a run between two rounds.

    >>> import rookery as rk
    >>> zoo, seen = rk.zoo.scalar_bilevel(), []
    >>> def callback(snapshot: rk.stop.Snapshot):
    ...     seen.append((snapshot.round, snapshot.cohorts[0]))
    ...     return snapshot.round == 2  # True ends the run
    >>> result = rk.run(
    ...     rk.SOBA(outer_lr=0.2, inner_lr=0.3, clients=rk.participation.Fixed([0])),
    ...     zoo.problem,
    ...     rk.Population.stacked(zoo.data),
    ...     zoo.start,
    ...     rounds=9,
    ...     callback=callback,
    ...     callback_every=1,
    ...     engine=rk.Eager(),
    ... )
    >>> result.status, seen
    ('stopped', [(1, (0,)), (2, (0,))])

    Attributes:
        run: which run of the sweep.
        round: number of rounds done.
        state: the algorithm's state after them.
        ledger: the costs so far.
        history: the measurements so far.
        find_cohorts: returns the clients of the last round; see :attr:`cohorts`.
    """

    run: Run
    round: int
    state: Tree
    ledger: Ledger
    history: History
    find_cohorts: Callable[[], Cohorts] = field(repr=False)

    @cached_property
    def cohorts(self) -> Cohorts:
        """The clients of every exchange of the last round, in order.

        The eager and the remote engine record them. The compiled engine does not: reading this
        repeats the round on the eager engine, from the same state and key, which takes as long as
        an eager round does.
        """
        return self.find_cohorts()

    @property
    def metrics(self) -> dict[str, float]:
        """What was measured after this round, by name; empty if it was not an evaluation."""
        rows = self.history.rows
        is_new = bool(rows) and rows[-1]["round"] == self.round
        return self.history.metrics_of(rows[-1]) if is_new else {}

    @property
    def solution(self) -> tuple[Tree, ...]:
        """The problem's variables."""
        return self.run.algorithm.solution(self.state)


Callback = Callable[[Snapshot], bool | np.bool_ | jax.Array | None]
"""Called between rounds; the run ends if it returns True or raises :class:`StopRun`."""


@dataclass
class RunState:
    """A run in progress: new, or read back from its directory."""

    run: Run
    record: RunRecord
    state: Tree
    checkpoints: dict[int, Checkpoint]
    variables: tuple[str, ...]
    evaluate_every: int
    client_names: tuple[str, ...] | None = None
    keep: KeepBest | None = None
    watch: Callable[[Row], str] = lambda row: ""
    growth_limit: float | None = None
    has_budget: bool = False
    guard: Guard | None = None
    known_goals: Mapping[str, Goal] = field(default_factory=dict)
    start_state: Callable[[], Tree] = lambda: None
    spending: AbstractSpending | None = None
    """What a private run spends."""
    guard_state: GuardState | None = None
    """What the guard has seen, or had seen before a guard was left out."""
    status: str = "running"
    round: int = 0
    reason: str = ""
    """Why the run is to stop, or has stopped."""
    is_lent: bool = False
    """Whether someone else may hold arrays of the state: an engine must not overwrite them."""
    replay: Callable[[], Cohorts] | None = None
    """Finds the clients of the last round, if that round was alone in its chunk."""
    cohorts: Cohorts | None = None
    last_evaluated: tuple[int, Tree, Ledger] | None = None
    regular_best: Best | None = None
    """The best of the evaluations that a longer run would also make."""

    @property
    def is_running(self) -> bool:
        """Whether there are rounds left to do."""
        return self.status == "running"

    @property
    def last_round(self) -> float:
        """The round after which a private run has spent what it may; infinity if it never has."""
        is_limited = self.spending is not None and self.spending.last_round < self.spending.rounds
        return self.spending.last_round if is_limited and self.spending else math.inf

    def is_spent(self, done: int) -> bool:
        """Whether the next round after ``done`` would exceed the target of a private run."""
        return done >= self.last_round

    @property
    def spent_reason(self) -> str:
        """Why a private run stops."""
        return "" if self.spending is None else self.spending.reason

    @property
    def is_measured(self) -> bool:
        """Whether the history has a row of the present round."""
        rows = self.record.history.rows
        return bool(rows) and rows[-1]["round"] == self.round

    @property
    def algorithm(self) -> AbstractAlgorithm:
        """The algorithm with its present step sizes."""
        factor = 1.0 if self.guard_state is None else self.guard_state.factor
        return self.run.algorithm if factor == 1.0 else scale_steps(self.run.algorithm, factor)

    def round_key(self, key: Key) -> Key:
        """The key of all rounds since the last roll-back, from that of the run."""
        count = 0 if self.guard_state is None else len(self.guard_state.rollbacks)
        return jax.random.fold_in(key, count) if count else key

    @property
    def lost(self) -> int:
        """How many rounds the run is ahead of its state."""
        return 0 if self.guard_state is None else self.guard_state.lost

    @cached_property
    def scale(self) -> float:
        """The size of the start, but at least 1, by which growth is measured."""
        return max(1.0, size_of(self.run.start))

    def is_out_of_scale(self, state: Tree) -> bool:
        """Whether the solution in a state is too large for the start."""
        if self.growth_limit is None:
            return False
        return size_of(self.run.algorithm.solution(state)) > self.growth_limit * self.scale

    @property
    def message(self) -> str:
        """What went wrong, for a run that diverged; why it ended, for one that was stopped."""
        if self.status == "stopped":
            return self.reason
        if self.status != "diverged":
            return ""
        where = ", ".join(not_finite_in_state(self.state))
        who = f"{self.run.name} (seed {self.run.seed})"
        if where or not self.is_out_of_scale(self.state):
            what = f"{where or 'the state'} is no longer finite"
        else:
            solution = self.run.algorithm.solution(self.state)
            grown = {name: size_of((v,)) for name, v in zip(self.variables, solution, strict=True)}
            name = max(grown, key=grown.__getitem__)
            what = (
                f"{name} has an entry of size {grown[name]:.3g}, more than "
                f"growth_limit={self.growth_limit:.3g} times the start's {self.scale:.3g}"
            )
        return f"{who} diverged in round {self.round}: {what}. {self.run.algorithm.remedy()}"

    @property
    def best(self) -> Best | None:
        """The best evaluation of this run, that at its end included."""
        rows = self.record.history.rows
        if rows and rows[-1]["round"] == self.round and not self._is_regular(rows[-1]):
            return self._better(rows[-1])
        return self.regular_best

    def resume(self, done: int, is_due: Callable[[int], bool]) -> None:
        """Continue from the checkpoint after ``done`` rounds, or start at round 0."""
        checkpoint = self.checkpoints.get(done)
        self.record.cut_back_to(checkpoint, is_due)
        if checkpoint is not None:
            self.state, self.regular_best = checkpoint.state, checkpoint.best
            self.guard_state = checkpoint.guard_state
            self.is_lent = True
        if self.guard is not None and self.guard_state is None:
            solution = self.run.algorithm.solution(self.state)
            self.guard_state = GuardState(Good(done, self.state, done), Good(done, solution))
            self.is_lent = True
        for row in self.record.history.rows:
            self.reason = self.watch(row)
        self.round = done
        self.mark_evaluated()

    def end_again(
        self, done: int, is_due: Callable[[int], bool], status: str, reason: str = ""
    ) -> None:
        """Go to where the run ended before."""
        self.resume(done, is_due)
        self.status, self.reason = status, reason or self.reason
        self.close()

    def check_variables(self) -> str:
        """What the guard finds wrong with the variables, if anything."""
        assert self.guard is not None and self.guard_state is not None
        solution = self.run.algorithm.solution(self.state)
        if self.is_out_of_scale(self.state):
            return f"an entry is larger than growth_limit={self.growth_limit:.3g} times the start's"
        self.is_lent = True
        return self.guard_state.check_variables(
            self.guard, self.round, self.state, solution, self.variables
        )

    def check_metric(self, row: Mapping[str, float], is_last: bool) -> str:
        """What the guard finds wrong with an evaluation, if anything."""
        assert self.guard is not None and self.guard_state is not None
        losses = self.guard.losses(self.known_goals, row)
        if jumped := self.guard_state.check_losses(self.guard, losses):
            return jumped
        metric = self.guard.deciding_metric(self.known_goals, row)
        if metric is None:
            return ""
        self.is_lent = True
        value = row[metric[0]]
        return self.guard_state.check_metric(
            self.guard, metric, value, self.round, self.state, is_last=is_last
        )

    def roll_back(self, reason: str, is_last: bool) -> None:
        """Return to the last good state with smaller steps; stop there if it is once too often."""
        assert self.guard is not None and self.guard_state is not None
        guard_state, guard = self.guard_state, self.guard
        if not is_last:
            guard_state.start_over_if_stuck(self.start_state)
        self.state, self.is_lent = guard_state.good.state, True
        solution = self.run.algorithm.solution(self.state)
        if len(guard_state.rollbacks) < guard.times or is_last:
            one = guard_state.roll_back(guard, self.round, reason, solution)
            text = f"{reason}; back to round {one.to} with steps times {one.factor:.3g}"
        else:
            guard_state.forget(self.round, solution)
            text = guard_state.ended = (
                f"Guard: in round {self.round}, {reason}, after {guard.times} roll-backs (steps "
                f"times {guard_state.factor:.3g}). The run has returned to its state of round "
                f"{guard_state.good.round} and stopped. {self.run.algorithm.remedy()}"
            )
            self.reason, self.status = text, "stopped"
        self.record.note(Event(self.round, GUARD, None, text))

    def judge(self) -> None:
        """Take note of the newest row: whether it is the best, and whether to stop."""
        row = self.record.history.rows[-1]
        if self._is_regular(row):
            self.regular_best = self._better(row)
        self.reason = self.watch(row)
        self.mark_evaluated()

    def mark_evaluated(self) -> None:
        """Remember the present state as the one last measured, if the run may return to it."""
        if self.has_budget:
            self.last_evaluated = self.round, self.state, self.record.ledger
            self.is_lent = True

    def end_at_last_evaluation(self, status: str, reason: str) -> None:
        """End with the state last measured: the rounds since then exceed a budget."""
        assert self.last_evaluated is not None
        self.round, self.state, self.record.ledger = self.last_evaluated
        self.status, self.reason = status, reason
        self.record.remove_checkpoints_after(self.round)

    def save(self) -> None:
        """Write a checkpoint."""
        self.save_as(self.round, self.state)

    def save_as(self, round: int, state: Tree) -> None:
        """Write a checkpoint of a state after some rounds."""
        self.record.save(round, state, self.regular_best, self.guard_state)

    def leave_solution(self) -> None:
        """Write the solution, the clients' own leaves and the best solution, if there are any."""
        best = self.best
        if self.status != "diverged":
            algorithm, names = self.run.algorithm, self.variables
            solution, own = algorithm.solution(self.state), algorithm.own_leaves(self.state)
            if own is not None:
                self.record.leave_own(own, solution, names, self.client_names, self.round)
            self.record.leave("last", solution, names, self.round)
        if best is not None:
            self.record.leave("best", best.solution, self.variables, best.round)

    def close(self) -> None:
        """Write the solution and the summary."""
        self.leave_solution()
        best = self.best
        note = {}
        if best is not None:
            note["best"] = {"metric": best.metric, "round": best.round, "value": best.value}
        if self.guard_state is not None:
            note["rollbacks"] = [asdict(one) for one in self.guard_state.rollbacks]
        if self.spending is not None:
            note["privacy"] = {
                "epsilon": self.spending.epsilon(self.round),
                "releases": self.spending.releases(self.round),
                "not_covered": NOT_COVERED,
            }
        self.record.close(self.status, self.round, self.message, async_traces(self.state), note)

    def snapshot(self) -> Snapshot:
        """The present state, for a callback."""
        record, cohorts, replay = self.record, self.cohorts, self.replay

        def find() -> Cohorts:
            if cohorts is not None:
                return cohorts
            if replay is None:
                raise ValueError(
                    "the cohorts of this round were not recorded. Pass callback_every=1."
                )
            return replay()

        self.is_lent = True
        return Snapshot(self.run, self.round, self.state, record.ledger, record.history, find)

    def result(self) -> Result:
        """The outcome."""
        return Result(
            run=self.run,
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
            kept=self.best,
            rollbacks=() if self.guard_state is None else tuple(self.guard_state.rollbacks),
        )

    def _is_regular(self, row: Row) -> bool:
        return row["round"] % self.evaluate_every == 0

    def _better(self, row: Row) -> Best | None:
        """The best so far, or the present solution if this row, its own, is better."""
        if self.keep is None:
            return None
        value, best = value_in(row, self.keep.metric), self.regular_best
        if not is_better(self.keep.goal, value, math.nan if best is None else best.value):
            return best
        self.is_lent = True
        return Best(self.keep.metric, row["round"], value, self.run.algorithm.solution(self.state))
