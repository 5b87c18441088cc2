"""Bytes to a target: compressed uploads of bilevel methods, where clients differ.

20 clients with two digits each, all of them in every exchange. Every method has the same grid of
steps, judged on rows that no client has. Writes results.json and curves.png beside itself:

    python experiments/compression/measure.py [METHOD ...]   # 2 CPU minutes; needs the extra digits
    python experiments/compression/measure.py draw           # the picture alone, from results.json
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import rookery as rk
from rookery import tasks
from rookery.algorithms import CSOBA, EFSOBA, FedBiO
from rookery.report.comparison import Band
from rookery.report.curves import draw_band, save_figure, tidy
from rookery.report.palette import algorithm_of, styles
from rookery.report.statistics import interval
from rookery.tasks.task import Task

HERE = Path(__file__).parent
CLIENTS, ROUNDS, EVERY, LEVEL = 20, 200, 10, 0.85
SEEDS, TUNING_SEED = (0, 1, 2), 10
GRID = {"outer_lr": [0.1, 0.3, 1.0], "inner_lr": [0.1, 0.3]}
Make = Callable[..., rk.AbstractAlgorithm]


def with_codec(make: Callable, codec: object, **settings: object) -> Make:
    """A method whose clients encode what they send."""
    return lambda **rates: make(**rates, batch_size=16, codec=codec, **settings)


METHODS: dict[str, Make] = {
    "SOBA": lambda **rates: rk.SOBA(**rates, batch_size=16),
    "C-SOBA, 4 bits": with_codec(CSOBA, rk.parts.StochasticRounding(4)),
    "C-SOBA, random 10 %": with_codec(CSOBA, rk.parts.RandK(0.1)),
    "EF-SOBA, top 10 %": with_codec(EFSOBA, rk.parts.TopK(0.1)),
    "EF-SOBA, top 2 %": with_codec(EFSOBA, rk.parts.TopK(0.02)),
    "FedBiO": lambda **rates: FedBiO(**rates, batch_size=16, local_steps=5),
    "FedBiO, 4 bits": with_codec(FedBiO, rk.parts.StochasticRounding(4), local_steps=5),
}


def main() -> None:
    """Tune, measure and draw."""
    file, some, found = HERE / "results.json", task(), {}
    size = {"clients": CLIENTS, "rounds": ROUNDS, "seeds": SEEDS, "grid": GRID, "level": LEVEL}
    for label in sys.argv[1:] or METHODS:
        began = time.process_time()
        row = measured(some, METHODS[label])
        print(f"{label}: {row['accuracy']} {time.process_time() - began:.0f} s", flush=True)
        found = json.loads(file.read_text())["found"] if file.exists() else {}
        found[label] = row
        file.write_text(json.dumps({"size": size, "found": found}, allow_nan=False) + "\n")
    if found.keys() == METHODS.keys():
        draw(found)


def task() -> Task:
    """Hyper-representation on the 8 x 8 digits, sorted by label."""
    dataset = rk.datasets.load("digits").hold_out(200, seed=0)
    labels = dataset.train["labels"]
    owners = rk.partition.shards(labels, CLIENTS, shards_per_client=2, seed=0)
    parts = rk.partition.split(owners, fractions={"train": 0.5, "validation": 0.5})
    return tasks.hyper_representation(dataset, parts, hidden=16, l2=0.01)


def measured(some: Task, make: Make) -> dict:
    """The chosen steps, the curves of all seeds, and the megabytes up to the level.

    These are None unless every seed reaches it.
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
        batch=len(SEEDS),  # as many as below, so that all runs share one program
    )
    results = rk.sweep(
        [rk.Run(make(**tuning.setting), some.start(seed), seed) for seed in SEEDS],
        some.problem,
        some.population,
        rounds=ROUNDS,
        evaluate=some.evaluate,
        evaluate_every=EVERY,
        batch=len(SEEDS),
        guard=None,
    )
    curves = [np.round(r.history["accuracy"], 4).tolist() for r in results]
    megabytes = (results[0].history["bytes_up"] / 1e6).tolist()
    last = interval([curve[-1] for curve in curves])
    return {
        "steps": tuning.setting,
        "accuracy": [round(float(last.mean), 4), round(float(last.high - last.mean), 4)],
        "megabytes up to the level": to_level(curves, megabytes),
        "exchanges to the level": to_level(curves, results[0].history["exchanges"].tolist()),
        "megabytes": megabytes,
        "curves": curves,
        "tried": [{"setting": t.setting, "values": t.values} for t in tuning.trials],
    }


def to_level(curves: list[list[float]], costs: list[float]) -> float | None:
    """The mean cost of the first evaluation at or above the level, if every seed reaches it."""
    reached = [np.flatnonzero(np.array(curve) >= LEVEL) for curve in curves]
    if not all(len(some) for some in reached):
        return None
    return round(float(np.mean([costs[some[0]] for some in reached])), 3)


def draw(found: dict[str, dict]) -> None:
    """Accuracy against what clients have sent."""
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    panel = figure.subplots()
    looks = styles([algorithm_of(label, {}) for label in METHODS])
    for label, look in zip(METHODS, looks, strict=True):
        row = found[label]
        spread = interval(np.array(row["curves"])[:, 1:])
        band = Band(np.array(row["megabytes"])[1:], spread.mean, spread.low, spread.high)
        draw_band(panel, band, look, label)
    panel.axhline(LEVEL, color="#999999", lw=0.8)
    panel.set(xscale="log", xlabel="megabytes up, all clients", ylabel="test accuracy", ylim=(0, 1))
    tidy(panel)
    figure.legend(loc="outside upper left", ncols=4, frameon=False)
    save_figure(figure, HERE / "curves.png", 160)


if __name__ == "__main__":
    if sys.argv[1:] == ["draw"]:
        draw(json.loads((HERE / "results.json").read_text())["found"])
    else:
        main()
