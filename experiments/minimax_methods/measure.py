"""Rounds and bytes of minimax methods to a target: a saddle with a known solution, and AUC.

All methods have the same grid of steps, chosen on one seed and judged on three others. Writes
saddle.json, auc.json and methods.png beside itself; a name measures one problem alone:

    python experiments/minimax_methods/measure.py [saddle | auc]
    python experiments/minimax_methods/measure.py draw    # the picture alone, from the files
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import rookery as rk
from rookery.algorithms import CODASCA, FESSGDA, FedGDAGT, FedSGDAM, OptimisticGDA
from rookery.report.comparison import Band
from rookery.report.curves import draw_band, save_figure, tidy
from rookery.report.palette import algorithm_of, styles
from rookery.report.statistics import interval

HERE = Path(__file__).parent
STEPS = {"saddle": (0.01, 0.03, 0.1, 0.3), "auc": (0.03, 0.1, 0.3, 1.0)}
CHOOSING, SEEDS = 3, (0, 1, 2)
K = 5
N_CLIENTS = 8
TARGETS = {"saddle": 1e-3, "auc": 0.05}
"""Distance from the saddle point; how much the AUC on test rows is below 1."""
ROUNDS = {"saddle": 300, "auc": 100}
EVERY = {"saddle": 5, "auc": 4}

METHODS: dict[str, Callable[..., rk.AbstractAlgorithm]] = {
    "GDA": lambda lr, **how: rk.GDA(outer_lr=lr, inner_lr=lr, **how),
    "FedAvg-S": lambda lr, **how: rk.FedAvgS(outer_lr=lr, inner_lr=lr, local_steps=K, **how),
    "SCAFFOLD-S": lambda lr, **how: rk.ScaffoldS(outer_lr=lr, inner_lr=lr, local_steps=K, **how),
    "CODASCA": lambda lr, **how: CODASCA(
        outer_lr=lr, inner_lr=lr, local_steps=K, mu=0.1, stage_rounds=20, **how
    ),
    "FedGDA-GT": lambda lr, **how: FedGDAGT(outer_lr=lr, inner_lr=lr, local_steps=K, **how),
    "FESS-GDA": lambda lr, **how: FESSGDA(
        outer_lr=lr, inner_lr=lr, local_steps=K, smoothing=0.1, beta=0.5, **how
    ),
    "FedSGDA-M": lambda lr, **how: FedSGDAM(
        outer_lr=lr, inner_lr=lr, local_steps=K, estimator=rk.parts.STORM(0.1), **how
    ),
    "optimistic GDA": lambda lr, **how: OptimisticGDA(
        outer_lr=lr, inner_lr=lr, local_steps=K, **how
    ),
}


def saddle(seed: int) -> tuple[Any, rk.Population, tuple, Any]:
    """Clients that differ in their curvature; the distance of (x, y) from the saddle point."""
    zoo = rk.zoo.saddle(n_clients=N_CLIENTS, curvature=1.0, seed=seed, dtype=np.float32)
    x, y = zoo.solution()

    def distance(got_x, got_y):
        parts = got_x - x.astype(np.float32), got_y - y.astype(np.float32)
        return {"distance": sum((part**2).sum() for part in parts) ** 0.5}

    population = rk.Population.stacked(zoo.data)
    return zoo.problem, population, zoo.start, (rk.metrics.OfSolution(distance),)


def auc(seed: int) -> tuple[Any, rk.Population, tuple, Any]:
    """Digit 8 against the others, half of its rows, on clients with mostly different digits.

    The seed is that of the start and of the batches; the clients are always the same.
    """
    digits = rk.datasets.load("digits")
    rows = rk.partition.dirichlet(digits.train["labels"], N_CLIENTS, alpha=0.3, seed=0)
    task = rk.tasks.auc(digits, {"train": rows}, positive=8, keep_positives=0.5)
    return task.problem, task.population, task.start(seed), task.evaluate


PROBLEMS = {"saddle": (saddle, {}), "auc": (auc, {"batch_size": 32})}


def main() -> None:
    """Measure and draw."""
    for problem in sys.argv[1:] or PROBLEMS:
        make, how = PROBLEMS[problem]
        found = []
        tasks = {seed: make(seed) for seed in (CHOOSING, *SEEDS)}
        for name, method in METHODS.items():
            runs = {seed: curves(problem, tasks[seed], method, how, seed) for seed in tasks}
            ends = [(reached(problem, run), last(run)) for run in runs[CHOOSING]]
            best = ends.index(min(ends))
            own = [runs[seed][best] for seed in SEEDS]
            found.append({"method": name, "step": STEPS[problem][best], "runs": own})
            print(
                problem,
                name,
                STEPS[problem][best],
                [summary(problem, run) for run in own],
                flush=True,
            )
        size = {
            "steps": STEPS[problem],
            "seeds": SEEDS,
            "local_steps": K,
            "rounds": ROUNDS[problem],
        }
        text = json.dumps({"size": size, "target": TARGETS[problem], "found": found}, indent=None)
        (HERE / f"{problem}.json").write_text(text + "\n")
    if all((HERE / f"{problem}.json").exists() for problem in PROBLEMS):
        draw()


def curves(problem: str, task: tuple, method: Callable, how: dict, seed: int) -> list[dict]:
    """What a method measured with every step, and its costs up to then."""
    what, population, start, evaluate = task
    results = rk.sweep(
        [rk.Run(method(lr, **how), start, seed=seed) for lr in STEPS[problem]],
        what,
        population,
        rounds=ROUNDS[problem],
        batch=len(STEPS[problem]),
        guard=None,  # a step that is too large diverges, and is not chosen
        evaluate=evaluate,
        evaluate_every=EVERY[problem],
    )
    found = []
    for history in (result.history for result in results):
        value = history["distance"] if problem == "saddle" else 1 - np.asarray(history["auc"])
        both = np.asarray(history["bytes_down"]) + np.asarray(history["bytes_up"])
        found.append(
            {
                "value": [float(f"{v:.4g}") for v in value],
                "rounds": [int(r) for r in history["round"]],
                "bytes": [int(b) for b in both],
            }
        )
    return found


def reached(problem: str, run: dict, axis: str = "rounds") -> float:
    """Where a run is within the target for the first time; infinity if it is not."""
    within = [a for a, v in zip(run[axis], run["value"], strict=True) if v <= TARGETS[problem]]
    return within[0] if within else float("inf")


def last(run: dict) -> float:
    """What a run ends with; infinity if it diverged."""
    return run["value"][-1] if np.isfinite(run["value"][-1]) else float("inf")


def summary(problem: str, run: dict) -> tuple[float, ...]:
    """Rounds and kilobytes to the target, and the end."""
    return reached(problem, run), reached(problem, run, "bytes") / 1e3, last(run)


def draw() -> None:
    """Per problem the mean curve of every method, against rounds and against bytes."""
    found = {p: json.loads((HERE / f"{p}.json").read_text())["found"] for p in PROBLEMS}
    figure = Figure(figsize=(9, 7.2), layout="constrained")
    panels = figure.subplots(2, 2, sharey="row")
    looks = dict(zip(METHODS, styles([algorithm_of(name, {}) for name in METHODS]), strict=True))
    for row, problem in zip(panels, PROBLEMS, strict=True):
        for panel, (axis, unit) in zip(row, (("rounds", 1), ("bytes", 1000)), strict=True):
            for one in found[problem]:
                length = min(len(run["value"]) for run in one["runs"])
                spread = interval(np.array([run["value"][:length] for run in one["runs"]]))
                at = np.array(one["runs"][0][axis][:length]) / unit
                low = np.maximum(spread.low, spread.mean / 5)  # a logarithm has no zero
                band = Band(at, spread.mean, low, spread.high)
                draw_band(panel, band, looks[one["method"]], one["method"], shade=0.07)
            panel.axhline(TARGETS[problem], color="#999999", lw=0.8, ls=":")
            panel.set(yscale="log", xlabel="rounds" if axis == "rounds" else "kilobytes in all")
            tidy(panel)
        row[0].set(
            ylabel="distance from the saddle" if problem == "saddle" else "1 - AUC on test rows"
        )
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=4, frameon=False)
    save_figure(figure, HERE / "methods.png", 160)


if __name__ == "__main__":
    if sys.argv[1:] == ["draw"]:
        draw()
    else:
        main()
