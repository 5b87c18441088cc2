"""Loss tuning: adjust the training loss of long-tailed data so that all classes are learnt.

    min over x of  mean  ω_c ℓ(z, c)                                              on validation data
    where y*(x) = argmin over y of  mean ℓ(sigmoid(δ) z + l, c) + (l2 / 2) |y|^2    on training data

z are the logits of a network with parameters y, c is the label, ℓ the cross-entropy. x = (δ, l)
holds two numbers per class and starts at zero: the vector-scaling loss (Kini et al. 2021,
arXiv:2103.01550), tuned as in FedNest (arXiv:2205.02215) and FedMSA (arXiv:2306.01648). The class
weights ω are inversely proportional to the number of training rows of a class, and |ω| = 1.
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rookery import check, models, tree
from rookery.clients.datasets import Dataset
from rookery.problem.bilevel import Bilevel
from rookery.problem.gauss_newton import GaussNewton
from rookery.runner.metrics import OnServer
from rookery.tasks.classifier import Accuracy, ClassWeighted, Loss, Network, classifier
from rookery.tasks.task import Parts, Task, check_splits, population_of, server_rows
from rookery.types import Tree


def loss_tuning(
    dataset: Dataset,
    parts: Parts,
    *,
    hidden: Sequence[int] = (200, 100),
    l2: float = 0.0001,
    gauss_newton: bool = False,
) -> Task[Bilevel]:
    """Tune the loss of each class for balanced accuracy under long-tailed training data.

    Args:
        dataset: inputs and integer labels, with long-tailed training rows (see
            ``partition.long_tail``).
        parts: per split (``train`` and ``validation``) the training rows of each client.
        hidden: widths of the hidden layers; for images the channels of two convolutions and the
            units of a dense layer.
        l2: ridge on the network.
        gauss_newton: whether products with the inner Hessian are Gauss-Newton products
            (:class:`~rookery.problem.GaussNewton` states their bias). The Hessian of a network is
            indefinite, the Gauss-Newton matrix is not.

    >>> from rookery.clients import datasets, partition
    >>> digits = datasets.blank_like("digits")
    >>> parts = partition.split(partition.iid(len(digits.train["labels"]), 5), fractions={
    ...     "train": 0.8, "validation": 0.2})
    >>> x, y = loss_tuning(digits, parts, hidden=(20,)).start(0)
    >>> x["delta"].shape, len(y)
    ((10,), 2)
    """
    check_splits(parts, "train", "validation")
    check.positive("l2", l2)
    if not isinstance(gauss_newton, bool):
        raise TypeError(f"gauss_newton must be True or False, got {gauss_newton!r}.")
    network, n_classes = classifier(dataset, hidden), dataset.n_classes
    weights = class_weights(dataset.train["labels"][np.concatenate(parts["train"])], n_classes)

    def start(seed: int) -> tuple[Tree, Tree]:
        zeros = np.zeros(n_classes, np.float32)
        return {"delta": zeros, "l": zeros}, network.init(np.random.default_rng(seed))

    inner = ScaledLoss(network, float(l2))
    return Task(
        problem=Bilevel(
            outer=ClassWeighted(Loss(network), weights),
            inner=GaussNewton(inner.logits, label_loss, inner.ridge) if gauss_newton else inner,
        ),
        population=population_of(dataset, parts),
        start=start,
        evaluate=tuple(
            OnServer(
                {
                    f"{prefix}balanced_accuracy": balanced_accuracy(network, rows["labels"]),
                    f"{prefix}accuracy": Accuracy(network),
                    f"{prefix}loss": Loss(network),
                },
                rows,
            )
            for prefix, rows in server_rows(dataset).items()
        ),
    )


def class_weights(labels: np.ndarray, n_classes: int) -> np.ndarray:
    """The inverse of each class's number of rows, at least one, scaled to a unit vector.

    >>> class_weights(np.array([0, 0, 0, 0, 1, 1, 1]), 2).round(3).tolist()
    [0.6, 0.8]
    """
    inverse = 1 / np.maximum(np.bincount(labels, minlength=n_classes), 1)
    return inverse / np.linalg.norm(inverse)


def balanced_accuracy(network: Network, labels: np.ndarray) -> ClassWeighted:
    """The metric whose mean over rows with these labels is the mean of the classes' accuracies."""
    counts = np.bincount(labels, minlength=network.n_classes)
    each = labels.size / np.count_nonzero(counts)
    return ClassWeighted(Accuracy(network), each / np.maximum(counts, 1))


class ScaledLoss(eqx.Module):
    """Cross-entropy of logits scaled and shifted by x, plus a ridge."""

    network: Network
    l2: float

    def __call__(self, x: Tree, y: Tree, example: Tree) -> jax.Array:
        """The inner loss of one example."""
        return label_loss(self.logits(x, y, example), example) + self.ridge(x, y, example)

    def logits(self, x: Tree, y: Tree, example: Tree) -> jax.Array:
        """Scaled and shifted."""
        return jax.nn.sigmoid(x["delta"]) * self.network(y, example["inputs"]) + x["l"]

    def ridge(self, x: Tree, y: Tree, example: Tree) -> jax.Array:
        """The penalty on the network."""
        half = tree.dot(y, y) / 2
        return jnp.asarray(self.l2).astype(half.dtype) * half


def label_loss(logits: jax.Array, example: Tree) -> jax.Array:
    """Cross-entropy of the example's label."""
    return models.cross_entropy(logits, example["labels"])
