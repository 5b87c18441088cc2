"""A comparison as one HTML file that can be mailed, archived and opened without a network."""

import html
import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files

import numpy as np

from rookery.report.asynchrony import shown, strip_end
from rookery.report.comparison import (
    AXES,
    Comparison,
    Curve,
    axis_values,
    client_values,
    metric_label,
    metric_values,
    paired_test,
    require_axis,
)
from rookery.report.sensitivity import as_data_url, has_steps, sentences
from rookery.report.statistics import student_quantile
from rookery.report.summary import summary
from rookery.runner.history import History


def render(
    comparison: Comparison,
    *,
    metric: str | None = None,
    axis: str = "exchanges",
    target: float | None = None,
    higher_is_better: bool | None = None,
    log_x: bool = False,
    log_y: bool = False,
) -> str:
    """The interactive page, with charts, tables, settings and versions, as the text of one file.

    >>> from rookery.runner.history import History
    >>> run = History([{"round": 0, **dict.fromkeys(["exchanges", "bytes_up", "bytes_down",
    ...     "gradients", "hessian_vectors", "seconds"], 0), "loss": 1.0}])
    >>> "<title>Losses</title>" in render(Comparison("Losses", [Curve("FedAvg", [run])]))
    True

    Args:
        comparison: the curves.
        metric: the metric that the chart shows first; by default the first that was measured.
        axis: the axis that the chart shows first, a name out of ``AXES``.
        target: the target that the table of costs shows first; by default the page guesses one.
        higher_is_better: whether the metric has to rise; by default what the comparison knows.
        log_x: whether the chart's costs are logarithmic at first.
        log_y: whether its metric is.
    """
    first = {"target": target, "log_x": log_x, "log_y": log_y}
    data = {**_content(comparison, metric, axis, higher_is_better), **first}
    return filled(template(), comparison.title, data)


def template() -> str:
    """The page without its title and its data."""
    return (files("rookery.report") / "page.html").read_text(encoding="utf-8")


def filled(template: str, title: str, data: Mapping[str, object]) -> str:
    """A page with its title and its data, whatever text these contain.

    >>> page = filled("<b>__TITLE__</b>__DATA__", "a<b", {"name": "</script>"})
    >>> "a&lt;b" in page, "</script>" in page
    (True, False)

    Args:
        template: with ``__TITLE__``, and with ``__DATA__`` once, inside a script element.
        title: a text.
        data: what the page's script reads.
    """
    content = json.dumps(data, allow_nan=False, default=str)
    # inside a script element only these characters could end it or start a comment
    for character in "<>&":
        content = content.replace(character, f"\\u{ord(character):04x}")
    head, tail = template.split("__DATA__")
    return head.replace("__TITLE__", html.escape(title)) + content + tail


def _content(
    comparison: Comparison, metric: str | None, axis: str, higher_is_better: bool | None
) -> dict[str, object]:
    """The data of the page; its script computes means, intervals and costs from the runs."""
    metrics = comparison.metrics
    first = next(iter(metrics), None) if metric is None else comparison.require_metric(metric)
    goals = {name: comparison.goal_of(name) for name in metrics}
    if first is not None and higher_is_better is not None:
        goals[first] = "max" if higher_is_better else "min"
    require_axis(axis)
    runs = [run for curve in comparison.curves for run in curve.runs]
    # a cost that no run has had, such as seconds without a clock, is no axis
    axes = [name for name in AXES if name in ("round", axis) or _is_spent(runs, name)]
    most = max(len(curve.runs) for curve in comparison.curves)
    return {
        "title": comparison.title,
        "notes": comparison.notes,
        "summary": _opening(comparison, first, higher_is_better),
        "metric": first,
        "axis": axis,
        "axes": {name: AXES[name].label for name in axes},
        "metrics": metrics,
        "labels": {name: metric_label(name) for name in (*metrics, *comparison.client_metrics)},
        "goals": {name: {"max": 1, "min": -1, None: None}[goal] for name, goal in goals.items()},
        "groups": comparison.groups(),
        "client_metrics": comparison.client_metrics,
        # by the number of seeds: half the width of a 95 % interval in standard errors
        "reach": [0.0, 0.0, *(student_quantile(n - 1) for n in range(2, most + 1))],
        "curves": [
            {**_curve(curve, comparison, axes), "style": style}
            for curve, style in zip(comparison.curves, comparison.styles(), strict=True)
        ],
        "tests": {metric: _tests(comparison.curves, metric) for metric in metrics},
        "sensitivity": _sensitivity(comparison),
        "holdings": comparison.holdings,
        "made": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "wall_seconds": comparison.wall_seconds,
        "versions": _plain(comparison.versions),
    }


def _opening(comparison: Comparison, metric: str | None, higher_is_better: bool | None) -> str:
    """What the page begins with, a line for each sentence."""
    if comparison.findings:
        return "\n".join(comparison.findings)
    if metric is None:
        return ""
    return summary(comparison, metric, higher_is_better=higher_is_better)


def _sensitivity(comparison: Comparison) -> dict[str, object] | None:
    """The picture of a search and what it says; None if there was none."""
    tuning = comparison.tuning
    if not has_steps(tuning):
        return None
    picture = as_data_url(tuning, comparison.settings)
    return {"picture": picture, "sentences": sentences(tuning)}


def _is_spent(runs: Sequence[History], axis: str) -> bool:
    return any(np.any(np.nan_to_num(axis_values(run, axis)) != 0) for run in runs)


def _curve(curve: Curve, comparison: Comparison, axes: Sequence[str]) -> dict[str, object]:
    return {
        "name": curve.name,
        "seeds": _plain(curve.seeds),
        "settings": _plain(comparison.settings.get(curve.name, {})),
        "diverged": _plain(curve.diverged),
        "clients": {
            metric: {
                client: _numbers(np.array(values))
                for client, values in client_values(curve, metric).items()
            }
            for metric in curve.client_metrics
        },
        "traces": {
            kind: {**trace, "end": strip_end(curve.traces)}
            for kind, trace in shown(curve.traces).items()
        },
        "examined": _plain(curve.examined),
        "runs": [
            {
                "axes": {name: _numbers(axis_values(run, name)) for name in axes},
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
    """Nine digits, enough to distinguish any two single-precision numbers; None for a gap."""
    return [float(f"{value:.9g}") if math.isfinite(value) else None for value in values]


def _plain(value: object) -> object:
    """Settings fit for JSON, which lacks infinity and NaN: they become text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
