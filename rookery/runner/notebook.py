"""Results as HTML for notebooks. Curves are inline SVG: no file, no script, no plotting library."""

import html
import math
from collections.abc import Sequence

import numpy as np

from rookery.program.ledger import Ledger
from rookery.runner.best import Best
from rookery.runner.history import History

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#777777")
"""Okabe and Ito's palette, for colour-blind readers."""
STATUS_COLOURS = {"finished": "#009E73", "stopped": "#0072B2", "diverged": "#D55E00"}
MOST_CHARTS = 4
MOST_RUNS = 12

_WIDTH, _HEIGHT = 300, 170
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 24, 24

Line = tuple[np.ndarray, np.ndarray]
"""The rounds and the values of one curve."""


def result_html(
    title: str,
    seed: int,
    status: str,
    rounds: int,
    message: str,
    history: History,
    ledger: Ledger,
    best: Best | None = None,
) -> str:
    """One run: its status, its last values and costs, and a curve for each of the first metrics.

    >>> history = History([{"round": 0, "loss": 2.0}, {"round": 10, "loss": 1.0}])
    >>> page = result_html("FedAvg", 0, "finished", 10, "", history, Ledger(exchanges=10))
    >>> "FedAvg" in page and "<svg" in page and "10 exchanges" in page
    True
    """
    metrics = metric_columns(history)
    after = f"after {rounds:,} round{'s' * (rounds != 1)}"
    head = f"<b>{html.escape(title)}</b>, seed {seed} {_pill(status)} {after}"
    parts = [f"<div>{head}</div>"]
    if message:
        parts.append(f'<div style="margin-top:4px">{html.escape(message)}</div>')
    if metrics:
        rows = [[name, number(history[name][0]), number(history[name][-1])] for name in metrics]
        parts.append(_table(["", "start", "end"], rows))
    if best is not None:
        text = f"best {html.escape(best.metric)}: {number(best.value)} in round {best.round:,}"
        parts.append(f"<div>{text}</div>")
    parts.append(f'<div style="opacity:.75">{_costs(ledger)}</div>')
    charts = [chart(name, [_line(history, name)], [COLOURS[0]]) for name in metrics[:MOST_CHARTS]]
    return _card([*parts, _row(charts)])


def results_html(runs: Sequence[tuple[str, int, str, int, History]]) -> str:
    """A sweep: a line for each run (title, seed, status, rounds), and one chart for each metric.

    >>> history = History([{"round": 0, "loss": 2.0}, {"round": 10, "loss": 1.0}])
    >>> results_html([("FedAvg", seed, "finished", 10, history) for seed in (0, 1)]).count("<svg")
    1
    """
    metrics = list(dict.fromkeys(m for *_, history in runs for m in metric_columns(history)))
    titles = list(dict.fromkeys(title for title, *_ in runs))
    # one colour for a title, or for a run if all have one title
    of_title = len(titles) > 1
    colours = [
        COLOURS[(titles.index(run[0]) if of_title else i) % len(COLOURS)]
        for i, run in enumerate(runs)
    ]
    rows = [
        [
            _swatch(colour) + html.escape(title),
            str(seed),
            _pill(status),
            f"{rounds:,}",
            *(number(history.last(m)) if m in history.names else "" for m in metrics),
        ]
        for (title, seed, status, rounds, history), colour in zip(runs, colours, strict=True)
    ]
    shown = rows[:MOST_RUNS]
    more = [f"<div>and {len(rows) - MOST_RUNS} more runs</div>"] if len(rows) > MOST_RUNS else []
    charts = []
    for metric in metrics[:MOST_CHARTS]:
        own = [(run, c) for run, c in zip(runs, colours, strict=True) if metric in run[-1].names]
        healthy = [_line(run[-1], metric) for run, _ in own if run[2] != "diverged"]
        lines = [_line(run[-1], metric) for run, _ in own]
        charts.append(chart(metric, lines, [c for _, c in own], healthy or None))
    heads = ["run", "seed", "status", "rounds", *map(html.escape, metrics)]
    return _card([_table(heads, shown, is_escaped=True), *more, _row(charts)])


def metric_columns(history: History) -> list[str]:
    """The columns that are neither the round nor a cost."""
    return list(dict.fromkeys(name for row in history for name in history.metrics_of(row)))


def chart(
    title: str,
    lines: Sequence[Line],
    colours: Sequence[str],
    fitted: Sequence[Line] | None = None,
) -> str:
    """Curves over rounds as SVG; logarithmic if positive values span more than three decades.

    Args:
        title: the metric.
        lines: the curves.
        colours: one for each.
        fitted: the curves that decide the limits, which the others may leave; all if None.

    >>> line = (np.array([0.0, 1.0]), np.array([1.0, 1e6]))
    >>> chart("f", [line], ["red"]).count("(log scale)</text>")
    1
    """
    values = np.concatenate([y[np.isfinite(y)] for _, y in (lines if fitted is None else fitted)])
    rounds = np.concatenate([x for x, _ in lines])
    if not len(values):
        return ""
    is_log = values.min() > 0 and values.max() > 1e3 * values.min()
    scale = np.log10 if is_log else np.asarray
    low, high = float(scale(values.min())), float(scale(values.max()))
    first, last = float(rounds.min()), float(rounds.max())
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT

    def x_at(round: float) -> float:
        return _LEFT + (right - _LEFT) * (round - first) / ((last - first) or 1)

    def y_at(value: float) -> float:
        value = min(max(value, float(values.min())), float(values.max()))
        share = (float(scale(value)) - low) / (high - low) if high > low else 0.5
        return bottom - (bottom - _TOP) * share

    paths = []
    for (x, y), colour in zip(lines, colours, strict=True):
        points = [
            (x_at(a), y_at(b)) if math.isfinite(b) else None for a, b in zip(x, y, strict=True)
        ]
        if sum(point is not None for point in points) == 1:
            at = next(point for point in points if point is not None)
            paths.append(f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="3" fill="{colour}"/>')
            continue
        paths.append(
            f'<path d="{_path(points)}" fill="none" stroke="{colour}" stroke-width="1.8" '
            'stroke-linejoin="round"/>'
        )
    axis = f"M{_LEFT} {_TOP}V{bottom}H{right}"
    label = html.escape(title) + (" (log scale)" if is_log else "")
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{label}" style="font:11px sans-serif" fill="currentColor">'
        f'<text x="{_LEFT}" y="14" font-weight="bold">{label}</text>'
        f'<path d="{axis}" fill="none" stroke="currentColor" stroke-opacity=".35"/>'
        f'<text x="{_LEFT - 5}" y="{_TOP + 8}" text-anchor="end">{values.max():.3g}</text>'
        f'<text x="{_LEFT - 5}" y="{bottom}" text-anchor="end">{values.min():.3g}</text>'
        f'<text x="{_LEFT}" y="{bottom + 15}">{first:,.0f}</text>'
        f'<text x="{right}" y="{bottom + 15}" text-anchor="end">round {last:,.0f}</text>'
        f"{''.join(paths)}</svg>"
    )


def _path(points: Sequence[tuple[float, float] | None]) -> str:
    """The commands of a line with a gap wherever there is no point."""
    commands, is_drawing = [], False
    for point in points:
        if point is not None:
            commands.append(f"{'L' if is_drawing else 'M'}{point[0]:.1f} {point[1]:.1f}")
        is_drawing = point is not None
    return "".join(commands)


def _line(history: History, metric: str) -> Line:
    return history["round"], history[metric]


def number(value: float) -> str:
    """A number in few digits, a dash for NaN.

    >>> number(0.123456), number(float("nan"))
    ('0.1235', '—')
    """
    return f"{value:.4g}" if math.isfinite(value) else "—"


def _costs(ledger: Ledger) -> str:
    costs = [
        f"{ledger.exchanges:,} exchanges",
        f"{ledger.bytes_down / 1e6:,.4g} MB down",
        f"{ledger.bytes_up / 1e6:,.4g} MB up",
    ]
    if ledger.seconds:
        costs.append(f"{ledger.seconds:,.4g} virtual seconds")
    return ", ".join(costs)


def _pill(status: str) -> str:
    colour = STATUS_COLOURS.get(status, "#777777")
    return (
        f'<span style="background:{colour};color:white;border-radius:8px;padding:1px 8px;'
        f'font-size:12px">{html.escape(status)}</span>'
    )


def _swatch(colour: str) -> str:
    style = "display:inline-block;width:10px;height:10px;margin-right:6px;border-radius:2px"
    return f'<span style="{style};background:{colour}"></span>'


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, is_escaped: bool = False) -> str:
    def cells(row: Sequence[str], tag: str) -> str:
        texts = row if is_escaped else map(html.escape, row)
        return "".join(
            f'<{tag} style="text-align:{"left" if i == 0 else "right"};padding:1px 12px 1px 0">'
            f"{text}</{tag}>"
            for i, text in enumerate(texts)
        )

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return (
        '<table style="border-collapse:collapse;margin:6px 0">'
        f"<tr>{cells(heads, 'th')}</tr>{body}</table>"
    )


def _row(charts: Sequence[str]) -> str:
    return f'<div style="display:flex;flex-wrap:wrap;gap:12px">{"".join(charts)}</div>'


def _card(parts: Sequence[str]) -> str:
    return f'<div style="font:14px sans-serif;line-height:1.5">{"".join(parts)}</div>'
