"""Slopes of the error, and of the rounds to a fixed one, against the clients in an exchange.

Reads results.json and rounds.results.json beside itself, writes slopes.json and slopes.png:

    python experiments/theory_linear_speedup/fit.py
    python experiments/theory_linear_speedup/fit.py draw    # slopes.png alone
"""

import json
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from rookery.report.curves import save_figure, tidy
from rookery.report.palette import colour_of
from rookery.report.statistics import interval
from rookery.report.tables import plus_minus

HERE = Path(__file__).parent
TARGET = 0.1  # of the squared outer gradient, which starts at 1.02
SETTLED = 300  # rounds after which the error no longer falls


def read(file: str) -> dict[str, list[np.ndarray]]:
    """By the curve's name, for each seed, an array of rounds and squared outer gradients."""
    runs = json.loads((HERE / file).read_text())["curves"]
    return {
        name: [np.stack([s["round"], np.square(s["gradient_norm"])], 1) for s in seeds.values()]
        for name, seeds in runs.items()
    }


def main() -> None:
    """Fit and draw."""
    quantities = {
        f"mean squared outer gradient, rounds {SETTLED} to 600": (read("results.json"), floor),
        f"rounds to a squared outer gradient of {TARGET}, outer step 0.01 n": (
            read("rounds.results.json"),
            rounds_to_target,
        ),
    }
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    panels = figure.subplots(1, 2)
    found = {}
    for panel, (title, (measured, quantity)) in zip(panels, quantities.items(), strict=True):
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
                n[reached], mean, [mean - low, high - mean], marker="o", capsize=3, label=label,
                color=colour_of(algorithm),
            )  # fmt: skip
            found.setdefault(title, {})[algorithm] = {
                "slope": slope.mean, "low": slope.low, "high": slope.high,
                "n": n[reached].tolist(), "mean": mean.tolist(), "missed": n[~reached].tolist(),
            }  # fmt: skip
        panel.set(xscale="log", yscale="log", xlabel="clients in an exchange, n")
        panel.set_ylabel(title.replace(", ", ",\n"))
        panel.set_xticks(n, [str(k) for k in n], minor=False)
        panel.minorticks_off()
        tidy(panel)
        panel.legend(loc="lower center", bbox_to_anchor=(0.5, 1), frameon=False)
    save_figure(figure, HERE / "slopes.png", 160)
    if sys.argv[1:] != ["draw"]:  # other machines round otherwise
        (HERE / "slopes.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


def floor(run: np.ndarray) -> float:
    """The mean error once it has settled."""
    return run[run[:, 0] >= SETTLED, 1].mean()


def rounds_to_target(run: np.ndarray) -> float:
    """When the error is first below the target; NaN if never."""
    below = np.flatnonzero(run[:, 1] <= TARGET)
    return run[below[0], 0] if len(below) else np.nan


if __name__ == "__main__":
    main()
