"""One column per q, against exchanges and against bytes, and the longer runs, from the results.

python experiments/fedmsa_fig4/draw.py
"""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

HERE = Path(__file__).parent
AXES = {"exchanges": ("exchanges", 1), "bytes_up": ("megabytes up", 1e6)}


def main() -> None:
    """Draw every seed; the two algorithms meet in one panel."""
    curves = json.loads((HERE / "results.json").read_text())["curves"]
    levels = list(dict.fromkeys(name.split(", ")[1] for name in curves))
    names = list(dict.fromkeys(name.split(", ")[0] for name in curves))
    figure, panels = plt.subplots(
        2, len(levels), figsize=(3.2 * len(levels), 6), sharey=True, layout="constrained"
    )
    for row, (field, (label, unit)) in zip(panels, AXES.items(), strict=True):
        for panel, level in zip(row, levels, strict=True):
            for i, name in enumerate(names):
                for k, run in enumerate(curves[f"{name}, {level}"].values()):
                    at = np.array(run[field], float)[1:] / unit
                    accuracy = np.array(run["balanced_accuracy"], float)[1:]
                    text = name if k == 0 else None
                    panel.plot(at, accuracy, color=f"C{i}", lw=1, label=text)
            panel.set(xlabel=label, ylim=(0.5, 0.95))
            panel.grid(alpha=0.3)
            if field == "exchanges":  # a round of FedNest has fifteen times as many
                panel.set_xscale("log")
        row[0].set_ylabel("balanced accuracy")
    for panel, level in zip(panels[0], levels, strict=True):
        panel.set_title(level)
    panels[0][0].legend(loc="lower right")
    figure.savefig(HERE / "curves.png", dpi=150)
    draw_longer()


def draw_longer() -> None:
    """Every seed of longer.toml: an interval would hide that single runs break down."""
    (seeds,) = json.loads((HERE / "longer.results.json").read_text())["curves"].values()
    figure, panel = plt.subplots(figsize=(7, 4), layout="constrained")
    for name, run in seeds.items():
        panel.plot(run["exchanges"], run["balanced_accuracy"], lw=1, label=f"seed {name}")
    panel.set(xlabel="exchanges", ylabel="balanced accuracy", title="FedMSA, q = 0.3, 300 rounds")
    panel.axhline(0.9, color="black", lw=0.5, ls="--")
    panel.grid(alpha=0.3)
    panel.legend()
    figure.savefig(HERE / "longer.png", dpi=150)


if __name__ == "__main__":
    main()
