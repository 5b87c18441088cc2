"""The loop over the rounds of a batch: runs of one structure that share a compiled program.

Rounds go in chunks; between chunks come the progress bar, evaluation, callback and checkpoint.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from rookery.engines.compiled import stack
from rookery.engines.eager import Eager
from rookery.engines.engine import Event, Progress, Stopped
from rookery.runner.batch_runner import BatchRunner
from rookery.runner.finite import not_finite_in_state
from rookery.runner.interrupt import Interrupt
from rookery.runner.metrics import evaluate_all
from rookery.runner.progress import RunProgress
from rookery.runner.run_state import Callback, Cohorts, RunState, StopRun
from rookery.runner.settings import SweepSettings

CHUNK_SECONDS = 1.0
"""How long a chunk of rounds should take, so that the bar moves and Ctrl-C is noticed."""

CALLBACK_STOPPED = "The callback stopped the run."

T = TypeVar("T")


def exclusive(settings: SweepSettings, runs: Sequence[RunState]) -> ExitStack:
    """Lock the runs' directories and start their trackers, until the context ends."""
    with ExitStack() as started:
        for one in runs:
            started.enter_context(one.record.locked())
            if one.run.tracker is not None:
                tracked = one.record.tracked(
                    one.run.tracker, one.run.name, settings.configuration(one.run)
                )
                started.enter_context(tracked)
        return started.pop_all()


class BatchLoop:
    """Takes the runs of one batch from round ``done`` to their ends.

    Args:
        settings: what all runs of the sweep share.
        runs: the batch; their algorithms and starts have one structure.
        done: the round that all of them start or resume from.
        width: pad the batch to this size with copies that run no rounds, so that batches of a
            group share one compiled program.
        bar: where to show progress.
    """

    def __init__(
        self,
        settings: SweepSettings,
        runs: Sequence[RunState],
        done: int,
        width: int,
        bar: RunProgress,
    ):
        self._settings, self._runs, self._done = settings, list(runs), done
        self._width, self._bar = width, bar
        keys = [one.run.keys() for one in runs]
        self._keys = [key[0] for key in keys]
        self._evaluation_keys = jnp.stack(self._at_least_two([key[1] for key in keys]))
        self._is_compiled = False
        self._has_cohorts = True  # whether the engine records them; the first chunk tells
        self._rounds_per_second: float | None = None

    def run(self) -> None:
        """All rounds, evaluations and checkpoints."""
        settings = self._settings
        for one in self._runs:
            one.resume(self._done, settings.is_evaluation_due)
            if self._done == settings.rounds:
                one.status = "finished"
            else:
                one.record.remove_solutions()
        algorithms = self._padded([one.run.algorithm for one in self._runs])
        runner = BatchRunner(settings.engine, settings.program, algorithms, self._note)
        for i, one in enumerate(self._runs):
            if one.lost:
                runner.replace(i, one.algorithm, one.lost)
        with closing(runner), Interrupt() as interrupt:
            self._evaluate_start([one for one in self._runs if not len(one.record.history)])
            self._end_spent([one for one in self._runs if one.is_running])
            while active := [one for one in self._runs if one.is_running]:
                self._advance(runner)
                self._bar.advanced(self._done, self._rounds_per_second, len(active))
                self._end_not_finite(active)
                self._check_variables(active, runner)
                self._end_over_budget(active)
                self._evaluate_if_due(active, runner)
                self._end_given_up(active)
                self._mark_spent(active)
                self._call_back(active)
                asked = interrupt.asked
                self._save(active, is_due=asked is not None)
                self._measure_ends(active)
                if asked is not None:
                    for one in self._runs:
                        one.leave_solution()
                    settings.console.print(_interrupted(self._runs, self._done), markup=False)
                    raise asked
        for one in self._runs:
            one.close()

    def _note(self, index: int, event: Event) -> None:
        population = self._settings.program.population
        name = None if event.client is None else population.client_name(event.client)
        self._runs[index].record.note(event, name)

    def _advance(self, runner: BatchRunner) -> None:
        """Run one chunk of rounds and record its costs."""
        speed, began = self._rounds_per_second, time.monotonic()
        wanted = 1 if speed is None else max(1, int(speed * CHUNK_SECONDS))
        stops = [one.last_round for one in self._runs if one.is_running]
        stop = int(min(self._settings.next_stop(self._done), *stops))
        chunk = min(stop - self._done, wanted)
        if chunk > 1 and not self._has_cohorts and self._settings.callback is not None:
            chunk -= self._settings.is_callback_due(self._done + chunk)  # it may ask for the last
        is_seen = self._settings.callback is not None and chunk == 1
        end = self._done + chunk
        for i, one in enumerate(self._runs):
            one.replay = self._replay(one, i) if is_seen and one.is_running else None
        # one call for all of them, and more for runs that the guard has taken back on the way
        while behind := [one for one in self._runs if one.is_running and one.round < end]:
            self._advance_to(end, min(one.round for one in behind), runner, is_seen=is_seen)
        if self._is_compiled:  # the first chunk also compiles: its time says nothing
            speed = chunk / max(time.monotonic() - began, 1e-9)
            self._rounds_per_second = runner.agreed(speed)
        self._is_compiled = True
        self._done = end

    def _advance_to(self, end: int, first: int, runner: BatchRunner, *, is_seen: bool) -> None:
        """Run the rounds from ``first`` to ``end`` of those runs that stand there."""
        goes = [one.is_running and one.round == first for one in self._runs]
        counts = [end - first if is_going else 0 for is_going in goes]
        try:
            progress = runner.advance(
                self._padded([one.state for one in self._runs]),
                self._padded(
                    [one.round_key(key) for one, key in zip(self._runs, self._keys, strict=True)]
                ),
                first,
                [*counts, *[0] * (self._width - len(counts))],
                may_reuse=not any(one.is_lent for one in self._runs) and not is_seen,
            )
        except Stopped as stopped:
            self._save_partial(stopped.progress, first)
            raise
        for i, (one, is_going) in enumerate(zip(self._runs, goes, strict=True)):
            if not is_going:
                continue
            new = progress[i]
            one.state, one.round = new.state, first + len(new.ledgers)
            one.is_lent = False
            one.record.add_costs(new.ledgers)
            if one.spending is not None:
                one.spending.check(first, new.ledgers)
            one.cohorts = None if new.cohorts is None else new.cohorts[-1]
            self._has_cohorts = new.cohorts is not None
            if not new.is_finite:
                self._break_down(one, i, runner, "")

    def _break_down(self, one: RunState, i: int, runner: BatchRunner, reason: str) -> None:
        """Take a run back to its last good state if a guard watches it; otherwise it has diverged.

        Args:
            one: the run.
            i: its number.
            runner: where it runs.
            reason: what was noticed; empty if the state is not finite.
        """
        if one.guard is None:
            one.status = "diverged"
            return
        where = ", ".join(not_finite_in_state(one.state)) or "the state"
        is_last = one.round == self._settings.rounds
        one.roll_back(reason or f"{where} is no longer finite", is_last=is_last)
        if one.is_running and not is_last:
            runner.replace(i, one.algorithm, one.lost)

    def _end_given_up(self, runs: Sequence[RunState]) -> None:
        """Measure and save the runs that the guard has given up."""
        for one in runs:
            if one.status == "stopped" and one.guard_state is not None and one.guard_state.ended:
                if not one.is_measured:
                    self._evaluate([one])
                one.save()

    def _check_variables(self, runs: Sequence[RunState], runner: BatchRunner) -> None:
        """Let the guard look at the variables, if that is due."""
        if not self._settings.is_check_due(self._done):
            return
        for i, one in enumerate(self._runs):
            if one.is_running and any(one is other for other in runs):
                reason = one.check_variables()
                if reason:
                    self._break_down(one, i, runner, reason)

    def _end_not_finite(self, runs: Sequence[RunState]) -> None:
        for one in runs:
            if one.status == "diverged":
                self._evaluate([one])
                self._end_diverged(one)

    def _end_diverged(self, one: RunState) -> None:
        one.save()
        one.close()
        one.record.say(one.message)

    def _end_over_budget(self, runs: Sequence[RunState]) -> None:
        if not self._settings.is_evaluation_due(self._done):
            return
        for one in runs:
            end = self._settings.over_budget(one.record.ledger) if one.is_running else None
            if end is not None:
                one.end_at_last_evaluation(*end)
                one.save()

    def _mark_spent(self, runs: Sequence[RunState]) -> None:
        """Give private runs that have reached their target a reason to stop."""
        for one in runs:
            if one.is_running and one.is_spent(self._done):
                one.reason = one.reason or one.spent_reason

    def _end_spent(self, runs: Sequence[RunState]) -> None:
        """End private runs whose very next round would exceed their target."""
        self._mark_spent(runs)
        for one in runs:
            if one.is_spent(self._done):
                one.status = "stopped"
                one.save()

    def _evaluate_start(self, runs: Sequence[RunState]) -> None:
        """Measure the initial values; a target may be reached already."""
        self._evaluate(runs)
        for one in runs:
            one.judge()
            if one.reason:
                one.status = "stopped"
                one.save()

    def _evaluate_if_due(self, runs: Sequence[RunState], runner: BatchRunner) -> None:
        running = [one for one in runs if one.is_running]
        if not running or not self._settings.is_evaluation_due(self._done):
            return
        self._evaluate(running, runner)
        for one in running:
            one.judge()
            if one.is_out_of_scale(one.state):
                one.status = "diverged"
                self._end_diverged(one)

    def _call_back(self, runs: Sequence[RunState]) -> None:
        """End the runs that are complete, and those that a rule or the callback stops."""
        settings = self._settings
        for one in self._runs:
            if not one.is_running or not any(one is other for other in runs):
                continue
            callback = settings.callback
            if callback is not None and (one.reason or settings.is_callback_due(self._done)):
                self._ask(callback, one)
            if self._done == settings.rounds:
                one.status = "finished"
            elif one.reason:
                one.status = "stopped"

    def _replay(self, one: RunState, i: int) -> Callable[[], Cohorts]:
        """Repeats the next round on the eager engine, for its cohorts."""
        state, algorithm, program = one.state, one.algorithm, self._settings.program
        key, round = one.round_key(self._keys[i]), one.round - one.lost

        def replay() -> Cohorts:
            eager = Eager().prepare(program, [algorithm])
            (progress,) = eager.advance([state], [key], round, [1])
            assert progress.cohorts is not None
            return progress.cohorts[-1]

        return replay

    def _ask(self, callback: Callback, one: RunState) -> None:
        """Show a run to the callback, which may end it."""
        try:
            if _is_stop(callback(one.snapshot())):
                one.reason = one.reason or CALLBACK_STOPPED
        except StopRun as stop:
            one.reason = one.reason or str(stop) or CALLBACK_STOPPED

    def _measure_ends(self, runs: Sequence[RunState]) -> None:
        """Measure the runs that the callback has stopped between two evaluations.

        After the checkpoint: a resumed run does not have this row, nor its best solution.
        """
        if not self._settings.is_evaluation_due(self._done):
            at_end = [o for o in runs if o.status == "stopped" and o.round == self._done]
            self._evaluate([one for one in at_end if not one.is_measured])

    def _save(self, runs: Sequence[RunState], is_due: bool) -> None:
        is_due = is_due or self._settings.is_checkpoint_due(self._done)
        for one in runs:
            is_at_its_end = one.round == self._done and one.status in ("finished", "stopped")
            if (is_due and one.is_running) or is_at_its_end:
                one.save()

    def _save_partial(self, progress: Sequence[Progress], first: int) -> None:
        """Save the rounds that an engine did before it had to stop."""
        for one, new in zip(self._runs, progress, strict=False):
            if new.ledgers and new.is_finite:
                one.record.add_costs(new.ledgers)
                one.save_as(first + len(new.ledgers), new.state)

    def _evaluate(self, some: Sequence[RunState], runner: BatchRunner | None = None) -> None:
        """Measure all runs of the batch, in one call of one shape, and record some of them.

        With ``runner`` the guard looks at the numbers first. A run that it takes back is measured
        again, so that a row of the history always describes the state that the run has.
        """
        if not some:
            return
        numbers, again = self._measured(some[0].round), []
        for i, one in enumerate(self._runs):
            if not any(one is other for other in some):
                continue
            own = {name: values[i] for name, values in numbers.items()}
            reason = ""
            if one.guard is not None and one.is_running:
                means = {name: float(value) for name, value in own.items() if not value.ndim}
                reason = one.check_metric(means, is_last=one.round == self._settings.rounds)
            if reason and runner is not None:
                self._break_down(one, i, runner, reason)
                again.append(i)
            else:
                self._record(one, own)
        if again:
            numbers = self._measured(some[0].round)
            for i in again:
                self._record(self._runs[i], {name: each[i] for name, each in numbers.items()})

    def _measured(self, round: int) -> dict[str, np.ndarray]:
        """What is measured of all runs in their present states, by name and run."""
        population = self._settings.program.population
        solutions = [one.run.algorithm.solution(one.state) for one in self._runs]
        solutions = self._at_least_two(solutions)
        keys = _fold_in_all(self._evaluation_keys, round)
        own = [one.run.algorithm.own_leaves(one.state) for one in self._runs]
        if own[0] is None:
            own = None
        elif population.is_on_disk:  # what clients remember is in host memory, and stays there
            own = jax.tree.map(lambda *rows: np.stack(rows), *own)
        else:
            own = stack(own)
        evaluate = self._settings.evaluate
        return jax.device_get(evaluate_all(evaluate, solutions, population, keys, own))

    def _record(self, one: RunState, own: Mapping[str, np.ndarray]) -> None:
        """Record what was measured of one run."""
        population = self._settings.program.population
        if one.status == "diverged":  # an argmax of NaN would pass for an accuracy
            own = {name: value * math.nan for name, value in own.items()}
        means = {name: float(value) for name, value in own.items() if not value.ndim}
        each = {name: value for name, value in own.items() if value.ndim}
        names = [population.client_name(c) for c in range(population.n_clients)] if each else []
        one.record.measure_clients(
            one.round,
            {name: dict(zip(names, values.tolist(), strict=True)) for name, values in each.items()},
        )
        self._bar.measured(one.record.measure(one.round, means), one.run.name)

    def _at_least_two(self, values: list[T]) -> list[T]:
        """The values, and a copy of the only one if other batches of the group may have more.

        The program of one run is no loop, and could round differently.
        """
        return values * 2 if len(values) == 1 < self._width else values

    def _padded(self, values: list[T]) -> list[T]:
        return values + [values[-1]] * (self._width - len(values))


def _is_stop(answer: object) -> bool:
    """Whether a callback's answer ends the run; None and False let it continue."""
    if answer is None or isinstance(answer, bool):
        return bool(answer)
    is_array = isinstance(answer, np.bool_ | np.ndarray | jax.Array)
    if is_array and answer.shape == () and answer.dtype == bool:
        return bool(answer)
    raise TypeError(
        "callback must return True to end the run, and False or None to continue; "
        f"got {answer!r} of type {type(answer).__name__}."
    )


_fold_in_all = jax.jit(jax.vmap(jax.random.fold_in, (0, None)))


def _interrupted(runs: Sequence[RunState], done: int) -> str:
    if any(one.run.directory is None for one in runs):
        return f"Interrupted after round {done}. Runs without a directory are lost."
    others = " and the directories of the other runs" if len(runs) > 1 else ""
    return (
        f"Interrupted after round {done}. The checkpoint is in {runs[0].run.directory}{others}; "
        "the same command resumes from it."
    )
