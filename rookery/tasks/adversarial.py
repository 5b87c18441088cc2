"""Adversarially robust logistic regression: one perturbation that hurts most, of all inputs.

    min over w  max over δ  of the mean of  ℓ(w; z + δ, c) - (concavity / 2) |δ|²

z is an input, c its label and ℓ the cross-entropy of softmax regression with parameters w. δ is
common to all rows and clients (a universal perturbation). Its penalty makes the maximum unique if
``concavity`` exceeds the curvature of ℓ in z, at most |w|² / 2 (Sinha, Namkoong, Duchi, ICLR 2018).
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rookery import check
from rookery.clients.datasets import Dataset
from rookery.problem.minimax import Minimax
from rookery.runner.metrics import Metric, OfSolution
from rookery.tasks.classifier import Accuracy, Loss, OfX, classifier
from rookery.tasks.task import (
    Parts,
    Task,
    check_real_inputs,
    check_splits,
    population_of,
    server_metrics,
)
from rookery.types import Tree


def adversarial(
    dataset: Dataset,
    parts: Parts,
    *,
    concavity: float = 1.0,
    hidden: Sequence[int] = (),
    weigh_by_rows: bool = False,
) -> Task[Minimax]:
    """Learn a model that withstands the worst common perturbation of inputs: x = w, y = δ.

    Runs measure ``accuracy`` and ``loss`` on the test rows, the same under the perturbation of the
    solution (``robust_accuracy``, ``robust_loss``), and the norm of that (``perturbation``).

    Args:
        dataset: inputs and integer labels.
        parts: per split the training rows of each client; clients learn from ``train``.
        concavity: of the penalty on δ; the smaller, the longer δ.
        hidden: widths of hidden layers; none is logistic regression.
        weigh_by_rows: weight clients by their training rows; otherwise all have the same weight.

    >>> from rookery.clients import datasets, partition
    >>> digits = datasets.blank_like("digits")
    >>> parts = {"train": partition.iid(len(digits.train["labels"]), 5)}
    >>> adversarial(digits, parts).start(0)[1].shape
    (64,)
    """
    check_splits(parts, "train")
    check.positive("concavity", concavity)
    check_real_inputs(dataset, "adversarial")
    network = classifier(dataset, hidden)
    plain = {"accuracy": OfX(Accuracy(network)), "loss": OfX(Loss(network))}
    perturbed = {
        "robust_accuracy": Perturbed(Accuracy(network)),
        "robust_loss": Perturbed(Loss(network)),
    }

    def start(seed: int) -> tuple[Tree, Tree]:
        w = network.init(np.random.default_rng(seed))
        return w, np.zeros(dataset.train["inputs"].shape[1:], np.float32)

    return Task(
        problem=Minimax(AdversarialLoss(Perturbed(Loss(network)), float(concavity))),
        population=population_of(dataset, parts, weigh_by_rows),
        start=start,
        evaluate=(*server_metrics({**plain, **perturbed}, dataset), OfSolution(_size)),
    )


def _size(w: Tree, delta: jax.Array) -> dict[str, jax.Array]:
    return {"perturbation": jnp.linalg.norm(delta.ravel())}


class Perturbed(eqx.Module):
    """A metric or a loss of the model on a perturbed input."""

    metric: Metric

    def __call__(self, w: Tree, delta: jax.Array, example: Tree) -> jax.Array:
        """Of one row."""
        return self.metric(w, {**example, "inputs": example["inputs"] + delta})


class AdversarialLoss(eqx.Module):
    """The loss on the perturbed input, less the penalty on the perturbation."""

    loss: Perturbed
    concavity: float

    def __call__(self, w: Tree, delta: jax.Array, example: Tree) -> jax.Array:
        """The payoff of one row."""
        penalty = jnp.asarray(self.concavity / 2).astype(delta.dtype) * jnp.sum(delta**2)
        return self.loss(w, delta, example) - penalty
