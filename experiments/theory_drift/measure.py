"""Where local steps end: the distance of the limit from the solution, against step and local steps.

Quadratic bilevel problems with closed forms, all rows in every evaluation, everyone in every round:
what is left after many rounds is the drift of local steps and nothing else. On the left clients
share one inner problem, on the right each has its own. Writes drift.json and drift.png beside
itself:

    python experiments/theory_drift/measure.py
    python experiments/theory_drift/measure.py draw    # the picture alone, from the file
"""

import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

import rookery as rk
from rookery.algorithms import IMAML, FedBiO, FedBiOAcc, FedBiOAccLocal, FedBiOLocal
from rookery.report.curves import save_figure, tidy
from rookery.report.palette import COLOURS, algorithm_of, styles
from rookery.report.statistics import interval
from rookery.tasks.known_solution import Distance

HERE = Path(__file__).parent
STEPS = (0.04, 0.02, 0.01, 0.005)
LOCAL_STEPS = (2, 5, 10)
AT_STEP, AT_LOCAL = 0.01, 5  # where the other one varies
RENEWALS = (1.0, 0.1, 0.01)
EXACT = 1e-10
"""What is nearer to the solution has no drift."""
SEEDS = range(3)  # of the problem
TIME = 300.0  # rounds times local steps times step

SHARED: dict[str, Callable[..., rk.AbstractAlgorithm]] = {
    "FedBiO": lambda lr, K: FedBiO(outer_lr=lr, inner_lr=lr, local_steps=K),
    "FedMSA": lambda lr, K: rk.FedMSA(outer_lr=lr, inner_lr=lr, local_steps=K),
}
OWN: dict[str, Callable[..., rk.AbstractAlgorithm]] = {
    "FedBiOLocal": lambda lr, K: FedBiOLocal(outer_lr=lr, inner_lr=lr, local_steps=K),
    "IMAML": lambda lr, K: IMAML(outer_lr=lr, local_steps=K),
}


def with_momentum(make: type, c: float) -> Callable[..., rk.AbstractAlgorithm]:
    """An algorithm with recursive momentum that forgets c of its past in every step."""

    def algorithm(lr, K):
        storm = rk.parts.STORM(c)
        return make(outer_lr=lr, inner_lr=lr, local_steps=K, estimator=storm)

    return algorithm


LAST = "FedBiOAcc from last, c = {:g}"
"""The order of FedBiOAccLocal, in NumPy."""

for c in RENEWALS:
    SHARED[f"FedBiOAcc, c = {c:g}"] = with_momentum(FedBiOAcc, c)
    OWN[f"FedBiOAccLocal, c = {c:g}"] = with_momentum(FedBiOAccLocal, c)


def main() -> None:
    """Measure and draw."""
    jax.config.update("jax_enable_x64", True)
    found = []
    for levels, algorithms in (("shared", SHARED), ("own", OWN)):
        for name, make in algorithms.items():
            for K in LOCAL_STEPS:
                steps = STEPS if K == AT_LOCAL else (AT_STEP,)
                found += measured(levels, name, make, K, steps)
                print(found[-1], flush=True)
    for c, K in itertools.product(RENEWALS, LOCAL_STEPS):
        steps = STEPS if K == AT_LOCAL else (AT_STEP,)
        found += from_last("shared", LAST.format(c), c, K, steps)
        print(found[-1], flush=True)
    size = {"steps": STEPS, "local_steps": LOCAL_STEPS, "seeds": len(SEEDS), "time": TIME}
    (HERE / "drift.json").write_text(json.dumps({"size": size, "found": found}, indent=1) + "\n")
    draw(found)


def problem(levels: str, seed: int) -> Any:  # a member of the zoo
    """Six clients that have nothing in common."""
    make = {"shared": rk.zoo.quadratic_bilevel, "own": rk.zoo.personal_quadratic}[levels]
    return make(n_clients=6, x_size=3, y_size=4, seed=seed)


def measured(levels: str, name: str, make, K: int, steps: tuple[float, ...]) -> list[dict]:
    """The distance from the solution at the end, for every step, in every seed."""
    rounds = round(TIME / K / min(steps))
    each = []
    for seed in SEEDS:
        zoo = problem(levels, seed)
        results = rk.sweep(
            [rk.Run(make(lr, K), zoo.start, seed=0) for lr in steps],
            zoo.problem,
            rk.Population.stacked(zoo.data),
            rounds=rounds,
            batch=len(steps),
            evaluate=(rk.metrics.OfSolution(Distance(("x", "y"), zoo.solution())),),
            evaluate_every=rounds // 2,
        )
        each.append([[float(v) for v in r.history["distance_x"][-2:]] for r in results])
    return [
        {"levels": levels, "algorithm": name, "K": K, "step": lr}
        | {"distance": [one[i][1] for one in each], "half_way": [one[i][0] for one in each]}
        for i, lr in enumerate(steps)
    ]


def from_last(levels: str, name: str, c: float, K: int, steps: tuple[float, ...]) -> list[dict]:
    """FedBiOAcc whose first difference of a round starts where the client's estimate was made.

    In NumPy, on the maps M_i w + k_i of all clients at once; rookery's FedBiOAcc starts its
    differences at the averages.
    """
    found = []
    for lr in steps:
        row = {"levels": levels, "algorithm": name, "K": K, "step": lr, "distance": []}
        for seed in SEEDS:
            zoo = problem(levels, seed)
            M, k = affine_maps(zoo)
            u = np.zeros(k.shape[1])
            d, old = k.mean(0), np.zeros_like(k)  # the maps at the start are k
            for _ in range(round(TIME / K / lr)):
                w, e = np.tile(u, (len(k), 1)), np.tile(d, (len(k), 1))
                for _ in range(K):
                    at, before = (np.einsum("cij,cj->ci", M, p) + k for p in (w, old))
                    e = at + (1 - c) * (e - before)
                    old, w = w, w - lr * e
                u, d = w.mean(0), e.mean(0)
            x = zoo.solution()[0]
            row["distance"].append(float(np.linalg.norm(u[: len(x)] - x)))
        found.append(row)
    return found


def affine_maps(zoo: rk.zoo.QuadraticBilevel) -> tuple[np.ndarray, np.ndarray]:
    """M_i and k_i with  s_i(w) = M_i w + k_i  for w = (x, y, v) of every client."""
    matrices, vectors = [], []
    for H, B, c, Q, d, r, E in zip(*(a.mean(1) for a in zoo.data.values()), strict=True):
        x, y = np.eye(len(r)), np.zeros_like(H)
        rows = [
            [zoo.m0 * x, E, B.T],  # f_x - g_xy v
            [-B, H, y],  # g_y
            [-E.T, -Q, H],  # g_yy v - f_y
        ]
        matrices.append(np.block(rows))
        vectors.append(np.concatenate([r, -c, Q @ d]))
    return np.array(matrices), np.array(vectors)


def draw(found: list[dict]) -> None:
    """A row of panels for each kind of lower level: against the step, and against local steps.

    Several curves lie on one another: their marks are around each other. What is exact up to
    rounding lies below the panels, and is named there.
    """
    figure = Figure(figsize=(9, 8), layout="constrained")
    halves = figure.subfigures(2, 1, squeeze=False).flat
    for half, (levels, algorithms) in zip(halves, (("shared", SHARED), ("own", OWN)), strict=True):
        row = half.subplots(1, 2, sharey=True)
        names = [*algorithms, *(map(LAST.format, RENEWALS) if levels == "shared" else ())]
        looks = styles([algorithm_of(name, {}) for name in names])
        for panel, axis in zip(row, ("step", "K"), strict=True):
            for i, (name, (colour, _)) in enumerate(zip(names, looks, strict=True)):
                at = sorted(
                    (f for f in found if f["levels"] == levels and f["algorithm"] == name),
                    key=lambda f: f[axis],
                )
                fixed = ("K", AT_LOCAL) if axis == "step" else ("step", AT_STEP)
                at = [f for f in at if f[fixed[0]] == fixed[1]]
                spread = interval(np.array([f["distance"] for f in at]).T)
                if max(spread.mean) < EXACT:
                    text = f"{name}: {min(spread.mean):.0e} to {max(spread.mean):.0e}"
                    panel.text(0.02, 0.03, text, color=COLOURS[colour], transform=panel.transAxes)
                    continue
                low = np.maximum(spread.low, spread.mean / 20)  # a logarithm has no zero
                panel.errorbar(
                    [f[axis] for f in at],
                    spread.mean, [spread.mean - low, spread.high - spread.mean],
                    label=name, color=COLOURS[colour], lw=1.2, elinewidth=0.5,
                    marker="os^Dv<>p"[i], markersize=17 - 1.8 * i, mfc="none", mew=1.4,
                )  # fmt: skip
            panel.set(xscale="log", yscale="log", ylim=(3e-5, 0.3))
            panel.xaxis.set_minor_formatter("")
            tidy(panel)
        row[0].set(xlabel=f"step, {AT_LOCAL} local steps", ylabel="distance of x from its solution")
        row[1].set(xlabel=f"local steps of size {AT_STEP}")
        row[0].set_xticks(STEPS, [str(lr) for lr in STEPS])
        row[1].set_xticks(LOCAL_STEPS, [str(k) for k in LOCAL_STEPS])
        half.legend(
            *row[0].get_legend_handles_labels(), loc="outside upper left", ncols=3, frameon=False,
            title="One inner problem" if levels == "shared" else "Own inner problems",
            alignment="left", markerscale=0.7, labelspacing=0.7,
        )  # fmt: skip
    save_figure(figure, HERE / "drift.png", 160)


if __name__ == "__main__":
    if sys.argv[1:] == ["draw"]:
        draw(json.loads((HERE / "drift.json").read_text())["found"])
    else:
        main()
