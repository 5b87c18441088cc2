"""Fair classification: one model for the worst mixture of groups.

    min over w  max over λ in the simplex  of  Σ_g λ_g L_g(w) - (concavity / 2) |λ - 1/G|²

L_g is the mean cross-entropy of group g, one of G: the rows of a client (agnostic federated
learning, Mohri, Sivek, Suresh, ICML 2019) or the rows of a class.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float

from rookery import check
from rookery.clients.datasets import Dataset
from rookery.clients.population import Population
from rookery.problem.minimax import Minimax
from rookery.runner.best import Goal
from rookery.runner.metrics import AbstractEvaluation, Metric, OnClients
from rookery.tasks.classifier import Accuracy, Loss, OfX, classifier
from rookery.tasks.task import Parts, Task, check_splits, population_of, server_metrics, server_rows
from rookery.types import Key, Tree

Values = dict[str, jax.Array]
"""Numbers by name."""


def fair_classification(
    dataset: Dataset,
    parts: Parts,
    *,
    groups: Literal["client", "label"] = "client",
    concavity: float = 0.0,
    hidden: Sequence[int] = (),
    weigh_by_rows: bool = False,
) -> Task[Minimax]:
    """Learn one model that no group is badly served by: x = w, y = λ.

    Runs measure accuracy and loss on the test rows and on the clients' validation rows (mean, worst
    and worst tenth of the clients); with ``groups="label"`` also the ``worst_class_accuracy`` on
    the test rows.

    Args:
        dataset: inputs and integer labels.
        parts: per split (``train`` and ``validation``) the training rows of each client.
        groups: whether a group is a client or a class.
        concavity: pulls λ to equal weights; above zero the maximum is unique.
        hidden: widths of the hidden layers, see :func:`classification`.
        weigh_by_rows: weight clients by their training rows; otherwise all have the same weight.

    >>> from rookery.clients import datasets, partition
    >>> digits = datasets.blank_like("digits")
    >>> parts = partition.split(partition.iid(len(digits.train["labels"]), 5), fractions={
    ...     "train": 0.8, "validation": 0.2})
    >>> fair_classification(digits, parts).start(0)[1].shape
    (5,)
    """
    check_splits(parts, "train", "validation")
    check.one_of("groups", groups, ["client", "label"])
    check.not_negative("concavity", concavity)
    network = classifier(dataset, hidden)
    population = population_of(dataset, parts, weigh_by_rows)
    weights = np.asarray(population.weights)
    if groups == "client":
        number = _client_of_rows(parts, len(dataset.train["labels"]))
        data = {**dataset.train, "group": number}
        grouped = Population.from_parts(data, parts, weights=weights, names=population.names)
        population, masses = replace(grouped, encoded=population.encoded), weights
    else:
        masses = _masses_of_labels(dataset, parts, weights)
    scores, losses = {"accuracy": OfX(Accuracy(network))}, {"loss": OfX(Loss(network))}
    evaluate = [
        *server_metrics({**scores, **losses}, dataset),
        OnClients(scores, losses, split="validation", per_client=population.names is not None),
    ]
    if groups == "label":
        evaluate += [
            WorstClass(OfX(Accuracy(network)), rows, dataset.n_classes, prefix)
            for prefix, rows in server_rows(dataset).items()
        ]

    def start(seed: int) -> tuple[Tree, Tree]:
        equal = np.full(len(masses), 1 / len(masses), np.float32)
        return network.init(np.random.default_rng(seed)), equal

    field = "group" if groups == "client" else "labels"
    return Task(
        problem=Minimax(
            GroupWeighted(Loss(network), masses, float(concavity), field),
            project={"y": optax.projections.projection_simplex},
        ),
        population=population,
        start=start,
        evaluate=tuple(evaluate),
    )


def _client_of_rows(parts: Parts, n_rows: int) -> np.ndarray:
    """The client of every row; 0 for rows without a client, which no step reads."""
    number, is_taken = np.zeros(n_rows, np.int32), np.zeros(n_rows, bool)
    for client in range(len(parts["train"])):
        own = np.unique(np.concatenate([rows[client] for rows in parts.values()]))
        if is_taken[own].any():
            raise ValueError(
                'groups="client" needs clients without common rows, but row '
                f"{own[is_taken[own]][0]} is held by client {number[own[is_taken[own]][0]]} and by "
                f'client {client}. Use another partition, or groups="label".'
            )
        number[own], is_taken[own] = client, True
    return number


def _masses_of_labels(dataset: Dataset, parts: Parts, weights: np.ndarray) -> np.ndarray:
    """How much of the clients' training rows every class has, by the clients' weights."""
    labels = dataset.train["labels"]
    each = [
        np.bincount(labels[rows], minlength=dataset.n_classes) / len(rows)
        for rows in parts["train"]
    ]
    masses = weights @ np.array(each)
    if not masses.all():
        raise ValueError(
            f"no client has training rows of class {np.flatnonzero(masses == 0)[0]}, which then is "
            'no group. Use another partition, or groups="client".'
        )
    return masses


class GroupWeighted(eqx.Module):
    """A loss times the weight of the example's group over the group's mass, less the pull.

    Args:
        loss: of the model.
        masses: how much of all rows every group has; then the mean is Σ λ_g L_g.
        concavity: of the pull to equal weights.
        field: of a row, which has the number of its group.
    """

    loss: Loss
    masses: Float[np.ndarray | Array, " groups"]
    concavity: float
    field: str = eqx.field(static=True)

    def __call__(self, x: Tree, y: jax.Array, example: Tree) -> jax.Array:
        """The payoff of one row."""
        loss, g = self.loss(x, example), example[self.field]
        mass = jnp.asarray(self.masses).astype(loss.dtype)[g]
        away = y - 1 / y.shape[0]
        pull = jnp.asarray(self.concavity / 2).astype(y.dtype) * (away @ away)
        return y[g] / mass * loss - pull


class WorstClass(AbstractEvaluation):
    """``worst_class_accuracy``: the least of the classes' accuracies on rows of the server.

    Args:
        accuracy: ``accuracy(*solution, example)``, 0 or 1.
        data: the rows, with ``labels``; classes without rows do not count.
        n_classes: how many classes there are.
        prefix: of the name.
    """

    accuracy: Metric
    data: Tree
    n_classes: int = eqx.field(static=True)
    prefix: str = eqx.field(static=True, default="")

    def __call__(self, solution: tuple[Tree, ...], population: Population, key: Key) -> Values:
        """One number."""
        each = lax.map(lambda row: self.accuracy(*solution, row), self.data, batch_size=1024)
        labels = jnp.asarray(self.data["labels"])
        rows = jnp.bincount(labels, length=self.n_classes).astype(each.dtype)
        correct = jnp.zeros(self.n_classes, each.dtype).at[labels].add(each)
        ratio = jnp.where(rows > 0, correct / jnp.maximum(rows, 1), jnp.inf)
        return {f"{self.prefix}worst_class_accuracy": jnp.min(ratio)}

    def goals(self) -> dict[str, Goal]:
        """More is better."""
        return {f"{self.prefix}worst_class_accuracy": "max"}
