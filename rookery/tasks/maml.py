"""Model-agnostic meta-learning: initial parameters that one step adapts to every client.

    min over w of  mean over clients of  f_i( w - adapt_lr grad f_i(w) )

f_i is the mean cross-entropy of client i for a network with parameters w. Equation (7) of ComFedL
(arXiv:2106.11264); ComFedL with a gamma solves its robust form, equation (10).
"""

from collections.abc import Sequence

import numpy as np

from rookery import check
from rookery.clients.datasets import Dataset
from rookery.problem.meta import Meta
from rookery.tasks.classifier import Loss, classifier
from rookery.tasks.personal import evaluations
from rookery.tasks.task import Parts, Task, check_splits, population_of
from rookery.types import Tree


def maml(
    dataset: Dataset,
    parts: Parts,
    *,
    adapt_lr: float,
    hidden: Sequence[int] = (),
    adapt_steps: int = 5,
    weigh_by_rows: bool = False,
) -> Task[Meta]:
    """Learn a model that one gradient step adapts to a client.

    Args:
        dataset: inputs and integer labels.
        parts: per split (``train`` and ``validation``) the training rows of each client. Clients
            learn and adapt with the first and are evaluated on the second; with a further split
            ``holdout`` also on that, as ``holdout_adapted_...``, to choose settings by.
        adapt_lr: step size of the adaptation.
        hidden: widths of the hidden layers; for images the channels of two convolutions and the
            units of a dense layer.
        adapt_steps: clients are evaluated without adaptation, after one and after this many steps.
        weigh_by_rows: weight clients by their training rows; otherwise all have the same weight.

    >>> from rookery.clients import datasets, partition
    >>> digits = datasets.blank_like("digits")
    >>> parts = partition.split(partition.iid(len(digits.train["labels"]), 5), fractions={
    ...     "train": 0.8, "validation": 0.2})
    >>> task = maml(digits, parts, adapt_lr=0.1)
    >>> [layer["w"].shape for layer in task.start(0)[0]]
    [(64, 10)]
    """
    check_splits(parts, "train", "validation")
    check.positive("adapt_lr", adapt_lr)
    network = classifier(dataset, hidden)

    def start(seed: int) -> tuple[Tree]:
        return (network.init(np.random.default_rng(seed)),)

    population = population_of(dataset, parts, weigh_by_rows)
    return Task(
        problem=Meta(Loss(network), adapt_lr=adapt_lr),
        population=population,
        start=start,
        evaluate=evaluations(
            network, dataset, adapt_lr, adapt_steps, population.names is not None, tuple(parts)
        ),
    )
