"""Accuracy of AFBO after a fixed time, against delay, number of clients and local iterations.

A quadratic bilevel problem whose hypergradient is known exactly; every evaluation on a client sees
one noisy row. At each point an algorithm takes the best steps of one grid, chosen on other seeds
than those that are reported. Writes delay.json and delay.png beside itself:

    python experiments/theory_delay/measure.py
    python experiments/theory_delay/measure.py draw    # the picture alone, from the file
"""

import itertools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from matplotlib.figure import Figure

import rookery as rk
from rookery.report.curves import save_figure, tidy
from rookery.report.palette import STROKES, colour_of
from rookery.report.statistics import interval
from rookery.tasks.known_solution import GradientNorm

HERE = Path(__file__).parent
CHOOSING, SEEDS = range(10, 12), range(8)
INNER = 0.05  # seconds of an inner exchange or a hop, always
DELAYS = (0.1, 0.5, 2.5)  # medians in the outer loop, of log-normal delays with sigma 1
SECONDS = 200.0
NO_TIME = rk.delays.Compute(gradient=0)  # for work
CLIENTS = (4, 16, 64)
ROUNDS = (100, 400)
SPREADS = {
    "5": 5,
    "3 to 7": rk.parts.RandomSteps(3, 7),
    "1 to 9": rk.parts.RandomSteps(1, 9),
    "1 or 9,\nalways the same": (1, 9) * 8,
}
X_STEPS = (0.003, 0.01, 0.03, 0.1, 0.3)
Y_STEPS = (0.1, 0.3)
CONDITION, TERMS = 4.0, 8
NOISE, ROWS = 0.5, 50


def problem(n_clients: int, heterogeneity: float = 0.0):
    """Clients whose rows scatter around the same matrices, or around matrices of their own.

    The first of many, so that without heterogeneity any number of them has the same solution.
    """
    many = rk.zoo.quadratic_bilevel(
        n_clients=max(CLIENTS),
        heterogeneity=heterogeneity,
        condition=CONDITION,
        rows=ROWS,
        noise=NOISE,
    )
    return type(many)(**{name: rows[:n_clients] for name, rows in many.data.items()}, m0=many.m0)


def afbo(alpha: float, beta: float, **changes):
    """Half of the clients are waited for; five inner steps of the server in a round."""
    settings = {
        "inner_rounds": 5,
        "aphe": rk.parts.APHESum(terms=TERMS, lipschitz=CONDITION),
        "hessians": rk.parts.ActiveHessians(),
        "batch_size": 1,
    }
    return rk.AFBO(outer_lr=alpha, inner_lr=beta, **(settings | changes))


def fednest(alpha: float, beta: float):
    """Everyone is waited for in every exchange."""
    ihgp = rk.parts.FedIHGPSum(terms=TERMS, lipschitz=CONDITION)
    return rk.FedNest(outer_lr=alpha, inner_lr=beta, inner_rounds=5, ihgp=ihgp, batch_size=1)


def main() -> None:
    """Measure and draw."""
    jax.config.update("jax_enable_x64", True)
    began = time.monotonic()
    found = {"delay": [], "clients": [], "local iterations": []}

    def measure(part: str, point: dict, histories, rounds: int | None = None) -> None:
        found[part].append(point | best(histories, rounds))
        print(part, found[part][-1], f"{time.monotonic() - began:.0f} s", flush=True)

    for make, median in itertools.product((afbo, fednest), DELAYS):
        clock = rk.delays.Clock(
            rk.delays.ConstantDelay(INNER),
            outer_delay=rk.delays.LogNormalDelay(median),
            compute=NO_TIME,
        )
        point = {"algorithm": {afbo: "AFBO", fednest: "FedNest"}[make], "median": median}
        runs = histories(make, problem(16), clock, rounds=1000, seconds=SECONDS)
        measure("delay", point, runs)
    clock = rk.delays.Clock(rk.delays.LogNormalDelay(1.0), compute=NO_TIME)
    for m in CLIENTS:
        runs = histories(afbo, problem(m), clock, rounds=max(ROUNDS), evaluate_every=5)
        for rounds in ROUNDS:
            measure("clients", {"clients": m, "rounds": rounds}, runs, rounds)
    for name, steps in SPREADS.items():

        def make(alpha, beta, steps=steps):
            return afbo(alpha, beta, inner_steps=steps, hessians=rk.parts.StaleHessians())

        runs = histories(make, problem(16, 1.0), clock, rounds=max(ROUNDS), evaluate_every=5)
        measure("local iterations", {"steps": name}, runs)
    size = {"seeds": len(SEEDS), "x steps": X_STEPS, "y steps": Y_STEPS, "rounds": ROUNDS}
    size |= {"seconds": SECONDS, "slopes": slopes(found["clients"])}
    (HERE / "delay.json").write_text(json.dumps({"size": size, "found": found}, indent=1) + "\n")
    draw(found)


def histories(make: Callable, zoo, clock: rk.delays.Clock, **settings) -> list[list]:
    """For every setting of the grid, what runs with all seeds have measured."""
    grid = list(itertools.product(X_STEPS, Y_STEPS))
    seeds = [*CHOOSING, *SEEDS]
    jobs = [rk.Run(make(a, b), zoo.start, seed=seed) for a, b in grid for seed in seeds]
    settings = {"evaluate_every": 1} | settings
    results = rk.sweep(
        jobs, zoo.problem, rk.Population.stacked(zoo.data), clock=clock, batch=len(jobs),
        evaluate=(rk.metrics.OfSolution(GradientNorm(*zoo.affine_hypergradient())),), **settings,
    )  # fmt: skip
    runs = [result.history for result in results]
    return [runs[i : i + len(seeds)] for i in range(0, len(runs), len(seeds))]


def best(runs: list[list], rounds: int | None) -> dict:
    """The error of the setting that is best for the choosing seeds, with the others."""
    error = np.array([[last_third(history, rounds) for history in row] for row in runs])
    chosen = error[:, : len(CHOOSING)].mean(1)
    i = int(np.where(np.isfinite(chosen), chosen, np.inf).argmin())
    own = error[i, len(CHOOSING) :]
    spread, grid = interval(own), list(itertools.product(X_STEPS, Y_STEPS))
    low, high = float(spread.low), float(spread.high)
    done = int(runs[i][-1]["round"][-1])
    return {
        "error": float(own.mean()), "low": low, "high": high, "setting": grid[i], "done": done
    }  # fmt: skip


def last_third(history, rounds: int | None) -> float:
    """The mean of the squared gradient over the last third of the measurements up to a round."""
    squares = np.asarray(history["gradient_norm"]) ** 2
    if rounds is not None:
        squares = squares[np.asarray(history["round"]) <= rounds]
    return float(squares[-max(1, len(squares) // 3) :].mean())


def slopes(points: list[dict]) -> dict[str, float]:
    """Of log error against log clients, for each number of rounds, and against log rounds."""

    def fit(some, axis):
        x, y = (np.log([p[name] for p in some]) for name in (axis, "error"))
        return float(np.polyfit(x, y, 1)[0])

    at = {
        f"clients, {T} rounds": fit([p for p in points if p["rounds"] == T], "clients")
        for T in ROUNDS
    }
    return at | {
        f"rounds, {m} clients": fit([p for p in points if p["clients"] == m], "rounds")
        for m in CLIENTS
    }


def draw(found: dict[str, list[dict]]) -> None:
    """One panel for each question."""
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    panels = figure.subplots(1, 3)
    for name in ("AFBO", "FedNest"):
        own = [p for p in found["delay"] if p["algorithm"] == name]
        bars(panels[0], [p["median"] for p in own], own, name, name)
    panels[0].set(
        xlabel=f"median outer delay, seconds\n({SECONDS:.0f} s of virtual time)", xscale="log"
    )
    for i, rounds in enumerate(ROUNDS):
        own = [p for p in found["clients"] if p["rounds"] == rounds]
        bars(panels[1], list(CLIENTS), own, "AFBO", f"AFBO, {rounds} rounds", i)
        half = [own[0]["error"] * (CLIENTS[0] / m) ** 0.5 for m in CLIENTS]
        panels[1].plot(CLIENTS, half, color="#999999", lw=1, ls=":")
    panels[1].set(xlabel="clients\n(dotted: one over the root)", xscale="log")
    panels[1].set_xticks(CLIENTS, [str(m) for m in CLIENTS])
    panels[1].set_xticks([], minor=True)
    panels[0].set_xticks(DELAYS, [f"{delay:g}" for delay in DELAYS])
    panels[0].set_xticks([], minor=True)
    bars(panels[2], list(range(len(SPREADS))), found["local iterations"], "AFBO", "AFBO")
    panels[2].set_xticks(range(len(SPREADS)), ["5", "3 to 7", "1 to 9", "1 or 9,\nfixed"])
    panels[2].set(xlabel=f"local iterations of a job,\n{max(ROUNDS)} rounds", xlim=(-0.4, 3.4))
    for panel in panels:
        panel.set_yscale("log")
        tidy(panel)
        panel.legend(loc="lower center", bbox_to_anchor=(0.5, 1), frameon=False)
    panels[0].set_ylabel("squared outer gradient, last third")
    save_figure(figure, HERE / "delay.png", 160)


def bars(panel, at: list, points: list[dict], algorithm: str, label: str, stroke: int = 0) -> None:
    """One line with its intervals over seeds; a bound below zero is not drawn."""
    mean = np.array([p["error"] for p in points])
    low, high = (np.array([p[k] for p in points]) for k in ("low", "high"))
    panel.errorbar(
        at,
        mean,
        [mean - np.maximum(low, mean / 20), high - mean],
        color=colour_of(algorithm),
        ls=STROKES[stroke],
        marker="o",
        capsize=3,
        label=label,
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["draw"]:
        draw(json.loads((HERE / "delay.json").read_text())["found"])
    else:
        main()
