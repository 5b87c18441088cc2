"""Regularisation: learn on validation data how strongly to penalise each weight.

    min over x of  mean  ℓ(z, c)                                          on validation data
    where y*(x) = argmin over y of  mean ℓ(z, c) + Σ_j exp(x_j) y_j^2       on training data

z are the logits of softmax regression with parameters y, c is the label, ℓ the cross-entropy. x has
one number for every number of y. As in AFBO (WiOpt 2024), whose penalty lacks the square: without
it the inner problem would not be strongly convex.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rookery import check, tree
from rookery.clients.datasets import Dataset
from rookery.problem.bilevel import Bilevel
from rookery.tasks.classifier import Accuracy, Loss, classifier
from rookery.tasks.task import Parts, Task, check_splits, population_of, server_metrics
from rookery.types import Tree


def regularisation(dataset: Dataset, parts: Parts, *, l2: float = 0.001) -> Task[Bilevel]:
    """Learn a penalty for every parameter of softmax regression.

    Args:
        dataset: inputs and integer labels.
        parts: per split (``train`` and ``validation``) the training rows of each client.
        l2: initial value of every exp(x_j).

    >>> from rookery.clients import datasets, partition
    >>> digits = datasets.blank_like("digits")
    >>> parts = partition.split(partition.iid(len(digits.train["labels"]), 5), fractions={
    ...     "train": 0.8, "validation": 0.2})
    >>> x, y = regularisation(digits, parts).start(0)
    >>> x[0]["w"].shape == y[0]["w"].shape
    True
    """
    check_splits(parts, "train", "validation")
    check.positive("l2", l2)
    network = classifier(dataset, ())

    def start(seed: int) -> tuple[Tree, Tree]:
        y = network.init(np.random.default_rng(seed))
        return jax.tree.map(lambda leaf: np.full_like(leaf, np.log(l2)), y), y

    return Task(
        problem=Bilevel(outer=Loss(network), inner=PenalisedLoss(Loss(network))),
        population=population_of(dataset, parts),
        start=start,
        evaluate=server_metrics({"accuracy": Accuracy(network), "loss": Loss(network)}, dataset),
    )


class PenalisedLoss(eqx.Module):
    """Cross-entropy plus a penalty on every parameter."""

    loss: Loss

    def __call__(self, x: Tree, y: Tree, example: Tree) -> jax.Array:
        """The inner loss of one example."""
        squares = jax.tree.map(jnp.square, y)
        return self.loss(y, example) + tree.dot(jax.tree.map(jnp.exp, x), squares)
