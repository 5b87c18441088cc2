"""Tables for the terminal: where the curves end, and what it cost to reach a target."""

import math
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from rookery.report.comparison import (
    AXES,
    Comparison,
    Curve,
    Interval,
    axis_values,
    best_curve,
    cost_to_reach,
    final_values,
    interval,
    paired_test,
)

COSTS = ("exchanges", "megabytes_up", "megabytes_down", "seconds")
"""The axes that a table shows if it is not told otherwise."""


def final_table(
    comparison: Comparison,
    *,
    metrics: Sequence[str] | None = None,
    axes: Sequence[str] = COSTS,
) -> Table:
    """The last measured values, mean ± 95 % interval over seeds, and what the runs cost.

    Args:
        comparison: what to show.
        metrics: one column for each; all of them if not given.
        axes: names out of ``AXES``, one column for each.
    """
    metrics = comparison.metrics if metrics is None else metrics
    table = _table(comparison.title, ["seeds", *metrics, *(AXES[axis].label for axis in axes)])
    for curve in comparison.curves:
        values = [_final(curve, metric) for metric in metrics]
        costs = [interval([axis_values(run, a)[-1] for run in curve.runs]) for a in axes]
        table.add_row(
            Text(curve.name),
            str(len(curve.runs)),
            *(plus_minus(value) for value in values),
            *(number(cost.mean) for cost in costs),
        )
    return table


def cost_table(
    comparison: Comparison,
    metric: str,
    target: float,
    *,
    higher_is_better: bool = True,
    axes: Sequence[str] = COSTS,
) -> Table:
    """What each curve paid until its metric first reached the target.

    Means are over the seeds that got there; the second column says how many did.

    Args:
        comparison: what to show.
        metric: the metric that has to reach the target.
        target: its value.
        higher_is_better: whether reaching means to rise to the target, or to fall to it.
        axes: names out of ``AXES``, one column for each.
    """
    sign = "≥" if higher_is_better else "≤"
    title = f"{comparison.title}: cost of {metric} {sign} {target:g}"
    table = _table(title, ["reached", *(AXES[axis].label for axis in axes)])
    for curve in comparison.curves:
        if metric not in curve.metrics:
            table.add_row(Text(curve.name), *["—"] * (len(axes) + 1))
            continue
        costs = [cost_to_reach(curve, metric, target, axis, higher_is_better) for axis in axes]
        table.add_row(
            Text(curve.name),
            f"{costs[0].reached}/{costs[0].total}" if costs else "—",
            *(plus_minus(cost.interval) for cost in costs),
        )
    return table


def paired_table(comparison: Comparison, metric: str, *, higher_is_better: bool = True) -> Table:
    """Every curve against the one that ends best, seed by seed: is the difference real?

    The differences are of the last measured values, this curve minus the best one, over the seeds
    that both have. A paired t-test and an exact test by flipping signs say how likely so large a
    mean difference would be by chance; with n seeds the exact one cannot go below 2 / 2^n.

    Args:
        comparison: what to show.
        metric: the metric that is compared.
        higher_is_better: which end of the metric is the best.
    """
    measured = [curve for curve in comparison.curves if metric in curve.metrics]
    best = best_curve(measured, metric, higher_is_better)
    table = _table(
        f"{comparison.title}: {metric} against {best.name!r}, seed by seed",
        ["seeds", "difference", "p (t-test)", "p (sign flips)"],
    )
    for curve in measured:
        if curve is best:
            continue
        if not set(curve.seeds) & set(best.seeds):
            table.add_row(Text(curve.name), "0", "—", "—", "—")
            continue
        test = paired_test(curve, best, metric)
        table.add_row(
            Text(curve.name),
            str(len(test.seeds)),
            plus_minus(test.interval),
            number(test.p_student),
            number(test.p_flips),
        )
    return table


def number(value: float) -> str:
    """A number in few digits, a dash for NaN.

    >>> number(0.123456), number(1234567.8), number(0.00001234), number(float("nan"))
    ('0.1235', '1,234,568', '1.23e-05', '—')
    """
    if math.isnan(value):
        return "—"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) >= 1e-3 or value == 0 else f"{value:.3g}"


def plus_minus(value: Interval) -> str:
    """A mean with half its interval, both to the same decimal place.

    >>> plus_minus(Interval(0.87654, 0.86454, 0.88854))
    '0.877 ± 0.012'
    """
    half = value.high - value.mean
    if math.isnan(half) or half == 0:
        return number(value.mean)
    if max(abs(value.mean), half) < 1e-3:
        return f"{value.mean:.3g} ± {half:.2g}"
    decimals = min(max(1 - math.floor(math.log10(half)), 0), 6)
    return f"{value.mean:,.{decimals}f} ± {half:,.{decimals}f}"


def _final(curve: Curve, metric: str) -> Interval:
    if metric not in curve.metrics:
        return Interval(math.nan, math.nan, math.nan)
    return interval(final_values(curve, metric))


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=Text(title, style="bold"), title_justify="left")
    table.add_column("curve", overflow="fold")
    for column in columns:
        table.add_column(Text(column), justify="right", overflow="fold")
    return table
