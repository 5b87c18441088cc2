"""Run an algorithm, or sweep over many runs.

Runs that differ in numbers only (step sizes, seeds, initial values) go side by side, in lanes of
one compiled program. A single run is a sweep of one.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from rich.console import Console

from rookery import check
from rookery.clients.population import Population
from rookery.engines.compiled import Compiled
from rookery.engines.engine import AbstractEngine, Program
from rookery.program.aggregate import AbstractRobust, Aggregate, Mean
from rookery.program.algorithm import AbstractAlgorithm, numbers_to_arrays
from rookery.program.delays import Clock
from rookery.runner.batch_loop import BatchLoop
from rookery.runner.describe import fingerprint
from rookery.runner.metrics import AbstractEvaluation
from rookery.runner.progress import SILENT, RunProgress
from rookery.runner.run_state import Result, Run, RunState
from rookery.runner.tracker import Tracker
from rookery.types import Tree


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
    tracker: Tracker | None = None,
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
        tracker: what follows the run, besides its history, as those of :mod:`rookery.tracking`.
        settings: as in :func:`sweep`.
    """
    job = Run(algorithm, start, seed, directory, title, tracker)
    return sweep([job], problem, population, rounds=rounds, **settings)[0]


def sweep(
    jobs: Sequence[Run],
    problem: Any,
    population: Population,
    *,
    rounds: int,
    seconds: float | None = None,
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
        seconds: virtual seconds that a run has: it ends at its last measurement within them, if not
            after its last round. Algorithms whose rounds last differently are compared by it.
        evaluate: what to measure, before round 0, then every ``evaluate_every`` rounds, and last.
        evaluate_every: rounds between measurements.
        checkpoint_every: rounds between checkpoints; every evaluation if not given.
        engine: where to run; :class:`Compiled` if not given.
        clock: the clients' delays; instant if not given.
        aggregate: what stands for the mean of the clients' replies; their weighted mean if not
            given. :class:`Median`, :class:`TrimmedMean` and :class:`Krum` bear a few bad clients.
        lanes: the most runs side by side; fewer need less memory.
        overwrite: start afresh in a directory that holds another run.
        console: where to show progress; nowhere if not given.
    """
    check.count("rounds", rounds)
    if seconds is not None:
        check.positive("seconds", seconds)
    check.count("evaluate_every", evaluate_every)
    check.count("lanes", lanes)
    checkpoint_every = evaluate_every if checkpoint_every is None else checkpoint_every
    check.count("checkpoint_every", checkpoint_every)
    clock = clock if clock is not None else Clock()
    clock.check(population.n_clients)
    if isinstance(aggregate, AbstractRobust):
        aggregate.check(jnp.asarray(population.weights))
    configured = []
    for job in jobs:
        check.count("seed", job.seed, least=0)
        job.algorithm.check(problem, population.n_clients)
        start = jax.tree.map(_as_array, tuple(job.start))
        problem.check(start, population.example)
        job.algorithm.check_start(problem, start, population.example)
        configured.append(replace(job, start=start))
    taken = [str(Path(job.directory).resolve()) for job in jobs if job.directory is not None]
    if len(set(taken)) < len(taken):
        twice = sorted({path for path in taken if taken.count(path) > 1})
        raise ValueError(f"two runs cannot share a directory: {', '.join(twice)}.")
    trackers = [id(job.tracker) for job in jobs if job.tracker is not None]
    if len(set(trackers)) < len(trackers):
        raise ValueError("two runs cannot share a tracker; make one for each.")
    population = jax.device_put(population)
    kept = any((job.directory, job.tracker) != (None, None) for job in jobs)
    loop = BatchLoop(
        program=Program(problem, population, clock, aggregate if aggregate is not None else Mean()),
        data_fingerprint=fingerprint(population) if kept else "",
        engine=engine if engine is not None else Compiled(),
        rounds=rounds,
        seconds=seconds,
        evaluate=tuple(evaluate),
        evaluate_every=evaluate_every,
        checkpoint_every=checkpoint_every,
        overwrite=overwrite,
        console=console if console is not None else SILENT,
    )
    opened = [loop.open(job) for job in configured]
    batches = _batches(loop, opened, lanes)
    # nothing is left to do for these, and their trackers are told so
    loop.held([lane for lane in opened if lane.status == "diverged"]).close()
    with RunProgress(loop.console, sum(rounds - done for done, *_ in batches)) as bar:
        before = 0
        for done, batch, width in batches:
            bar.begin(_title(batch), before - done)
            with loop.held(batch):
                loop.run(batch, done, width, bar)
            before += rounds - done
    return [lane.result() for lane in opened]


def _as_array(leaf: Any) -> jax.Array:
    if callable(leaf):
        raise TypeError(
            f"the initial values hold a function, {getattr(leaf, '__name__', leaf)}, as Equinox "
            "modules do. Take the arrays alone, with equinox.partition(module, equinox.is_array), "
            "and put the module together again in the loss with equinox.combine."
        )
    return jnp.asarray(leaf)


def _batches(
    loop: BatchLoop, opened: list[RunState], most: int
) -> list[tuple[int, list[RunState], int]]:
    """BatchLoop that share a program and the round they go on from, at most so many together.

    The third entry is the number of lanes that a batch is filled up to, so that all batches of a
    group need one program, and the same when a sweep goes on of which some lanes have ended.
    """
    groups: dict[Any, list[RunState]] = {}
    for lane in opened:
        groups.setdefault(structure(lane.job.algorithm, lane.job.start), []).append(lane)
    batches = []
    for group in groups.values():
        width = math.ceil(len(group) / math.ceil(len(group) / most))
        for done, some in loop.starts(group):
            batches += [(done, some[i : i + width], width) for i in range(0, len(some), width)]
    return batches


def structure(algorithm: AbstractAlgorithm, start: Tree) -> Any:
    """What must be equal for two runs to share one compiled program."""
    numbers, rest = eqx.partition(numbers_to_arrays(algorithm), eqx.is_array)
    shapes = [f"{a.dtype}{a.shape}" for a in jax.tree.leaves((numbers, start))]
    leaves, tree = jax.tree.flatten((rest, jax.tree.structure((numbers, start))))
    return tuple(shapes), tree, tuple(leaves)


def _title(lanes: Sequence[RunState]) -> str:
    names = dict.fromkeys(lane.name for lane in lanes)
    name = next(iter(names)) + (" ..." if len(names) > 1 else "")
    return name if len(lanes) == 1 else f"{name} ({len(lanes)} runs)"
