"""Learning curves as a figure: one column of panels per cost, one row per metric."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from rookery.report.comparison import AXES, Band, Comparison, mean_and_interval

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#444444")
"""Okabe and Ito's, which colour-blind readers can tell apart; then they return in other strokes."""
STROKES = ("-", (0, (4, 1.6)), (0, (1, 1.4)), (0, (6, 1.6, 1, 1.6)))

_INK, _FAINT = "#333333", "#E3E3E3"


def plot(
    comparison: Comparison,
    path: str | Path,
    *,
    metrics: str | Sequence[str] = "accuracy",
    axes: str | Sequence[str] = ("exchanges", "megabytes"),
    log_x: bool = False,
    log_y: bool = False,
    panel_size: tuple[float, float] = (4.6, 3.3),
    dpi: int = 160,
) -> None:
    """Draw the means over seeds with their 95 % intervals into a file.

    Args:
        comparison: what to draw. Curves that have not measured a metric are left out of its row.
        path: where to; the suffix says what: ``.png``, ``.svg`` or ``.pdf``.
        metrics: one row of panels for each.
        axes: names out of ``AXES``, one column of panels for each.
        log_x: logarithmic costs; what was measured before the first cost is then not seen.
        log_y: logarithmic metrics.
        panel_size: width and height of a panel in inches.
        dpi: of a ``.png``.
    """
    figure = draw(
        comparison, metrics=metrics, axes=axes, log_x=log_x, log_y=log_y, panel_size=panel_size
    )
    figure.savefig(path, dpi=dpi)


def draw(
    comparison: Comparison,
    *,
    metrics: str | Sequence[str] = "accuracy",
    axes: str | Sequence[str] = ("exchanges", "megabytes"),
    log_x: bool = False,
    log_y: bool = False,
    panel_size: tuple[float, float] = (4.6, 3.3),
) -> Figure:
    """The figure that :func:`plot` saves, for a notebook or for changes by hand."""
    metrics = [metrics] if isinstance(metrics, str) else list(metrics)
    axes = [axes] if isinstance(axes, str) else list(axes)
    for metric in metrics:
        if metric not in comparison.metrics:
            known = ", ".join(comparison.metrics)
            raise ValueError(f"no curve has measured {metric!r}; there are {known}.")
    width, height = panel_size
    figure = Figure(figsize=(width * len(axes), height * len(metrics) + 0.8), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(metrics), len(axes), sharex="col", sharey="row", squeeze=False)
    for row, metric in zip(panels, metrics, strict=True):
        for panel, axis in zip(row, axes, strict=True):
            _draw_panel(panel, comparison, axis, metric, log_x, log_y)
        row[0].set_ylabel(metric)
    for panel, axis in zip(panels[-1], axes, strict=True):
        panel.set_xlabel(AXES[axis].label)
    _draw_heading(figure, comparison, panels)
    return figure


def _draw_panel(
    panel: Axes, comparison: Comparison, axis: str, metric: str, log_x: bool, log_y: bool
) -> None:
    bands = {
        i: mean_and_interval(curve, axis, metric)
        for i, curve in enumerate(comparison.curves)
        if metric in curve.metrics
    }
    if log_x:
        bands = {i: Band(*(part[band.axis > 0] for part in band)) for i, band in bands.items()}
    floor = _smallest_positive(list(bands.values())) if log_y else -np.inf
    for i, band in bands.items():
        style = {"color": COLOURS[i % len(COLOURS)], "zorder": 3 + i / 100}
        # a bound below zero has no place on a logarithmic axis
        low, high = np.maximum(band.low, floor), np.maximum(band.high, floor)
        panel.fill_between(band.axis, low, high, alpha=0.16, linewidth=0, **style)
        panel.plot(
            band.axis,
            band.mean,
            linewidth=1.8,
            linestyle=STROKES[i // len(COLOURS) % len(STROKES)],
            label=comparison.curves[i].name,
            solid_capstyle="round",
            **style,
        )
    if log_x:
        panel.set_xscale("log")
    else:
        panel.xaxis.set_major_locator(MaxNLocator(6))
        panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    if log_y:
        panel.set_yscale("log")
    panel.margins(x=0.02)
    panel.grid(color=_FAINT, linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["left", "bottom"]].set_color("#999999")
    panel.tick_params(colors=_INK, labelsize=9, length=3, which="both")
    panel.tick_params(length=0, which="minor")


def _smallest_positive(bands: Sequence[Band]) -> float:
    """The lowest mean that a logarithmic axis can show, and some room below it."""
    means = np.concatenate([band.mean for band in bands])
    return means[means > 0].min() / 2 if (means > 0).any() else 1e-12


def _draw_heading(figure: Figure, comparison: Comparison, panels: np.ndarray) -> None:
    """The title, and below it one legend for all panels."""
    entries = {
        label: handle
        for panel in panels.flat
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    # a letter of the title takes about 0.1 inch, a letter of the legend about 0.08
    width = figure.get_figwidth()
    columns = int(width / (0.08 * max(map(len, entries)) + 0.6))
    legend = figure.legend(
        entries.values(),
        entries.keys(),
        loc="outside upper left",
        ncols=min(max(columns, 1), len(entries)),
        frameon=False,
        fontsize=10,
        labelcolor=_INK,
        title="\n".join(wrap(comparison.title, int(width / 0.1))),
        title_fontproperties={"weight": "bold", "size": 11},
        alignment="left",
        columnspacing=1.6,
        handlelength=1.6,
    )
    legend.get_title().set_color(_INK)
    for text in (legend.get_title(), *legend.get_texts()):
        text.set_parse_math(False)  # a dollar in a name is a dollar
