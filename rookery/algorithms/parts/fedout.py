"""FedOut: one outer round from a given adjoint v (procedure FedOut of FedNest).

h is the global hypergradient. Local steps correct the direct part f_x only; where f does not
depend on x directly, every local step is h itself.
"""

import equinox as eqx
import jax

from rookery import _tree
from rookery._types import Key, Tree
from rookery.algorithms.parts.local import LearningRate, LocalSteps, corrected_steps
from rookery.problem.bilevel import Bilevel
from rookery.program.cohort import AbstractParticipation
from rookery.program.federation import AbstractFederation, Client


class FedOut(eqx.Module):
    """Two exchanges with one cohort give a new x.

    Args:
        lr: α, of every local step, or of the whole call (:class:`PerCall`).
        local_steps: τ.
        clients: who takes part.
        batch_size: rows per evaluation; None is all.
    """

    lr: LearningRate
    local_steps: LocalSteps
    clients: AbstractParticipation
    batch_size: int | None

    def __call__(
        self, fed: AbstractFederation, problem: Bilevel, x: Tree, y: Tree, v: Tree, key: Key
    ) -> Tree:
        """The outer variable x after one round."""
        who, hyper_key, local_key = jax.random.split(key, 3)
        settings = {"problem": problem, "fedout": self}
        cohort = fed.sample(self.clients, who)
        x, y, v = fed.broadcast(cohort, x, y, v)  # -------------------------- down  x, y, v
        h_i = fed.map(hypergradient_piece, x, y, v, key=hyper_key, **settings)
        h = fed.mean(h_i)  # ------------------------------------------------- up    h
        h = fed.broadcast(cohort, h)  # -------------------------------------- down  h
        x_i = fed.map(corrected_outer_steps, x, y, h, key=local_key, **settings)
        return fed.mean(x_i)  # ---------------------------------------------- up    x


def hypergradient_piece(
    client: Client, x: Tree, y: Tree, v: Tree, *, problem: Bilevel, fedout: FedOut
) -> Tree:
    """h_i = f_x(x, y; ξ) - g_xy(x, y; ζ) v."""
    outer_key, inner_key = jax.random.split(client.key)
    outer_sample = client.draw(problem.outer_split, fedout.batch_size, outer_key)
    inner_sample = client.draw(problem.inner_split, fedout.batch_size, inner_key)
    direct = problem.outer_grad_x(x, y, outer_sample)
    return _tree.sub(direct, problem.inner_cross(x, y, v, inner_sample))


def corrected_outer_steps(
    client: Client, x: Tree, y: Tree, h: Tree, *, problem: Bilevel, fedout: FedOut
) -> Tree:
    """x_{i,ν+1} = x_{i,ν} - α_i [ f_x(x_{i,ν}, y; ξ) - f_x(x, y; ξ) + h ]."""
    return corrected_steps(
        client,
        draw=lambda key: client.draw(problem.outer_split, fedout.batch_size, key),
        gradient=lambda x_i, sample: problem.outer_grad_x(x_i, y, sample),
        anchor=x,
        correction=h,
        lr=fedout.lr,
        steps=fedout.local_steps,
    )
