"""Byzantine clients in a bilevel problem: accuracy against their share, for rules and estimates.

20 clients, all of them in every exchange; the attackers send minus ten times their replies. Each
method has one grid of steps, judged without attackers on rows that no client has. Writes
results.json and curves.png beside itself:

    python experiments/byzantine/measure.py [iid shards]     # 3 CPU minutes; needs the extra digits
    python experiments/byzantine/measure.py draw             # the picture alone, from results.json
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import rookery as rk
from rookery import tasks
from rookery.algorithms import BRFedBi, BRFedBiM, BRFedBiP
from rookery.program.aggregate import (
    Attacked,
    GeometricMedian,
    Krum,
    Mean,
    Median,
)
from rookery.report.curves import save_figure, tidy
from rookery.report.palette import COLOURS, styles
from rookery.tasks.task import Task

HERE = Path(__file__).parent
CLIENTS, MOST_BAD, ROUNDS = 20, 8, 100
BAD = (0, 4, 8)
SEEDS, TUNING_SEED = (0, 1, 2), 10
GRID = {"outer_lr": [0.1, 0.3, 1.0], "inner_lr": [0.3]}
PARTITIONS = {"iid": "clients alike", "shards": "label-sorted, two digits each"}


def plain(outer_lr: float, inner_lr: float) -> rk.AbstractAlgorithm:
    """What a client has computed in this round."""
    return BRFedBi(outer_lr=outer_lr, inner_lr=inner_lr, batch_size=16)


def momentum(outer_lr: float, inner_lr: float) -> rk.AbstractAlgorithm:
    """Momenta of the clients."""
    return BRFedBiM(outer_lr=outer_lr, inner_lr=inner_lr, batch_size=16)


def page(outer_lr: float, inner_lr: float) -> rk.AbstractAlgorithm:
    """Differences, and all rows in a fifth of the rounds."""
    return BRFedBiP(outer_lr=outer_lr, inner_lr=inner_lr, page=rk.parts.PAGE(0.2), batch_size=16)


METHODS: dict[str, tuple[Callable[..., rk.AbstractAlgorithm], rk.aggregate.Aggregate]] = {
    "mean": (plain, Mean()),
    "median": (plain, Median()),
    "Krum": (plain, Krum(bad=MOST_BAD)),
    "geometric median": (plain, GeometricMedian()),
    "geometric median, momentum": (momentum, GeometricMedian()),
    "geometric median, PAGE": (page, GeometricMedian()),
}


def main() -> None:
    """Tune, measure and draw."""
    file, found = HERE / "results.json", {}
    size = {"clients": CLIENTS, "rounds": ROUNDS, "attackers": BAD, "seeds": SEEDS, "grid": GRID}
    for name in sys.argv[1:] or PARTITIONS:
        some, methods = task(name), {}
        for label, (make, rule) in METHODS.items():
            began = time.process_time()
            methods[label] = measured(some, make, rule)
            shown = methods[label]["accuracy"]
            print(f"{name} {label}: {shown} {time.process_time() - began:.0f} s", flush=True)
        found = json.loads(file.read_text())["found"] if file.exists() else {}
        found[name] = {"title": PARTITIONS[name], "methods": methods}
        content = {"size": size, "found": found}
        file.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
    if found.keys() == PARTITIONS.keys():
        draw(found)


def task(name: str) -> Task:
    """Hyper-representation on the 8 x 8 digits."""
    dataset = rk.datasets.load("digits").hold_out(200, seed=0)
    labels = dataset.train["labels"]
    if name == "iid":
        owners = rk.partition.iid(len(labels), CLIENTS, seed=0)
    else:
        owners = rk.partition.shards(labels, CLIENTS, shards_per_client=2, seed=0)
    parts = rk.partition.split(owners, fractions={"train": 0.5, "validation": 0.5})
    return tasks.hyper_representation(dataset, parts, hidden=8, l2=0.01)


def measured(some: Task, make: Callable, rule: rk.aggregate.Aggregate) -> dict:
    """The chosen steps, and the accuracies for each number of attackers, None if a run broke down.

    The steps are chosen without attackers.
    """
    tuning = rk.tune(
        make,
        GRID,
        some.problem,
        some.population,
        some.start,
        metric="holdout_accuracy",
        goal="max",
        rounds=ROUNDS,
        seeds=[TUNING_SEED],
        evaluate=some.evaluate,
        aggregate=attacked(rule, 0),
        batch=len(SEEDS),  # as many as below, so that all runs share one program
    )
    accuracies = {}
    for bad in BAD:
        results = rk.sweep(
            [rk.Run(make(**tuning.setting), some.start(seed), seed) for seed in SEEDS],
            some.problem,
            some.population,
            rounds=ROUNDS,
            evaluate=some.evaluate,
            evaluate_every=ROUNDS,
            aggregate=attacked(rule, bad),
            batch=len(SEEDS),
            guard=None,
        )
        accuracies[str(bad)] = [
            round(float(r.history["accuracy"][-1]), 4) if r.status == "finished" else None
            for r in results
        ]
    trials = [{"setting": t.setting, "values": t.values} for t in tuning.trials]
    return {"steps": tuning.setting, "accuracy": accuracies, "tried": trials}


def attacked(rule: rk.aggregate.Aggregate, bad: int) -> Attacked:
    """The rule under attack; as an array the number of attackers compiles no new program."""
    return eqx.tree_at(lambda one: one.bad, Attacked(rule, bad=1), jnp.asarray(bad))


def draw(found: dict[str, dict]) -> None:
    """A panel for each partition, points are seeds; a run that broke down counts as guessing."""
    figure = Figure(figsize=(8, 4.4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    share = 100 * np.array(BAD) / CLIENTS
    looks = styles(list(METHODS))
    for panel, name in zip(panels, PARTITIONS, strict=True):
        part = found[name]
        for i, ((label, row), look) in enumerate(zip(part["methods"].items(), looks, strict=True)):
            each = [[0.1 if a is None else a for a in row["accuracy"][str(bad)]] for bad in BAD]
            at = share + 0.6 * (i - 2.5)  # beside each other, so that no point hides another
            colour = COLOURS[look[0]]
            panel.plot(at, np.mean(each, axis=1), color=colour, lw=1.6, label=label)
            panel.plot(at, each, "o", ms=4, alpha=0.6, color=colour)
        panel.set_title(part["title"], fontsize=10)
        panel.set(xlabel="attackers, %", xticks=share)
        tidy(panel)
    panels[0].set(ylabel="test accuracy, every seed and mean", ylim=(0, 1))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=3, frameon=False)
    save_figure(figure, HERE / "curves.png", 160)


if __name__ == "__main__":
    if sys.argv[1:] == ["draw"]:
        draw(json.loads((HERE / "results.json").read_text())["found"])
    else:
        main()
