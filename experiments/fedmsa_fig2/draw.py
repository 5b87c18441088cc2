"""Distance to the solution against updates of x, from both results files.

python experiments/fedmsa_fig2/draw.py
"""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from rookery.report.statistics import interval
from rookery.report.tables import plus_minus

HERE = Path(__file__).parent
LOCAL_STEPS = {"FedMSA": 5}  # updates of x in a round, where there is more than one


def main() -> None:
    """Draw every seed, and print the mean distance over the last tenth of the updates."""
    curves = {}
    for file in ("results.json", "centralised.results.json"):
        curves |= json.loads((HERE / file).read_text())["curves"]
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True, layout="constrained")
    for i, (name, seeds) in enumerate(curves.items()):
        ends = []
        for k, run in enumerate(seeds.values()):
            distance = np.array(run["distance_x"], float)
            updates = np.array(run["round"]) * LOCAL_STEPS.get(name, 1)
            label = name if k == 0 else None
            panels[0].plot(updates, distance, color=f"C{i}", lw=1, label=label)
            panels[1].plot(run["exchanges"], distance, color=f"C{i}", lw=1)
            ends.append(distance[updates > 0.9 * updates[-1]].mean())
        print(f"{name}: {plus_minus(interval(ends))} after {updates[-1]} updates,", end=" ")
        print(f"{run['exchanges'][-1]} exchanges")
    panels[0].set(xlabel="updates of x", ylabel="distance to the solution", yscale="log")
    panels[1].set(xlabel="exchanges", xscale="log")
    for panel in panels:
        panel.grid(alpha=0.3)
    panels[0].legend()
    figure.savefig(HERE / "curves.png", dpi=150)


if __name__ == "__main__":
    main()
