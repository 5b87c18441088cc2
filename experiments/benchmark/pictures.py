"""The curves of a form: the metric against costs, for some contests."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from experiments.benchmark import scoring
from experiments.benchmark.scoring import AXES, COST, Contest, Line
from rookery.report.comparison import Band, metric_label
from rookery.report.curves import draw_band, save_figure, tidy
from rookery.report.palette import COLOURS, Style, styles
from rookery.report.statistics import interval

POINTS = 60
LABELS = {
    "exchanges": "exchanges",
    "megabytes": "megabytes in all",
    "gradients": "gradient evaluations, thousands",
}
UNITS = {"gradients": 1000.0}
NAMES = {"iid": "iid clients", "sorted": "label-sorted clients", "dirichlet": "Dirichlet clients"}


def draw(lines: Sequence[Line], contests: Sequence[Contest], path: Path) -> None:
    """Save a picture with a row for every contest and a column for every cost.

    Those with the best mean ranks at equal exchanges have a colour and an interval; all others are
    grey.

    Args:
        lines: of one form.
        contests: the rows.
        path: a ``.png`` file.
    """
    some = [line for line in lines if scoring.contest(line) in contests]
    standings = scoring.standings(some)
    order = sorted(standings, key=lambda key: standings[key].mean(COST))
    best = [name for name, _ in order[: len(COLOURS)]]
    looks = dict(zip(best, styles(best), strict=True))
    figure = Figure(figsize=(9, 2.3 * len(contests) + 0.7), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(contests), len(AXES), sharey="row", squeeze=False)
    for row, where in zip(panels, contests, strict=True):
        own = [line for line in some if scoring.contest(line) == where]
        for panel, axis in zip(row, AXES, strict=True):
            for line in own:
                if line["algorithm"] not in looks:
                    _draw(panel, line, axis, None)
            for i, name in enumerate(looks):  # some coincide: the later ones are narrower
                for line in own:
                    if line["algorithm"] == name:
                        _draw(panel, line, axis, looks[name], 4.0 - 0.45 * i)
            budget = own[0]["budgets"][axis] / UNITS.get(axis, 1.0)
            panel.axvline(budget, color="#999999", lw=0.8, ls=":")
            panel.set_xlim(0, 1.25 * budget)
            tidy(panel)
        target = scoring.target(own)
        task, clients = where[0].replace("_", " "), NAMES.get(where[2], where[2])
        row[0].set_ylabel(f"{task}\n{clients}\n{metric_label(own[0]['metric'])}")
        row[0].set_ylim(target - 0.35, target + 0.12)
    for panel, axis in zip(panels[-1], AXES, strict=True):
        panel.set_xlabel(LABELS[axis])
    handles, names = panels[0][0].get_legend_handles_labels()
    entries = dict(zip(names, handles, strict=True))
    shown = {name: entries[name] for name in [*looks, "others"] if name in entries}
    figure.legend(shown.values(), shown.keys(), loc="outside upper left", ncols=4, frameon=False)
    save_figure(figure, path, 160)


def _draw(panel: Axes, line: Line, axis: str, look: Style | None, width: float = 1.8) -> None:
    runs = scoring.runs_on(line, axis)
    if not runs:
        return
    at = np.linspace(0, min(spent[-1] for spent, _ in runs), POINTS)
    band = interval(np.array([np.interp(at, spent, value) for spent, value in runs]))
    at = at / UNITS.get(axis, 1.0)
    if look is None:
        panel.plot(at, band.mean, color="#BBBBBB", lw=0.7, label="others")
        return
    draw_band(panel, Band(at, band.mean, band.low, band.high), look, line["algorithm"], width=width)
