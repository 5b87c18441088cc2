"""Small tasks on real data, and algorithms for them with and without a given step.

A cell is an algorithm, a kind of task, a data set and a way to divide its rows among clients.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np

import rookery as rk
from rookery import algorithms, tasks
from rookery.clients.datasets import Dataset
from rookery.tasks.task import Task

DATA = ("mnist", "digits", "covtype", "cifar10")
KINDS = ("hyper_representation", "hyper_cleaning", "loss_tuning", "regularisation")
SPLITS = ("iid", "dirichlet", "sorted")
N_CLIENTS, PER_EXCHANGE, BATCH = 20, 10, 32
TRAIN, HOLDOUT, TEST = 1600, 400, 2000
"""Rows of the clients, for tuning, and for the figures of the table; digits has fewer."""
TRAINED = 0.7
"""The part of a client's rows that it trains on; it validates on the others."""
COMPONENTS = 64
"""Principal components that stand for the pixels of a photograph."""


class Cell(NamedTuple):
    """One entry of the table."""

    algorithm: str
    kind: str
    data: str
    split: str

    @property
    def metric(self) -> str:
        """What the task is about."""
        return "balanced_accuracy" if self.kind == "loss_tuning" else "accuracy"


def _with(name: str, **fixed) -> Callable[..., rk.AbstractAlgorithm]:
    """An algorithm on sampled clients and rows; its steps are given or not."""

    def make(**steps) -> rk.AbstractAlgorithm:
        return getattr(algorithms, name)(**fixed, **steps)

    return make


def _with_server(name: str, **fixed) -> Callable[..., rk.AbstractAlgorithm]:
    """The same of an algorithm whose server has a rule of its own; it steps as its clients do."""

    def make(**steps) -> rk.AbstractAlgorithm:
        if steps:
            steps["server_lr"] = (steps["outer_lr"], steps["inner_lr"], steps["inner_lr"])
        return getattr(algorithms, name)(**fixed, **steps)

    return make


def _comfedl(outer_lr: float | None = None, inner_lr: float | None = None) -> rk.AbstractAlgorithm:
    """ComFedL for robust learning, whose one step is the product of two factors."""
    lr = "auto" if outer_lr is None or inner_lr is None else outer_lr * inner_lr
    return rk.ComFedL(lr=lr, gamma=1.0, clients=PER_EXCHANGE, batch_size=BATCH)


_SAMPLED = {"clients": PER_EXCHANGE, "batch_size": BATCH}
ALGORITHMS: dict[str, Callable[..., rk.AbstractAlgorithm]] = {
    "FedNest": _with("FedNest", **_SAMPLED),
    "FedMBO": _with("FedMBO", **_SAMPLED),
    "FedMSA": _with("FedMSA", **_SAMPLED),
    "AFBO": _with("AFBO", batch_size=BATCH),
    "SOBA": _with("SOBA", **_SAMPLED),
    "SimFBO": _with_server("SimFBO", **_SAMPLED),
    "FedBiO": _with("FedBiO", **_SAMPLED),
    "F2SA": _with("F2SA", **_SAMPLED),
    "MemFBO": _with_server("MemFBO", **_SAMPLED),
    "ComFedL": _comfedl,
}
CLOCK = rk.delays.Clock(rk.delays.LogNormalDelay(1.0))
"""Delays of exchanges and jobs: the results that AFBO steps along have different ages."""


def cells() -> list[Cell]:
    """All cells. Any first part of the list is a balanced sample.

    The three splits of a task follow each other, since they share compiled programs. After every
    111 cells each algorithm for bilevel problems has met every kind of task once more, on one data
    set each, and ComFedL one data set.
    """
    bilevel = [name for name in ALGORITHMS if name != "ComFedL"]
    found = []
    for shift in range(len(DATA)):
        for (k, kind), (a, name) in product(enumerate(KINDS), enumerate(bilevel)):
            data = DATA[(k + a + shift) % len(DATA)]
            found += [Cell(name, kind, data, split) for split in SPLITS]
        found += [Cell("ComFedL", "classification", DATA[shift], split) for split in SPLITS]
    return found


@cache
def dataset(name: str, is_long_tailed: bool = False) -> Dataset:
    """A random part of a data set; of photographs the first principal components.

    Args:
        name: of the data set.
        is_long_tailed: whether class sizes fall geometrically to a tenth. Those of Covertype are
            unequal anyway.
    """
    whole = rk.datasets.load(name)
    rng = np.random.default_rng(0)
    n_train = min(TRAIN + HOLDOUT, len(whole.train["labels"]))
    rows = rng.permutation(len(whole.train["labels"]))[:n_train]
    test = rng.permutation(len(whole.test["labels"]))[:TEST]
    some = replace(whole.keep(rows), test={key: a[test] for key, a in whole.test.items()})
    if whole.train["inputs"].ndim > 2:
        some = components(some)
    some = some.hold_out(HOLDOUT)
    if is_long_tailed and name != "covtype":
        some = some.keep(rk.partition.long_tail(some.train["labels"], ratio=0.1))
    return some


def components(some: Dataset) -> Dataset:
    """The scores on the first principal components of the training rows, of mean square one."""
    train, test = (
        part["inputs"].reshape(len(part["labels"]), -1) for part in (some.train, some.test)
    )
    centre = train.mean(0)
    axes = np.linalg.svd(train - centre, full_matrices=False)[2][:COMPONENTS].T
    scale = np.sqrt(np.mean(np.square((train - centre) @ axes)))
    return replace(
        some,
        train=some.train | {"inputs": ((train - centre) @ axes / scale).astype(np.float32)},
        test=some.test | {"inputs": ((test - centre) @ axes / scale).astype(np.float32)},
    )


def levelled(parts: dict[str, list[np.ndarray]]) -> dict[str, list[np.ndarray]]:
    """Moves single rows between the splits so that 70 % of all rows are training rows.

    Rounding by client makes their number depend on how rows are divided. With one number, all
    divisions share a compiled program.
    """
    train, validation = list(parts["train"]), list(parts["validation"])
    total = sum(map(len, train + validation))
    excess = sum(map(len, train)) - round(TRAINED * total)
    largest = np.argsort([-len(rows) for rows in train], kind="stable")[: abs(excess)]
    giving, taking = (train, validation) if excess > 0 else (validation, train)
    for i in largest:
        taking[i] = np.append(taking[i], giving[i][-1])
        giving[i] = giving[i][:-1]
    return {"train": train, "validation": validation}


@cache
def task(kind: str, data: str, split: str) -> Task:
    """A task of 20 clients with 70 % training and 30 % validation rows."""
    some = dataset(data, is_long_tailed=kind == "loss_tuning")
    labels = some.train["labels"]
    match split:
        case "iid":
            owners = rk.partition.iid(len(labels), N_CLIENTS)
        case "dirichlet":
            owners = rk.partition.dirichlet(labels, N_CLIENTS, alpha=0.3, min_per_client=4)
        case _:
            owners = rk.partition.shards(labels, N_CLIENTS, shards_per_client=2)
    parts = levelled(rk.partition.split(owners, fractions={"train": TRAINED, "validation": 0.3}))
    match kind:
        case "hyper_representation":
            return tasks.hyper_representation(some, parts, hidden=32)
        case "loss_tuning":
            return tasks.loss_tuning(some, parts, hidden=(32,))
    return getattr(tasks, kind)(some, parts)
