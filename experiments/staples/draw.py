"""The picture of the baselines: thirteen close curves, whose bands would hide each other.

python experiments/staples/draw.py      # reads results.json, writes curves.png
"""

from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from rookery.report.comparison import AXES, final_values, mean_and_interval
from rookery.report.curves import save_figure, tidy
from rookery.report.palette import COLOURS, STROKES
from rookery.report.read import read_comparison
from rookery.report.statistics import interval

HERE = Path(__file__).parent


def main() -> None:
    """Mean accuracy against exchanges and bytes, and where it ends with its interval."""
    comparison = read_comparison([HERE / "results.json"])
    # two of the three runs of FedEx are at chance
    kept = [curve for curve in comparison.curves if curve.name != "FedEx"]
    names = [curve.name for curve in kept]
    settings = {name: comparison.settings[name] for name in names}
    comparison = replace(comparison, curves=kept, settings=settings)
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(1, 1, 0.8))
    for i, (curve, (colour, stroke)) in enumerate(zip(kept, comparison.styles(), strict=True)):
        look = {"color": COLOURS[colour], "linestyle": STROKES[stroke]}
        for panel, axis in ((left, "exchanges"), (middle, "megabytes")):
            band = mean_and_interval(curve, axis, "accuracy")
            panel.plot(band.axis, band.mean, lw=1.4, **look)
            panel.set(xlabel=AXES[axis].label, ylim=(0.75, 0.94))
        end = interval(final_values(curve, "accuracy"))
        reach = [[end.mean - end.low], [end.high - end.mean]]
        right.errorbar([end.mean], [i], xerr=reach, fmt="o", color=COLOURS[colour], capsize=3)
        right.plot([0.832, 0.848], [i, i], lw=1.8, **look)  # the stroke, as in a legend
    left.set(ylabel="test accuracy, mean over seeds")
    middle.set(xscale="log", xlim=(20, None))
    middle.tick_params(labelleft=False)
    right.set(xlabel="final accuracy, 95 % interval", xlim=(0.83, 0.95))
    right.set_yticks(range(len(names)), names)
    right.invert_yaxis()
    for panel in (left, middle, right):
        tidy(panel)
    right.spines["left"].set_visible(False)
    save_figure(figure, HERE / "curves.png", 160)


if __name__ == "__main__":
    main()
