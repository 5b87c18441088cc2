"""FedInn: one inner round of local steps, drift-free or plain (FedNest, algorithms 2 and 6).

In FedInn, q is the global gradient at y. Every local step is corrected by it, so the zero of the
mean inner gradient stays where it is, whatever the clients' own zeros are. FedInnSGD saves the
exchange for q and pays with a bias that grows with the number of local steps.
"""

from dataclasses import KW_ONLY

import equinox as eqx
import jax

from rookery import check
from rookery.algorithms.shared import levels, local
from rookery.algorithms.shared.interface import AbstractInner
from rookery.algorithms.shared.levels import TwoLevel
from rookery.program.federation import Client
from rookery.types import Key, Tree


class FedInn(AbstractInner):
    """Two exchanges with one cohort give a new y.

    Args:
        lr: β, of every local step, or of the whole call (:class:`PerCall`).
        local_steps: τ, one number or one per client.
        anchor_batch: rows of the gradient q; None is all.
    """

    _: KW_ONLY
    lr: local.LearningRate = eqx.field(converter=local.number)
    local_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)
    anchor_batch: int | None = None

    def __check_init__(self):
        local.check_learning_rate("FedInn.lr", self.lr)
        local.check_local_steps("FedInn.local_steps", self.local_steps)
        if self.anchor_batch is not None:
            check.count("anchor_batch", self.anchor_batch)

    def __call__(self, fed, problem, sampling, x, y, key):
        """The inner variable y after one round."""
        who, anchor_key, local_key = jax.random.split(key, 3)
        cohort = fed.sample(sampling.clients, who)
        x, y = fed.broadcast(cohort, x, y)  # ------------------------------- down  x, y
        q_i = fed.map(
            inner_gradient, x, y, key=anchor_key, problem=problem, batch_size=self.anchor_batch
        )
        q = fed.mean(q_i)  # ------------------------------------------------ up    q
        q = fed.broadcast(cohort, q)  # ------------------------------------- down  q
        settings = {"problem": problem, "batch_size": sampling.batch_size, "fedinn": self}
        y_i = fed.map(corrected_inner_steps, x, y, q, key=local_key, **settings)
        return fed.mean(y_i)  # --------------------------------------------- up    y

    def check(self, n_clients):
        """Numbers of local steps must fit the clients."""
        local.check_local_steps("FedInn.local_steps", self.local_steps, n_clients)


class FedInnSGD(AbstractInner):
    """One exchange gives a new y, the mean of the clients' plain local steps.

    Args:
        lr: β, of every local step, or of the whole call (:class:`PerCall`).
        local_steps: τ, one number or one per client.
    """

    _: KW_ONLY
    lr: local.LearningRate = eqx.field(converter=local.number)
    local_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)

    def __check_init__(self):
        local.check_learning_rate("FedInnSGD.lr", self.lr)
        local.check_local_steps("FedInnSGD.local_steps", self.local_steps)

    def __call__(self, fed, problem, sampling, x, y, key):
        """The inner variable y after one round."""
        who, local_key = jax.random.split(key)
        settings = {"problem": problem, "batch_size": sampling.batch_size, "fedinn": self}
        cohort = fed.sample(sampling.clients, who)
        x, y = fed.broadcast(cohort, x, y)  # ------------------------------- down  x, y
        y_i = fed.map(plain_inner_steps, x, y, key=local_key, **settings)
        return fed.mean(y_i)  # --------------------------------------------- up    y

    def check(self, n_clients):
        """Numbers of local steps must fit the clients."""
        local.check_local_steps("FedInnSGD.local_steps", self.local_steps, n_clients)


def inner_gradient(
    client: Client, x: Tree, y: Tree, *, problem: TwoLevel, batch_size: int | None
) -> Tree:
    """q_i = G_i(y; ζ)."""
    sample = client.draw(levels.inner_split(problem), batch_size, client.key)
    return levels.inner_gradient(problem, x, y, sample)


def corrected_inner_steps(
    client: Client,
    x: Tree,
    y: Tree,
    q: Tree,
    *,
    problem: TwoLevel,
    batch_size: int | None,
    fedinn: FedInn,
) -> Tree:
    """y_{i,ν+1} = y_{i,ν} - β_i [ G_i(y_{i,ν}; ζ) - G_i(y; ζ) + q ]."""
    return local.corrected_steps(
        client,
        draw=lambda key: client.draw(levels.inner_split(problem), batch_size, key),
        gradient=lambda y_i, sample: levels.inner_gradient(problem, x, y_i, sample),
        anchor=y,
        correction=q,
        lr=fedinn.lr,
        steps=fedinn.local_steps,
    )


def plain_inner_steps(
    client: Client,
    x: Tree,
    y: Tree,
    *,
    problem: TwoLevel,
    batch_size: int | None,
    fedinn: FedInnSGD,
) -> Tree:
    """y_{i,ν+1} = y_{i,ν} - β_i G_i(y_{i,ν}; ζ)."""
    return own_inner_steps(client, problem, x, y, batch_size, fedinn, client.key)


def own_inner_steps(
    client: Client,
    problem: TwoLevel,
    x: Tree,
    y: Tree,
    batch_size: int | None,
    fedinn: FedInnSGD,
    key: Key,
) -> Tree:
    """The client's inner variable after its plain local steps from y."""

    def gradient(y_i, key):
        sample = client.draw(levels.inner_split(problem), batch_size, key)
        return levels.inner_gradient(problem, x, y_i, sample)

    return local.plain_steps(client, gradient, y, fedinn.lr, fedinn.local_steps, key)
