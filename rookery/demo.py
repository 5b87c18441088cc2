"""``rookery demo``: FedNest on 5,000 real digits of 20 clients, in three settings."""

from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from rookery.algorithms.fednest import FedNest
from rookery.algorithms.parts import FedIHGP, FedIHGPSum, PerCall
from rookery.clients import datasets, partition
from rookery.report.comparison import Comparison, Curve
from rookery.report.curves import plot
from rookery.report.page import write_page
from rookery.report.tables import cost_table, final_table
from rookery.run.describe import describe
from rookery.run.loop import run
from rookery.tasks.hyper_representation import hyper_representation

SEEDS = (0, 1, 2)
COMMON = {
    "outer_lr": 0.01,
    "inner_lr": 0.01,
    "inner_steps": 10,
    "clients": 10,
    "batch_size": 32,
}
SETTINGS = {
    "series summed": FedNest(**COMMON, ihgp=FedIHGPSum(terms=5)),
    "series of random length": FedNest(**COMMON, ihgp=FedIHGP(terms=5)),
    "5 local outer steps": FedNest(
        **{**COMMON, "outer_lr": PerCall(0.015)}, ihgp=FedIHGPSum(terms=5), outer_steps=5
    ),
}


def run_demo(console: Console, *, out: Path, rounds: int, data: Path | None) -> None:
    """Run every setting with every seed, then show and write the comparison."""
    dataset = datasets.load("mnist5k", data)
    parts = partition.shards(dataset.train["labels"], 20, shards_per_client=2, seed=0)
    parts = partition.split(parts, fractions={"train": 0.5, "validation": 0.5}, seed=0)
    console.print(
        "[bold]Hyper-representation[/]: 4,000 digits lie with 20 clients, about two classes each. "
        "Together they learn a hidden layer (outer) under the best head for it (inner); "
        "no digit leaves its client."
    )
    task = hyper_representation(dataset, parts, hidden=64, l2=0.01)
    curves = []
    for name, algorithm in SETTINGS.items():
        runs = []
        for seed in SEEDS:
            result = run(
                algorithm,
                task.problem,
                task.population,
                task.start(seed),
                rounds=rounds,
                seed=seed,
                evaluate=task.evaluate,
                evaluate_every=5,
                directory=out / f"{name.replace(' ', '-')}-seed{seed}",
                overwrite=True,
                title=f"{name}, seed {seed}",
                console=console,
            )
            runs.append(result.history)
        curves.append(Curve(name, runs, list(SEEDS)))
    comparison = Comparison(
        title="FedNest on 5,000 digits, 20 label-skewed clients",
        curves=curves,
        settings={name: describe(algorithm) for name, algorithm in SETTINGS.items()},
        versions={name: version(name) for name in ("rookery", "jax", "equinox", "numpy")},
        notes=f"Hyper-representation, {rounds} rounds, seeds {SEEDS}; "
        "test accuracy on 1,000 digits.",
    )
    console.print(final_table(comparison, axes=("exchanges", "megabytes")))
    console.print(cost_table(comparison, "accuracy", 0.8, axes=("exchanges", "megabytes")))
    plot(comparison, out / "demo.png", metrics="accuracy", axes=("exchanges", "megabytes"))
    write_page(comparison, out / "demo.html", metric="accuracy")
    console.print(f"A picture: {out / 'demo.png'}\nA page to explore: {out / 'demo.html'}")
