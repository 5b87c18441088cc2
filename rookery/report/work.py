"""Asynchronous work as a picture: a strip of the first jobs, and how stale results were."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rookery.report.comparison import Comparison
from rookery.report.curves import COLOURS

_INK, _WAITING = "#333333", "#DDDDDD"
_CLIENTS = 60
"""How many clients a strip shows at most, the first that delivered."""
_LOOKS = 12
"""How many jobs of a usual length the strip is long, if the diary reaches so far."""


def has_work(comparison: Comparison) -> bool:
    """Whether any curve is of an asynchronous algorithm."""
    return any(curve.diaries for curve in comparison.curves)


def plot_work(comparison: Comparison, path: str | Path, *, dpi: int = 160) -> None:
    """Draw who worked when, of every asynchronous curve's first seed, into a file."""
    draw_work(comparison).savefig(path, dpi=dpi)


def draw_work(comparison: Comparison) -> Figure:
    """The figure that :func:`plot_work` saves: a row of two panels for each kind of jobs.

    On the left a bar is a job, from when the client received the values until its result was
    there; jobs of one colour began with one version of the server. Grey is what the result then
    waited for the server. On the right, how many of all results had which staleness.
    """
    rows = [
        (curve.name, kind, diary, strip_end(curve.diaries))
        for curve in comparison.curves
        for kind, diary in shown(curve.diaries).items()
    ]
    if not rows:
        raise ValueError("no curve of this comparison has a diary: none is asynchronous.")
    heights = [0.9 + 0.09 * (max(diary["client"]) + 1) for _, _, diary, _ in rows]
    figure = Figure(figsize=(10, sum(heights) + 0.3), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(
        len(rows), 2, squeeze=False, width_ratios=(3, 1), height_ratios=heights
    )
    for (name, kind, diary, end), (strip, bars) in zip(rows, panels, strict=True):
        _draw_strip(strip, diary, end)
        strip.set_title(f"{name}, {kind} jobs", loc="left", fontsize=10, parse_math=False)
        _draw_staleness(bars, diary["staleness"])
    panels[-1][0].set_xlabel("virtual seconds")
    panels[-1][1].set_xlabel("staleness in versions")
    return figure


def shown(diaries: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Diaries with anything in them, cut to the clients that a strip has room for."""
    return {kind: _cut(diary) for kind, diary in diaries.items() if diary["received"]}


def _cut(diary: dict[str, Any]) -> dict[str, Any]:
    clients = sorted(dict.fromkeys(diary["client"]))
    if len(clients) <= _CLIENTS and clients[-1] < _CLIENTS:
        return diary
    line = {client: i for i, client in enumerate(list(dict.fromkeys(diary["client"]))[:_CLIENTS])}
    kept = [j for j, client in enumerate(diary["client"]) if client in line]
    columns = {
        name: [diary[name][j] for j in kept]
        for name in ("began", "ended", "taken", "version", "used_in")
    }
    return {**diary, **columns, "client": [line[diary["client"][j]] for j in kept]}


def strip_end(diaries: dict[str, dict[str, Any]]) -> float:
    """Until when a curve's strips are drawn: some of its longer jobs, or as far as is known."""
    told = [diary for diary in diaries.values() if diary["received"]]
    usual = max(float(np.median(np.subtract(d["ended"], d["began"]))) for d in told)
    return min(max(max(d["taken"]) for d in told), _LOOKS * usual) or 1.0


def _draw_strip(panel: Axes, diary: dict[str, Any], end: float) -> None:
    columns = (np.array(diary[name]) for name in ("client", "began", "ended", "taken", "version"))
    client, began, ended, taken, version = columns
    shown = began <= end
    colours = [COLOURS[v % len(COLOURS)] for v in version[shown]]
    panel.barh(client[shown], (taken - ended)[shown], left=ended[shown], height=0.5, color=_WAITING)
    panel.barh(client[shown], (ended - began)[shown], left=began[shown], height=0.8, color=colours)
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
    panel.set_ylabel("share")
    _plain(panel)


def _plain(panel: Axes) -> None:
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(colors=_INK, labelsize=9, length=3)
