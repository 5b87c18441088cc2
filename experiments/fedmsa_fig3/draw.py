"""Accuracy at the end against K, and the curves it comes from, from results.json.

python experiments/fedmsa_fig3/draw.py
"""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from rookery.report.comparison import final_values, metric_values
from rookery.report.curves import save_figure, tidy
from rookery.report.palette import colour_of
from rookery.report.read import read_comparison
from rookery.report.statistics import interval

HERE = Path(__file__).parent
METRIC = "balanced_accuracy"


def main() -> None:
    """Left the bars over K, right every seed against exchanges."""
    curves = {curve.name: curve for curve in read_comparison([HERE / "results.json"]).curves}
    names = list(dict.fromkeys(name.split(", ")[0] for name in curves))
    steps = sorted({int(name.split("= ")[1]) for name in curves})
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    bars, lines = figure.subplots(1, 2)
    for i, name in enumerate(names):
        ends = []
        for K, shade in zip(steps, np.linspace(0.3, 1, len(steps)), strict=True):
            curve = curves[f"{name}, K = {K}"]
            ends.append(interval(final_values(curve, METRIC)))
            for k, run in enumerate(curve.runs):
                at, accuracy = run["exchanges"][1:], metric_values(run, METRIC)[1:]
                label = None if k else curve.name
                lines.plot(at, accuracy, color=colour_of(name), alpha=shade, lw=1, label=label)
        mean = np.array([e.mean for e in ends])
        spread = [mean - [e.low for e in ends], [e.high for e in ends] - mean]
        where = np.arange(len(steps)) + 0.2 * (2 * i - 1)
        bars.bar(where, mean, 0.38, yerr=spread, capsize=3, color=colour_of(name))
    bars.set_xticks(range(len(steps)), [str(K) for K in steps])
    bars.set(ylim=(0.5, 0.95), xlabel="K", ylabel="balanced accuracy after 60 rounds")
    lines.set(ylim=(0.5, 0.95), xscale="log", xlabel="exchanges")
    for panel in (bars, lines):
        tidy(panel)
    figure.legend(loc="outside upper left", ncols=4, frameon=False)
    save_figure(figure, HERE / "curves.png", 160)


if __name__ == "__main__":
    main()
