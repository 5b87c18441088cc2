"""First-order against second-order hypergradients: accuracy at equal bytes and equal CPU time.

One frame, FedBiO with five local steps, and two sets of maps: those of (x, y, v), which need
Hessian- and Jacobian-vector products, and those of a penalty, which need gradients alone. Both send
x and two inner variables each way. 20 clients with two digits each, all in every exchange. Writes
results.json and curves.png beside itself:

    python experiments/first_order/measure.py         # 2 CPU minutes; needs the extra digits
    python experiments/first_order/measure.py draw    # the picture alone, from results.json
"""

import json
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import rookery as rk
from rookery import tasks
from rookery.algorithms import FedBiO
from rookery.problem.sample import Rows
from rookery.report.comparison import Band
from rookery.report.curves import draw_band, save_figure, tidy
from rookery.report.palette import styles
from rookery.report.statistics import interval
from rookery.runner.run_state import Result
from rookery.tasks.task import Task

HERE = Path(__file__).parent
CLIENTS, ROUNDS, EVERY = 20, 200, 10
SEEDS, TUNING_SEED = (0, 1, 2), 10
GRID = {"outer_lr": [0.1, 0.3, 1.0], "inner_lr": [0.1, 0.3]}
LAYERS = ((200, 64), (1000, 64), (1000, 512))  # hidden units and rows, for the memory
VIEWS = {
    "second derivatives": rk.parts.BilevelView(),
    "penalty, sigma 10": rk.parts.PenaltyView(10.0),
    "penalty, sigma 100": rk.parts.PenaltyView(100.0),
    "one-sided penalty, sigma 10": rk.parts.PenaltyView(10.0, symmetric=False),
}


def main() -> None:
    """Tune, measure and draw."""
    some, found = task(), {}
    for label, view in VIEWS.items():
        began = time.process_time()
        found[label] = measured(some, view)
        shown = {k: v for k, v in found[label].items() if k not in ("curves", "tried")}
        print(f"{label}: {shown} {time.process_time() - began:.0f} s", flush=True)
    size = {"clients": CLIENTS, "rounds": ROUNDS, "seeds": SEEDS, "grid": GRID}
    content = {"size": size, "memory": memories(), "found": found}
    print(content["memory"], flush=True)
    (HERE / "results.json").write_text(json.dumps(content, allow_nan=False) + "\n")
    draw(found)


def task() -> Task:
    """Hyper-representation on the 8 x 8 digits, sorted by label."""
    dataset = rk.datasets.load("digits").hold_out(200, seed=0)
    labels = dataset.train["labels"]
    owners = rk.partition.shards(labels, CLIENTS, shards_per_client=2, seed=0)
    parts = rk.partition.split(owners, fractions={"train": 0.5, "validation": 0.5})
    return tasks.hyper_representation(dataset, parts, hidden=32, l2=0.01)


def measured(some: Task, view: rk.parts.BilevelView | rk.parts.PenaltyView) -> dict:
    """The chosen steps, the curves of all seeds, and the CPU time of a round."""

    def make(outer_lr: float, inner_lr: float) -> rk.AbstractAlgorithm:
        return FedBiO(outer_lr=outer_lr, inner_lr=inner_lr, local_steps=5, batch_size=16, view=view)

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
    runs = [rk.Run(make(**tuning.setting), some.start(seed), seed) for seed in SEEDS]
    results = swept(some, runs, EVERY)
    curves = [np.round(r.history["accuracy"], 4).tolist() for r in results]
    last, history = interval([curve[-1] for curve in curves]), results[0].history
    return {
        "steps": tuning.setting,
        "accuracy": [round(float(last.mean), 4), round(float(last.high - last.mean), 4)],
        "megabytes": float(history["bytes_up"][-1] + history["bytes_down"][-1]) / 1e6,
        "gradients": float(history["gradients"][-1]),
        "hessian_vectors": float(history["hessian_vectors"][-1]),
        "CPU ms per round": cpu_per_round(some, runs),
        "curves": curves,
        "tried": [{"setting": t.setting, "values": t.values} for t in tuning.trials],
    }


def swept(some: Task, runs: list[rk.Run], every: int) -> list[Result]:
    """The runs, in one program."""
    return rk.sweep(
        runs,
        some.problem,
        some.population,
        rounds=ROUNDS,
        evaluate=some.evaluate,
        evaluate_every=every,
        batch=len(runs),
        guard=None,
    )


def cpu_per_round(some: Task, runs: list[rk.Run]) -> float:
    """Milliseconds of a round of one run: the program is compiled, and evaluated twice."""
    began = time.process_time()
    swept(some, runs, ROUNDS)
    return round(1e3 * (time.process_time() - began) / ROUNDS / len(runs), 3)


def memories() -> list[dict]:
    """Bytes that XLA sets aside for one client's maps, by the size of the network and the batch."""
    found = []
    for hidden, n in LAYERS:
        dataset = rk.datasets.blank_like("mnist")
        parts = {split: [np.arange(10)] for split in ("train", "validation")}
        some = tasks.hyper_representation(dataset, parts, hidden=hidden)
        x, y = jax.tree.map(jnp.asarray, some.start(0))
        inputs, labels = jnp.zeros((n, 784)), jnp.zeros(n, jnp.int32)
        row = {"hidden": hidden, "rows": n}
        for label, view in VIEWS.items():
            row[label] = temporary_bytes(view, some, (x, y, y), inputs, labels)
        found.append(row)
    return found


def temporary_bytes(view, some: Task, blocks, inputs, labels) -> int:
    """Of one evaluation of all maps."""

    @jax.jit
    def maps(blocks, inputs, labels):
        rows = Rows({"inputs": inputs, "labels": labels}, jax.random.key(0))
        return view.maps(some.problem, blocks, (rows, rows))

    analysis = maps.lower(blocks, inputs, labels).compile().memory_analysis()
    assert analysis is not None, "processors have it"
    return int(analysis.temp_size_in_bytes)


def draw(found: dict[str, dict]) -> None:
    """Accuracy against rounds, which is against bytes, and against CPU time."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    rounds = np.arange(0, ROUNDS + 1, EVERY)
    looks = styles(["FedBiO"] * len(found))  # one algorithm: a colour for each of its maps
    for (label, row), look in zip(found.items(), looks, strict=True):
        mean, low, high = interval(np.array(row["curves"]))
        megabytes, seconds = row["megabytes"] / ROUNDS, row["CPU ms per round"] / 1e3
        draw_band(left, Band(rounds * megabytes, mean, low, high), look, label)
        draw_band(right, Band(rounds * seconds, mean, low, high), look)
    left.set(xlabel="megabytes in all", ylabel="test accuracy", ylim=(0.8, 0.99))
    right.set(xlabel="CPU seconds of all clients")
    for panel in (left, right):
        tidy(panel)
    figure.legend(loc="outside upper left", ncols=4, frameon=False, fontsize=9)
    save_figure(figure, HERE / "curves.png", 160)


if __name__ == "__main__":
    if sys.argv[1:] == ["draw"]:
        draw(json.loads((HERE / "results.json").read_text())["found"])
    else:
        main()
