"""The run loop: rounds in chunks; between chunks the bar, the evaluation and the checkpoint."""

import json
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from rich.console import Console

from rookery import _check
from rookery._types import Tree
from rookery.clients.population import Population
from rookery.engines.compiled import Compiled
from rookery.engines.engine import AbstractEngine, Program
from rookery.program.aggregate import Aggregate, Mean
from rookery.program.algorithm import AbstractAlgorithm
from rookery.program.clock import Clock
from rookery.program.ledger import Ledger
from rookery.run import checkpoint as checkpoints
from rookery.run.describe import describe, fingerprint
from rookery.run.evaluate import AbstractEvaluation
from rookery.run.history import History, HistoryFile, replace_file, to_json
from rookery.run.progress import SILENT, RunProgress

CHUNK_SECONDS = 1.0
"""How long a chunk of rounds should take, so that the bar moves and Ctrl-C is heard."""


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
    evaluate: Sequence[AbstractEvaluation] = (),
    evaluate_every: int = 10,
    engine: AbstractEngine | None = None,
    clock: Clock | None = None,
    aggregate: Aggregate | None = None,
    directory: str | Path | None = None,
    checkpoint_every: int | None = None,
    overwrite: bool = False,
    title: str | None = None,
    console: Console | None = None,
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
        evaluate: what to measure, before round 0, then every ``evaluate_every`` rounds, and last.
        evaluate_every: rounds between measurements.
        engine: where to run; :class:`Compiled` if not given.
        clock: the clients' delays; instant if not given.
        aggregate: what stands for the mean of the clients' replies; their weighted mean if not
            given.
        directory: where configuration, history and checkpoints are kept; nothing if not given.
        checkpoint_every: rounds between checkpoints; every evaluation if not given.
        overwrite: start afresh in a directory that holds another run.
        title: what the progress bar says; the algorithm's name if not given.
        console: where to show progress; nowhere if not given.
    """
    _check.count("rounds", rounds)
    _check.count("seed", seed, least=0)
    _check.count("evaluate_every", evaluate_every)
    if checkpoint_every is not None:
        _check.count("checkpoint_every", checkpoint_every)
    clock = clock if clock is not None else Clock()
    start = jax.tree.map(jnp.asarray, tuple(start))
    algorithm.check(problem, population.n_clients)
    problem.check(start, population.example)
    clock.check(population.n_clients)
    population = jax.device_put(population)
    program = Program(algorithm, problem, population, clock, aggregate or Mean())
    console = console or SILENT
    runner = (engine if engine is not None else Compiled()).prepare(program)

    book = _Book(None if directory is None else Path(directory), console)
    state, done = algorithm.init(problem, *start), 0
    book.open(_configuration(program, start, seed, evaluate, evaluate_every), overwrite)
    if (found := book.resume(state)) is not None:
        done, state = found.round, found.state
    round_key, evaluation_key = jax.random.split(jax.random.key(seed))
    per_second = None
    checkpoint_every = checkpoint_every or evaluate_every

    def measure():
        key = jax.random.fold_in(evaluation_key, done)
        numbers = _evaluate(tuple(evaluate), algorithm.solution(state), population, key)
        row = {"round": done, **book.ledger.as_dict(), **{k: float(v) for k, v in numbers.items()}}
        book.add(row)
        bar.measured(row)

    status = "finished"
    with RunProgress(console, title or type(algorithm).__name__, done, rounds) as bar:
        try:
            if done == 0 and not len(book.history):
                measure()
            while done < rounds:
                until = min(rounds, _next(done, evaluate_every), _next(done, checkpoint_every))
                chunk = 1 if per_second is None else max(1, int(per_second * CHUNK_SECONDS))
                began, n = time.monotonic(), min(until - done, chunk)
                progress = runner.advance(state, round_key, done, n)
                state, done = progress.state, done + len(progress.ledgers)
                # the first chunk also compiles, so its time says nothing about the next
                took = time.monotonic() - began
                per_second = (len(progress.ledgers) / took) if per_second else 1e-9
                book.pay(progress.ledgers)
                bar.advanced(done, None if per_second < 1e-6 else per_second)
                if not progress.is_finite[-1]:
                    status = "diverged"
                    measure()
                    break
                if done % evaluate_every == 0 or done == rounds:
                    measure()
                if done % checkpoint_every == 0 or done == rounds:
                    book.save(done, state)
        except KeyboardInterrupt:
            console.print(book.interrupted(done))
            raise
    book.close(status, done)
    if status == "diverged":
        console.print(
            f"[bold red]Stopped in round {done - 1}:[/] a value is no longer finite. "
            "A smaller step size, or a larger lipschitz, is the usual remedy."
        )
    return Result(status, done, algorithm.solution(state), state, book.history, book.ledger)


@eqx.filter_jit
def _evaluate(evaluations, solution, population, key) -> dict[str, jax.Array]:
    numbers: dict[str, jax.Array] = {}
    for evaluation in evaluations:
        new = evaluation(solution, population, key)
        if twice := set(numbers) & set(new):
            raise ValueError(f"two evaluations give {sorted(twice)}; set label= on one of them.")
        numbers.update(new)
    return numbers


def _next(done: int, every: int) -> int:
    return (done // every + 1) * every


def _configuration(program: Program, start, seed, evaluate, evaluate_every) -> dict[str, Any]:
    population = program.population
    return {
        "algorithm": describe(program.algorithm),
        "problem": describe(program.problem),
        "population": {
            "clients": population.n_clients,
            "rows": {
                s: int(c.sum()) for s, c in zip(population.splits, population.counts, strict=True)
            },
            "fingerprint": fingerprint(population),
        },
        "start": fingerprint(start),
        "clock": describe(program.clock),
        "aggregate": describe(program.aggregate),
        "seed": seed,
        "evaluate": describe(list(evaluate)),
        "evaluate_every": evaluate_every,
        "float": str(jnp.zeros(()).dtype),
    }


@dataclass
class _Book:
    """The run's history and costs, and the directory that keeps them if there is one."""

    directory: Path | None
    console: Console
    history: History = field(default_factory=History)
    ledger: Ledger = field(default_factory=Ledger)
    began: float = field(default_factory=time.monotonic)

    def open(self, configuration: dict[str, Any], overwrite: bool) -> None:
        """Make the directory this run's own, or raise if it is another's."""
        if self.directory is None:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / "config.json"
        if overwrite:
            for old in [*self.directory.glob("checkpoints/*"), *self.directory.glob("*.json*")]:
                old.unlink()
        if path.exists():
            before = json.loads(path.read_text())
            differing = [k for k in configuration if before["run"].get(k) != configuration[k]]
            if differing:
                raise ValueError(
                    f"{self.directory} holds a run with another {', '.join(differing)}. "
                    "Choose another directory, or pass overwrite=True to start afresh in it."
                )
            return
        versions = {name: version(name) for name in ("rookery", "jax", "equinox", "numpy")}
        machine = {"python": platform.python_version(), "machine": platform.machine()}
        content = {"run": configuration, "versions": {**versions, **machine}}
        replace_file(path, json.dumps(content, indent=2).encode())

    def resume(self, like: Tree) -> checkpoints.Checkpoint | None:
        """The last good checkpoint, with the history cut back to it."""
        if self.directory is None:
            return None
        found, warnings = checkpoints.load_latest(self.directory / "checkpoints", like)
        history, broken = self._file().read()
        for warning in [*warnings, *([broken] if broken else [])]:
            self.console.print(f"[yellow]Warning:[/] {warning}")
        if found is None:
            self._file().keep(History())
            return None
        self.ledger = found.ledger
        self.history = History([row for row in history if row["round"] <= found.round])
        self._file().keep(self.history)
        self.console.print(f"Going on from round {found.round} in {self.directory}.")
        return found

    def add(self, row: dict[str, Any]) -> None:
        self.history.rows.append(row)
        if self.directory is not None:
            self._file().append(row)
            # kept apart from the history, which two runs of one seed must have in common
            timing = {"round": row["round"], "wall_seconds": time.monotonic() - self.began}
            HistoryFile(self.directory / "timing.jsonl").append(timing)

    def pay(self, ledgers: list[Ledger]) -> None:
        self.ledger = sum(ledgers, start=self.ledger)

    def save(self, done: int, state: Tree) -> None:
        if self.directory is not None:
            checkpoints.save(
                self.directory / "checkpoints", checkpoints.Checkpoint(done, state, self.ledger)
            )

    def close(self, status: str, done: int) -> None:
        if self.directory is not None:
            summary = {
                "status": status,
                "rounds": done,
                **self.ledger.as_dict(),
                "last": to_json(self.history.rows[-1]) if len(self.history) else {},
            }
            path = self.directory / "summary.json"
            replace_file(path, json.dumps(summary, indent=2).encode())

    def interrupted(self, done: int) -> str:
        if self.directory is None:
            return f"Interrupted in round {done}. Without a directory nothing was kept."
        return (
            f"Interrupted in round {done}. The run is kept in {self.directory}; "
            "the same command goes on from its last checkpoint."
        )

    def _file(self) -> HistoryFile:
        assert self.directory is not None
        return HistoryFile(self.directory / "history.jsonl")
