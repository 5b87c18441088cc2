"""Hyper-representation: learn features on validation data under a head fitted to training data.

    min over x of  mean  ℓ(head_{y*(x)}(features_x(input)), label)         on validation data
    where y*(x) = argmin over y of  mean ℓ(...) + (l2 / 2) |y|^2           on training data

x is the hidden layer of a network, y its last layer. The ridge makes the inner problem strongly
convex in y. The head may be common to all clients, or each client's own.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rookery import check, models, tree
from rookery.clients.datasets import Dataset
from rookery.problem.bilevel import AbstractBilevel, Bilevel, PersonalBilevel
from rookery.runner.metrics import OnClients
from rookery.tasks.task import (
    Parts,
    Task,
    check_real_inputs,
    check_splits,
    flat_inputs,
    population_of,
    server_metrics,
)
from rookery.types import Loss, Tree


def hyper_representation(
    dataset: Dataset,
    parts: Parts,
    *,
    hidden: int = 200,
    l2: float = 0.001,
    prepare: bool = False,
    personal: bool = False,
) -> Task[AbstractBilevel]:
    """Learn a hidden layer on validation data under a head fitted to training data.

    Args:
        dataset: flat inputs and integer labels.
        parts: per split (``train`` and ``validation``) the training rows of each client.
        hidden: units of the hidden layer.
        l2: ridge on the head.
        prepare: whether local steps of the head compute the features of a client's rows once
            instead of in every step. The results are the same up to rounding.
        personal: whether every client has a head of its own (:class:`PersonalBilevel`). Runs then
            measure accuracy and loss on the clients' rows, of the split ``test`` if parts has one
            and of ``validation`` otherwise.

    >>> from rookery.clients import datasets, partition
    >>> digits = datasets.blank_like("digits")
    >>> parts = partition.split(partition.iid(len(digits.train["labels"]), 5), fractions={
    ...     "train": 0.8, "validation": 0.2})
    >>> x, y = hyper_representation(digits, parts, hidden=20).start(0)
    >>> x["w"].shape, y["w"].shape
    ((64, 20), (20, 10))
    """
    check_splits(parts, "train", "validation")
    check.count("hidden", hidden)
    check.positive("l2", l2)
    check_real_inputs(dataset, "hyper_representation")
    dataset = flat_inputs(dataset)
    n_in, n_classes = dataset.train["inputs"].shape[1], dataset.n_classes

    def start(seed: int) -> tuple[Tree, Tree]:
        rng = np.random.default_rng(seed)
        return models.dense_init(rng, n_in, hidden), models.dense_init(rng, hidden, n_classes)

    for name, value in {"prepare": prepare, "personal": personal}.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, got {value!r}.")
    kind = PersonalBilevel if personal else Bilevel
    if prepare:
        problem = kind(head_loss, RidgeLoss(float(l2), head_loss), prepare=features)
    else:
        problem = kind(loss, RidgeLoss(float(l2)))
    split = "test" if "test" in parts else "validation"
    population = population_of(dataset, parts)
    has_names = population.names is not None
    own = OnClients({"accuracy": accuracy}, {"loss": loss}, split=split, per_client=has_names)
    return Task(
        problem=problem,
        population=population,
        start=start,
        evaluate=(own,)
        if personal
        else server_metrics({"accuracy": accuracy, "loss": loss}, dataset),
    )


def logits(x: Tree, y: Tree, example: Tree) -> jax.Array:
    """Logits of the head y on the features x of one input."""
    return models.dense(y, features(x, example)["features"])


def features(x: Tree, example: Tree) -> Tree:
    """The example with its features in place of its input."""
    hidden = jax.nn.relu(models.dense(x, example["inputs"]))
    return {"features": hidden, "labels": example["labels"]}


def head_loss(x: Tree, y: Tree, prepared: Tree) -> jax.Array:
    """Cross-entropy of the head y on the features of one example."""
    return models.cross_entropy(models.dense(y, prepared["features"]), prepared["labels"])


def loss(x: Tree, y: Tree, example: Tree) -> jax.Array:
    """Cross-entropy of one example."""
    return models.cross_entropy(logits(x, y, example), example["labels"])


class RidgeLoss(eqx.Module):
    """Cross-entropy plus a ridge on the head."""

    l2: float
    loss: Loss = loss

    def __call__(self, x: Tree, y: Tree, example: Tree) -> jax.Array:
        """The inner loss of one example."""
        ridge = tree.dot(y, y) / 2
        return self.loss(x, y, example) + jnp.asarray(self.l2).astype(ridge.dtype) * ridge


def accuracy(x: Tree, y: Tree, example: Tree) -> jax.Array:
    """One if the example is classified correctly, otherwise zero."""
    return models.is_correct(logits(x, y, example), example["labels"])
