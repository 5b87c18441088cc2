"""The type of a ready-made task, and helpers that several tasks share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from rookery.clients.datasets import Dataset
from rookery.clients.population import Population
from rookery.runner.metrics import AbstractEvaluation, Metric, OnServer
from rookery.types import Problem, Tree

Parts = Mapping[str, Sequence[np.ndarray]]
"""Per split, the training rows of each client."""

_Problem = TypeVar("_Problem", bound=Problem, covariant=True)


@dataclass(frozen=True)
class Task(Generic[_Problem]):
    """A problem with its clients, its initial values and its default metrics.

    Attributes:
        problem: the problem to solve.
        population: the clients and their data.
        start: initial values of the problem's variables, from a seed.
        evaluate: what a run measures by default.

    >>> from rookery.problem import zoo
    >>> member = zoo.scalar_bilevel()
    >>> task = Task(member.problem, Population.stacked(member.data), lambda seed: member.start, ())
    >>> task.population.n_clients
    2
    """

    problem: _Problem
    population: Population
    start: Callable[[int], tuple[Tree, ...]]
    evaluate: tuple[AbstractEvaluation, ...]


def server_metrics(
    metrics: Mapping[str, Metric], dataset: Dataset
) -> tuple[AbstractEvaluation, ...]:
    """Metrics on the test rows and, prefixed ``holdout_``, on rows held out for tuning, if any."""
    return tuple(
        OnServer({prefix + name: metric for name, metric in metrics.items()}, rows)
        for prefix, rows in server_rows(dataset).items()
    )


def server_rows(dataset: Dataset) -> dict[str, dict[str, np.ndarray]]:
    """The rows that no client has, by the prefix of the metrics measured on them."""
    if dataset.holdout is None:
        return {"": dataset.test}
    return {"": dataset.test, "holdout_": dataset.holdout}


def population_of(
    dataset: Dataset,
    parts: Parts,
    weigh_by_rows: bool = False,
    data: Mapping[str, np.ndarray] | None = None,
    rows_of: Parts | None = None,
) -> Population:
    """The clients, weighted by their training rows or all equally.

    Clients that have the rows of one natural owner each are called by the owners' names. Classes
    have the names that the data set gives them.

    Args:
        dataset: the rows, and whose they are.
        parts: per split the training rows of each client.
        weigh_by_rows: whether training rows count, or clients.
        data: what clients have in place of the training rows of the data set.
        rows_of: which rows of ``data`` they have; as ``parts`` says if not given.
    """
    weights = [len(rows) for rows in parts["train"]] if weigh_by_rows else None
    population = Population.from_parts(
        dataset.train if data is None else data,
        parts if rows_of is None else rows_of,
        weights=weights,
        names=_owner_names(dataset, parts),
    )
    return replace(population, encoded=(("labels", dataset.classes),) if dataset.classes else ())


def _owner_names(dataset: Dataset, parts: Parts) -> list[str] | None:
    """The owner of each client's rows; None unless each has one, and of its own."""
    if dataset.owners is None:
        return None
    whole = [np.concatenate(rows) for rows in zip(*parts.values(), strict=True)]
    owned = [np.unique(dataset.owners[rows]) for rows in whole]
    numbers = {int(owners[0]) for owners in owned if owners.size == 1}
    if len(numbers) < len(owned):
        return None
    return [dataset.owner_names[int(owners[0])] for owners in owned]


def check_splits(parts: Parts, *needed: str) -> None:
    """Raise if a needed split is missing."""
    for split in needed:
        if split not in parts:
            raise ValueError(
                f"parts needs the splits {', '.join(needed)}, got {', '.join(parts) or 'none'}. "
                "rookery.partition.split cuts the clients' rows into splits."
            )


def flat_inputs(dataset: Dataset) -> Dataset:
    """The data set with inputs that are vectors."""

    def flat(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {**rows, "inputs": rows["inputs"].reshape(len(rows["inputs"]), -1)}

    held = None if dataset.holdout is None else flat(dataset.holdout)
    return replace(dataset, train=flat(dataset.train), test=flat(dataset.test), holdout=held)


def check_real_inputs(dataset: Dataset, task: str) -> None:
    """Raise if inputs are tokens, which this task cannot encode."""
    if dataset.vocabulary:
        raise TypeError(
            f"{task} needs inputs that are real numbers, but those of {dataset.name} are tokens. "
            "Use the task classification, or another data set."
        )
