"""The run loop: rounds in chunks; between chunks the bar, the evaluation and the checkpoint.

Runs that differ in numbers only (step sizes, seeds, initial values) go side by side, in lanes of
one compiled program. A single run is a sweep of one.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from rich.console import Console

from rookery import _check
from rookery._types import Tree
from rookery.clients.population import Population
from rookery.engines.compiled import Compiled, stack
from rookery.engines.engine import AbstractEngine, Program
from rookery.program.aggregate import Aggregate, Mean
from rookery.program.algorithm import AbstractAlgorithm, numbers_to_arrays
from rookery.program.clock import Clock
from rookery.program.ledger import Ledger
from rookery.run.book import Book
from rookery.run.describe import describe, fingerprint
from rookery.run.evaluate import AbstractEvaluation
from rookery.run.history import History
from rookery.run.progress import SILENT, RunProgress

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


def run(
    algorithm: AbstractAlgorithm,
    problem: Any,
    population: Population,
    start: tuple[Tree, ...],
    *,
    rounds: int,
    seed: int = 0,
    directory: str | Path | None = None,
    title: str = "",
    **settings: Any,
) -> Result:
    """Run an algorithm on a problem.

    With a ``directory`` the run can be killed at any moment and started again with the same call:
    it goes on from its last checkpoint and gives the same numbers, bit for bit.

    Args:
        algorithm: the server program.
        problem: what it solves.
        population: whose data it is.
        start: initial values of the problem's variables.
        rounds: how many rounds.
        seed: of all randomness except the delays.
        directory: where configuration, history and checkpoints are kept; nothing if not given.
        title: what the progress bar says; the algorithm's name if not given.
        settings: as in :func:`sweep`.
    """
    job = Job(algorithm, start, seed, directory, title)
    return sweep([job], problem, population, rounds=rounds, **settings)[0]


def sweep(
    jobs: Sequence[Job],
    problem: Any,
    population: Population,
    *,
    rounds: int,
    evaluate: Sequence[AbstractEvaluation] = (),
    evaluate_every: int = 10,
    checkpoint_every: int | None = None,
    engine: AbstractEngine | None = None,
    clock: Clock | None = None,
    aggregate: Aggregate | None = None,
    lanes: int = 32,
    overwrite: bool = False,
    console: Console | None = None,
) -> list[Result]:
    """Run several jobs on one problem, those of one structure side by side.

    Args:
        jobs: what differs from run to run.
        problem: what they solve.
        population: whose data it is.
        rounds: how many rounds each.
        evaluate: what to measure, before round 0, then every ``evaluate_every`` rounds, and last.
        evaluate_every: rounds between measurements.
        checkpoint_every: rounds between checkpoints; every evaluation if not given.
        engine: where to run; :class:`Compiled` if not given.
        clock: the clients' delays; instant if not given.
        aggregate: what stands for the mean of the clients' replies; their weighted mean if not
            given.
        lanes: the most runs side by side; fewer need less memory.
        overwrite: start afresh in a directory that holds another run.
        console: where to show progress; nowhere if not given.
    """
    _check.count("rounds", rounds)
    _check.count("evaluate_every", evaluate_every)
    _check.count("lanes", lanes)
    checkpoint_every = evaluate_every if checkpoint_every is None else checkpoint_every
    _check.count("checkpoint_every", checkpoint_every)
    clock = clock if clock is not None else Clock()
    clock.check(population.n_clients)
    configured = []
    for job in jobs:
        _check.count("seed", job.seed, least=0)
        job.algorithm.check(problem, population.n_clients)
        start = jax.tree.map(jnp.asarray, tuple(job.start))
        problem.check(start, population.example)
        configured.append(Job(job.algorithm, start, job.seed, job.directory, job.title))
    population = jax.device_put(population)
    loop = _Loop(
        program=Program(problem, population, clock, aggregate if aggregate is not None else Mean()),
        data_fingerprint=fingerprint(population) if any(j.directory for j in jobs) else "",
        engine=engine if engine is not None else Compiled(),
        rounds=rounds,
        evaluate=tuple(evaluate),
        evaluate_every=evaluate_every,
        checkpoint_every=checkpoint_every,
        overwrite=overwrite,
        console=console if console is not None else SILENT,
    )
    batches = _batches(configured, lanes)
    results: dict[int, Result] = {}
    with RunProgress(loop.console, rounds * len(batches)) as bar:
        for number, batch in enumerate(batches):
            bar.begin(_title(configured, batch), number * rounds)
            done = loop.run([configured[i] for i in batch], bar)
            results.update(zip(batch, done, strict=True))
    return [results[i] for i in range(len(jobs))]


def _batches(jobs: Sequence[Job], lanes: int) -> list[list[int]]:
    """Positions of jobs that can share a program, at most ``lanes`` in a batch."""
    groups: dict[Any, list[int]] = {}
    for i, job in enumerate(jobs):
        groups.setdefault(structure(job.algorithm, job.start), []).append(i)
    return [group[i : i + lanes] for group in groups.values() for i in range(0, len(group), lanes)]


def structure(algorithm: AbstractAlgorithm, start: Tree) -> Any:
    """What must be equal for two runs to share one compiled program."""
    numbers, rest = eqx.partition(numbers_to_arrays(algorithm), eqx.is_array)
    shapes = jax.tree.map(lambda a: f"{a.dtype}{a.shape}", (numbers, start))
    return str(jax.tree.structure(shapes)), str(jax.tree.leaves(shapes)), str(rest)


def _title(jobs: Sequence[Job], batch: Sequence[int]) -> str:
    titles = dict.fromkeys(jobs[i].title or type(jobs[i].algorithm).__name__ for i in batch)
    name = next(iter(titles)) + (" ..." if len(titles) > 1 else "")
    return name if len(batch) == 1 else f"{name} ({len(batch)} runs)"


@dataclass(frozen=True)
class _Loop:
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
        books, states, done = self._open(jobs)
        status = ["finished"] * n
        ends = [self.rounds] * n
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
            while done < max(ends):
                alive = [i for i in range(n) if ends[i] > done]
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

    def _open(self, jobs: list[Job]) -> tuple[list[Book], list[Tree], int]:
        """The jobs' books, and the newest round that all of them can go on from."""
        books, states, found = [], [], []
        for job in jobs:
            book = Book(None if job.directory is None else Path(job.directory), self.console)
            title = job.title or type(job.algorithm).__name__
            book.open(title, self._configuration(job), self.overwrite)
            states.append(job.algorithm.init(self.program.problem, *job.start))
            found.append({c.round: c for c in book.checkpoints(states[-1])})
            books.append(book)
        common = set.intersection(*(set(rounds) for rounds in found))
        done = max((r for r in common if r <= self.rounds), default=0)
        for i, book in enumerate(books):
            book.go_back_to(found[i].get(done))
            if done:
                states[i] = found[i][done].state
        return books, states, done

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
