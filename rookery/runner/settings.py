"""What all runs of a sweep share, and how a run is opened under these settings."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
from rich.console import Console

from rookery.engines.engine import AbstractEngine, Program
from rookery.program.algorithm import first_state
from rookery.program.ledger import LEDGER_FIELDS, Ledger
from rookery.program.privacy import Private
from rookery.program.row_privacy import RowPrivate
from rookery.runner.accountant import AbstractSpending, spending
from rookery.runner.best import Goal, KeepBest
from rookery.runner.checkpoint import Checkpoint
from rookery.runner.describe import describe, fingerprint
from rookery.runner.finite import not_finite_in_state
from rookery.runner.guard import Guard
from rookery.runner.history import EPSILON, Row
from rookery.runner.metrics import AbstractEvaluation
from rookery.runner.row_accountant import row_spending
from rookery.runner.run_record import RunRecord
from rookery.runner.run_state import Callback, Run, RunState
from rookery.runner.stop import AbstractRule, Budget, any_of
from rookery.types import Tree


@dataclass(frozen=True)
class SweepSettings:
    """The arguments of :func:`rookery.sweep`, checked and with defaults filled in."""

    program: Program
    data_fingerprint: str
    engine: AbstractEngine
    rounds: int
    seconds: float | None
    evaluate: tuple[AbstractEvaluation, ...]
    evaluate_every: int
    checkpoint_every: int
    overwrite: bool
    console: Console
    callback: Callback | None
    callback_every: int
    stop: tuple[AbstractRule, ...]
    keep: KeepBest | None
    growth_limit: float | None
    guard: Guard | None

    def is_evaluation_due(self, round: int) -> bool:
        """Whether to measure after this many rounds."""
        return round % self.evaluate_every == 0 or round == self.rounds

    def is_callback_due(self, round: int) -> bool:
        """Whether to call back after this many rounds."""
        is_due = round % self.callback_every == 0 or round == self.rounds
        return self.callback is not None and is_due

    def is_checkpoint_due(self, round: int) -> bool:
        """Whether to save after this many rounds.

        Within a budget a run ends at an evaluation, and can be resumed from one only.
        """
        is_possible = not self.has_budget or self.is_evaluation_due(round)
        return round % self.checkpoint_every == 0 and is_possible

    def is_check_due(self, round: int) -> bool:
        """Whether the guard looks at the variables after this many rounds."""
        if self.guard is None:
            return False
        every = self.guard.every or self.evaluate_every
        return round % every == 0 or round == self.rounds

    def next_stop(self, done: int) -> int:
        """The next round after which something is due."""
        periods = [self.evaluate_every, self.checkpoint_every]
        if self.callback is not None:
            periods.append(self.callback_every)
        if self.guard is not None and self.guard.every is not None:
            periods.append(self.guard.every)
        return min(self.rounds, *((done // every + 1) * every for every in periods))

    @property
    def has_budget(self) -> bool:
        """Whether a run may have to return to its last evaluation."""
        return self.seconds is not None or any(isinstance(rule, Budget) for rule in self.stop)

    def over_budget(self, ledger: Ledger) -> tuple[str, str] | None:
        """The status and the reason of a run that has spent more than it may; None if it may."""
        if self.seconds is not None and ledger.seconds > self.seconds:
            return "finished", ""
        reasons = [rule.overspent(ledger) for rule in self.stop]
        return next((("stopped", reason) for reason in reasons if reason), None)

    def configuration(self, run: Run) -> dict[str, object]:
        """A JSON-ready description: a run directory is resumed only if it is unchanged."""
        population = self.program.population
        counts = zip(population.splits, population.counts, strict=True)
        return {
            "algorithm": describe(run.algorithm),
            "problem": describe(self.program.problem),
            "population": {
                "clients": population.n_clients,
                "rows": {split: int(c.sum()) for split, c in counts},
                "fingerprint": self.data_fingerprint,
            },
            "start": fingerprint(run.start),
            "clock": describe(self.program.clock),
            "aggregate": describe(self.program.aggregate),
            "seed": run.seed,
            "evaluate": describe(list(self.evaluate)),
            "evaluate_every": self.evaluate_every,
            "keep": None if self.keep is None else [self.keep.metric, self.keep.goal],
            "float": str(jnp.zeros(()).dtype),
        }

    def open(self, run: Run) -> RunState:
        """Start a run, or read back what its directory holds."""
        record = RunRecord(None if run.directory is None else Path(run.directory), self.console)
        population = self.program.population
        # of a population on disk, what clients remember is in host memory
        host = jax.local_devices(backend="cpu")[0] if population.is_on_disk else None
        with record.locked(), jax.default_device(host):

            def start_state() -> Tree:
                with jax.default_device(host):
                    return first_state(
                        run.algorithm, self.program.problem, population.n_clients, run.start
                    )

            state = start_state()
            goals: dict[str, Goal] = {}
            for evaluation in self.evaluate:
                goals |= evaluation.goals()
            record.open(run.name, self.configuration(run), self.overwrite, goals)
            checkpoints = record.checkpoints(state, run.algorithm.solution(state))
            found = {checkpoint.round: checkpoint for checkpoint in checkpoints}
            rows = record.rows_until(max(found, default=0), self.is_evaluation_due)
            self._check_length(run, max(found, default=0), rows)
            spends = self._spending(run, state)
            if spends is not None:
                record.spent = lambda round: {EPSILON: spends.epsilon(round)}
            opened = RunState(
                run,
                record,
                state,
                {r: c for r, c in found.items() if self._can_resume(c)},
                variables=self.program.problem.variables,
                evaluate_every=self.evaluate_every,
                client_names=self.program.population.names,
                keep=self.keep,
                watch=any_of(self.stop),
                growth_limit=self.growth_limit,
                has_budget=self.has_budget,
                guard=self.guard,
                spending=spends,
                start_state=start_state,
                known_goals=goals,
            )
            self._end_again(opened, rows)
            done = max(opened.checkpoints, default=0)
            if done and opened.is_running and opened.is_spent(done):
                opened.end_again(done, lambda _: True, "stopped", opened.spent_reason)
            return opened

    def _spending(self, run: Run, state: Tree) -> AbstractSpending | None:
        """What a private run will spend."""
        match run.algorithm:
            case Private() as algorithm:
                return spending(self.program, algorithm, state, run.keys()[0], self.rounds)
            case RowPrivate() as algorithm:
                return row_spending(self.program, algorithm, state, run.keys()[0], self.rounds)
            case _:
                return None

    def _can_resume(self, checkpoint: Checkpoint) -> bool:
        """Whether a run of these settings would come back to this checkpoint."""
        is_measured = self.is_evaluation_due(checkpoint.round)
        return not self.has_budget or (is_measured and self.over_budget(checkpoint.ledger) is None)

    def _check_length(self, run: Run, done: int, rows: Sequence[Row]) -> None:
        """Raise if a directory holds a run that went further than these settings allow."""
        if done > self.rounds:
            raise ValueError(
                f"{run.directory} already holds {done} rounds, more than rounds={self.rounds}. "
                "Raise rounds, or choose another directory."
            )
        watch = any_of(self.stop)
        for row in rows:
            if self.over_budget(Ledger(**{name: row[name] for name in LEDGER_FIELDS})):
                raise ValueError(
                    f"{run.directory} already holds a run that spent more than it may by "
                    f"seconds={self.seconds} and stop. Raise the budget, or choose another "
                    "directory."
                )
            if (reason := watch(row)) and row["round"] < done:
                raise ValueError(
                    f"{run.directory} already holds {done} rounds, and stop ends the run after "
                    f"{row['round']}. {reason} Change stop, or choose another directory."
                )

    def _end_again(self, opened: RunState, rows: Sequence[Row]) -> None:
        """Bring back the end of a run that has diverged or stopped before; there is no work left.

        It is found from the newest checkpoint, so that a kill before the summary does no harm.
        """
        done = max(opened.checkpoints, default=None)
        if done is None:
            return
        state = opened.checkpoints[done].state
        if not_finite_in_state(state):
            opened.end_again(done, lambda _: True, "diverged")  # with the row of that round
            return
        guard_state = opened.checkpoints[done].guard_state
        if self.guard is not None and guard_state is not None and guard_state.ended:
            opened.end_again(done, lambda _: True, "stopped", guard_state.ended)
            return
        if not rows or rows[-1]["round"] != done:
            return  # nothing is decided between evaluations
        watch = any_of(self.stop)
        reason = [watch(row) for row in rows][-1]
        if opened.is_out_of_scale(state):
            opened.end_again(done, self.is_evaluation_due, "diverged")
        elif reason and done < self.rounds:
            opened.end_again(done, self.is_evaluation_due, "stopped")
