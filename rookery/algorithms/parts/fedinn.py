"""FedInn: one inner round whose local steps do not drift (procedure FedInn of FedNest).

q is the global gradient at y. Every local step is corrected by it, so the minimiser of the mean
inner loss stays where it is, whatever the clients' own minimisers are.
"""

import equinox as eqx
import jax

from rookery._types import Key, Tree
from rookery.algorithms.parts.local import LearningRate, LocalSteps, corrected_steps
from rookery.problem.bilevel import Bilevel
from rookery.program.cohort import AbstractParticipation
from rookery.program.federation import AbstractFederation, Client


class FedInn(eqx.Module):
    """Two exchanges with one cohort give a new y.

    Args:
        lr: β, of every local step, or of the whole call (:class:`PerCall`).
        local_steps: τ.
        clients: who takes part.
        batch_size: rows per local step; None is all.
        anchor_batch: rows of the gradient q; None is all.
    """

    lr: LearningRate
    local_steps: LocalSteps
    clients: AbstractParticipation
    batch_size: int | None
    anchor_batch: int | None

    def __call__(
        self, fed: AbstractFederation, problem: Bilevel, x: Tree, y: Tree, key: Key
    ) -> Tree:
        """The inner variable y after one round."""
        who, anchor_key, local_key = jax.random.split(key, 3)
        settings = {"problem": problem, "fedinn": self}
        cohort = fed.sample(self.clients, who)
        x, y = fed.broadcast(cohort, x, y)  # ------------------------------- down  x, y
        q_i = fed.map(inner_gradient, x, y, key=anchor_key, **settings)
        q = fed.mean(q_i)  # ------------------------------------------------ up    q
        q = fed.broadcast(cohort, q)  # ------------------------------------- down  q
        y_i = fed.map(corrected_inner_steps, x, y, q, key=local_key, **settings)
        return fed.mean(y_i)  # --------------------------------------------- up    y


def inner_gradient(client: Client, x: Tree, y: Tree, *, problem: Bilevel, fedinn: FedInn) -> Tree:
    """q_i = g_y(x, y; ζ)."""
    sample = client.draw(problem.inner_split, fedinn.anchor_batch, client.key)
    return problem.inner_grad_y(x, y, sample)


def corrected_inner_steps(
    client: Client, x: Tree, y: Tree, q: Tree, *, problem: Bilevel, fedinn: FedInn
) -> Tree:
    """y_{i,ν+1} = y_{i,ν} - β_i [ g_y(x, y_{i,ν}; ζ) - g_y(x, y; ζ) + q ]."""
    return corrected_steps(
        client,
        draw=lambda key: client.draw(problem.inner_split, fedinn.batch_size, key),
        gradient=lambda y_i, sample: problem.inner_grad_y(x, y_i, sample),
        anchor=y,
        correction=q,
        lr=fedinn.lr,
        steps=fedinn.local_steps,
    )
