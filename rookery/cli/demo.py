"""The demo: one nested problem solved naively and by nested methods, and what that shows."""

import importlib.resources
from dataclasses import replace
from itertools import chain
from pathlib import Path

from rich.console import Console

from rookery.experiment import config, execution
from rookery.experiment.task_loader import TaskLoader
from rookery.report.comparison import Comparison, Curve, best_curve, cost_to_reach, final_values
from rookery.report.statistics import Interval, interval
from rookery.report.tables import plus_minus
from rookery.report.write import PlotSettings, print_tables, write_report

METRIC, TARGET = "accuracy", 0.8


def run_demo(out: Path, rounds: int | None, data: Path | None, console: Console) -> None:
    """Run both experiments of the demo, write a report of each, and say what was seen.

    Args:
        out: folder for the runs and the pages, with a folder for each experiment.
        rounds: the most rounds of a run; None means what the files say.
        data: folder with data files, or None.
        console: where to print.
    """
    loader, done = TaskLoader(data), []
    for name in ("one_digit_each", "slow_clients"):
        file, folder = (
            Path(str(importlib.resources.files("rookery") / f"demo/{name}.toml")),
            out / name,
        )
        changes = [] if rounds is None else [f"run.rounds={rounds}"]
        experiment = config.load(file, changes)
        console.print(f"[bold]{experiment.title}[/]\n{experiment.claim.strip()}\n")
        comparison = execution.run_experiment(
            experiment, folder, loader, overwrite=True, console=console
        )
        done.append((comparison, folder, PlotSettings(**experiment.plot)))
    found = [naive_against_nested(done[0][0]), waiting(done[1][0])]
    pages = []
    for (comparison, folder, settings), said in zip(done, found, strict=True):
        print_tables(comparison, settings, console, is_paired=False)
        page, figure = write_report(replace(comparison, findings=said), folder, settings)
        pages += [f"The page: {page}", f"The figure: {figure}"]
    console.print(*pages, sep="\n", highlight=False)
    console.print("\n[bold]What was seen[/]")
    for sentence in chain(*found):
        console.print(f"- {sentence}", markup=False, highlight=False)


def naive_against_nested(comparison: Comparison) -> list[str]:
    """What the naive method reached and what nested methods did, and at what cost."""
    naive, *nested = comparison.curves
    ends, wins = final_values(naive, METRIC), 0
    for curve in nested:
        pairs = zip(final_values(curve, METRIC), ends, strict=True)
        wins += all(theirs > own for theirs, own in pairs)
    if wins == len(nested):
        worst, best = (best_curve(nested, METRIC, is_better) for is_better in (False, True))
        found = (
            f"With one class per client, averaging what each client finds alone ends at "
            f"{_final(naive)} accuracy, the nested methods at {_final(worst)} ({worst.name}) to "
            f"{_final(best)} ({best.name})."
        )
    else:
        found = (
            f"Averaging what each client finds alone ends at {_final(naive)} accuracy, and only "
            f"{wins} of {len(nested)} nested methods did better with every seed: the claim that "
            "the naive way fails does not hold here."
        )
    there = [curve for curve in nested if _has_reached(curve)]
    if not there:
        return [found, f"No nested method reached {TARGET} with every seed."]
    late = " and ".join(curve.name for curve in nested if curve not in there)
    needed = (
        f"{plus_minus(_cost(curve, 'exchanges'))} with {curve.name}"
        for curve in sorted(there, key=lambda curve: _cost(curve, "exchanges").mean)
    )
    small = min(there, key=lambda curve: _cost(curve, "megabytes").mean)
    least = plus_minus(_cost(small, "megabytes"))
    return [
        found,
        f"The exchanges needed for {TARGET} accuracy are {', '.join(needed)}"
        + (f" ({late}: not reached with every seed)" if late else "")
        + f"; {small.name} needs the fewest megabytes in all, {least}.",
    ]


def waiting(comparison: Comparison) -> list[str]:
    """What it costs to wait for slow clients; the first curve does not wait."""
    alone, *waiters = comparison.curves
    if not _has_reached(alone):
        return [f"With four slow clients {alone.name} did not reach {TARGET} with every seed."]
    own = _cost(alone, "seconds")
    found = (
        f"With four slow clients {alone.name}, which does not wait for them, reaches {TARGET} "
        f"accuracy after {plus_minus(own)} virtual seconds; "
    )
    there = [curve for curve in waiters if _has_reached(curve)]
    if not there:
        return [found + "no method that waits did in the time given."]
    best = min(there, key=lambda curve: _cost(curve, "seconds").mean)
    theirs = _cost(best, "seconds")
    verdict = (
        f"{theirs.mean / own.mean:.1f} times as long"
        if own.mean < theirs.mean
        else "so not waiting did not pay"
    )
    return [
        f"{found}{best.name}, the fastest method that waits, needs {plus_minus(theirs)}, {verdict}."
    ]


def _has_reached(curve: Curve) -> bool:
    """Whether every seed has reached the target."""
    cost = cost_to_reach(curve, METRIC, TARGET, "exchanges")
    return cost.reached == cost.total


def _cost(curve: Curve, axis: str) -> Interval[float]:
    return cost_to_reach(curve, METRIC, TARGET, axis).interval


def _final(curve: Curve) -> str:
    return plus_minus(interval(final_values(curve, METRIC)))
