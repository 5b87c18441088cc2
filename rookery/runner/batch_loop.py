"""Runs side by side: rounds in chunks; between chunks the bar, evaluation and checkpoint."""

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console

from rookery.engines.compiled import stack
from rookery.engines.engine import AbstractEngine, Program, Progress, Stopped
from rookery.program.algorithm import first_state
from rookery.program.ledger import Ledger
from rookery.runner.describe import describe, fingerprint
from rookery.runner.interrupt import Interrupt
from rookery.runner.metrics import AbstractEvaluation, evaluate_all
from rookery.runner.progress import RunProgress
from rookery.runner.run_record import RunRecord
from rookery.runner.run_state import Run, RunState

CHUNK_SECONDS = 1.0
"""How long a chunk of rounds should take, so that the bar moves and Ctrl-C is heard."""


@dataclass(frozen=True)
class BatchLoop:
    """The settings that all batches share, and the loop over the rounds of one batch."""

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

    def open(self, job: Run) -> RunState:
        """Begin a job, or read back what its directory has of it."""
        book = RunRecord(None if job.directory is None else Path(job.directory), self.console)
        n_clients = self.program.population.n_clients
        state = first_state(job.algorithm, self.program.problem, n_clients, job.start)
        lane = RunState(job, book, state, {}, end=self.rounds)
        with book.locked():
            return self._opened(lane)

    def _opened(self, lane: RunState) -> RunState:
        job, book, state = lane.job, lane.book, lane.state
        book.open(lane.name, self._configuration(job), self.overwrite)
        lane.found = {c.round: c for c in book.checkpoints(state)}
        if max(lane.found, default=0) > self.rounds:
            raise ValueError(
                f"{job.directory} holds {max(lane.found)} rounds already, more than the "
                f"{self.rounds} asked for. Ask for as many, or choose another directory."
            )
        if any(self._is_late(checkpoint.ledger) for checkpoint in lane.found.values()):
            raise ValueError(
                f"{job.directory} holds a run that has gone on for longer than the "
                f"{self.seconds} seconds asked for. Ask for more, or choose another directory."
            )
        end = book.diverged_in()
        if end is not None and end in lane.found:
            lane.status, lane.end, lane.state = "diverged", end, lane.found[end].state
            book.status = lane.status
            book.go_back_to(lane.found[end], lambda _: True)
        return lane

    def starts(self, lanes: list[RunState]) -> list[tuple[int, list[RunState]]]:
        """BatchLoop that are not at their end, by the round that they can go on from together."""
        going_on = [lane for lane in lanes if lane.status == "finished"]
        if not going_on:
            return []
        # a kill between two lanes' writes leaves the newest checkpoint to some of them only
        common = set.intersection(*(set(lane.found) for lane in going_on))
        if common:
            return [(max(common), going_on)]
        newest: dict[int, list[RunState]] = {}
        for lane in going_on:
            newest.setdefault(max(lane.found, default=0), []).append(lane)
        return list(newest.items())

    def held(self, lanes: list[RunState]) -> ExitStack:
        """Have the lanes' directories to ourselves, and their trackers started, until the end."""
        with ExitStack() as started:
            for lane in lanes:
                started.enter_context(lane.book.locked())
                if lane.job.tracker is not None:
                    configuration = self._configuration(lane.job)
                    started.enter_context(
                        lane.book.tracked(lane.job.tracker, lane.name, configuration)
                    )
            return started.pop_all()

    def run(self, lanes: list[RunState], done: int, width: int, bar: RunProgress) -> None:
        """All rounds after ``done`` of lanes that share one structure.

        BatchLoop that are missing to the width are filled with a copy that runs no round.
        """

        def filled(values: list, with_value: Any = None) -> list:
            more = values[-1] if with_value is None else with_value
            return values + [more] * (width - len(values))

        for lane in lanes:
            found = lane.found.get(done)
            lane.book.go_back_to(found, self._is_due)
            lane.state = lane.state if found is None else found.state
            lane.is_over = done == self.rounds
            lane.remember(done)
        algorithms = filled([lane.job.algorithm for lane in lanes])
        runner = self.engine.prepare(self.program, algorithms)
        runner.follow(lambda lane, event: lanes[lane].book.note(event))
        keys = [jax.random.split(jax.random.key(lane.job.seed)) for lane in lanes]
        per_second = None
        with closing(runner), Interrupt() as interrupt:
            if fresh := [lane for lane in lanes if not len(lane.book.history)]:
                self._measure(fresh, lanes, keys, done, bar)
            while alive := [lane for lane in lanes if not lane.is_over]:
                until = min(
                    self.rounds,
                    _next(done, self.evaluate_every),
                    _next(done, self.checkpoint_every),
                )
                chunk = 1 if per_second is None else max(1, int(per_second * CHUNK_SECONDS))
                began, chunk = time.monotonic(), min(until - done, chunk)
                counts = [0 if lane.is_over else chunk for lane in lanes]
                states = filled([lane.state for lane in lanes])
                round_keys = filled([key[0] for key in keys])
                try:
                    progress = runner.advance(states, round_keys, done, filled(counts, 0))
                except Stopped as stopped:
                    self._keep(lanes, stopped.progress, done)
                    raise
                # the first chunk also compiles, so its time says nothing about the next
                took = max(time.monotonic() - began, 1e-9)
                per_second = chunk / took if per_second is not None else 1e-9
                for lane, new in zip(lanes, progress, strict=False):  # the fillers come last
                    lane.state = new.state
                    lane.book.pay(new.ledgers)
                    if not new.is_finite:
                        lane.status, lane.end = "diverged", done + len(new.ledgers)
                        lane.is_over = True
                done += chunk
                bar.advanced(done, per_second * len(alive) if per_second > 1e-6 else None)
                for lane in (a for a in alive if a.status == "diverged"):
                    self._measure([lane], lanes, keys, lane.end, bar)
                    lane.book.save(lane.end, lane.state)
                    lane.close()
                    lane.book.say(lane.message)
                if self._is_due(done):
                    for lane in alive:
                        if not lane.is_over and self._is_late(lane.book.ledger):
                            lane.go_back()
                            lane.book.save(lane.end, lane.state)
                alive = [lane for lane in alive if not lane.is_over]
                if alive and self._is_due(done):
                    self._measure(alive, lanes, keys, done, bar)
                    for lane in alive:
                        lane.remember(done)
                        lane.is_over = done == self.rounds
                is_asked = interrupt.is_asked
                is_due = done % self.checkpoint_every == 0 or is_asked
                for lane in alive:
                    if is_due or lane.is_over:
                        lane.book.save(done, lane.state)
                if is_asked:
                    self.console.print(_interrupted(lanes, done), markup=False)
                    raise KeyboardInterrupt
        for lane in lanes:
            lane.close()

    def _keep(self, lanes: list[RunState], progress: Sequence[Progress], done: int) -> None:
        """Write down the rounds that an engine did before it had to stop."""
        for lane, new in zip(lanes, progress, strict=False):
            if new.ledgers and new.is_finite:
                lane.book.pay(new.ledgers)
                lane.book.save(done + len(new.ledgers), new.state)

    def _is_late(self, ledger: Ledger) -> bool:
        return self.seconds is not None and ledger.seconds > self.seconds

    def _is_due(self, round: int) -> bool:
        return round % self.evaluate_every == 0 or round == self.rounds

    def _measure(
        self, some: list[RunState], lanes: list[RunState], keys: list, round: int, bar: RunProgress
    ) -> None:
        """Evaluate all lanes, in one call of one shape, and note the numbers of some."""
        solutions = [lane.job.algorithm.solution(lane.state) for lane in lanes]
        at = _fold_in_all(jnp.stack([key[1] for key in keys]), round)
        numbers = self._evaluate(solutions, at)
        for i, lane in enumerate(lanes):
            if lane.status == "diverged":  # an argmax of NaN would pass for an accuracy
                numbers[i] = dict.fromkeys(numbers[i], math.nan)
            if any(lane is one for one in some):
                bar.measured(lane.book.measure(round, numbers[i]), lane.name)

    def _evaluate(self, solutions: list, keys: jax.Array) -> list[dict[str, float]]:
        numbers = jax.device_get(
            evaluate_all(self.evaluate, stack(solutions), self.program.population, keys)
        )
        return [
            {name: float(values[i]) for name, values in numbers.items()}
            for i in range(len(solutions))
        ]

    def _configuration(self, job: Run) -> dict[str, Any]:
        people = self.program.population
        counts = zip(people.splits, people.counts, strict=True)
        return {
            "algorithm": describe(job.algorithm),
            "problem": describe(self.program.problem),
            "population": {
                "clients": people.n_clients,
                "rows": {split: int(c.sum()) for split, c in counts},
                "fingerprint": self.data_fingerprint,
            },
            "start": fingerprint(job.start),
            "clock": describe(self.program.clock),
            "aggregate": describe(self.program.aggregate),
            "seed": job.seed,
            "evaluate": describe(list(self.evaluate)),
            "evaluate_every": self.evaluate_every,
            "float": str(jnp.zeros(()).dtype),
        }


_fold_in_all = jax.jit(jax.vmap(jax.random.fold_in, (0, None)))


def _next(done: int, every: int) -> int:
    return (done // every + 1) * every


def _interrupted(lanes: list[RunState], done: int) -> str:
    if any(lane.job.directory is None for lane in lanes):
        return f"Interrupted after round {done}. Runs without a directory kept nothing."
    return (
        f"Interrupted after round {done}. What was done is kept in {lanes[0].job.directory}"
        f"{' and the others' if len(lanes) > 1 else ''}; the same command goes on from there."
    )
