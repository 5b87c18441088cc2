"""Asynchronous runs as a figure: a Gantt chart of the first jobs, and the staleness of results."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rookery.report.comparison import Comparison, Trace
from rookery.report.curves import WIDTH, save_figure
from rookery.report.palette import COLOURS

_INK, _WAITING = "#333333", "#DDDDDD"
_CLIENTS = 60
"""A Gantt chart shows at most this many clients, the first that delivered."""
_JOBS_LONG = 12
"""A Gantt chart is usually this many median job durations long."""
_FIRST_JOBS = 4
"""And at least this many times as long as the first result of every kind took to be used."""


def has_traces(comparison: Comparison) -> bool:
    """Whether any curve has asynchronous jobs to show.

    >>> from rookery.report.comparison import Curve
    >>> from rookery.runner.history import History
    >>> has_traces(Comparison("t", [Curve("FedAvg", [History([{"round": 0}])])]))
    False
    """
    return any(shown(curve.traces) for curve in comparison.curves)


def plot_traces(comparison: Comparison, path: str | Path, *, dpi: int = 160) -> None:
    """Save which client worked when, for the first seed of every asynchronous curve."""
    save_figure(draw_traces(comparison), path, dpi)


def draw_traces(comparison: Comparison) -> Figure:
    """The figure that :func:`plot_traces` saves: a row of two panels for each kind of job.

    On the left, a bar is a job, from when the client received the values until its result arrived;
    jobs that began with the same version of the server have the same colour. Grey is how long the
    result then waited for the server. On the right, a histogram of the staleness of all results.
    """
    rows = [
        (curve.name, kind, trace, strip_end(curve.traces))
        for curve in comparison.curves
        for kind, trace in shown(curve.traces).items()
    ]
    if not rows:
        raise ValueError(
            "no curve of this comparison has jobs to show: none is asynchronous, or none had a "
            "clock, without which jobs take no time."
        )
    heights = [0.9 + 0.09 * (max(trace["client"]) + 1) for _, _, trace, _ in rows]
    figure = Figure(figsize=(WIDTH, sum(heights) + 0.3), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(
        len(rows), 2, squeeze=False, width_ratios=(3, 1), height_ratios=heights
    )
    for (name, kind, trace, end), (strip, bars) in zip(rows, panels, strict=True):
        _draw_strip(strip, trace, end)
        strip.set_title(f"{name}, {kind} jobs", loc="left", fontsize=10, parse_math=False)
        _draw_staleness(bars, trace["staleness"])
    panels[-1][0].set_xlabel("virtual seconds")
    panels[-1][1].set_xlabel("staleness in versions")
    return figure


def shown(traces: Mapping[str, Trace]) -> dict[str, Trace]:
    """The traces with something to see, cut to the clients that a Gantt chart has room for.

    Without a clock all jobs end when they begin and no result is stale: nothing is left to draw.
    """
    return {kind: _cut(trace) for kind, trace in traces.items() if _has_content(trace)}


def _has_content(trace: Trace) -> bool:
    return bool(trace["received"]) and (max(trace["taken"]) > 0 or any(trace["staleness"][1:]))


def _cut(trace: Trace) -> Trace:
    clients = list(dict.fromkeys(trace["client"]))
    if max(clients) < _CLIENTS:
        return trace
    line = {client: i for i, client in enumerate(clients[:_CLIENTS])}
    kept = [j for j, client in enumerate(trace["client"]) if client in line]
    return Trace(
        client=[line[trace["client"][j]] for j in kept],
        began=[trace["began"][j] for j in kept],
        ended=[trace["ended"][j] for j in kept],
        taken=[trace["taken"][j] for j in kept],
        version=[trace["version"][j] for j in kept],
        used_in=[trace["used_in"][j] for j in kept],
        received=trace["received"],
        staleness=trace["staleness"],
    )


def strip_end(traces: Mapping[str, Trace]) -> float:
    """Until when a curve's jobs are drawn: the same for all kinds, with some of each shown."""
    known = [trace for trace in traces.values() if trace["received"]]
    usual = max(float(np.median(np.subtract(t["ended"], t["began"]))) for t in known)
    first = max(t["taken"][0] for t in known)
    return (
        min(max(max(t["taken"]) for t in known), max(_JOBS_LONG * usual, _FIRST_JOBS * first))
        or 1.0
    )


def _draw_strip(panel: Axes, trace: Trace, end: float) -> None:
    client, version = np.array(trace["client"]), np.array(trace["version"])
    began, ended, taken = (np.array(trace[name]) for name in ("began", "ended", "taken"))
    drawn = began <= end
    colours = [COLOURS[v % len(COLOURS)] for v in version[drawn]]
    panel.barh(client[drawn], (taken - ended)[drawn], left=ended[drawn], height=0.5, color=_WAITING)
    panel.barh(client[drawn], (ended - began)[drawn], left=began[drawn], height=0.8, color=colours)
    panel.set_xlim(0, end)
    panel.set_ylim(max(client) + 0.6, -0.6)
    panel.set_ylabel("client")
    panel.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    _plain(panel)


def _draw_staleness(panel: Axes, counts: list[int]) -> None:
    top = max((i for i, n in enumerate(counts) if n), default=0)
    panel.bar(range(top + 1), np.array(counts[: top + 1]) / sum(counts), color=COLOURS[0])
    panel.set_xlim(-0.6, max(top, 4) + 0.6)
    panel.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    panel.set_ylabel("fraction of results")
    _plain(panel)


def _plain(panel: Axes) -> None:
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(colors=_INK, labelsize=9, length=3)
