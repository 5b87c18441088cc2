"""Tables for the terminal: final values, the cost of reaching a target, paired tests."""

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
    client_values,
    cost_to_reach,
    divergence,
    final_values,
    interval,
    paired_test,
    require_axis,
)
from rookery.runner.history import EPSILON

COSTS = ("exchanges", "megabytes_up", "megabytes_down", "seconds")
"""The axes that a table shows by default, as far as the runs have had these costs."""


def final_table(
    comparison: Comparison,
    *,
    metrics: Sequence[str] | None = None,
    axes: Sequence[str] | None = None,
) -> Table:
    """The last measured values, mean ± 95 % interval over seeds, and what the runs cost.

    If a run diverged, a further column says which and when; its curve has no final value.

    Args:
        comparison: the curves, one row for each.
        metrics: one column for each; by default all that were measured.
        axes: names out of ``AXES``, one column for each; by default the usual costs that a run has
            had, and the epsilon of private runs, which does not cover the measurements.

    >>> from rookery.runner.history import History
    >>> run = History([{"round": 10, "loss": 0.5}])
    >>> table = final_table(Comparison("Losses", [Curve("FedAvg", [run])]), axes=["round"])
    >>> [column.header.plain for column in table.columns[1:]]
    ['seeds', 'loss', 'rounds']
    """
    metrics = comparison.metrics if metrics is None else metrics
    if axes is None:
        runs = [run for curve in comparison.curves for run in curve.runs]
        private = [EPSILON] if any(EPSILON in run.names for run in runs) else []
        axes = [*_spent(comparison), *private]
    has_diverged = any(curve.diverged for curve in comparison.curves)
    labels = [AXES[require_axis(axis)].label for axis in axes]
    last = ["diverged"] if has_diverged else []
    table = _table(comparison.title, ["seeds", *metrics, *labels, *last])
    for curve in comparison.curves:
        values = [_final(curve, metric) for metric in metrics]
        costs = [interval([axis_values(run, a)[-1] for run in curve.runs]) for a in axes]
        table.add_row(
            Text(curve.name),
            str(len(curve.runs)),
            *(plus_minus(value) for value in values),
            *(number(cost.mean) for cost in costs),
            *([divergence(curve).replace("; ", "\n") or "no"] if has_diverged else []),
        )
    return table


def cost_table(
    comparison: Comparison,
    metric: str,
    target: float,
    *,
    higher_is_better: bool = True,
    axes: Sequence[str] | None = None,
) -> Table:
    """What each curve paid until its metric first reached the target.

    Means are over the seeds that reached it; the second column counts them, and says so if a seed
    diverged: it may have passed the target on its way.

    Args:
        comparison: the curves, one row for each.
        metric: the metric that has to reach the target.
        target: the value to reach.
        higher_is_better: whether the metric has to rise to the target or to fall to it.
        axes: names out of ``AXES``, one column for each; by default the usual costs that a run has
            had.

    >>> from rookery.runner.history import History
    >>> run = History([{"round": r, "loss": 1.0 - r / 10} for r in (0, 10)])
    >>> comparison = Comparison("Losses", [Curve("FedAvg", [run])])
    >>> table = cost_table(comparison, "loss", 0.5, higher_is_better=False, axes=["round"])
    >>> [list(column.cells)[0] for column in table.columns[1:]]
    ['1/1', '5']
    """
    comparison.require_metric(metric)
    axes = _spent(comparison) if axes is None else axes
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
            f"{costs[0].reached}/{costs[0].total}{', diverged' if curve.diverged else ''}"
            if costs
            else "—",
            *(plus_minus(cost.interval) for cost in costs),
        )
    return table


def _spent(comparison: Comparison) -> list[str]:
    """The usual costs that a run has had: without a clock there are no seconds."""
    runs = [run for curve in comparison.curves for run in curve.runs]
    return [axis for axis in COSTS if any(axis_values(run, axis)[-1] != 0 for run in runs)]


def paired_table(
    comparison: Comparison, metric: str, *, higher_is_better: bool | None = True
) -> Table:
    """Every curve against the one with the best final value, seed by seed.

    A difference is the last measured value of this curve minus that of the best one, over the seeds
    that both have. The p-values are those of a paired t-test and of an exact sign-flip test; with n
    seeds the exact one is at least 2 / 2^n. A dash stands for a test that is undefined: one seed, a
    diverged seed, or (t-test) differences that are all equal.

    Args:
        comparison: the curves, one row for each but the best.
        metric: the metric to compare.
        higher_is_better: whether the largest or the smallest final value is the best; None if
            neither is known to be: the first curve then stands in for the best.
    """
    comparison.require_metric(metric)
    measured = [curve for curve in comparison.curves if metric in curve.metrics]
    is_known = higher_is_better is not None
    best = best_curve(measured, metric, higher_is_better) if is_known else measured[0]
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


def client_table(comparison: Comparison, metric: str, *, most: int = 20) -> Table:
    """The last values of a metric of every client, mean ± 95 % interval over seeds.

    Args:
        comparison: the curves, one column for each that has measured the metric per client.
        metric: one of ``comparison.client_metrics``.
        most: how many clients to list; the title says if there are more.
    """
    if metric not in comparison.client_metrics:
        known = ", ".join(comparison.client_metrics) or "none"
        raise ValueError(f"no curve has measured {metric!r} of every client; there are {known}.")
    measured = [curve for curve in comparison.curves if metric in curve.client_metrics]
    values = [client_values(curve, metric) for curve in measured]
    clients = list(dict.fromkeys(name for one in values for name in one))
    title = f"{comparison.title}: {metric} of each client"
    if len(clients) > most:
        title += f", the first {most} of {len(clients)}"
    table = _table(title, [curve.name for curve in measured], first="client")
    for client in clients[:most]:
        cells = [plus_minus(interval(one[client])) if client in one else "—" for one in values]
        table.add_row(Text(client), *cells)
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


def plus_minus(value: Interval[float]) -> str:
    """A mean with half its interval, both to the same decimal place.

    >>> plus_minus(Interval(0.87654, 0.86454, 0.88854))
    '0.877 ± 0.012'
    """
    half = value.high - value.mean
    if math.isnan(half) or half <= 1e-12 * abs(value.mean):  # equal up to rounding
        return number(value.mean)
    if max(abs(value.mean), half) < 1e-3:
        return f"{value.mean:.3g} ± {half:.2g}"
    decimals = min(max(1 - math.floor(math.log10(half)), 0), 6)
    return f"{value.mean:,.{decimals}f} ± {half:,.{decimals}f}"


def _final(curve: Curve, metric: str) -> Interval[float]:
    if metric not in curve.metrics:
        return Interval(math.nan, math.nan, math.nan)
    return interval(final_values(curve, metric))


def _table(title: str, columns: Sequence[str], first: str = "curve") -> Table:
    # wide enough for most titles, so that a narrow table does not break them
    table = Table(
        title=Text(title, style="bold"), title_justify="left", min_width=min(len(title), 70)
    )
    table.add_column(first, overflow="fold")
    for column in columns:
        table.add_column(Text(column), justify="right", overflow="fold")
    return table
