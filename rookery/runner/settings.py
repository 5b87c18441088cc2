"""What all runs of a sweep share, and how a run is opened under these settings."""

from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
from rich.console import Console

from rookery.engines.engine import AbstractEngine, Program
from rookery.program.algorithm import first_state
from rookery.program.ledger import Ledger
from rookery.runner.describe import describe, fingerprint
from rookery.runner.metrics import AbstractEvaluation
from rookery.runner.run_record import RunRecord
from rookery.runner.run_state import Callback, Run, RunState


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

    def is_evaluation_due(self, round: int) -> bool:
        """Whether to measure after this many rounds."""
        return round % self.evaluate_every == 0 or round == self.rounds

    def is_callback_due(self, round: int) -> bool:
        """Whether to call back after this many rounds."""
        is_due = round % self.callback_every == 0 or round == self.rounds
        return self.callback is not None and is_due

    def next_stop(self, done: int) -> int:
        """The next round after which something is due."""
        periods = [self.evaluate_every, self.checkpoint_every]
        if self.callback is not None:
            periods.append(self.callback_every)
        return min(self.rounds, *((done // every + 1) * every for every in periods))

    def is_over_budget(self, ledger: Ledger) -> bool:
        """Whether a run has used more virtual seconds than it may."""
        return self.seconds is not None and ledger.seconds > self.seconds

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
            "float": str(jnp.zeros(()).dtype),
        }

    def open(self, run: Run) -> RunState:
        """Start a run, or read back what its directory holds."""
        record = RunRecord(None if run.directory is None else Path(run.directory), self.console)
        n_clients = self.program.population.n_clients
        state = first_state(run.algorithm, self.program.problem, n_clients, run.start)
        with record.locked():
            record.open(run.name, self.configuration(run), self.overwrite)
            checkpoints = {c.round: c for c in record.checkpoints(state)}
            self._check_length(run, checkpoints)
            opened = RunState(run, record, state, checkpoints)
            diverged = record.diverged_after()
            if diverged in checkpoints:
                opened.resume(diverged, lambda _: True)
                opened.status = record.status = "diverged"
            return opened

    def _check_length(self, run: Run, checkpoints: dict) -> None:
        if max(checkpoints, default=0) > self.rounds:
            raise ValueError(
                f"{run.directory} already holds {max(checkpoints)} rounds, more than "
                f"rounds={self.rounds}. Raise rounds, or choose another directory."
            )
        if any(self.is_over_budget(checkpoint.ledger) for checkpoint in checkpoints.values()):
            raise ValueError(
                f"{run.directory} already holds a run of more virtual seconds than "
                f"seconds={self.seconds}. Raise seconds, or choose another directory."
            )
