"""The tasks of the benchmark: small, on real data, in every form that a method may take them.

A task is a metric on a data set whose rows are divided among 20 clients. A *form* is a problem that
stands for it: fairness is a minimax problem to some methods, a composition or a single loss to
others, and the worst class's accuracy is measured for all.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import rookery as rk
from experiments.untuned.cells import components
from rookery import tasks
from rookery.clients.datasets import Dataset
from rookery.problem.composition import Composition
from rookery.runner.metrics import OnClients
from rookery.tasks.classifier import Accuracy, Loss
from rookery.tasks.fair_classification import WorstClass
from rookery.tasks.task import Parts, Task, server_rows
from rookery.types import Tree

DATA = ("mnist", "cifar10", "covtype", "digits", "villages")
SPLITS = ("iid", "dirichlet", "sorted", "natural")
NATURAL = ("villages",)
"""Data sets that have clients of their own, and no other split."""
N_CLIENTS, PER_EXCHANGE, BATCH, HIDDEN = 20, 10, 32, 32
TRAIN, HOLDOUT, TEST = 1600, 400, 2000
"""Rows of the clients, for tuning, and for the figures; digits has fewer."""
TILT = 2.0
"""The temperature of the tilted loss: the smaller, the more the rows with a large loss count."""

ONLY_IID = ("X-risk",)
"""Forms whose clients need rows of every kind."""

LEVELS = {"train": 0.7, "validation": 0.3}
OWN_ROWS = {"train": 0.5, "validation": 0.2, "holdout": 0.15, "test": 0.15}
"""The clients' splits where a method is measured on the server's rows, and where on their own."""


@dataclass(frozen=True)
class Kind:
    """A task.

    Attributes:
        metric: what is measured; more of it is better.
        centres: of the grids of the two step sizes.
        forms: functions that make the task, by the name of the form.
        fractions: how a client's rows are divided.
        is_long_tailed: whether class sizes fall geometrically to a tenth.
    """

    metric: str
    centres: tuple[float, float]
    forms: dict[str, Callable[[Dataset, Parts], Task]]
    fractions: dict[str, float]
    is_long_tailed: bool = False

    @property
    def holdout(self) -> str:
        """The same on the rows for tuning."""
        return f"holdout_{self.metric}"


def fair(dataset: Dataset, parts: Parts) -> Task:
    """Weights of the classes against the model."""
    return tasks.fair_classification(dataset, parts, groups="label")


def with_worst_class(dataset: Dataset, parts: Parts) -> Task:
    """Softmax regression, for methods that give large losses more weight themselves."""
    task = tasks.classification(dataset, parts)
    loss = task.problem.loss
    assert isinstance(loss, Loss)
    worst = [
        WorstClass(Accuracy(loss.network), rows, dataset.n_classes, prefix)
        for prefix, rows in server_rows(dataset).items()
    ]
    return replace(task, evaluate=(*task.evaluate[:-1], *worst))


def tilted(dataset: Dataset, parts: Parts) -> Task:
    """The logarithm of the mean of exponential losses, a composition of two means."""
    task = with_worst_class(dataset, parts)
    first = np.float32(dataset.n_classes ** (1 / TILT))  # the value of a model that knows nothing
    layers = Exponential(task.problem.loss), Logarithm()
    return replace(task, problem=Composition(layers, starts=(first,)))


class Exponential(eqx.Module):
    """exp(loss / TILT) of a row."""

    loss: Loss

    def __call__(self, w: Tree, example: Tree) -> jax.Array:
        """One number."""
        return jnp.exp(self.loss(w, example) / TILT)


class Logarithm(eqx.Module):
    """TILT log(z), whatever the row."""

    def __call__(self, z: jax.Array, example: Tree) -> jax.Array:
        """One number."""
        return TILT * jnp.log(z)


def adapted(dataset: Dataset, parts: Parts) -> Task:
    """One model, which is adapted for the measurement alone."""
    return tasks.classification(dataset, parts, hidden=(HIDDEN,), adapt_lr=0.1)


KINDS: dict[str, Kind] = {
    "hyper-representation": Kind(
        "accuracy",
        (0.3, 0.3),
        {"bilevel": lambda d, p: tasks.hyper_representation(d, p, hidden=HIDDEN)},
        LEVELS,
    ),
    "hyper-cleaning": Kind("accuracy", (500.0, 0.5), {"bilevel": tasks.hyper_cleaning}, LEVELS),
    "regularisation": Kind("accuracy", (1.0, 0.5), {"bilevel": tasks.regularisation}, LEVELS),
    "loss tuning": Kind(
        "balanced_accuracy",
        (1.0, 0.5),
        {"bilevel": lambda d, p: tasks.loss_tuning(d, p, hidden=(HIDDEN,))},
        LEVELS,
        is_long_tailed=True,
    ),
    "AUC": Kind(
        "auc",
        (0.1, 0.2),
        {
            "minimax": lambda d, p: tasks.auc(d, p, positive=0),
            "X-risk": lambda d, p: tasks.partial_auc(d, p, positive=0, temperature=10.0),
        },
        LEVELS,
    ),
    "fairness": Kind(
        "worst_class_accuracy",
        (0.3, 0.2),
        {"minimax": fair, "compositional": tilted, "single-level": with_worst_class},
        LEVELS,
    ),
    "classification": Kind(
        "accuracy",
        (0.3, 0.2),
        {"single-level": lambda d, p: tasks.classification(d, p, hidden=(HIDDEN,))},
        LEVELS,
    ),
    "meta-learning": Kind(
        "adapted_accuracy/mean",
        (0.3, 0.2),
        {
            "meta": lambda d, p: tasks.maml(d, p, hidden=(HIDDEN,), adapt_lr=0.1),
            "single-level": adapted,
        },
        OWN_ROWS,
    ),
    "personalisation": Kind(
        "accuracy/mean",
        (0.3, 0.2),
        {
            "personal": lambda d, p: tasks.hyper_representation(d, p, hidden=HIDDEN, personal=True),
            "single-level": lambda d, p: tasks.classification(d, p, hidden=(HIDDEN,)),
        },
        OWN_ROWS,
    ),
}


@cache
def dataset(name: str, is_long_tailed: bool = False) -> Dataset:
    """A random part of a data set; of pictures the first 64 principal components.

    So MNIST and CIFAR-10 have one shape, and one compiled program of a method serves both.
    """
    whole = rk.datasets.load(name)
    rng = np.random.default_rng(0)
    n_train, n_test = (len(part["labels"]) for part in (whole.train, whole.test))
    rows = rng.permutation(n_train)[: TRAIN + HOLDOUT]
    test = rng.permutation(n_test)[:TEST]
    some = replace(whole.keep(rows), test={key: a[test] for key, a in whole.test.items()})
    if name in ("mnist", "cifar10"):
        some = components(some)
    some = some.hold_out(min(HOLDOUT, len(rows) // 5))
    if is_long_tailed and name != "covtype":  # whose classes are unequal anyway
        some = some.keep(rk.partition.long_tail(some.train["labels"], ratio=0.1))
    return some


def owners(some: Dataset, split: str) -> list[np.ndarray]:
    """The rows of each client."""
    labels = some.train["labels"]
    match split:
        case "natural":
            return rk.partition.natural(some.owners, N_CLIENTS, least=16)
        case "iid":
            return rk.partition.iid(len(labels), N_CLIENTS)
        case "dirichlet":
            return rk.partition.dirichlet(labels, N_CLIENTS, alpha=0.3, min_per_client=8)
        case _:
            return rk.partition.shards(labels, N_CLIENTS, shards_per_client=2)


@cache
def task(kind: str, form: str, data: str, split: str) -> Task:
    """A task in one of its forms, measured on rows that no client learns from."""
    what = KINDS[kind]
    some = dataset(data, what.is_long_tailed)
    parts = rk.partition.split(owners(some, split), fractions=what.fractions)
    made = what.forms[form](some, parts)
    if "test" not in what.fractions:
        return made
    on_clients = [
        one for one in made.evaluate if isinstance(one, OnClients) and one.split != "holdout"
    ]
    evaluate = [
        replace(one, split=rows, label=prefix + one.label)
        for rows, prefix in (("test", ""), ("holdout", "holdout_"))
        for one in on_clients
    ]
    return replace(made, evaluate=tuple(evaluate))
