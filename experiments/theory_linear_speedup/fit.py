"""Slopes of the error against the number of clients in an exchange, from results.json.

Writes slopes.json and slopes.png beside itself:

    python experiments/theory_linear_speedup/fit.py [results.json]
"""

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from rookery.report.statistics import interval
from rookery.report.tables import plus_minus

HERE = Path(__file__).parent
TARGET = 0.1  # of the squared outer gradient, which starts at 1.02
SETTLED = 300  # rounds after which the error no longer falls


def main(results: Path) -> None:
    """Fit and draw."""
    runs = json.loads(results.read_text())["curves"]
    measured = {name: [np.array([[r["round"], r["gradient_norm"] ** 2] for r in seed])
                       for seed in seeds.values()] for name, seeds in runs.items()}  # fmt: skip
    quantities = {
        f"mean squared outer gradient, rounds {SETTLED} to 600": floor,
        f"rounds until the squared outer gradient stays below {TARGET}": rounds_to_target,
    }
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    found = {}
    for panel, (title, quantity) in zip(panels, quantities.items(), strict=True):
        for algorithm in ("FedMBO", "FedNest"):
            chosen = {int(k.split("= ")[1]): v for k, v in measured.items() if algorithm in k}
            n = np.array(sorted(chosen))
            values = np.array([[quantity(run) for run in chosen[k]] for k in n]).T  # [seeds, n]
            reached = np.isfinite(values).all(0)
            slopes = [np.polyfit(np.log(n[reached]), np.log(v[reached]), 1)[0] for v in values]
            slope = interval(slopes)
            mean, low, high = interval(values[:, reached])
            label = f"{algorithm}: slope {plus_minus(slope)}"
            panel.errorbar(
                n[reached], mean, [mean - low, high - mean], marker="o", capsize=3, label=label
            )
            found.setdefault(title, {})[algorithm] = {
                "slope": slope.mean, "low": slope.low, "high": slope.high,
                "n": n[reached].tolist(), "mean": mean.tolist(), "missed": n[~reached].tolist(),
            }  # fmt: skip
        panel.set(xscale="log", yscale="log", xlabel="clients in an exchange, n", title=title)
        panel.set_xticks(n, [str(k) for k in n], minor=False)
        panel.minorticks_off()
        panel.grid(alpha=0.3)
        panel.legend()
    figure.savefig(HERE / "slopes.png", dpi=150)
    (HERE / "slopes.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


def floor(run: np.ndarray) -> float:
    """The mean error once it has settled."""
    return run[run[:, 0] >= SETTLED, 1].mean()


def rounds_to_target(run: np.ndarray) -> float:
    """The first round after which a running mean over ten measurements is below the target."""
    smooth = np.convolve(run[:, 1], np.ones(10) / 10, "valid")
    below = np.flatnonzero(smooth <= TARGET)
    return run[below[0] + 9, 0] if len(below) else np.nan


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "results.json")
