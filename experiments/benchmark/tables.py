"""The benchmark's results as text: Markdown tables for the README, and what the page says first."""

from collections.abc import Sequence

import numpy as np

from experiments.benchmark import scoring
from experiments.benchmark.page import forms, of_form, steps
from experiments.benchmark.scoring import COST, Line
from rookery.report.statistics import interval


def about(lines: Sequence[Line]) -> str:
    """How large the results are, and how they came about."""
    if not lines:
        return "No results yet."
    size, minutes = lines[0]["size"], sum(line["cpu_seconds"] for line in lines) / 60
    first, second = size["grid"]
    names = {line["algorithm"] for line in lines}
    return (
        f"{len(lines)} cells of {len(names)} algorithms, {minutes:.0f} CPU minutes. Each algorithm "
        f"has {size['exchanges']} exchanges, {first * second} settings of its step sizes and at "
        f"most {size['extensions']} extensions of the grid, judged with a seed of its own on rows "
        f"that are used for nothing else; the figures are of {len(size['seeds'])} other seeds. "
        f"{_edges(lines)}"
    )


def _edges(lines: Sequence[Line]) -> str:
    widened = sum(bool(line["widened"]) for line in lines)
    edge = sum(bool(line["edge"]) for line in lines)
    return f"The grid was extended in {widened} cells, and {edge} choices are still at its edge."


def regret(line: Line) -> float | None:
    """How much better the best setting tried is on the test rows than the chosen one.

    Both with the seed of the tuning; None if no setting was finite.
    """
    tests = [(one["holdout"], one["test"]) for one in line["tried"] if one["holdout"] is not None]
    if not tests:
        return None
    return max(test for _, test in tests) - max(tests)[1]


def tables(lines: Sequence[Line]) -> str:
    """Standings of each form, then every contest."""
    standings = scoring.standings(lines)
    text = [about(lines)]
    for form in forms(lines):
        own = {name: one for (name, f), one in standings.items() if f == form}
        axes = list(next(iter(own.values())).ranks)
        text += ["", f"### {form}", "", f"| algorithm | {' | '.join(axes)} | at the target |"]
        text += ["|---|" + "---|" * (len(axes) + 1)]
        for name in sorted(own, key=lambda name: own[name].mean(COST)):
            places = [own[name].interval(axis) for axis in axes]
            cells = [f"{1 + m * (len(own) - 1):.1f} ± {h * (len(own) - 1):.1f}" for m, h in places]
            text.append(f"| {name} | {' | '.join(cells)} | {100 * own[name].reached:.0f} % |")
        for where, some in scoring.by_contest(of_form(lines, form)).items():
            text += ["", *_contest(where, some)]
        text += ["", *(f"- {scoring.regime(n, one, len(own))}" for n, one in own.items())]
    return "\n".join(text)


def _contest(where: scoring.Contest, some: Sequence[Line]) -> list[str]:
    axes = scoring.axes_of(some[0])
    wanted = scoring.target(some)
    text = [f"**{', '.join(where)}**: {some[0]['metric']}; the target is {wanted:.3f}", ""]
    text += [
        f"| algorithm | {' | '.join(axes)} | exchanges to the target | steps | edge | regret |"
    ]
    text += ["|---|" + "---|" * (len(axes) + 4)]
    for line in sorted(some, key=lambda line: -np.mean(scoring.values_at(line, COST))):
        costs = [c for c in scoring.costs_to_target(line, COST, wanted) if np.isfinite(c)]
        cost = f"{np.mean(costs):.0f} ({len(costs)})" if costs else "-"
        edge = ", ".join(f"{name} {side}" for name, side in line["edge"]) or "no"
        missed = regret(line)
        text.append(
            f"| {line['algorithm']} | {' | '.join(_value(line, axis) for axis in axes)} | {cost} "
            f"| {steps(line)} | {edge} | {'-' if missed is None else f'{missed:.3f}'} |"
        )
    return text


def _value(line: Line, axis: str) -> str:
    own = interval(scoring.values_at(line, axis))
    mark = "" if scoring.is_spent(line, axis) else "≥ "
    return f"{mark}{own.mean:.3f} ± {own.high - own.mean:.3f}"
