"""Run an algorithm, or a sweep of many runs.

Runs that differ only in numbers (step sizes, seeds, initial values) form a batch, which is one
compiled program. A single run is a sweep of one.
"""

import math
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from rookery import check
from rookery.clients.population import Population
from rookery.engines.compiled import Compiled
from rookery.engines.engine import AbstractEngine, Program
from rookery.program.aggregate import AbstractRobust, Aggregate, Mean
from rookery.program.algorithm import AbstractAlgorithm, check_constraints
from rookery.program.delays import Clock
from rookery.program.participation import AbstractParticipation, Uniform, WithReplacement
from rookery.program.privacy import Private
from rookery.program.row_privacy import RowPrivate
from rookery.runner.batch_loop import BatchLoop, exclusive
from rookery.runner.batch_runner import structure
from rookery.runner.best import KeepBest
from rookery.runner.describe import data_fingerprint
from rookery.runner.finite import GROWTH_LIMIT
from rookery.runner.guard import GUARD, Guard
from rookery.runner.metrics import AbstractEvaluation, OnClients, check_blocks, metric_goals
from rookery.runner.progress import SILENT, RunProgress
from rookery.runner.results import Results
from rookery.runner.run_state import (
    Callback,
    DivergenceWarning,
    Result,
    RollBackWarning,
    Run,
    RunState,
)
from rookery.runner.settings import SweepSettings
from rookery.runner.stop import AbstractRule, as_rules
from rookery.runner.tracker import Tracker
from rookery.types import Problem, Tree


def run(
    algorithm: AbstractAlgorithm,
    problem: Problem,  # any class of rookery.problem, or the user's own
    population: Population,
    start: tuple[Tree, ...],
    *,
    rounds: int,
    seed: int = 0,
    directory: str | Path | None = None,
    title: str = "",
    tracker: Tracker | None = None,
    seconds: float | None = None,
    evaluate: Sequence[AbstractEvaluation] = (),
    evaluate_every: int = 10,
    checkpoint_every: int | None = None,
    engine: AbstractEngine | None = None,
    clock: Clock | None = None,
    aggregate: Aggregate | None = None,
    overwrite: bool = False,
    console: Console | None = None,
    callback: Callback | None = None,
    callback_every: int | None = None,
    stop: AbstractRule | Sequence[AbstractRule] | None = None,
    keep: str | None = None,
    growth_limit: float | None = GROWTH_LIMIT,
    guard: Guard | None = GUARD,
) -> Result:
    """Run an algorithm on a problem.

    With a ``directory`` the run can be killed at any moment and resumed by the same call: it
    continues from its last checkpoint and gives the same numbers, bit for bit.

    >>> import rookery as rk
    >>> zoo = rk.zoo.scalar_bilevel()
    >>> result = rk.run(
    ...     rk.SOBA(outer_lr=0.2, inner_lr=0.3),
    ...     zoo.problem,
    ...     rk.Population.stacked(zoo.data),
    ...     zoo.start,
    ...     rounds=20,
    ...     evaluate=[rk.metrics.OfSolution(lambda x, y: {"x": x[0]})],
    ... )
    >>> result.status, result.history["round"].tolist()
    ('finished', [0.0, 10.0, 20.0])

    Args:
        algorithm: the server program.
        problem: the problem to solve.
        population: the clients and their data.
        start: initial values of the problem's variables, one entry per variable.
        rounds: number of rounds.
        seed: seed of all randomness except the delays, which have their own in the clock.
        directory: where to keep configuration, history and checkpoints; None keeps nothing.
        title: name in the progress bar and in reports; the algorithm's name if empty.
        tracker: receives the measurements as they are made, see :mod:`rookery.tracking`.
        seconds: budget of virtual seconds. The run ends at the last evaluation within the budget,
            or after ``rounds`` if that is earlier. Use it to compare algorithms whose rounds
            differ in duration.
        evaluate: what to measure: before round 0, every ``evaluate_every`` rounds, and at the end.
            The epsilon of a private run does not cover what is measured on clients.
        evaluate_every: rounds between evaluations.
        checkpoint_every: rounds between checkpoints; ``evaluate_every`` if None.
        engine: where to run; :class:`Compiled` if None.
        clock: the clients' delays; none if None.
        aggregate: replaces the weighted mean of the clients' replies. See
            :mod:`rookery.aggregate` for aggregators that tolerate Byzantine clients.
        overwrite: discard the run that ``directory`` holds, whatever it is.
        console: where to show progress; None shows nothing.
        callback: called with a :class:`rookery.stop.Snapshot` (round, state, cohorts, metrics,
            ledger, history) every ``callback_every`` rounds and at the end. The run ends with the
            status ``stopped`` if it returns True or raises :class:`rookery.stop.StopRun`; the same
            call resumes it.
        callback_every: rounds between calls; ``evaluate_every`` if None. With 1 the callback sees
            the state after every round, at the price of a chunk of rounds for each.
        stop: a rule of :mod:`rookery.stop`, or several of which the first that holds ends the run,
            with the status ``stopped``. Rules are asked at evaluations. With a directory, the same
            call gives the same end without work, and a call with more patience continues.
        keep: ``best:METRIC:max`` or ``best:METRIC:min`` keeps the solution of the best evaluation,
            the start included, as ``Result.best`` and in the directory. The scores and losses of
            ``OnClients`` need no ``max`` or ``min``.
        growth_limit: a run has diverged if an evaluation finds an entry of the solution more than
            this many times as large as the start's largest (or as 1, if the start is smaller). None
            accepts whatever is finite.
        guard: takes a run that begins to break down back to its last good state, with smaller
            steps; see :class:`rookery.stop.Guard`. It changes no number of a run that does not
            break down. None lets a run diverge. A private run has no guard.
    """
    one = Run(algorithm, start, seed, directory, title, tracker)
    (result,) = _sweep(
        [one], problem, population, rounds=rounds, seconds=seconds, evaluate=evaluate,
        evaluate_every=evaluate_every, checkpoint_every=checkpoint_every, engine=engine,
        clock=clock, aggregate=aggregate, batch=1, overwrite=overwrite, console=console,
        callback=callback, callback_every=callback_every, stop=stop, keep=keep,
        growth_limit=growth_limit, guard=guard,
    )  # fmt: skip
    return result


def sweep(
    runs: Sequence[Run],
    problem: Problem,  # any class of rookery.problem, or the user's own
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
    batch: int = 32,
    overwrite: bool = False,
    console: Console | None = None,
    callback: Callback | None = None,
    callback_every: int | None = None,
    stop: AbstractRule | Sequence[AbstractRule] | None = None,
    keep: str | None = None,
    growth_limit: float | None = GROWTH_LIMIT,
    guard: Guard | None = GUARD,
) -> Results:
    """Run several algorithms, seeds or starts on one problem.

    Runs whose algorithms differ only in numbers share one compiled program.

    >>> import rookery as rk
    >>> zoo = rk.zoo.scalar_bilevel()
    >>> runs = [rk.Run(rk.SOBA(outer_lr=lr, inner_lr=0.3), zoo.start) for lr in (0.1, 0.2)]
    >>> results = rk.sweep(runs, zoo.problem, rk.Population.stacked(zoo.data), rounds=5)
    >>> [result.rounds for result in results]
    [5, 5]

    Args:
        runs: the runs: algorithm, start, seed, directory, title and tracker of each.
        problem: the problem to solve.
        population: the clients and their data.
        rounds: number of rounds of each run.
        seconds: budget of virtual seconds of each run, as in :func:`run`.
        evaluate: what to measure, as in :func:`run`.
        evaluate_every: rounds between evaluations.
        checkpoint_every: rounds between checkpoints; ``evaluate_every`` if None.
        engine: where to run; :class:`Compiled` if None.
        clock: the clients' delays; none if None.
        aggregate: replaces the weighted mean of the clients' replies.
        batch: the most runs in one compiled program; a smaller batch needs less memory.
        overwrite: discard the runs that the directories hold.
        console: where to show progress; None shows nothing.
        callback: called for every run, as in :func:`run`; ``snapshot.run`` tells which. Returning
            True ends that run alone.
        callback_every: rounds between calls; ``evaluate_every`` if None.
        stop: rules that end each run for itself, as in :func:`run`. On the compiled engine the
            lane of a run that has ended is computed and discarded until the last run of its batch
            ends; a smaller ``batch`` wastes less of it.
        keep: which solution to keep of each run, as in :func:`run`.
        growth_limit: when a run has diverged, as in :func:`run`.
        guard: for each run by itself, as in :func:`run`.
    """
    return _sweep(
        runs, problem, population, rounds=rounds, seconds=seconds, evaluate=evaluate,
        evaluate_every=evaluate_every, checkpoint_every=checkpoint_every, engine=engine,
        clock=clock, aggregate=aggregate, batch=batch, overwrite=overwrite, console=console,
        callback=callback, callback_every=callback_every, stop=stop, keep=keep,
        growth_limit=growth_limit, guard=guard,
    )  # fmt: skip


def _sweep(
    runs: Sequence[Run],
    problem: Problem,
    population: Population,
    *,
    rounds: int,
    seconds: float | None,
    evaluate: Sequence[AbstractEvaluation],
    evaluate_every: int,
    checkpoint_every: int | None,
    engine: AbstractEngine | None,
    clock: Clock | None,
    aggregate: Aggregate | None,
    batch: int,
    overwrite: bool,
    console: Console | None,
    callback: Callback | None,
    callback_every: int | None,
    stop: AbstractRule | Sequence[AbstractRule] | None,
    keep: str | None,
    growth_limit: float | None,
    guard: Guard | None,
) -> Results:
    check.count("rounds", rounds)
    if seconds is not None:
        check.positive("seconds", seconds)
    _check_evaluations(evaluate)
    check.count("evaluate_every", evaluate_every)
    check.count("batch", batch)
    if callback is not None and not callable(callback):
        raise TypeError(
            "callback must be a function of a rookery.stop.Snapshot, or None; "
            f"got {callback!r} of type {type(callback).__name__}."
        )
    _check_kinds(runs, population)
    clock = clock if clock is not None else Clock()
    clock.check(population.n_clients)
    if isinstance(aggregate, AbstractRobust):
        aggregate.check(jnp.asarray(population.weights))
    if growth_limit is not None:
        check.positive_or_infinite("growth_limit", growth_limit)
    population.check_finite()
    checked = [_checked(one, problem, population) for one in runs]
    _check_not_shared(runs)
    _warn_of_bias(checked, population)
    for one in evaluate:
        if isinstance(one, OnClients):
            one.check_split(population.splits)
    if checked:
        check_blocks(evaluate, checked[0].start, population)
    if any(isinstance(one.algorithm, Private | RowPrivate) for one in runs):
        guard = None  # a roll-back would release rounds again, and decide by what is not private
    rules = as_rules(stop)
    if guard is not None and not isinstance(guard, Guard):
        raise TypeError(f"guard must be a rk.stop.Guard, or None for no guard; got {guard!r}.")
    # tracing the evaluations takes time, and only these need their names
    names_metric = guard is not None and (guard.metric, guard.drop) != (None, None)
    is_judged = bool(rules or keep is not None or names_metric) and bool(checked)
    goals = metric_goals(evaluate, checked[0].start, population) if is_judged else {}
    engine = engine if engine is not None else Compiled()
    if not population.is_on_disk:
        population = engine.placed(population)
    needs_fingerprint = any((one.directory, one.tracker) != (None, None) for one in runs)
    settings = SweepSettings(
        program=Program(problem, population, clock, aggregate if aggregate is not None else Mean()),
        data_fingerprint=data_fingerprint(population) if needs_fingerprint else "",
        engine=engine,
        rounds=rounds,
        seconds=seconds,
        evaluate=tuple(evaluate),
        evaluate_every=evaluate_every,
        checkpoint_every=_period("checkpoint_every", checkpoint_every, evaluate_every),
        overwrite=overwrite,
        console=console if console is not None else SILENT,
        callback=callback,
        callback_every=_period("callback_every", callback_every, evaluate_every),
        stop=tuple(rule.resolved(goals) for rule in rules),
        keep=None if keep is None else KeepBest.parse(keep, goals),
        growth_limit=growth_limit,
        guard=None if guard is None else guard.resolved(goals if is_judged else None),
    )
    opened = [settings.open(one) for one in checked]
    # runs that have diverged or stopped before need no work, but their trackers must be told
    exclusive(settings, [one for one in opened if not one.is_running]).close()
    batches = _batches(opened, batch)
    with RunProgress(settings.console, len(batches), rounds) as bar:
        for number, (done, some, width) in enumerate(batches):
            bar.begin(_title(some), number, done)
            with exclusive(settings, some):
                BatchLoop(settings, some, done, width, bar).run()
    for one in opened:
        is_given_up = one.guard_state is not None and bool(one.guard_state.ended)
        if one.status == "diverged" or is_given_up:  # at the line that called run or sweep
            warnings.warn(one.message, DivergenceWarning, stacklevel=3)
        elif one.guard_state is not None and one.guard_state.rollbacks:
            last = one.guard_state.rollbacks[-1]
            warnings.warn(
                f"{one.run.name} (seed {one.run.seed}) was rolled back "
                f"{len(one.guard_state.rollbacks)} times, last in round {last.round}: "
                f"{last.reason}. "
                f"All step sizes were multiplied by {last.factor:.3g}. Choose smaller ones, or "
                "pass guard=None to let the run diverge.",
                RollBackWarning,
                stacklevel=3,
            )
    return Results(one.result() for one in opened)


def _check_evaluations(evaluate: object) -> None:
    if not isinstance(evaluate, Sequence) or isinstance(evaluate, str):
        hint = "Leave it out to measure nothing." if evaluate is None else "Put it into a list."
        raise TypeError(
            "evaluate must be a list of evaluations, as [rk.metrics.OnClients(...)], got "
            f"{'None' if evaluate is None else type(evaluate).__name__}. {hint}"
        )
    for one in evaluate:
        if not isinstance(one, AbstractEvaluation):
            raise TypeError(
                f"evaluate has {one!r}, which is no evaluation. Use one of rk.metrics, as "
                "rk.metrics.OfSolution(function)."
            )


def _check_kinds(runs: Sequence[Run], population: Population) -> None:
    for one in runs:
        if not isinstance(one.algorithm, AbstractAlgorithm):
            raise TypeError(
                f"algorithm must be an object of an algorithm's class, as rk.FedNest(), got "
                f"{one.algorithm!r}."
            )
    if not isinstance(population, Population):
        raise TypeError(
            f"population must be a rk.Population, got {type(population).__name__}. Make one of "
            "your rows with rk.Population.stacked, from_parts or from_table."
        )


def _check_splits(problem: Problem, population: Population) -> None:
    for split in problem.splits:
        if split not in population.splits:
            raise ValueError(
                f"the {type(problem).__name__} problem reads the split {split!r}, and the clients' "
                f"splits are: {', '.join(population.splits)}. Give the population this split, or "
                "have the problem read another one (outer_split=, inner_split= or split=)."
            )


def _period(name: str, value: int | None, default: int) -> int:
    return default if value is None else check.count(name, value)


def _checked(one: Run, problem: Problem, population: Population) -> Run:
    """The run with arrays for its initial values, or an error."""
    check.count("seed", one.seed, least=0)
    one.algorithm.check(problem, population.n_clients)
    check_constraints(one.algorithm, problem)
    _check_splits(problem, population)
    problem.check(one.start, population.example)
    start = jax.tree.map(jnp.asarray, tuple(one.start))
    one.algorithm.check_start(problem, start, population.example)
    return replace(one, start=start)


def _check_not_shared(runs: Sequence[Run]) -> None:
    """Raise if two runs have one directory or one tracker."""
    paths = [str(Path(one.directory).resolve()) for one in runs if one.directory is not None]
    if shared := sorted({path for path in paths if paths.count(path) > 1}):
        raise ValueError(f"two runs cannot share a directory: {', '.join(shared)}.")
    trackers = [id(one.tracker) for one in runs if one.tracker is not None]
    if len(set(trackers)) < len(trackers):
        raise ValueError("two runs cannot share a tracker; create one for each.")


def _warn_of_bias(runs: Sequence[Run], population: Population) -> None:
    """Warn once if clients of unequal weights are drawn with equal probabilities."""
    weights = np.asarray(population.weights)
    if np.allclose(weights, weights[0], rtol=1e-6, atol=0):
        return
    for one in runs:
        rules = jax.tree.leaves(one.algorithm, is_leaf=_is_participation)
        for rule in rules:
            if isinstance(rule, Uniform | WithReplacement) and rule.n < population.n_clients:
                warnings.warn(
                    f"{one.name} draws {rule.n} of {population.n_clients} clients with equal "
                    "probabilities, but the population's weights differ: its means are biased "
                    f"towards light clients. Use rk.participation.Proportional({rule.n}), whose "
                    "means are unbiased.",
                    stacklevel=4,
                )
                return


def _is_participation(node: object) -> bool:
    return isinstance(node, AbstractParticipation)


def _batches(runs: Sequence[RunState], most: int) -> list[tuple[int, list[RunState], int]]:
    """Batches of runs that share a program: the round they start from, the runs, the width.

    All batches of one structure have one width, to which they are padded, so that they need one
    compiled program. The runs of a resumed sweep that have ended count for the width: another
    program could round differently.
    """
    groups: dict[Hashable, list[RunState]] = {}
    for one in runs:
        groups.setdefault(structure(one.run.algorithm, one.run.start), []).append(one)
    batches = []
    for group in groups.values():
        width = math.ceil(len(group) / math.ceil(len(group) / most))
        for done, some in _starting_points([one for one in group if one.is_running]):
            batches += [(done, some[i : i + width], width) for i in range(0, len(some), width)]
    return batches


def _starting_points(runs: Sequence[RunState]) -> list[tuple[int, list[RunState]]]:
    """The rounds to start from, each with its runs: one round if all have a common checkpoint."""
    if not runs:
        return []
    # a kill between two checkpoints' writes leaves the newest to some of the runs only
    common = set.intersection(*(set(one.checkpoints) for one in runs))
    if common:
        return [(max(common), list(runs))]
    newest: dict[int, list[RunState]] = {}
    for one in runs:
        newest.setdefault(max(one.checkpoints, default=0), []).append(one)
    return list(newest.items())


def _title(runs: Sequence[RunState]) -> str:
    names = list(dict.fromkeys(one.run.name for one in runs))
    name = names[0] + (" ..." if len(names) > 1 else "")
    return name if len(runs) == 1 else f"{name} ({len(runs)} runs)"
