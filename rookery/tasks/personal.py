"""Evaluation of a classifier on its clients, before and after adapting it to each of them."""

from collections.abc import Collection

import equinox as eqx

from rookery import check, tree
from rookery.clients.datasets import Dataset
from rookery.clients.local_client import LocalClient
from rookery.problem import oracles
from rookery.runner.metrics import AbstractEvaluation, OnClients
from rookery.tasks.classifier import Accuracy, Loss, Network
from rookery.tasks.task import server_metrics
from rookery.types import Tree


def evaluations(
    network: Network,
    dataset: Dataset,
    adapt_lr: float | None,
    adapt_steps: int | None,
    per_client: bool,
    splits: Collection[str],
) -> tuple[AbstractEvaluation, ...]:
    """Accuracy and loss on the server's rows and on every client's validation rows.

    With an ``adapt_lr`` also those of each client after one gradient step on its training rows, as
    ``adapted_...``, and after ``adapt_steps`` steps (5 by default), as ``adapted5_...``. Tasks with
    and without adaptation have the same metrics, to compare FedAvg with algorithms for MAML. With
    ``per_client`` the values of single clients are recorded by name. Where clients have a split
    ``holdout``, for choosing settings, ``holdout_adapted_...`` are the metrics on its rows after
    one step.
    """
    loss = Loss(network)
    scores, losses = {"accuracy": Accuracy(network)}, {"loss": loss}
    found = [
        *server_metrics({**scores, **losses}, dataset),
        OnClients(scores, losses, split="validation", per_client=per_client),
    ]
    if adapt_lr is None and adapt_steps is not None:
        raise ValueError(
            f"adapt_steps={adapt_steps} needs an adapt_lr, the step size of the adaptation."
        )
    if adapt_lr is not None:
        check.positive("adapt_lr", adapt_lr)
        adapt_steps = 5 if adapt_steps is None else check.count("adapt_steps", adapt_steps)
        for steps in sorted({1, adapt_steps}):
            adapt = AdaptedToClient(loss, float(adapt_lr), steps, "train")
            label = f"adapted{steps if steps > 1 else ''}_"
            found.append(OnClients(scores, losses, "validation", adapt, label, per_client))
            if steps == 1 and "holdout" in splits:
                found.append(OnClients(scores, losses, "holdout", adapt, "holdout_adapted_"))
    return tuple(found)


class AdaptedToClient(eqx.Module):
    """A client step for evaluations: some gradient steps on the client's own rows."""

    loss: Loss
    lr: float
    steps: int = eqx.field(static=True)
    split: str = eqx.field(static=True)

    def __call__(self, client: LocalClient, w: Tree) -> tuple[Tree]:
        """(w after its steps,)."""
        sample = client.draw(self.split, None, client.key)

        def step(_, w):
            return tree.axpy(-self.lr, oracles.gradient(self.loss, (w,), 0, sample), w)

        return (client.repeat(self.steps, step, w),)
