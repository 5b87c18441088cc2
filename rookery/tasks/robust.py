"""Distributionally robust learning: no client's loss may be left behind.

    min over w of  mean over clients of  exp(f_i(w) / gamma),   f_i(w) = mean ℓ(z, c) of client i

z are the logits of a network with parameters w, c is the label, ℓ the cross-entropy. The minimiser
is that of  gamma log mean exp(f_i / gamma),  the greatest mean loss over all client weights r less
gamma KL(r | equal weights). Equation (6) of ComFedL (arXiv:2106.11264).
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rookery import _check
from rookery._types import Tree
from rookery.clients.dataset import Dataset
from rookery.clients.population import Population
from rookery.problem.composition import LocalComposition
from rookery.run.evaluate import OnClients
from rookery.tasks.classifier import Accuracy, Loss, classifier
from rookery.tasks.task import Parts, Task, check_splits, server_metrics


def robust(dataset: Dataset, parts: Parts, *, gamma: float, hidden: Sequence[int] = ()) -> Task:
    """Learn one model for all clients that counts large losses most.

    Args:
        dataset: inputs and integer labels.
        parts: per split (``train`` and ``validation``) the training rows of each client. Clients
            learn from the first and are judged by the second.
        gamma: the smaller, the more the worst client counts; exp(f_i / gamma) must stay finite.
        hidden: widths of the hidden layers; for images two of channels and one of units.
    """
    check_splits(parts, "train", "validation")
    _check.positive("gamma", gamma)
    network = classifier(dataset, hidden)

    def start(seed: int) -> tuple[Tree]:
        return (network.init(np.random.default_rng(seed)),)

    scores, losses = {"accuracy": Accuracy(network)}, {"loss": Loss(network)}
    return Task(
        problem=LocalComposition(inner=Loss(network), outer=Exponential(float(gamma))),
        population=Population.from_parts(dataset.train, parts),
        start=start,
        evaluate=(
            *server_metrics({**scores, **losses}, dataset),
            OnClients(scores, losses, split="validation"),
        ),
    )


class Exponential(eqx.Module):
    """exp(u / gamma) of a client's mean loss u."""

    gamma: float

    def __call__(self, u: jax.Array, example: Tree) -> jax.Array:
        """The same number for every example."""
        return jnp.exp(u / jnp.asarray(self.gamma).astype(u.dtype))
