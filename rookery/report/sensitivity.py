"""How much depends on the settings: the metric of every setting that a search tried."""

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rookery.report.comparison import metric_label
from rookery.report.curves import WIDTH, save_figure
from rookery.report.palette import COLOURS, algorithm_of, styles
from rookery.runner.documents import Json

NEAR = 0.05
"""A result counts as near the best one if it is worse by at most this share of it."""


@dataclass(frozen=True)
class Tried:
    """The settings that were tried for one curve.

    Attributes:
        choice: the chosen values, by name.
        tried: of each setting its values by name (``setting``), the ``mean`` of the metric (None if
            it diverged), and of a range the ``share`` of the rounds that it ran for and its mean
            ``early``, after as many rounds as all settings had.

    >>> tried = [{"setting": {"lr": lr}, "mean": mean} for lr, mean in
    ...     ((0.01, 0.5), (0.1, 0.79), (1.0, 0.8), (10.0, None))]
    >>> Tried({"lr": 1.0}, tried).decades("lr", "max")
    1.0
    """

    choice: Mapping[str, Json]
    tried: Sequence[Mapping[str, Json]]

    @property
    def is_range(self) -> bool:
        """Whether the settings were taken from ranges, and most of them were given up early."""
        return any("early" in one for one in self.tried)

    @property
    def steps(self) -> list[str]:
        """The settings of which several positive numbers were tried."""
        return [name for name in self.choice if len(set(self._numbers(name))) > 1]

    def _numbers(self, name: str) -> list[float]:
        values = [_number(one, name) for one in self.tried]
        return [v for v in values if v is not None]

    def decades(self, name: str, goal: str) -> float:
        """From the smallest to the largest value with a result near the best, in powers of ten.

        Settings count by the last value that they reached, however far they ran. Zero, as of a
        momentum, has no power of ten and is left out.
        """
        done = [(one["mean"], _number(one, name)) for one in self.tried if one["mean"] is not None]
        if not done:
            return 0.0
        best = (max if goal == "max" else min)(mean for mean, _ in done)
        near = [v for mean, v in done if v is not None and abs(mean - best) <= NEAR * abs(best)]
        return math.log10(max(near) / min(near)) if near else 0.0


def sentences(tuning: Mapping[str, Json]) -> list[str]:
    """For each curve, how far apart the values of its settings may be.

    Args:
        tuning: ``metric``, ``goal``, and under ``curves`` the fields of :class:`Tried` by label.
    """
    found = []
    for label, one in _curves(tuning).items():
        reach = [f"{_short(name)} {one.decades(name, tuning['goal']):.1f}" for name in one.steps]
        failed = sum(entry["mean"] is None for entry in one.tried)
        broke = f"; {failed} of {len(one.tried)} settings diverged" if failed else ""
        if reach:
            when = ""
            if one.is_range:
                least = min(entry.get("share", 1.0) for entry in one.tried)
                when = f" after {least:.0%} of the rounds"
            found.append(
                f"{label}: within {NEAR:.0%} of the best {tuning['metric']}{when} over these "
                f"powers of ten: {', '.join(reach)}{broke}."
            )
    return found


def draw_sensitivity(
    tuning: Mapping[str, Json], settings: Mapping[str, Mapping[str, object]] | None = None
) -> Figure:
    """One row of panels per curve, one column per setting: the metric against the setting.

    Full points ran to the end; pale ones are all settings early on; crosses diverged; the ring is
    the choice.

    Args:
        tuning: what was tried.
        settings: how the curves were made, which tells their colours better than their names.
    """
    curves = _curves(tuning)
    names = list(dict.fromkeys(name for one in curves.values() for name in one.steps))
    size = (min(0.6 + 3.2 * len(names), WIDTH), 0.5 + 2.1 * len(curves))
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(curves), len(names), sharex="col", sharey=True, squeeze=False)
    looks = styles([algorithm_of(label, (settings or {}).get(label, {})) for label in curves])
    for i, (label, one) in enumerate(curves.items()):
        for j, name in enumerate(names):
            panel = panels[i, j]
            if name in one.steps:
                _draw_panel(panel, one, name, COLOURS[looks[i][0]])
            else:
                panel.text(0.5, 0.5, "not a setting of it", ha="center", transform=panel.transAxes)
            if j == 0:
                panel.set_ylabel(f"{label}\n{metric_label(tuning['metric'])}", fontsize=9)
            if i == len(curves) - 1:
                panel.set_xlabel(_short(name))
    return figure


def _draw_panel(panel: Axes, one: Tried, name: str, colour: str) -> None:
    tried = [(value, e) for e in one.tried if (value := _number(e, name)) is not None]
    early = [(value, e["early"]) for value, e in tried if e.get("early") is not None]
    if early:
        panel.plot(*zip(*early, strict=True), "o", color=colour, alpha=0.3, markersize=4)
    ended = [(v, e) for v, e in tried if e["mean"] is not None and e.get("share", 1.0) == 1.0]
    for value, entry in ended:
        panel.plot([value], [entry["mean"]], "o", color=colour, markersize=5)
        if entry["setting"] == one.choice:
            panel.plot([value], [entry["mean"]], "o", mfc="none", mec="#333333", markersize=11)
    failed = [value for value, entry in tried if entry["mean"] is None]
    at_bottom = panel.get_xaxis_transform()
    panel.plot(failed, [0.04] * len(failed), "x", color="#999999", transform=at_bottom)
    panel.set_xscale("log")
    panel.grid(color="#E3E3E3", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def save_sensitivity(tuning: Mapping[str, Json], path: str | Path) -> None:
    """Save the figure; its suffix chooses the format."""
    save_figure(draw_sensitivity(tuning), path, 160)


def as_data_url(
    tuning: Mapping[str, Json], settings: Mapping[str, Mapping[str, object]] | None = None
) -> str:
    """The figure as text that a page can show without another file."""
    buffer = io.BytesIO()
    draw_sensitivity(tuning, settings).savefig(buffer, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()


def has_steps(tuning: Mapping[str, Json]) -> bool:
    """Whether there is something to draw."""
    return any(one.steps for one in _curves(tuning).values())


def _curves(tuning: Mapping[str, Json]) -> dict[str, Tried]:
    found = tuning.get("curves", {})
    return {label: Tried(one["choice"], one["tried"]) for label, one in found.items()}


def _number(entry: Mapping[str, Json], name: str) -> float | None:
    """The positive number that a trial had for a setting; None if it had something else."""
    value = entry["setting"].get(name)
    return value if isinstance(value, int | float) and value > 0 else None


def _short(name: str) -> str:
    return name.removeprefix("algorithm.")
