"""How well scores rank positive rows above negative ones: areas under the ROC curve."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from rookery import check
from rookery.clients.datasets import Dataset
from rookery.clients.population import Population
from rookery.runner.best import Goal
from rookery.runner.metrics import AbstractEvaluation
from rookery.tasks.task import Parts, server_rows
from rookery.types import Key, Tree

Values = dict[str, jax.Array]
"""Numbers by name."""


def area(positive: Float[Array, " p"], negative: Float[Array, " n"]) -> Float[Array, ""]:
    """AUC: how often a positive score is above a negative one; a tie counts half.

    >>> float(area(jnp.array([3.0, 1.0]), jnp.array([1.0, 0.0])))
    0.875
    """
    below, upto = (
        jnp.searchsorted(jnp.sort(negative), positive, side=side) for side in ("left", "right")
    )
    return jnp.mean((below + upto).astype(positive.dtype)) / (2 * negative.shape[0])


def partial_area(
    positive: Float[Array, " p"], negative: Float[Array, " n"], max_fpr: float
) -> Float[Array, ""]:
    """AUC against the highest negative scores alone: a fraction ``max_fpr`` of them, at least one.

    It is the area under the ROC curve up to this false positive rate, over the rate.

    >>> float(partial_area(jnp.array([3.0, 1.0]), jnp.array([2.0, 0.0]), 0.5))
    0.5
    """
    hardest = max(1, int(np.ceil(max_fpr * negative.shape[0])))
    return area(positive, lax.top_k(negative, hardest)[0])


class Ranking(AbstractEvaluation):
    """``auc`` and ``partial_auc`` on rows that the server holds.

    Args:
        score: ``score(*solution, example)``, one number.
        positive: pytree of arrays, one positive row each along the first axis.
        negative: likewise.
        max_fpr: the false positive rate up to which the partial area counts.
        prefix: of the names.
    """

    score: Callable[..., jax.Array]
    positive: Tree
    negative: Tree
    max_fpr: float = eqx.field(static=True)
    prefix: str = eqx.field(static=True, default="")

    def __call__(self, solution: tuple[Tree, ...], population: Population, key: Key) -> Values:
        """Both areas."""
        positive, negative = (
            lax.map(lambda row: self.score(*solution, row), rows, batch_size=1024)
            for rows in (self.positive, self.negative)
        )
        return {
            f"{self.prefix}auc": area(positive, negative),
            f"{self.prefix}partial_auc": partial_area(positive, negative, self.max_fpr),
        }

    def goals(self) -> Mapping[str, Goal]:
        """More is better of both."""
        return {f"{self.prefix}auc": "max", f"{self.prefix}partial_auc": "max"}


class Binary(NamedTuple):
    """A data set with labels 1 and 0, and the rows of the clients in it."""

    dataset: Dataset
    parts: Parts


def binary(
    dataset: Dataset,
    parts: Parts,
    positive: int | Sequence[int],
    keep_positives: float,
    seed: int,
) -> Binary:
    """Some classes against the rest, of which clients keep a fraction.

    Args:
        dataset: inputs and integer labels.
        parts: per split the training rows of each client.
        positive: the class, or classes, that become 1.
        keep_positives: the fraction of the positive rows that every client keeps in every split,
            at least one if it has any; the test rows stay.
        seed: of the choice.
    """
    classes = np.unique([positive] if isinstance(positive, int) else list(positive))
    known = np.arange(dataset.n_classes)
    if not classes.size or not np.isin(classes, known).all() or classes.size == known.size:
        raise ValueError(
            f"positive must name some of the classes 0 to {known[-1]}, but not all, got {positive}."
        )
    check.fraction("keep_positives", keep_positives)
    rng = np.random.default_rng(check.count("seed", seed, least=0))

    def labelled(fields: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {**fields, "labels": np.isin(fields["labels"], classes).astype(np.int32)}

    held = None if dataset.holdout is None else labelled(dataset.holdout)
    renamed = replace(
        dataset,
        train=labelled(dataset.train),
        test=labelled(dataset.test),
        holdout=held,
        classes=("negative", "positive") if dataset.classes else (),
    )
    is_positive = renamed.train["labels"] == 1

    def kept(rows: np.ndarray) -> np.ndarray:
        chosen = rng.permutation(rows[is_positive[rows]])
        most = max(round(keep_positives * chosen.size), min(1, chosen.size))
        return np.sort(np.concatenate([rows[~is_positive[rows]], chosen[:most]]))

    smaller = {split: [kept(np.asarray(rows)) for rows in own] for split, own in parts.items()}
    return Binary(renamed, smaller)


def rankings(
    score: Callable[..., jax.Array], dataset: Dataset, max_fpr: float
) -> tuple[AbstractEvaluation, ...]:
    """:class:`Ranking` on the test rows of a binary data set and on those held out, if any."""
    check.fraction("max_fpr", max_fpr)
    found = []
    for prefix, rows in server_rows(dataset).items():
        groups = [
            {name: a[rows["labels"] == label] for name, a in rows.items()} for label in (1, 0)
        ]
        if not all(len(group["labels"]) for group in groups):
            raise ValueError(
                f"the {'held-out' if prefix else 'test'} rows are all of one kind: an AUC needs "
                "positive and negative ones. Choose other classes with positive=."
            )
        found.append(Ranking(score, *groups, max_fpr=float(max_fpr), prefix=prefix))
    return tuple(found)
