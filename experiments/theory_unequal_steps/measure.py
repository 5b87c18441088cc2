"""Unequal numbers of local steps: which problem is solved, and how near the limit comes to it.

Six clients take 1 to 6 local steps. Problems are quadratic, with closed forms: the solution, and
the solution of the problem in which a client counts by its number of steps. All rows in every
evaluation, everyone in every round, so that what is left after many rounds is due to local steps.
Writes unequal.json and unequal.png beside itself:

    python experiments/theory_unequal_steps/measure.py
    python experiments/theory_unequal_steps/measure.py draw    # the picture alone, from the file
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from matplotlib.figure import Figure

import rookery as rk
from rookery.algorithms import FedBiO, FedNova, ShroFBO, SimFBO
from rookery.report.curves import save_figure, tidy
from rookery.report.palette import COLOURS, algorithm_of, styles
from rookery.report.statistics import interval

HERE = Path(__file__).parent
TAU = (1, 2, 3, 4, 5, 6)
STEPS = (0.04, 0.02, 0.01, 0.005)
SEEDS = range(3)  # of the problem
TIME = 100.0  # rounds times step
NEAR = 0.1  # a distance to reach, relative to that of the start

Make = Callable[[float], rk.AbstractAlgorithm]
BILEVEL: dict[str, Make] = {
    "SimFBO": lambda lr: SimFBO(outer_lr=lr, inner_lr=lr, server_lr=lr, local_steps=TAU),
    "ShroFBO": lambda lr: ShroFBO(outer_lr=lr, inner_lr=lr, server_lr=lr, local_steps=TAU),
    "FedBiO": lambda lr: FedBiO(outer_lr=lr, inner_lr=lr, local_steps=TAU),
    "FedBiO, PerCall": lambda lr: FedBiO(outer_lr=shared(lr), inner_lr=shared(lr), local_steps=TAU),
}
SINGLE: dict[str, Make] = {
    "FedAvg": lambda lr: rk.FedAvg(lr=lr, local_steps=TAU),
    "FedNova": lambda lr: FedNova(lr=lr, local_steps=TAU),
    "FedAvg, PerCall": lambda lr: rk.FedAvg(lr=shared(lr), local_steps=TAU),
}
LEVELS = {"bilevel": BILEVEL, "single level": SINGLE}


def shared(lr: float) -> rk.parts.PerCall:
    """Steps of all clients go equally far, and in the mean as far as steps of size ``lr``."""
    return rk.parts.PerCall(lr * sum(TAU) / len(TAU))


def main() -> None:
    """Measure and draw."""
    jax.config.update("jax_enable_x64", True)
    found = []
    for levels, algorithms in LEVELS.items():
        for name, make in algorithms.items():
            found += measured(levels, name, make)
            print(found[-1], flush=True)
    size = {"tau": TAU, "steps": STEPS, "seeds": len(SEEDS), "time": TIME, "near": NEAR}
    (HERE / "unequal.json").write_text(json.dumps({"size": size, "found": found}, indent=1) + "\n")
    draw(found)


def problem(levels: str, seed: int) -> Any:  # a member of the zoo
    """Six clients that have nothing in common."""
    if levels == "bilevel":
        return rk.zoo.quadratic_bilevel(n_clients=6, x_size=3, y_size=4, seed=seed)
    return rk.zoo.quadratic_losses(n_clients=6, size=3, seed=seed)


def weighted(zoo: Any) -> Any:
    """The problem in which a client counts by its number of steps: it is there as often."""
    more = {name: np.repeat(a, TAU, axis=0) for name, a in zoo.data.items()}
    return eqx.tree_at(lambda z: [getattr(z, n) for n in more], zoo, list(more.values()))


def measured(levels: str, name: str, make: Make) -> list[dict]:
    """The distances of the limits from both solutions, and the exchanges to come near."""
    rounds = round(TIME / min(STEPS))
    found = [
        {"levels": levels, "algorithm": name, "step": lr}
        | {key: [] for key in ("distance", "to_weighted", "exchanges")}
        for lr in STEPS
    ]
    for seed in SEEDS:
        zoo = problem(levels, seed)
        solution, other = zoo.solution()[0], weighted(zoo).solution()[0]
        first = float(np.linalg.norm(zoo.start[0] - solution))
        results = rk.sweep(
            [rk.Run(make(lr), zoo.start, seed=0) for lr in STEPS],
            zoo.problem,
            rk.Population.stacked(zoo.data),
            rounds=rounds,
            batch=len(STEPS),
            evaluate=(rk.metrics.OfSolution(distance_from(solution)),),
            evaluate_every=10,
        )
        for row, result in zip(found, results, strict=True):
            x = np.asarray(result.solution[0])
            row["distance"].append(float(np.linalg.norm(x - solution)))
            row["to_weighted"].append(float(np.linalg.norm(x - other)))
            near = np.flatnonzero(np.asarray(result.history["distance"]) <= NEAR * first)
            row["exchanges"].append(
                int(result.history["exchanges"][near[0]]) if len(near) else None
            )
    return found


def distance_from(solution: np.ndarray) -> Callable[..., dict]:
    """The distance of the first variable."""

    def distance(x, *_):
        return {"distance": jax.numpy.linalg.norm(x - solution)}

    return distance


def draw(found: list[dict]) -> None:
    """A panel for each class of problem: limits against the step, from both solutions."""
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, (levels, algorithms) in zip(panels, LEVELS.items(), strict=True):
        looks = styles([algorithm_of(name, {}) for name in algorithms])
        for i, (name, (colour, stroke)) in enumerate(zip(algorithms, looks, strict=True)):
            at = [f for f in found if f["levels"] == levels and f["algorithm"] == name]
            width = 4.0 - i  # two lines are one
            for key, line in (("distance", "-"), ("to_weighted", ":")):
                mean, low, high = interval(np.array([f[key] for f in at]).T)
                low = np.maximum(low, mean / 20)  # a logarithm has no zero
                panel.errorbar(
                    [f["step"] * 1.04 ** (i - 1.5) for f in at],  # beside each other
                    mean,
                    [mean - low, high - mean],
                    color=COLOURS[colour],
                    marker="os"[stroke],
                    mfc="white" if stroke else None,
                    ls=line,
                    lw=width,
                    elinewidth=0.7,
                    label=name if key == "distance" else None,
                )
        panel.set(xscale="log", yscale="log", xlabel="step")
        panel.set_xticks(STEPS, [str(lr) for lr in STEPS])
        panel.xaxis.set_minor_formatter("")
        tidy(panel)
        panel.legend(
            loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, frameon=False, title=levels
        )
    panels[0].set_ylabel(
        "distance of the limit from the solution\n(dotted: of the weighted problem)"
    )
    save_figure(figure, HERE / "unequal.png", 160)


if __name__ == "__main__":
    if sys.argv[1:] == ["draw"]:
        draw(json.loads((HERE / "unequal.json").read_text())["found"])
    else:
        main()
