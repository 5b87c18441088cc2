"""The type of a ready-made task, and helpers that several tasks share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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


def population_of(dataset: Dataset, parts: Parts, weigh_by_rows: bool) -> Population:
    """The clients, weighted by their training rows or all equally."""
    weights = [len(rows) for rows in parts["train"]] if weigh_by_rows else None
    return Population.from_parts(dataset.train, parts, weights=weights)


def check_splits(parts: Parts, *needed: str) -> None:
    """Raise if a needed split is missing."""
    for split in needed:
        if split not in parts:
            raise ValueError(
                f"parts needs the splits {', '.join(needed)}, got {', '.join(parts) or 'none'}. "
                "rookery.partition.split cuts the clients' rows into splits."
            )
