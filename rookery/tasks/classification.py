"""Classification: one model for all clients.

    min over w of  mean over clients of  f_i(w)

f_i is the mean cross-entropy of client i for a network with parameters w. FedAvg and its relatives
solve it as it stands. Distributionally robust algorithms (ComFedL with a gamma, DRFA, agnostic
learning, q-FedAvg) take the same problem and count large f_i more.
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
) -> Task:
    """Learn one model for all clients.

    Args:
        dataset: inputs and integer labels.
        parts: per split (``train`` and ``validation``) the training rows of each client. Clients
            learn from the first and are judged by the second.
        hidden: widths of the hidden layers; for images two of channels and one of units.
        adapt_lr: if given, clients are also judged after gradient steps of this size on their
            training rows: one, and ``adapt_steps`` of them. It changes nothing in the problem.
        adapt_steps: how many steps at most; 5 if not given. With an ``adapt_lr`` only.
        weigh_by_rows: whether clients count by their training rows; otherwise all count the same.
    """
    check_splits(parts, "train", "validation")
    network = classifier(dataset, hidden)

    def start(seed: int) -> tuple[Tree]:
        return (network.init(np.random.default_rng(seed)),)

    return Task(
        problem=SingleLevel(Loss(network)),
        population=population_of(dataset, parts, weigh_by_rows),
        start=start,
        evaluate=evaluations(network, dataset, adapt_lr, adapt_steps),
    )
