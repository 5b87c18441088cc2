"""Distance to the solution against updates of x, from both results files.

python experiments/fedmsa_fig2/draw.py
"""

from pathlib import Path

from matplotlib.figure import Figure

from rookery.report.comparison import metric_values
from rookery.report.curves import save_figure, tidy
from rookery.report.palette import COLOURS, STROKES
from rookery.report.read import read_comparison
from rookery.report.statistics import interval
from rookery.report.tables import plus_minus

HERE = Path(__file__).parent
LOCAL_STEPS = {"FedMSA": 5}  # updates of x in a round, where there is more than one


def main() -> None:
    """Draw every seed, and print the mean distance over the last tenth of the updates."""
    comparison = read_comparison([HERE / "results.json", HERE / "centralised.results.json"])
    figure = Figure(figsize=(8, 3.9), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for curve, (colour, stroke) in zip(comparison.curves, comparison.styles(), strict=True):
        look = {"color": COLOURS[colour], "linestyle": STROKES[stroke], "linewidth": 1}
        ends = []
        for k, run in enumerate(curve.runs):
            distance = metric_values(run, "distance_x")
            updates = run["round"] * LOCAL_STEPS.get(curve.name, 1)
            left.plot(updates, distance, label=None if k else curve.name, **look)
            right.plot(run["exchanges"], distance, **look)
            ends.append(distance[updates > 0.9 * updates[-1]].mean())
        last = curve.runs[-1]
        print(f"{curve.name}: {plus_minus(interval(ends))} after", end=" ")
        print(f"{last['round'][-1] * LOCAL_STEPS.get(curve.name, 1):.0f} updates,", end=" ")
        print(f"{last['exchanges'][-1]:.0f} exchanges")
    left.set(xlabel="updates of x", ylabel="distance of x from the solution", yscale="log")
    right.set(xlabel="exchanges", xscale="log")
    for panel in (left, right):
        tidy(panel)
    figure.legend(
        loc="outside upper left", ncols=3, frameon=False, title="Every seed", alignment="left"
    )
    save_figure(figure, HERE / "curves.png", 160)


if __name__ == "__main__":
    main()
