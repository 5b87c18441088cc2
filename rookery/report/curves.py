"""Learning curves as a figure: one column of panels per cost, one row per metric."""

import io
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from textwrap import wrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from rookery.report.comparison import (
    AXES,
    Band,
    Comparison,
    mean_and_interval,
    metric_label,
    require_axis,
)
from rookery.report.palette import COLOURS, STROKES, Style
from rookery.runner.atomic_file import replace_file

WIDTH = 9.0
"""Inches of a figure with several columns: its smallest letters have 8 points if it is printed at 8
inches."""
MOST_TOGETHER = 8
"""More curves are drawn as small multiples: a panel for each algorithm, or for each curve."""

_INK, _FAINT, _BEHIND = "#333333", "#E3E3E3", "#C6C6C6"


def plot(
    comparison: Comparison,
    path: str | Path,
    *,
    metrics: str | Sequence[str] = "accuracy",
    axes: str | Sequence[str] = ("exchanges", "megabytes"),
    log_x: bool = False,
    log_y: bool = False,
    panel_size: tuple[float, float] | None = None,
    dpi: int = 160,
) -> None:
    """Save the means over seeds with their 95 % intervals as a figure.

    A cross marks where a curve ends because a seed diverged. More than eight curves are drawn
    against the first cost alone, in a panel for each algorithm with the other curves behind it.

    Args:
        comparison: the curves. A curve that lacks a metric is left out of that metric's row.
        path: the file; its suffix chooses the format: ``.png``, ``.svg`` or ``.pdf``.
        metrics: one row of panels for each.
        axes: names out of ``AXES``, one column of panels for each.
        log_x: logarithmic costs; rows without any cost, such as the start, are then hidden.
        log_y: logarithmic metrics.
        panel_size: width and height of a panel in inches; by default such that letters can be read
            in print.
        dpi: resolution of a ``.png``.
    """
    figure = draw(
        comparison, metrics=metrics, axes=axes, log_x=log_x, log_y=log_y, panel_size=panel_size
    )
    save_figure(figure, path, dpi)


def save_figure(figure: Figure, path: str | Path, dpi: int) -> None:
    """Save a figure in the format of the file's suffix: complete, or as before."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=Path(path).suffix[1:] or "png", dpi=dpi)
    replace_file(Path(path), buffer.getvalue())


def draw(
    comparison: Comparison,
    *,
    metrics: str | Sequence[str] = "accuracy",
    axes: str | Sequence[str] = ("exchanges", "megabytes"),
    log_x: bool = False,
    log_y: bool = False,
    panel_size: tuple[float, float] | None = None,
) -> Figure:
    """The figure that :func:`plot` saves, for a notebook or for changes by hand."""
    metrics = [metrics] if isinstance(metrics, str) else list(metrics)
    axes = [require_axis(axis) for axis in ([axes] if isinstance(axes, str) else axes)]
    for metric in metrics:
        comparison.require_metric(metric)
    if len(comparison.curves) > MOST_TOGETHER:
        return _draw_multiples(comparison, metrics, axes[0], log_x, log_y)
    width, height = panel_size or (min(4.6, WIDTH / len(axes)), 3.3)
    figure = Figure(figsize=(width * len(axes), height * len(metrics) + 0.8), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(metrics), len(axes), sharex="col", sharey="row", squeeze=False)
    for row, metric in zip(panels, metrics, strict=True):
        for panel, axis in zip(row, axes, strict=True):
            _draw_panel(panel, comparison, axis, metric, log_x, log_y)
        row[0].set_ylabel(metric_label(metric))
    for panel, axis in zip(panels[-1], axes, strict=True):
        panel.set_xlabel(AXES[axis].label)
    _draw_heading(figure, comparison, panels)
    return figure


def _draw_multiples(
    comparison: Comparison, metrics: Sequence[str], axis: str, log_x: bool, log_y: bool
) -> Figure:
    """A grid of panels for every metric: the curves of one group each, the others faint."""
    groups = comparison.groups()
    columns = min(len(groups), 3)
    rows = -(-len(groups) // columns)
    size = (WIDTH / 3 * columns, 2.3 * rows * len(metrics) + 0.8)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    shape = (rows * len(metrics), columns)
    panels = figure.subplots(*shape, sharex=True, sharey=len(metrics) == 1, squeeze=False)
    for i, metric in enumerate(metrics):
        block = panels[i * rows : (i + 1) * rows]
        for panel in block.flat[len(groups) :]:
            panel.set_visible(False)
        for panel, (name, own) in zip(block.flat, groups.items(), strict=False):
            _draw_panel(panel, comparison, axis, metric, log_x, log_y, own)
            panel.set_title(name, fontsize=10, color=_INK, loc="left", parse_math=False)
            if not log_x:
                panel.xaxis.set_major_locator(MaxNLocator(3))
            panel.tick_params(labelbottom=True)
        for row in block:
            row[0].set_ylabel(metric_label(metric))
    figure.supxlabel(AXES[axis].label, fontsize=10, color=_INK)
    if len(groups) < len(comparison.curves):
        _draw_heading(figure, comparison, panels)
    else:  # the titles of the panels name the curves
        lines = wrap(comparison.title, int(size[0] / 0.1))
        style = {"weight": "bold", "color": _INK, "parse_math": False}
        figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=11, **style)
    return figure


def _draw_panel(
    panel: Axes,
    comparison: Comparison,
    axis: str,
    metric: str,
    log_x: bool,
    log_y: bool,
    own: Sequence[int] | None = None,
) -> None:
    """Draw the curves of a panel; those that are not its own are faint."""
    bands = {
        i: mean_and_interval(curve, axis, metric)
        for i, curve in enumerate(comparison.curves)
        if metric in curve.metrics
    }
    if log_x:
        bands = {i: Band(*(part[band.axis > 0] for part in band)) for i, band in bands.items()}
        panel.set_xscale("log")
    else:
        panel.xaxis.set_major_locator(MaxNLocator(5))
        panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    if log_y:
        panel.set_yscale("log")
    panel.margins(x=0.02)
    floor = _smallest_positive(list(bands.values())) if log_y else -np.inf
    styles = comparison.styles()
    for i, band in bands.items():
        # a bound below zero has no place on a logarithmic axis
        shown = Band(
            band.axis, band.mean, np.maximum(band.low, floor), np.maximum(band.high, floor)
        )
        if own is not None and i not in own:
            panel.plot(shown.axis, shown.mean, color=_BEHIND, linewidth=1, zorder=2)
            continue
        name, is_diverged = comparison.curves[i].name, bool(comparison.curves[i].diverged)
        # one point makes no line; a cross will mark it if the curve diverged
        marker = "o" if np.isfinite(band.mean).sum() == 1 and not is_diverged else None
        label = f"{name} (diverged)" if is_diverged else name
        draw_band(panel, shown, styles[i], label, marker=marker, zorder=3 + i / 100)
    _mark_divergence(panel, comparison, bands, floor, bands if own is None else own)
    tidy(panel)


def tidy(panel: Axes) -> None:
    """Give a panel a faint grid, no frame, and letters that can be read in print."""
    panel.grid(color=_FAINT, linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["left", "bottom"]].set_color("#999999")
    panel.tick_params(colors=_INK, labelsize=9, length=3, which="both")
    panel.tick_params(length=0, which="minor")


def draw_band(
    panel: Axes,
    band: Band,
    look: Style,
    label: str | None = None,
    *,
    marker: str | None = None,
    zorder: float = 3,
    shade: float = 0.16,
    width: float = 1.8,
) -> None:
    """Draw a mean with its interval in a style.

    Args:
        panel: where.
        band: the mean and its bounds.
        look: the numbers of the colour and of the stroke.
        label: the name in the legend.
        marker: a mark at every point.
        zorder: what has a larger one lies above.
        shade: how strong the band is; many bands need a fainter one.
        width: of the line; curves that coincide need different ones.
    """
    style = {"color": COLOURS[look[0]], "zorder": zorder}
    panel.fill_between(band.axis, band.low, band.high, alpha=shade, linewidth=0, **style)
    panel.plot(
        band.axis,
        band.mean,
        linewidth=width,
        linestyle=STROKES[look[1] % len(STROKES)],
        label=label,
        solid_capstyle="round",
        marker=marker,
        markersize=4,
        **style,
    )


def _mark_divergence(
    panel: Axes,
    comparison: Comparison,
    bands: Mapping[int, Band],
    floor: float,
    own: Collection[int],
) -> None:
    """Put a cross at the end of every diverged curve, inside the limits of the other curves."""
    styles = comparison.styles()
    finite = {i: np.isfinite(band.mean) for i, band in bands.items()}
    healthy = [i for i in bands if not comparison.curves[i].diverged and finite[i].any()]
    if len(healthy) < len(bands) and healthy:
        low = min(np.nanmin(np.maximum(bands[i].low, floor)) for i in healthy)
        high = max(np.nanmax(np.maximum(bands[i].high, floor)) for i in healthy)
        panel.set_ylim(*_with_margin(low, high, panel.get_yscale() == "log"))
    bottom, top = sorted(panel.get_ylim())
    for i, band in bands.items():
        if i in own and comparison.curves[i].diverged and finite[i].any():
            end = np.flatnonzero(finite[i])[-1]
            y = float(np.clip(band.mean[end], bottom, top))
            panel.plot(
                [band.axis[end]],
                [y],
                marker="X",
                markersize=8,
                color=COLOURS[styles[i][0]],
                markeredgecolor="white",
                clip_on=False,
                zorder=6,
            )


def _with_margin(low: float, high: float, is_log: bool) -> tuple[float, float]:
    if is_log:
        factor = (high / low) ** 0.05 if high > low else 2.0
        return low / factor, high * factor
    margin = 0.05 * (high - low) or 0.05 * abs(low) or 0.5
    return low - margin, high + margin


def _smallest_positive(bands: Sequence[Band]) -> float:
    """Half the lowest mean that a logarithmic axis can show."""
    means = np.concatenate([band.mean for band in bands])
    return means[means > 0].min() / 2 if (means > 0).any() else 1e-12


def _draw_heading(figure: Figure, comparison: Comparison, panels: np.ndarray) -> None:
    """Put the title at the top, and below it one legend for all panels."""
    entries = {
        label: handle
        for panel in panels.flat
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    # a character of the title takes about 0.1 inch, one of the legend about 0.08
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
        text.set_parse_math(False)  # names may contain dollar signs
