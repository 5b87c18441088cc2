"""Accuracy at the end against K, and the curves it comes from, from results.json.

python experiments/fedmsa_fig3/draw.py
"""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from rookery.report.statistics import interval

HERE = Path(__file__).parent


def main() -> None:
    """Left the bars over K, right every seed against exchanges."""
    curves = json.loads((HERE / "results.json").read_text())["curves"]
    names = list(dict.fromkeys(name.split(", ")[0] for name in curves))
    steps = sorted({int(name.split("= ")[1]) for name in curves})
    figure, (bars, lines) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for i, name in enumerate(names):
        ends = []
        for K, shade in zip(steps, np.linspace(0.3, 1, len(steps)), strict=True):
            runs = [
                np.array([run["exchanges"], run["balanced_accuracy"]], float)
                for run in curves[f"{name}, K = {K}"].values()
            ]
            ends.append(interval([run[1, -1] for run in runs]))
            for k, (exchanges, accuracy) in enumerate(runs):
                label = f"{name}, K = {K}" if k == 0 else None
                lines.plot(exchanges[1:], accuracy[1:], f"C{i}", alpha=shade, lw=1, label=label)
        mean = np.array([e.mean for e in ends])
        spread = [mean - [e.low for e in ends], [e.high for e in ends] - mean]
        where = np.arange(len(steps)) + 0.2 * (2 * i - 1)
        bars.bar(where, mean, 0.38, yerr=spread, capsize=3, color=f"C{i}", label=name)
    bars.set_xticks(range(len(steps)), [f"K = {K}" for K in steps])
    bars.set(ylim=(0.5, 0.95), ylabel="balanced accuracy after 60 rounds")
    lines.set(ylim=(0.5, 0.95), xscale="log", xlabel="exchanges")
    bars.legend(loc="upper left")
    lines.legend(loc="lower right", fontsize=8)
    for panel in (bars, lines):
        panel.grid(alpha=0.3)
    figure.savefig(HERE / "curves.png", dpi=150)


if __name__ == "__main__":
    main()
