"""Exchanges to a fixed accuracy against how much the clients differ, and against local steps.

A quadratic bilevel problem whose mean over clients is the same at every level of heterogeneity: a
client's matrices are the mean plus tau times its own deviation, and its inner Hessian is the mean
one times a number between 1 - 0.9 tau and 1 + 0.9 tau. Every algorithm takes the best setting of
one grid at each level. Writes heterogeneity.json and heterogeneity.png beside itself:

    python experiments/theory_heterogeneity/measure.py            # all three algorithms
    python experiments/theory_heterogeneity/measure.py FedMBO     # one again, others as they are
    python experiments/theory_heterogeneity/measure.py draw       # the picture alone, from the file
"""

import itertools
import json
import sys
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
from matplotlib.figure import Figure

import rookery as rk
from rookery.report.curves import save_figure, tidy
from rookery.report.palette import colour_of
from rookery.report.statistics import interval
from rookery.tasks.known_solution import GradientNorm

HERE = Path(__file__).parent
LEVELS = (0.0, 0.125, 0.25, 0.5, 1.0)
LOCAL_STEPS = (1, 4, 16)
SEEDS = range(4)
ROUNDS = 120
TARGET = 0.02  # of the norm of the outer gradient, which starts near 1
X_STEPS = (0.01, 0.03, 0.1, 0.3)  # of one local step
Y_STEPS = (0.03, 0.1, 0.3)
CONDITION, TERMS = 5.0, 20  # the series is then within 1 % of the inverse


def fedmsa(alpha, beta, K):
    """The theorem's: everyone gives the direction, one client walks along it."""
    return rk.FedMSA(outer_lr=alpha, inner_lr=beta, local_steps=K, clients=1)


def fednest(alpha, beta, K):
    """Local steps in both levels, everyone in every exchange, nothing random."""
    ihgp = rk.parts.FedIHGPSum(terms=TERMS, lipschitz=CONDITION)
    return rk.FedNest(
        outer_lr=alpha, inner_lr=beta, inner_rounds=1, inner_steps=K, outer_steps=K, ihgp=ihgp
    )


def fedmbo(alpha, beta, K):
    """No local steps: K counts inner rounds; each chain hops over clients drawn at random.

    A hop is one client's, whose Hessian may be twice the mean one: twice L, and twice the terms.
    """
    return rk.FedMBO(
        outer_lr=alpha,
        inner_lr=beta,
        inner_rounds=K,
        hypergradient=rk.parts.PHESum(terms=2 * TERMS, lipschitz=2 * CONDITION),
    )


ALGORITHMS = {"FedMSA": fedmsa, "FedNest": fednest, "FedMBO": fedmbo}


def main() -> None:
    """Measure and draw."""
    jax.config.update("jax_enable_x64", True)
    names = sys.argv[1:] or list(ALGORITHMS)
    file = HERE / "heterogeneity.json"
    old = json.loads(file.read_text())["found"] if len(names) < len(ALGORITHMS) else []
    found = [one for one in old if one["algorithm"] not in names]
    for name, K, tau in itertools.product(names, LOCAL_STEPS, LEVELS):
        measured = best(ALGORITHMS[name], K, family(tau))
        found.append({"algorithm": name, "K": K, "tau": tau} | measured)
        print(found[-1], flush=True)
    size = {"levels": LEVELS, "K": LOCAL_STEPS, "seeds": len(SEEDS), "rounds": ROUNDS}
    grid = {"x": X_STEPS, "y": Y_STEPS, "target": TARGET, "terms": TERMS}
    report = {"size": size, "grid": grid, "found": found}
    file.write_text(json.dumps(report, indent=1) + "\n")
    draw(found)


def family(tau: float):
    """The problem at one level of heterogeneity."""
    settings = {"n_clients": 20, "condition": CONDITION}
    common = rk.zoo.quadratic_bilevel(heterogeneity=0.0, **settings)
    apart = rk.zoo.quadratic_bilevel(heterogeneity=1.0, **settings)
    scale = 1 + 0.9 * tau * np.linspace(-1, 1, 20)
    fields = {"H": scale[:, None, None, None] * common.H}
    for name in ("B", "c", "d", "r", "E"):
        own = getattr(apart, name)
        fields[name] = getattr(common, name) + tau * (own - own.mean(0))
    return eqx.tree_at(lambda z: [getattr(z, n) for n in fields], common, list(fields.values()))


def best(make, K: int, zoo) -> dict:
    """The setting with the fewest exchanges to the target, of those that take every seed there."""
    grid = list(itertools.product(X_STEPS, Y_STEPS))
    jobs = [rk.Run(make(a, b, K), zoo.start, seed=seed) for a, b in grid for seed in SEEDS]
    results = rk.sweep(
        jobs,
        zoo.problem,
        rk.Population.stacked(zoo.data),
        rounds=ROUNDS,
        batch=len(jobs),
        evaluate=(rk.metrics.OfSolution(GradientNorm(*zoo.affine_hypergradient())),),
        evaluate_every=1,
    )
    each = np.array([exchanges_to_target(r.history) for r in results]).reshape(len(grid), -1)
    mean = np.where(np.isfinite(each).all(1), each.mean(1), np.inf)
    i = int(mean.argmin())
    if not np.isfinite(mean[i]):
        return {"exchanges": None, "reached": int(np.isfinite(each).any(0).sum())}
    spread = interval(each[i])
    low, high = float(spread.low), float(spread.high)
    return {"exchanges": float(mean[i]), "low": low, "high": high, "setting": grid[i]}


def exchanges_to_target(history) -> float:
    """When the gradient is first below the target; NaN if never."""
    below = np.flatnonzero(np.asarray(history["gradient_norm"]) <= TARGET)
    return float(history["exchanges"][below[0]]) if len(below) else np.nan


def draw(found: list[dict]) -> None:
    """Left: against tau, the best K of each algorithm. Right: against K, two levels."""
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for name in ALGORITHMS:
        own = [f for f in found if f["algorithm"] == name and f["exchanges"] is not None]
        best_K = [
            min((f for f in own if f["tau"] == tau), key=lambda f: f["exchanges"])
            for tau in LEVELS
            if any(f["tau"] == tau for f in own)
        ]
        bars(panels[0], best_K, "tau", colour_of(name), "-", None)
        for style, tau in (("-", 1.0), ("--", 0.125)):
            at = [f for f in own if f["tau"] == tau]
            if at:
                bars(panels[1], at, "K", colour_of(name), style, f"{name}, tau = {tau}")
    panels[0].set(xlabel="heterogeneity tau, with the best K", yscale="log")
    panels[0].set_ylabel(f"exchanges to an outer gradient of {TARGET}")
    panels[1].set(xlabel="K: local steps (FedMBO: inner rounds)", xscale="log")
    panels[1].set_xticks(LOCAL_STEPS, [str(k) for k in LOCAL_STEPS])
    for panel in panels:
        tidy(panel)
    figure.legend(loc="outside upper left", ncols=3, frameon=False)
    save_figure(figure, HERE / "heterogeneity.png", 160)


def bars(panel, points: list[dict], axis: str, color: str, style: str, label: str | None) -> None:
    """One line with its intervals over seeds."""
    mean = np.array([p["exchanges"] for p in points])
    low, high = (np.array([p[k] for p in points]) for k in ("low", "high"))
    at = [p[axis] for p in points]
    panel.errorbar(
        at,
        mean,
        [mean - low, high - mean],
        color=color,
        ls=style,
        marker="o",
        capsize=3,
        label=label,
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["draw"]:
        draw(json.loads((HERE / "heterogeneity.json").read_text())["found"])
    else:
        main()
