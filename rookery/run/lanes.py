"""Runs side by side: rounds in chunks; between chunks the bar, evaluation and checkpoint."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from rich.console import Console

from rookery._types import Tree
from rookery.engines.compiled import stack
from rookery.engines.engine import AbstractEngine, Program
from rookery.program.algorithm import AbstractAlgorithm
from rookery.program.ledger import Ledger
from rookery.run.book import Book
from rookery.run.describe import describe, fingerprint
from rookery.run.evaluate import AbstractEvaluation
from rookery.run.history import History
from rookery.run.progress import RunProgress

CHUNK_SECONDS = 1.0
"""How long a chunk of rounds should take, so that the bar moves and Ctrl-C is heard."""


@dataclass(frozen=True)
class Job:
    """One run of a sweep: what it does not share with the others.

    Attributes:
        algorithm: the server program.
        start: initial values of the problem's variables.
        seed: of all randomness except the delays.
        directory: where configuration, history and checkpoints are kept; nothing if None.
        title: what the progress bar says.
    """

    algorithm: AbstractAlgorithm
    start: tuple[Tree, ...]
    seed: int = 0
    directory: str | Path | None = None
    title: str = ""


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
    """

    status: str
    rounds: int
    solution: tuple[Tree, ...]
    state: Tree
    history: History
    ledger: Ledger


@dataclass(frozen=True)
class Lanes:
    """The settings that all batches share, and the loop over the rounds of one batch."""

    program: Program
    data_fingerprint: str
    engine: AbstractEngine
    rounds: int
    evaluate: tuple[AbstractEvaluation, ...]
    evaluate_every: int
    checkpoint_every: int
    overwrite: bool
    console: Console

    def run(self, jobs: list[Job], bar: RunProgress) -> list[Result]:
        """All rounds of jobs that share one structure."""
        n = len(jobs)
        runner = self.engine.prepare(self.program, [job.algorithm for job in jobs])
        books, states, done, diverged = self._open(jobs)
        status = ["diverged" if i in diverged else "finished" for i in range(n)]
        ends = [diverged.get(i, self.rounds) for i in range(n)]
        keys = [jax.random.split(jax.random.key(job.seed)) for job in jobs]
        per_second = None

        def measure(only: list[int], round: int):
            solutions = [job.algorithm.solution(s) for job, s in zip(jobs, states, strict=True)]
            at = [jax.random.fold_in(key[1], round) for key in keys]
            numbers = self._evaluate(solutions, at)
            for i in only:
                row = books[i].measure(round, numbers[i])
                bar.measured(row, jobs[i].title or type(jobs[i].algorithm).__name__)

        try:
            if done == 0:
                measure(list(range(n)), 0)
            while alive := [i for i in range(n) if status[i] == "finished" and done < self.rounds]:
                until = min(
                    self.rounds,
                    _next(done, self.evaluate_every),
                    _next(done, self.checkpoint_every),
                )
                chunk = 1 if per_second is None else max(1, int(per_second * CHUNK_SECONDS))
                began, chunk = time.monotonic(), min(until - done, chunk)
                counts = [chunk if i in alive else 0 for i in range(n)]
                progress = runner.advance(states, [key[0] for key in keys], done, counts)
                # the first chunk also compiles, so its time says nothing about the next
                took = max(time.monotonic() - began, 1e-9)
                per_second = chunk / took if per_second is not None else 1e-9
                states = [p.state for p in progress]
                for i in alive:
                    books[i].pay(progress[i].ledgers)
                    if not progress[i].is_finite:
                        status[i], ends[i] = "diverged", done + len(progress[i].ledgers)
                        measure([i], ends[i])
                        books[i].save(ends[i], states[i])
                        books[i].close("diverged", ends[i])
                done += chunk
                bar.advanced(done, per_second * len(alive) if per_second > 1e-6 else None)
                alive = [i for i in alive if status[i] == "finished"]
                if alive and (done % self.evaluate_every == 0 or done == self.rounds):
                    measure(alive, done)
                if alive and (done % self.checkpoint_every == 0 or done == self.rounds):
                    for i in alive:
                        books[i].save(done, states[i])
        except KeyboardInterrupt:
            self.console.print(_interrupted(jobs, done))
            raise
        for i, job in enumerate(jobs):
            books[i].close(status[i], ends[i])
            if status[i] == "diverged":
                self.console.print(
                    f"[bold red]{job.title or type(job.algorithm).__name__} stopped in round "
                    f"{ends[i] - 1}:[/] a value is no longer finite. A smaller step size, or a "
                    "larger lipschitz, is the usual remedy."
                )
        return [
            Result(status[i], ends[i], job.algorithm.solution(states[i]), states[i],
                   books[i].history, books[i].ledger)
            for i, job in enumerate(jobs)
        ]  # fmt: skip

    def _open(self, jobs: list[Job]) -> tuple[list[Book], list[Tree], int, dict[int, int]]:
        """The jobs' books and states, the round they go on from, and where some had diverged."""
        books, states, found = [], [], []
        diverged: dict[int, int] = {}
        for i, job in enumerate(jobs):
            book = Book(None if job.directory is None else Path(job.directory), self.console)
            title = job.title or type(job.algorithm).__name__
            book.open(title, self._configuration(job), self.overwrite)
            states.append(job.algorithm.init(self.program.problem, *job.start))
            found.append({c.round: c for c in book.checkpoints(states[-1])})
            if max(found[-1], default=0) > self.rounds:
                raise ValueError(
                    f"{job.directory} holds {max(found[-1])} rounds already, more than the "
                    f"{self.rounds} asked for. Ask for as many, or choose another directory."
                )
            end = book.diverged_in()
            if end is not None and end in found[-1]:
                diverged[i] = end
            books.append(book)
        going_on = [set(rounds) for i, rounds in enumerate(found) if i not in diverged]
        # a kill between two lanes' writes leaves the newest checkpoint to some of them only
        done = max(set.intersection(*going_on), default=0) if going_on else self.rounds
        for i, book in enumerate(books):
            at = found[i].get(diverged.get(i, done))
            book.go_back_to(at)
            if at is not None:
                states[i] = at.state
        return books, states, done, diverged

    def _evaluate(self, solutions: list, keys: list) -> list[dict[str, float]]:
        numbers = jax.device_get(
            _evaluate(self.evaluate, stack(solutions), self.program.population, jnp.stack(keys))
        )
        return [
            {name: float(values[i]) for name, values in numbers.items()}
            for i in range(len(solutions))
        ]

    def _configuration(self, job: Job) -> dict[str, Any]:
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


@eqx.filter_jit
def _evaluate(evaluations, solutions, population, keys) -> dict[str, jax.Array]:
    def one(lane):
        solution, key = lane
        numbers: dict[str, jax.Array] = {}
        for evaluation in evaluations:
            new = evaluation(solution, population, key)
            if twice := set(numbers) & set(new):
                raise ValueError(
                    f"two evaluations give {sorted(twice)}; set label= on one of them."
                )
            numbers.update(new)
        return numbers

    return jax.lax.map(one, (solutions, keys))


def _next(done: int, every: int) -> int:
    return (done // every + 1) * every


def _interrupted(jobs: list[Job], done: int) -> str:
    if any(job.directory is None for job in jobs):
        return f"Interrupted in round {done}. Runs without a directory kept nothing."
    return (
        f"Interrupted in round {done}. What was done is kept in {jobs[0].directory}"
        f"{' and the others' if len(jobs) > 1 else ''}; the same command goes on from there."
    )
