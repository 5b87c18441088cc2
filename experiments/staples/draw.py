"""The picture of the baselines without the bands of the report, which hide thirteen close curves.

python experiments/staples/draw.py      # reads results.json, writes curves.png
"""

import json
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

HERE = Path(__file__).parent


def main() -> None:
    """Mean accuracy over seeds against exchanges and bytes."""
    curves = json.loads((HERE / "results.json").read_text())["curves"]
    del curves["FedEx"]  # two of its three runs are at chance
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for i, (label, seeds) in enumerate(curves.items()):
        runs = list(seeds.values())
        mean = np.mean([run["accuracy"] for run in runs], axis=0)
        sent = np.array(runs[0]["bytes_up"]) + np.array(runs[0]["bytes_down"])
        style = "-" if i < 10 else "--"  # there are ten colours
        left.plot(runs[0]["exchanges"], mean, style, lw=1.3, label=label)
        right.plot(sent / 1e6, mean, style, lw=1.3)
    left.set(xlabel="exchanges", ylabel="test accuracy, mean of three seeds", ylim=(0.75, 0.94))
    right.set(xlabel="megabytes, both ways", xscale="log", xlim=(20, None))
    for panel in (left, right):
        panel.grid(alpha=0.3)
    left.legend(fontsize=7, ncols=2, loc="lower right")
    figure.savefig(HERE / "curves.png", dpi=110)


if __name__ == "__main__":
    main()
