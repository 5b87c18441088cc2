"""Model-agnostic meta-learning: a start from which one step suits every client.

    min over w of  mean over clients of  f_i( w - adapt_lr grad f_i(w) )

f_i is the mean cross-entropy of client i for a network with parameters w. Equation (7) of ComFedL
(arXiv:2106.11264). A client's mean of  w - adapt_lr grad ℓ(w)  over its examples is its adapted w,
so the map of one example is that; it takes memory for one gradient per example of a sample.
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import numpy as np

from rookery import _check, _tree
from rookery._types import Tree
from rookery.clients.client import Client
from rookery.clients.dataset import Dataset
from rookery.clients.population import Population
from rookery.problem import oracles
from rookery.problem.composition import LocalComposition
from rookery.run.evaluate import OnClients
from rookery.tasks.classifier import Accuracy, Loss, classifier
from rookery.tasks.task import Parts, Task, check_splits


def maml(dataset: Dataset, parts: Parts, *, adapt_lr: float, hidden: Sequence[int] = ()) -> Task:
    """Learn a model that one gradient step adapts to a client.

    Args:
        dataset: inputs and integer labels.
        parts: per split (``train`` and ``validation``) the training rows of each client. Clients
            learn and adapt with the first and are judged by the second.
        adapt_lr: step size of the adaptation.
        hidden: widths of the hidden layers; for images two of channels and one of units.
    """
    check_splits(parts, "train", "validation")
    _check.positive("adapt_lr", adapt_lr)
    network = classifier(dataset, hidden)

    def start(seed: int) -> tuple[Tree]:
        return (network.init(np.random.default_rng(seed)),)

    loss, lr = Loss(network), float(adapt_lr)
    scores, losses = {"accuracy": Accuracy(network)}, {"loss": loss}
    return Task(
        problem=LocalComposition(inner=AdaptedToExample(loss, lr), outer=loss),
        population=Population.from_parts(dataset.train, parts),
        start=start,
        evaluate=(
            OnClients(scores, losses, split="validation"),
            OnClients(
                scores,
                losses,
                split="validation",
                adapt=AdaptedToClient(loss, lr, "train"),
                label="adapted_",
            ),
        ),
    )


class AdaptedToExample(eqx.Module):
    """One gradient step on one example; the mean over examples is a step on their mean loss."""

    loss: Loss
    lr: float

    def __call__(self, w: Tree, example: Tree) -> Tree:
        """The parameters w - lr grad ℓ(w)."""
        return _tree.axpy(-self.lr, jax.grad(self.loss)(w, example), w)


class AdaptedToClient(eqx.Module):
    """The client step that evaluation runs first: one gradient step on the client's own rows."""

    loss: Loss
    lr: float
    split: str = eqx.field(static=True)

    def __call__(self, client: Client, w: Tree) -> tuple[Tree]:
        """(w - lr grad f_i(w),)."""
        sample = client.draw(self.split, None, client.key)
        return (_tree.axpy(-self.lr, oracles.gradient(self.loss, (w,), 0, sample), w),)
