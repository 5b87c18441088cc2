"""What a ready-made task consists of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rookery._types import Tree
from rookery.clients.dataset import Dataset
from rookery.clients.population import Population
from rookery.run.evaluate import AbstractEvaluation, Metric, OnServer


@dataclass(frozen=True)
class Task:
    """A problem with its clients, its initial values and what to measure on the way.

    Attributes:
        problem: what is solved.
        population: whose data it is.
        start: initial values of the problem's variables, from a seed.
        evaluate: what a run measures if nothing else is said.
    """

    problem: Any
    population: Population
    start: Callable[[int], tuple[Tree, ...]]
    evaluate: tuple[AbstractEvaluation, ...]


def server_metrics(
    metrics: Mapping[str, Metric], dataset: Dataset
) -> tuple[AbstractEvaluation, ...]:
    """Metrics on the test rows and, if some were held out for tuning, on those.

    The names of the latter begin with ``holdout_``.
    """
    on_test = OnServer(metrics, dataset.test)
    if dataset.holdout is None:
        return (on_test,)
    tuning = {f"holdout_{name}": metric for name, metric in metrics.items()}
    return on_test, OnServer(tuning, dataset.holdout)
