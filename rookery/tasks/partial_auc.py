"""Partial AUC: rank positive rows above the highest negative ones.

    min over w of  mean over positive z of  λ log( mean over negative z' of
                                            exp( max(0, margin - h(z) + h(z'))² / λ ) )

h is the score by a network with parameters w; both means are over the rows of all clients. λ is a
temperature: the smaller, the more the highest negatives count, so this is a smooth partial AUC with
low false positive rates; for large λ it is the squared hinge of the AUC. (Zhu, Li, Wang, Wu, Yang.
When AUC meets DRO. ICML 2022.) FeDXL solves it.
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rookery import check
from rookery.clients.datasets import Dataset
from rookery.problem.xrisk import XRisk
from rookery.tasks.classifier import Network, classifier
from rookery.tasks.ranking import binary, rankings
from rookery.tasks.task import Parts, Task, check_splits, population_of
from rookery.types import Tree


def partial_auc(
    dataset: Dataset,
    parts: Parts,
    *,
    temperature: float = 1.0,
    margin: float = 1.0,
    max_fpr: float = 0.3,
    positive: int | Sequence[int] = 0,
    keep_positives: float = 1.0,
    hidden: Sequence[int] = (),
    weigh_by_rows: bool = False,
    seed: int = 0,
) -> Task[XRisk]:
    """Rank the rows of some classes above the negative rows that come nearest to them.

    The clients' training rows make two splits, ``positive`` and ``negative``, from which batches
    are drawn: ``batch_size = {positive = 8, negative = 32}`` suits imbalanced labels. Runs measure
    ``auc`` and ``partial_auc`` on the test rows.

    Args:
        dataset: inputs and integer labels.
        parts: per split the training rows of each client; clients learn from ``train``, in which
            each needs rows of both kinds.
        temperature: λ.
        margin: by how much a positive score is to exceed a negative one.
        max_fpr: the false positive rate up to which the metric ``partial_auc`` counts.
        positive: the class, or classes, that are to be ranked first.
        keep_positives: fraction of the positive rows that every client keeps: less than 1 makes
            the labels more imbalanced.
        hidden: widths of the hidden layers, see :func:`classification`.
        weigh_by_rows: weight clients by their training rows; otherwise all have the same weight.
        seed: of the choice of positive rows.

    >>> from rookery.clients import datasets, partition
    >>> digits = datasets.blank_like("digits")
    >>> digits.train["labels"][:] = np.arange(len(digits.train["labels"])) % 10
    >>> digits.test["labels"][:] = np.arange(len(digits.test["labels"])) % 10
    >>> parts = partition.split(partition.iid(len(digits.train["labels"]), 5), fractions={
    ...     "train": 0.8, "validation": 0.2})
    >>> partial_auc(digits, parts, positive=3).problem.splits
    ('positive', 'negative')
    """
    check_splits(parts, "train")
    check.positive("temperature", temperature)
    check.positive("margin", margin)
    dataset, parts = binary(dataset, parts, positive, keep_positives, seed)
    own = {name: _of_kind(dataset, parts, label) for label, name in enumerate(KINDS)}
    network = classifier(dataset, hidden, n_outputs=1)
    score = Score(network)

    def start(seed: int) -> tuple[Tree]:
        return (network.init(np.random.default_rng(seed)),)

    return Task(
        problem=XRisk(
            score,
            SquaredHinge(float(temperature), float(margin)),
            Logarithm(float(temperature)),
            most_positives=max(map(len, own["positive"])),
            most_negatives=max(map(len, own["negative"])),
            positive_split="positive",
            negative_split="negative",
        ),
        population=population_of(
            dataset,
            {"train": parts["train"]},
            weigh_by_rows,
            rows_of={"positive": own["positive"], "negative": own["negative"]},
        ),
        start=start,
        evaluate=rankings(score, dataset, max_fpr),
    )


KINDS = ("negative", "positive")
"""The splits, by label."""


def _of_kind(dataset: Dataset, parts: Parts, label: int) -> list[np.ndarray]:
    """The training rows of every client that have a label."""
    own = [rows[dataset.train["labels"][rows] == label] for rows in parts["train"]]
    for client, rows in enumerate(own):
        if not rows.size:
            raise ValueError(
                f"client {client} has no {KINDS[label]} training rows, and partial_auc compares "
                "rows of both kinds on every client. Use a partition that deals every class to all "
                "clients, or the task auc, which needs no pairs."
            )
    return own


class Score(eqx.Module):
    """The score of a row by a network with one output."""

    network: Network

    def __call__(self, w: Tree, example: Tree) -> jax.Array:
        """One number."""
        return self.network(w, example["inputs"])[0]


class SquaredHinge(eqx.Module):
    """exp( max(0, margin - first + second)² / λ ) of two scores."""

    temperature: float
    margin: float

    def __call__(self, first: jax.Array, second: jax.Array) -> jax.Array:
        """Of a positive and a negative score."""
        temperature, margin = (
            jnp.asarray(a).astype(first.dtype) for a in (self.temperature, self.margin)
        )
        return jnp.exp(jnp.maximum(margin - first + second, 0) ** 2 / temperature)


class Logarithm(eqx.Module):
    """λ log u."""

    temperature: float

    def __call__(self, u: jax.Array) -> jax.Array:
        """Of one number."""
        return jnp.asarray(self.temperature).astype(u.dtype) * jnp.log(u)
