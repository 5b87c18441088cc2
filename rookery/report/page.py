"""A comparison as one HTML file that can be mailed, archived and opened without a network."""

import html
import json
import math
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from rookery.report.comparison import (
    AXES,
    Comparison,
    Curve,
    axis_values,
    metric_values,
    paired_test,
)
from rookery.report.statistics import student_quantile
from rookery.report.work import shown, strip_end


def write_page(
    comparison: Comparison,
    path: str | Path,
    *,
    metric: str | None = None,
    axis: str = "exchanges",
) -> None:
    """Write the interactive page: charts, tables, settings and versions in one file.

    Args:
        comparison: what to show.
        path: the HTML file to write.
        metric: what the chart shows at first; the first that was measured if not given.
        axis: against what it shows it at first, a name out of ``AXES``.
    """
    Path(path).write_text(render(comparison, metric=metric, axis=axis), encoding="utf-8")


def render(comparison: Comparison, *, metric: str | None = None, axis: str = "exchanges") -> str:
    """The text of the page that :func:`write_page` writes."""
    content = json.dumps(_content(comparison, metric, axis), allow_nan=False, default=str)
    # inside a script element only these characters could end it or start a comment
    for character in "<>&":
        content = content.replace(character, f"\\u{ord(character):04x}")
    template = (files("rookery.report") / "page.html").read_text(encoding="utf-8")
    head, tail = template.split("__DATA__")
    return head.replace("__TITLE__", html.escape(comparison.title)) + content + tail


def _content(comparison: Comparison, metric: str | None, axis: str) -> dict[str, Any]:
    """All that the page knows; its script works out means, intervals and costs from the runs."""
    metrics = comparison.metrics
    if not metrics:
        raise ValueError("the runs have measured nothing; pass evaluate= to rookery.run.")
    if metric is not None and metric not in metrics:
        raise ValueError(f"no curve has measured {metric!r}; there are {', '.join(metrics)}.")
    if axis not in AXES:
        raise ValueError(f"unknown axis {axis!r}; choose one of {', '.join(AXES)}.")
    most = max(len(curve.runs) for curve in comparison.curves)
    return {
        "title": comparison.title,
        "notes": comparison.notes,
        "metric": metric or metrics[0],
        "axis": axis,
        "axes": {name: axis.label for name, axis in AXES.items()},
        "metrics": metrics,
        # by the number of seeds: standard errors to either side of the mean
        "reach": [0.0, 0.0, *(student_quantile(n - 1) for n in range(2, most + 1))],
        "curves": [_curve(curve, comparison) for curve in comparison.curves],
        "tests": {metric: _tests(comparison.curves, metric) for metric in metrics},
        "versions": _plain(comparison.versions),
    }


def _curve(curve: Curve, comparison: Comparison) -> dict[str, Any]:
    return {
        "name": curve.name,
        "seeds": _plain(curve.seeds),
        "settings": _plain(comparison.settings.get(curve.name, {})),
        "diaries": {
            kind: {**diary, "end": strip_end(curve.diaries)}
            for kind, diary in shown(curve.diaries).items()
        },
        "runs": [
            {
                "axes": {name: _numbers(axis_values(run, name)) for name in AXES},
                "metrics": {name: _numbers(metric_values(run, name)) for name in curve.metrics},
            }
            for run in curve.runs
        ],
    }


def _tests(curves: list[Curve], metric: str) -> list[list[list[float | None] | None]]:
    """For each pair of curves the p-values of their paired tests; None if they share no seed."""

    def p_values(one: Curve, other: Curve) -> list[float | None] | None:
        if any(metric not in c.metrics for c in (one, other)) or not set(one.seeds) & set(
            other.seeds
        ):
            return None
        test = paired_test(one, other, metric)
        return _numbers(np.array([test.p_student, test.p_flips]))

    return [[p_values(one, other) for other in curves] for one in curves]


def _numbers(values: np.ndarray) -> list[float | None]:
    """Nine digits, which tell any two single precision numbers apart; None for a gap."""
    return [float(f"{value:.9g}") if math.isfinite(value) else None for value in values]


def _plain(value: Any) -> Any:
    """The same with numbers that JSON lacks, infinity and NaN, as text."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
