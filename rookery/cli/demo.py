"""The demo: one nested problem solved naively and by nested methods, and what that shows."""

import importlib.resources
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from rookery.experiment import config, execution
from rookery.experiment.task_loader import TaskLoader
from rookery.report.comparison import Comparison, Curve, best_curve, cost_to_reach, final_values
from rookery.report.statistics import interval
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
    first, second = (comparison for comparison, *_ in done)
    said = [*naive_against_nested(first), *waiting(second)]
    pages = []
    for comparison, folder, settings in done:
        notes = f"{comparison.notes} What was seen: {' '.join(said)}"
        print_tables(comparison, settings, console)
        page, figure = write_report(replace(comparison, notes=notes), folder, settings)
        pages += [f"The page: {page}", f"The figure: {figure}"]
    console.print(*pages, sep="\n", highlight=False)
    console.print("\n[bold]What was seen[/]")
    for sentence in said:
        console.print(f"- {sentence}", markup=False, highlight=False)


def naive_against_nested(comparison: Comparison) -> list[str]:
    """What the naive method reached and what nested methods did, and at what cost."""
    naive, *nested = comparison.curves
    worst = best_curve(nested, METRIC, higher_is_better=False)
    ends, wins = final_values(naive, METRIC), 0
    for curve in nested:
        pairs = zip(final_values(curve, METRIC), ends, strict=True)
        wins += all(theirs > own for theirs, own in pairs)
    is_better = wins == len(nested)
    found = [
        f"Where every client holds one class, averaging what each client finds alone ends at "
        f"{_final(naive)} accuracy; the nested methods end at {_final(worst)} ({worst.name}) or "
        f"better."
        if is_better
        else f"Averaging what each client finds alone ends at {_final(naive)} accuracy, and only "
        f"{wins} of {len(nested)} nested methods did better with every seed: the claim that the "
        "naive way fails does not hold here."
    ]
    costs = {
        axis: {curve.name: _cost(curve, axis) for curve in nested}
        for axis in ("exchanges", "megabytes")
    }
    if not any(math.isfinite(cost) for cost in costs["exchanges"].values()):
        return [*found, f"No nested method reached {TARGET} with every seed."]
    few = min(costs["exchanges"], key=lambda name: costs["exchanges"][name])
    small = min(costs["megabytes"], key=lambda name: costs["megabytes"][name])
    most = max(
        (name for name, cost in costs["exchanges"].items() if math.isfinite(cost)),
        key=lambda name: costs["exchanges"][name],
    )
    return [
        *found,
        f"To {TARGET} accuracy {few} needs the fewest exchanges, {costs['exchanges'][few]:.0f} "
        f"({most}: {costs['exchanges'][most]:.0f}), and {small} the fewest megabytes, "
        f"{costs['megabytes'][small]:.0f}.",
    ]


def waiting(comparison: Comparison) -> list[str]:
    """What it costs to wait for slow clients; the first curve does not wait."""
    alone, *waiters = comparison.curves
    own = _cost(alone, "seconds")
    best = min(waiters, key=lambda curve: _cost(curve, "seconds"))
    theirs = _cost(best, "seconds")
    if not math.isfinite(own):
        return [f"With four slow clients {alone.name} did not reach {TARGET} with every seed."]
    if not math.isfinite(theirs):
        return [
            f"With four slow clients {alone.name}, which does not wait for them, reaches {TARGET} "
            f"after {own:.0f} virtual seconds; no method that waits did in the time given."
        ]
    verdict = "sooner" if own < theirs else "later: not waiting did not pay"
    return [
        f"With four slow clients {alone.name}, which does not wait for them, reaches {TARGET} "
        f"after {own:.0f} virtual seconds, {best.name}, the fastest that waits, after "
        f"{theirs:.0f}: "
        f"{max(own, theirs) / min(own, theirs):.1f} times {verdict}."
    ]


def _cost(curve: Curve, axis: str) -> float:
    """The mean cost of the target; infinite unless every seed has reached it."""
    cost = cost_to_reach(curve, METRIC, TARGET, axis)
    return cost.interval.mean if cost.reached == cost.total else math.inf


def _final(curve: Curve) -> str:
    ends: Sequence[float] = final_values(curve, METRIC)
    over_seeds = interval(ends)
    return f"{over_seeds.mean:.2f} ± {over_seeds.high - over_seeds.mean:.2f}"
