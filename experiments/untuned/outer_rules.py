"""Which outer rule needs no tuning: candidates on tasks with real data, without any other setting.

    python experiments/untuned/outer_rules.py [digits mnist ...]

Every candidate is the ``outer_lr`` of FedMBO, whose inner steps are measured; 10 of 40 clients with
labels of two shards each take part in an exchange, with batches of 32 rows. Printed is the accuracy
on the server's test rows after 200 rounds, for each task; a run that breaks down has none.
"""

import sys
from dataclasses import replace

import numpy as np
import optax
import optax.contrib

import rookery as rk
from rookery import tasks
from rookery.tasks.task import Task

ROUNDS = 200


def candidates() -> dict[str, object]:
    """Outer rules by name; plain sizes are what tuning would choose from."""
    contrib = optax.contrib

    def relative_adam():
        return optax.chain(optax.scale_by_adam(), optax.scale_by_trust_ratio(), optax.scale(-0.01))

    def clipped_mechanic():
        return contrib.mechanize(optax.sgd(1.0))

    rules: dict[str, object] = {f"size {size:g}": size for size in (0.001, 0.01, 0.1, 1.0, 10.0)}
    return rules | {
        "adam 0.01": optax.adam(0.01),
        "adam, relative": relative_adam(),
        "dog": contrib.dog(1.0),
        "dowg": contrib.dowg(1.0),
        "prodigy": contrib.prodigy(1.0),
        "dadapt_adamw": contrib.dadapt_adamw(1.0),
        "mechanic": clipped_mechanic(),
        "DoG, paper's": rk.parts.DoG(growth=1e6, power=0.0, most=1e6),
        "DoG, p = 0": rk.parts.DoG(power=0.0),
        "DoG": rk.parts.DoG(),
    }


def task(data: str, kind: str, clients: int = 40, rows: int = 4000) -> Task:
    """A task on some rows of a data set, label-sorted."""
    dataset = rk.datasets.load(data)
    order = np.random.default_rng(0).permutation(len(dataset.train["labels"]))[:rows]
    dataset = replace(dataset, train={name: a[order] for name, a in dataset.train.items()})
    owners = rk.partition.shards(dataset.train["labels"], clients, shards_per_client=2, seed=0)
    parts = rk.partition.split(owners, fractions={"train": 0.7, "validation": 0.3})
    if kind == "hyper_representation":
        return tasks.hyper_representation(dataset, parts, hidden=50)
    return getattr(tasks, kind)(dataset, parts)


def accuracy(some: Task, rule: object, seed: int = 0) -> float:
    """At the end of a run; NaN if it broke down."""
    algorithm = rk.FedMBO(outer_lr=rule, clients=10, batch_size=32)  # pyright: ignore
    result = rk.run(
        algorithm,
        some.problem,
        some.population,
        some.start(seed),
        rounds=ROUNDS,
        seed=seed,
        evaluate=some.evaluate,
        evaluate_every=ROUNDS,
        guard=None,
    )
    return float(result.history["accuracy"][-1]) if result.status == "finished" else float("nan")


def main():
    """Print a table for each data set."""
    kinds = ("hyper_representation", "regularisation", "loss_tuning")
    for data in sys.argv[1:] or ["digits"]:
        made = {kind: task(data, kind) for kind in kinds}
        print(f"{data:15}", *(f"{kind:>22}" for kind in kinds), flush=True)
        for name, rule in candidates().items():
            row = (f"{accuracy(some, rule):22.3f}" for some in made.values())
            print(f"{name:15}", *row, flush=True)


if __name__ == "__main__":
    main()
