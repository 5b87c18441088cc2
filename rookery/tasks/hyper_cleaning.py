"""Hyper-cleaning: find wrongly labelled training rows by their effect on the validation loss.

    min over x of  mean  ℓ(z, c)                                                on validation data
    where y*(x) = argmin over y of  mean sigmoid(x_j) ℓ(z, c) + (l2 / 2) |y|^2    on training data

z are the logits of softmax regression with parameters y, c is the label, ℓ the cross-entropy. x has
one number for every training row j of every client and starts at zero. As in AFBO (WiOpt 2024).
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rookery import check, tree
from rookery.clients.datasets import Dataset
from rookery.problem.bilevel import Bilevel
from rookery.runner.metrics import OfSolution
from rookery.tasks.classifier import Accuracy, Loss, classifier
from rookery.tasks.task import Parts, Task, check_splits, population_of, server_metrics
from rookery.types import Tree


def hyper_cleaning(
    dataset: Dataset,
    parts: Parts,
    *,
    corruption: float = 0.3,
    l2: float = 0.001,
    seed: int = 0,
) -> Task[Bilevel]:
    """Learn a weight for every training row when some labels are wrong.

    A row that two clients hold counts twice: each copy has its own label and its own weight.

    Args:
        dataset: inputs and integer labels, all of them correct.
        parts: per split (``train`` and ``validation``) the training rows of each client.
        corruption: fraction of each client's rows in ``train`` that get a random wrong label.
        l2: ridge on the parameters.
        seed: seed of the wrong labels.

    >>> from rookery.clients import datasets, partition
    >>> digits = datasets.blank_like("digits")
    >>> parts = partition.split(partition.iid(len(digits.train["labels"]), 5), fractions={
    ...     "train": 0.8, "validation": 0.2})
    >>> x, y = hyper_cleaning(digits, parts).start(0)
    >>> len(x) == sum(map(len, parts["train"]))  # one weight per training row
    True
    """
    check_splits(parts, "train", "validation")
    if not 0 <= check.not_negative("corruption", corruption) < 1:
        raise ValueError(f"corruption must be at least 0 and below 1, got {corruption}.")
    check.positive("l2", l2)
    rng = np.random.default_rng(check.count("seed", seed, least=0))
    network = classifier(dataset, ())
    train, validation = (np.concatenate(parts[split]) for split in ("train", "validation"))
    is_wrong = np.concatenate([_some(rng, len(rows), corruption) for rows in parts["train"]])
    data = {name: a[np.concatenate([train, validation])] for name, a in dataset.train.items()}
    shift = np.zeros_like(data["labels"])
    shift[: train.size][is_wrong] = rng.integers(1, dataset.n_classes, is_wrong.sum())
    data["labels"] = (data["labels"] + shift) % dataset.n_classes
    data["position"] = np.arange(len(shift), dtype=np.int32)

    def start(seed: int) -> tuple[Tree, Tree]:
        return np.zeros(train.size, np.float32), network.init(np.random.default_rng(seed))

    return Task(
        problem=Bilevel(outer=Loss(network), inner=RowWeightedLoss(Loss(network), float(l2))),
        population=population_of(
            dataset,
            {split: parts[split] for split in ("train", "validation")},
            data=data,
            rows_of={
                "train": _consecutive(parts["train"], 0),
                "validation": _consecutive(parts["validation"], train.size),
            },
        ),
        start=start,
        evaluate=(
            *server_metrics({"accuracy": Accuracy(network), "loss": Loss(network)}, dataset),
            OfSolution(MeanWeights(is_wrong)),
        ),
    )


def _some(rng: np.random.Generator, n: int, fraction: float) -> np.ndarray:
    """True at random for a fraction of n rows."""
    return rng.permutation(n) < round(fraction * n)


def _consecutive(lists: Sequence[np.ndarray], first: int) -> list[np.ndarray]:
    """Row numbers from ``first`` on, as many for each client as it has rows."""
    ends = np.cumsum([len(rows) for rows in lists])
    return np.split(first + np.arange(ends[-1]), ends[:-1])


class RowWeightedLoss(eqx.Module):
    """Cross-entropy times the row's weight (a sigmoid of its entry in x), plus a ridge."""

    loss: Loss
    l2: float

    def __call__(self, x: jax.Array, y: Tree, example: Tree) -> jax.Array:
        """The inner loss of one training row."""
        ridge = tree.dot(y, y) / 2
        weighted = jax.nn.sigmoid(x[example["position"]]) * self.loss(y, example)
        return weighted + jnp.asarray(self.l2).astype(ridge.dtype) * ridge


class MeanWeights(eqx.Module):
    """The mean weights of correctly and of wrongly labelled rows.

    Args:
        is_wrong: per training row, whether its label was changed.
    """

    is_wrong: np.ndarray | jax.Array

    def __call__(self, x: jax.Array, y: Tree) -> dict[str, jax.Array]:
        """``clean_weight`` and ``corrupted_weight``; 0 if there is no such row."""
        weights, is_wrong = jax.nn.sigmoid(x), jnp.asarray(self.is_wrong)
        return {
            "clean_weight": _mean_where(weights, ~is_wrong),
            "corrupted_weight": _mean_where(weights, is_wrong),
        }


def _mean_where(values: jax.Array, chosen: jax.Array) -> jax.Array:
    chosen = chosen.astype(values.dtype)
    return jnp.dot(values, chosen) / jnp.maximum(jnp.sum(chosen), 1)
