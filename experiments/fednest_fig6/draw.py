"""One panel per outer step size, from results.json.

python experiments/fednest_fig6/draw.py
"""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

HERE = Path(__file__).parent


def main() -> None:
    """Draw every seed; twenty curves in one panel could not be told apart."""
    curves = json.loads((HERE / "results.json").read_text())["curves"]
    sizes = list(dict.fromkeys(name.split(", ")[1] for name in curves))
    names = list(dict.fromkeys(name.split(", ")[0] for name in curves))
    figure, panels = plt.subplots(
        1, len(sizes), figsize=(3.2 * len(sizes), 3.6), sharey=True, layout="constrained"
    )
    for panel, size in zip(panels, sizes, strict=True):
        for i, name in enumerate(names):
            for k, run in enumerate(curves[f"{name}, {size}"].values()):
                accuracy = np.array(run["accuracy"], float)
                label = name if k == 0 else None
                panel.plot(run["exchanges"], accuracy, color=f"C{i}", lw=1, label=label)
        panel.set(title=size, xlabel="exchanges", ylim=(0, 1))
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("accuracy")
    panels[-1].legend(loc="lower right")
    figure.savefig(HERE / "curves.png", dpi=150)


if __name__ == "__main__":
    main()
