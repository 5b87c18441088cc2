"""What a comparison shows, in a sentence or two."""

import math

import numpy as np

from rookery.report.comparison import Comparison, Curve, best_curve, final_values
from rookery.report.statistics import interval
from rookery.report.tables import plus_minus


def summary(comparison: Comparison, metric: str, *, higher_is_better: bool | None = None) -> str:
    """The best final value and the next, and which curves diverged.

    Args:
        comparison: the curves.
        metric: what is compared.
        higher_is_better: which way it is better; if None, what the comparison knows.

    >>> from rookery.runner.history import History
    >>> ends = {"A": 2.0, "B": 1.0}
    >>> curves = [Curve(name, [History([{"round": 0, "loss": ends[name]}])]) for name in ends]
    >>> summary(Comparison("Two", curves), "loss")
    'B ends with the smallest loss, 1, before A with 2 (one seed).'
    """
    goal = comparison.goal_of(metric)
    if higher_is_better is None and goal is not None:
        higher_is_better = goal == "max"
    measured = [curve for curve in comparison.curves if metric in curve.metrics]
    ended = [c for c in measured if math.isfinite(np.mean(final_values(c, metric)))]
    seeds = max(len(curve.seeds) for curve in measured)
    over = "one seed" if seeds == 1 else f"mean ± 95 % interval over {seeds} seeds"

    def final(curve) -> str:
        return plus_minus(interval(final_values(curve, metric)))

    if not ended:
        said = f"No curve has a final {metric}."
    elif len(measured) == 1:
        said = f"{ended[0].name} ends with {metric} {final(ended[0])} ({over})."
    elif higher_is_better is None:
        said = (
            f"{len(measured)} curves. Whether more or less {metric} is better is not declared, so "
            "none is called the best."
        )
    else:
        best = best_curve(ended, metric, higher_is_better)
        said = f"{best.name} ends with the {'largest' if higher_is_better else 'smallest'} {metric}"
        said += f", {final(best)}"
        if others := [curve for curve in ended if curve is not best]:
            second = best_curve(others, metric, higher_is_better)
            said += f", before {second.name} with {final(second)}"
            if seeds > 1 and _overlap(best, second, metric):
                over += "; the two intervals overlap"
        said += f" ({over})."
    if wild := [curve.name for curve in comparison.curves if curve.diverged]:
        said += f" With diverged runs: {', '.join(wild)}."
    return said


def _overlap(one: Curve, other: Curve, metric: str) -> bool:
    a, b = interval(final_values(one, metric)), interval(final_values(other, metric))
    return a.low <= b.high and b.low <= a.high
