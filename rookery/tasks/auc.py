"""AUC maximisation as a saddle problem.

    min over w, a, b  max over α  of the mean of
        (1 - p) (h - a)² 1[c = 1] + p (h - b)² 1[c = 0]
        + 2 (1 + α) (p h 1[c = 0] - (1 - p) h 1[c = 1]) - p (1 - p) α²

h is the score of a row by a network with parameters w, c its label and p the fraction of positive
rows. With a, b and α at their best this is  p (1 - p) (mean over pairs of (1 - h_+ + h_-)² - 1),
the square surrogate of the AUC, of which no pair has to be formed: a client needs neither the rows
of others nor rows of both kinds. (Y. Ying, L. Wen, S. Lyu. Stochastic online AUC maximization.
NeurIPS 2016.)
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rookery.clients.datasets import Dataset
from rookery.problem.minimax import Minimax
from rookery.tasks.classifier import Network, classifier
from rookery.tasks.ranking import binary, rankings
from rookery.tasks.task import Parts, Task, check_splits, population_of
from rookery.types import Tree


def auc(
    dataset: Dataset,
    parts: Parts,
    *,
    positive: int | Sequence[int] = 0,
    keep_positives: float = 1.0,
    hidden: Sequence[int] = (),
    max_fpr: float = 0.3,
    weigh_by_rows: bool = False,
    seed: int = 0,
) -> Task[Minimax]:
    """Rank the rows of some classes above all others: x = (w, a, b), y = α.

    Runs measure ``auc`` and ``partial_auc`` on the test rows.

    Args:
        dataset: inputs and integer labels.
        parts: per split the training rows of each client; clients learn from ``train``.
        positive: the class, or classes, that are to be ranked first.
        keep_positives: fraction of the positive rows that every client keeps: less than 1 makes
            the labels more imbalanced.
        hidden: widths of the hidden layers, see :func:`classification`.
        max_fpr: the false positive rate up to which ``partial_auc`` counts.
        weigh_by_rows: weight clients by their training rows; otherwise all have the same weight.
        seed: of the choice of positive rows.

    >>> from rookery.clients import datasets, partition
    >>> digits = datasets.blank_like("digits")
    >>> parts = partition.split(partition.iid(len(digits.train["labels"]), 5), fractions={
    ...     "train": 0.8, "validation": 0.2})
    >>> x, alpha = auc(digits, parts, positive=3).start(0)
    >>> sorted(x), alpha.shape
    (['a', 'b', 'w'], ())
    """
    check_splits(parts, "train")
    dataset, parts = binary(dataset, parts, positive, keep_positives, seed)
    network = classifier(dataset, hidden, n_outputs=1)
    population = population_of(dataset, parts, weigh_by_rows)
    prior = fraction_of_positives(dataset, parts, np.asarray(population.weights))

    def start(seed: int) -> tuple[Tree, Tree]:
        zero = np.zeros((), np.float32)
        w = network.init(np.random.default_rng(seed))
        return {"w": w, "a": zero, "b": zero}, zero

    return Task(
        problem=Minimax(AUCSaddle(network, prior)),
        population=population,
        start=start,
        evaluate=rankings(ScoreOfSaddle(network), dataset, max_fpr),
    )


def fraction_of_positives(dataset: Dataset, parts: Parts, weights: np.ndarray) -> float:
    """p, the mean over clients, by their weights, of their fractions of positive rows."""
    labels = dataset.train["labels"]
    prior = float(np.dot(weights, [labels[rows].mean() for rows in parts["train"]]))
    if not 0 < prior < 1:
        raise ValueError(
            f"the clients' training rows are all {'positive' if prior else 'negative'}. Choose "
            "other classes with positive=, or other rows."
        )
    return prior


class AUCSaddle(eqx.Module):
    """The payoff of one row.

    Args:
        network: with one output, the score.
        prior: p.
    """

    network: Network
    prior: float

    def __call__(self, x: Tree, alpha: jax.Array, example: Tree) -> jax.Array:
        """Squares about the class means, and how far these are apart."""
        h = self.network(x["w"], example["inputs"])[0]
        p = jnp.asarray(self.prior).astype(h.dtype)
        of_positive = (1 - p) * ((h - x["a"]) ** 2 - 2 * (1 + alpha) * h)
        of_negative = p * ((h - x["b"]) ** 2 + 2 * (1 + alpha) * h)
        return jnp.where(example["labels"] == 1, of_positive, of_negative) - p * (1 - p) * alpha**2


class ScoreOfSaddle(eqx.Module):
    """The score of a row by the model of a solution."""

    network: Network

    def __call__(self, x: Tree, alpha: jax.Array, example: Tree) -> jax.Array:
        """One number."""
        return self.network(x["w"], example["inputs"])[0]
