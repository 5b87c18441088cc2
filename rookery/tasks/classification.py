"""Classification: one model for all clients.

    min over w of  mean over clients of  f_i(w)

f_i is the mean cross-entropy of client i for a network with parameters w. FedAvg and its relatives
solve this problem. Distributionally robust algorithms (ComFedL with a gamma, DRFA, agnostic
learning, q-FedAvg) take the same problem and give large f_i more weight.
"""

from collections.abc import Sequence

import numpy as np

from rookery.clients.datasets import Dataset
from rookery.problem.single_level import SingleLevel
from rookery.tasks.classifier import Loss, classifier
from rookery.tasks.personal import evaluations
from rookery.tasks.task import Parts, Task, check_splits, population_of
from rookery.types import Tree


def classification(
    dataset: Dataset,
    parts: Parts,
    *,
    hidden: Sequence[int] = (),
    adapt_lr: float | None = None,
    adapt_steps: int | None = None,
    weigh_by_rows: bool = False,
) -> Task[SingleLevel]:
    """Learn one model for all clients.

    Args:
        dataset: inputs and integer labels.
        parts: per split (``train`` and ``validation``) the training rows of each client. Clients
            learn from the first and are evaluated on the second; with an ``adapt_lr`` and a
            further split ``holdout`` also on that, as ``holdout_adapted_...``.
        hidden: widths of the hidden layers; for images the channels of two convolutions and the
            units of a dense layer.
        adapt_lr: if given, clients are also evaluated after one and after ``adapt_steps`` gradient
            steps of this size on their training rows. The problem stays the same.
        adapt_steps: number of adaptation steps, 5 by default; only with an ``adapt_lr``.
        weigh_by_rows: weight clients by their training rows; otherwise all have the same weight.

    >>> from rookery.clients import datasets, partition
    >>> digits = datasets.blank_like("digits")
    >>> parts = partition.split(partition.iid(len(digits.train["labels"]), 5), fractions={
    ...     "train": 0.8, "validation": 0.2})
    >>> task = classification(digits, parts, hidden=(20,))
    >>> [layer["w"].shape for layer in task.start(0)[0]]
    [(64, 20), (20, 10)]
    """
    check_splits(parts, "train", "validation")
    network = classifier(dataset, hidden)

    def start(seed: int) -> tuple[Tree]:
        return (network.init(np.random.default_rng(seed)),)

    population = population_of(dataset, parts, weigh_by_rows)
    return Task(
        problem=SingleLevel(Loss(network)),
        population=population,
        start=start,
        evaluate=evaluations(
            network, dataset, adapt_lr, adapt_steps, population.names is not None, tuple(parts)
        ),
    )
