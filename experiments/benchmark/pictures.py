"""The curves of a form: the metric against costs, for some contests."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from experiments.benchmark import scoring
from experiments.benchmark.scoring import AXES, COST, Contest, Line
from rookery.report.curves import COLOURS, save_figure
from rookery.report.statistics import interval

POINTS = 60
LABELS = {
    "exchanges": "exchanges",
    "megabytes": "megabytes, both ways",
    "gradients": "gradient evaluations, in thousands of rows",
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
    colours = {name: colour for (name, _), colour in zip(order, COLOURS, strict=False)}
    figure = Figure(figsize=(11, 2.6 * len(contests) + 0.7), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(contests), len(AXES), sharey="row", squeeze=False)
    for row, where in zip(panels, contests, strict=True):
        own = [line for line in some if scoring.contest(line) == where]
        for panel, axis in zip(row, AXES, strict=True):
            for line in sorted(own, key=lambda line: line["algorithm"] in colours):
                _draw(panel, line, axis, colours.get(line["algorithm"]))
            budget = own[0]["budgets"][axis] / UNITS.get(axis, 1.0)
            panel.axvline(budget, color="#999999", lw=0.8, ls=":")
            panel.set_xlim(0, 1.25 * budget)
            panel.grid(alpha=0.3)
        best = scoring.target(own)
        row[0].set_ylabel(f"{where[0]}\n{NAMES.get(where[2], where[2])}\n{own[0]['metric']}")
        row[0].set_ylim(best - 0.35, best + 0.12)
    for panel, axis in zip(panels[-1], AXES, strict=True):
        panel.set_xlabel(LABELS[axis])
    handles, names = panels[0][0].get_legend_handles_labels()
    entries = dict(zip(names, handles, strict=True))
    shown = {name: entries[name] for name in [*colours, "others"] if name in entries}
    figure.legend(shown.values(), shown.keys(), loc="outside upper center", ncols=8, frameon=False)
    save_figure(figure, path, 110)


def _draw(panel: Axes, line: Line, axis: str, colour: str | None) -> None:
    runs = scoring.runs_on(line, axis)
    if not runs:
        return
    at = np.linspace(0, min(spent[-1] for spent, _ in runs), POINTS)
    band = interval(np.array([np.interp(at, spent, value) for spent, value in runs]))
    at = at / UNITS.get(axis, 1.0)
    if colour is None:
        panel.plot(at, band.mean, color="#BBBBBB", lw=0.7, label="others")
        return
    panel.fill_between(at, band.low, band.high, color=colour, alpha=0.16, lw=0)
    panel.plot(at, band.mean, color=colour, lw=1.6, label=line["algorithm"])
