"""FedNova: FedAvg for unequal numbers of local steps, by normalised averaging.

J. Wang, Q. Liu, H. Liang, G. Joshi, H. V. Poor. Tackling the objective inconsistency problem in
heterogeneous federated optimization. NeurIPS 2020, arXiv:2007.07481.

    paper       code            meaning
    x           w               the model
    η           lr              size of a local step
    τ_i         local_steps     local steps of a client
    a_i         -               how much each of its gradients counts in  w - w_i = η Σ_k a_ik g_ik
    ‖a_i‖₁      length          their sum
    d_i         d               normalised move  (w - w_i) / ‖a_i‖₁
    τ_eff       length          the mean of the ‖a_i‖₁
    ρ           momentum        of the local steps
    μ           mu              strength of a proximal term μ/2 |w_i - w|²
    p_i         -               weights of the clients: those of the population, equal or by rows

The server's step is  w - τ_eff (mean of d_i).  FedAvg weighs a client's gradients by its number of
steps, so with unequal numbers it minimises another sum of losses; here every client counts by its
weight. For equal numbers the two are the same.

    local steps     ‖a_i‖₁
    plain           τ_i
    momentum        Σ_k (1 - ρ^k) / (1 - ρ),  k = 1 .. τ_i
    proximal        Σ_k (1 - η μ)^k,  k = 0 .. τ_i - 1
    both            from the recursion of the steps themselves, which gives all of the above

Cost of a round: 1 exchange, w down, d_i and a number up. Departures from the paper: its program
takes the mean of the τ_i for τ_eff with a proximal term; here it is that of the ‖a_i‖₁. With
``server_lr`` the server's step is that rule's, with τ_eff (mean of d_i) for a gradient.
"""

from dataclasses import KW_ONLY
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.shared import local
from rookery.algorithms.shared.model import AbstractLocalSGD, ModelState
from rookery.algorithms.shared.schedule import number
from rookery.algorithms.shared.step_rule import Optimiser, PerCall, check_size, move, size_of
from rookery.problem.constraints import projected
from rookery.problem.single_level import SingleLevel
from rookery.program.federation import AbstractFederation, Client
from rookery.types import Count, Key, Tree

LINEAR = (
    "The normalisation needs the weight of each gradient in the client's move, which is known for "
    "plain, momentum and proximal steps. Use momentum and mu, or an optimiser for server_lr."
)
"""Why local steps of FedNova have a size."""


class FedNova(AbstractLocalSGD):
    """Local steps whose moves are divided by their lengths before they are averaged.

    >>> FedNova(lr=0.1, local_steps=(1, 5, 20), momentum=0.9).momentum
    0.9

    Args:
        momentum: ρ, at least 0 and below 1.
        mu: μ; lr times mu must be below 1, or a step would go beyond the server's model.
    """

    kind: ClassVar[type] = SingleLevel

    _: KW_ONLY
    momentum: float = eqx.field(converter=number, default=0.0)
    mu: float = eqx.field(converter=number, default=0.0)

    def __check_init__(self):
        if isinstance(self.lr, PerCall):
            raise TypeError(
                "lr of FedNova cannot be PerCall. FedNova divides a client's move by its number of "
                "steps already; with smaller steps as well, clients that take many would count "
                "less. Use a number or a schedule."
            )
        check_size("FedNova", "lr", self.lr, LINEAR, "local")
        check.decay("momentum", self.momentum)
        check.not_negative("mu", self.mu)
        assert not isinstance(self.lr, Optimiser), "check_size refuses it"
        check.decay("lr times mu", size_of(self.lr, 0) * self.mu)

    def round(
        self, fed: AbstractFederation, problem: SingleLevel, state: ModelState, key: Key
    ) -> ModelState:
        """One exchange: the mean move and the mean length, and a step by their product."""
        both, state = self.mean_of(normalised_move, fed, problem, state, key)  # down  w
        d, length = both  # ------------------------------------------------------ up    d_i, ‖a_i‖₁
        direction, rule = tree.scale(length, d), 1.0 if self.server_lr is None else self.server_lr
        w, opt = move(rule, direction, state.opt, state.w, fed.round)
        return state._replace(w=projected(problem, "w", w), opt=opt)


def normalised_move(
    client: Client, centre: Tree, *, problem: SingleLevel, algorithm: FedNova, round: Count
) -> tuple[tuple[Tree, jax.Array], Tree]:
    """d_i and ‖a_i‖₁, and the empty state of a step size."""
    assert not isinstance(algorithm.lr, Optimiser), "FedNova refuses it"
    steps = local.steps_of(client, algorithm.local_steps)
    kind = jnp.result_type(*jax.tree.leaves(centre))
    rho, mu, lr = (
        jnp.asarray(value).astype(kind)
        for value in (algorithm.momentum, algorithm.mu, size_of(algorithm.lr, round))
    )

    def step(nu, carry):
        w, u, length, speed = carry
        w = projected(problem, "w", w)
        sample = client.draw(
            problem.split, algorithm.batch_size, jax.random.fold_in(client.key, nu)
        )
        g = tree.axpy(mu, tree.sub(w, centre), problem.gradient(w, sample))
        u = tree.axpy(rho, u, g)
        speed = rho * speed + 1 - lr * mu * length  # the same recursion, along gradients of one
        return tree.axpy(-lr, u, w), u, length + speed, speed

    zero = jnp.zeros((), kind)
    first = centre, tree.zeros_like(centre), zero, zero
    most = local.most_steps(algorithm.local_steps)
    w, _, length, _ = client.repeat(steps, step, first, most=most)
    return (tree.scale(1 / length, tree.sub(centre, w)), length), ()
