"""The benchmark as one HTML file: sortable, filterable, without a network."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.benchmark import scoring
from experiments.benchmark.scoring import COST, Line
from rookery.report.page import filled, template
from rookery.report.statistics import interval
from rookery.runner.atomic_file import replace_file

TITLE = "Benchmark of federated nested optimisation"
FACTORS = [round(2 ** (k / 4), 3) for k in range(17)]
"""Of performance profiles, 1 to 16."""


def write_page(lines: Sequence[Line], path: Path, notes: str) -> None:
    """Write the page of these results."""
    (style,) = re.findall(r"<style>.*?</style>", template(), re.S)
    own = Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
    page = filled(own.replace("__STYLE__", style), TITLE, content(lines, notes))
    replace_file(path, page.encode())


def content(lines: Sequence[Line], notes: str) -> dict[str, object]:
    """What the page's script reads."""
    standings = scoring.standings(lines)
    sizes = {form: sum(key[1] == form for key in standings) for form in forms(lines)}
    return {
        "title": TITLE,
        "notes": notes,
        "axes": scoring.axes_of(lines[0]) if lines else [],
        "factors": FACTORS,
        "standings": [
            {
                "algorithm": name,
                "form": form,
                "ranks": [
                    [1 + mean * (sizes[form] - 1), half * (sizes[form] - 1)]
                    for mean, half in map(own.interval, own.ranks)
                ],
                "contests": len(own.contests),
                "wins": own.wins,
                "reached": own.reached,
                "diverged": own.diverged,
                "sentence": scoring.regime(name, own, sizes[form]),
            }
            for (name, form), own in standings.items()
        ],
        "profiles": [
            {"form": form, "algorithm": name, "shares": shares}
            for form in forms(lines)
            for name, shares in scoring.profile(of_form(lines, form), FACTORS).items()
        ],
        "cells": [
            _cell(line, some)
            for form in forms(lines)
            for some in scoring.by_contest(of_form(lines, form)).values()
            for line in some
        ],
    }


def forms(lines: Sequence[Line]) -> list[str]:
    """The forms that there are results of."""
    return list(dict.fromkeys(line["form"] for line in lines))


def of_form(lines: Sequence[Line], form: str) -> list[Line]:
    """The results of one form."""
    return [line for line in lines if line["form"] == form]


def _cell(line: Line, some: Sequence[Line]) -> dict[str, object]:
    """A row of the table; ``some`` are the lines of its contest and form."""
    costs = [c for c in scoring.costs_to_target(line, COST, scoring.target(some)) if np.isfinite(c)]
    return {
        **{key: line[key] for key in ("algorithm", "form", "task", "data", "split", "metric")},
        "values": [_value(line, axis, some) for axis in scoring.axes_of(line)],
        "cost": float(np.mean(costs)) if costs else None,
        "reached": len(costs),
        "seeds": len(line["size"]["seeds"]),
        "steps": steps(line),
        "extended": len(line["widened"]),
        "edge": ", ".join(f"{name} {side}" for name, side in line["edge"]) or "no",
    }


def _value(line: Line, axis: str, some: Sequence[Line]) -> dict[str, object]:
    own, best = (
        interval(scoring.values_at(line, axis)),
        max(np.mean(scoring.values_at(one, axis)) for one in some),
    )
    return {
        "mean": round(float(own.mean), 4),
        "half": round(float(own.high - own.mean), 4),
        "spent": scoring.is_spent(line, axis),
        "best": bool(own.mean >= best),
    }


def steps(line: Line) -> str:
    """The chosen step sizes as text."""
    if line["setting"] is None:
        return "none: all diverged"
    return ", ".join(f"{name} {value:g}" for name, value in line["setting"].items())
