"""DRFA: distributionally robust federated averaging.

Y. Deng, M. M. Kamani, M. Mahdavi. Distributionally robust federated averaging. NeurIPS 2020,
arXiv:2102.12660.

    paper   code            meaning
    w       w               the model
    λ       probabilities   weights of the clients, in the simplex; they grow where losses are large
    η, γ    lr, ascent_lr   rule of the local steps of w, and step size of λ
    τ       local_steps     local steps between two averages
    t'      at              the local step whose iterate the losses are taken at, uniform on 1 .. τ
    m       clients         how many are drawn in each of the two exchanges
    N       fed.n_clients   how many there are

1. m clients, drawn from λ with replacement, take τ local steps; the server averages their last
   iterates to w and their iterates after t' steps to w'.
2. m clients, drawn uniformly and independently of the first m, send their losses at w'. With
   u_i = (N / m) f_i(w') for them and zero for the others, E[u_i] = f_i(w'); λ becomes the
   projection of λ + τ γ u to the simplex.

                exchanges   down                    up
    round       2           c (w + 4 bytes) + m w   2 m w + m numbers

where c is the number of distinct clients among those drawn from λ. Departures from the paper: λ
starts uniform, never in proportion to the clients' rows, and the population's weights are not used.
The released code multiplies γ by 0.9 every round (``Decay(γ, 0.9)``) and raises every λ_i to at
least 0.001 before it normalises λ (``floor``); neither is in the paper, and neither is the default.
"""

from dataclasses import KW_ONLY

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.shared import simplex
from rookery.algorithms.shared.model import RobustState
from rookery.algorithms.shared.robust import AbstractRobustModel
from rookery.algorithms.shared.schedule import number
from rookery.algorithms.shared.step_rule import check_keeping, check_step_rule, first_opt, move
from rookery.problem.constraints import projected
from rookery.problem.single_level import SingleLevel
from rookery.program.algorithm import check_kind
from rookery.program.federation import AbstractFederation, Client
from rookery.program.memory import Probabilities
from rookery.program.participation import Uniform, Weighted
from rookery.rng import below
from rookery.types import Count, Key, Tree


class DRFA(AbstractRobustModel):
    """Local steps on clients drawn from λ, and a projected step of ascent in λ.

    >>> import rookery as rk
    >>> rk.DRFA(lr=0.1, ascent_lr=rk.parts.Decay(0.1, 0.9), local_steps=5, clients=10).clients
    10

    Args:
        lr: η, the rule of every local step. An optimiser is reset in every round: clients are
            drawn with replacement, so they cannot keep its state.
        ascent_lr: γ, a number or a schedule such as :class:`Decay`; a step of λ has size τ γ.
        local_steps: τ, the same for all clients.
        clients: m, how many are drawn in each exchange; None means as many as there are.
        loss_batch_size: rows that a loss is taken on; None means all.
        floor: the least λ_i before λ is divided by its sum, which can leave it a little below; less
            than one over the number of clients.
    """

    _: KW_ONLY
    local_steps: int = 1
    clients: int | None = None
    loss_batch_size: int | None = None
    floor: float = eqx.field(converter=number, default=0.0)

    def __check_init__(self):
        check_step_rule("lr", self.lr, "local")
        check_keeping("DRFA", Weighted(1), self.lr)
        check.count("local_steps", self.local_steps)
        check.not_negative("floor", self.floor)
        for name in ("clients", "loss_batch_size"):
            if getattr(self, name) is not None:
                check.count(name, getattr(self, name))

    def check(self, problem: SingleLevel, n_clients: int) -> None:
        """Raise unless the problem is single-level and there are enough clients."""
        check_kind(self, problem, SingleLevel)
        Uniform(self.clients or n_clients).check(n_clients)
        if self.floor >= 1 / n_clients:
            raise ValueError(
                f"floor must be below one over the number of clients, 1/{n_clients}, got "
                f"{self.floor}: otherwise all λ_i would stay equal."
            )

    def init(self, problem: SingleLevel, w: Tree) -> RobustState:
        """The given model; λ is equal for all."""
        return RobustState(w, Probabilities())

    def round(
        self, fed: AbstractFederation, problem: SingleLevel, state: RobustState, key: Key
    ) -> RobustState:
        """Two exchanges."""
        who, at_key, local_key, others, loss_key = jax.random.split(key, 5)
        settings = {"problem": problem, "algorithm": self}
        m, N, tau = self.clients or fed.n_clients, fed.n_clients, self.local_steps
        lam = state.probabilities.values

        drawn = fed.sample(Weighted(m), who, lam)
        t = below(at_key, (), tau) + 1
        w, at = fed.broadcast(drawn, state.w, t)  # -------------------------- down  w, t'
        both = fed.map(steps_with_snapshot, w, at, key=local_key, round=fed.round, **settings)
        w, snapshot = fed.mean(both)  # -------------------------------------- up    w, w'
        w, snapshot = projected(problem, "w", w), projected(problem, "w", snapshot)

        asked = fed.sample(Uniform(m), others)
        w_t = fed.broadcast(asked, snapshot)  # ------------------------------ down  w'
        losses = fed.stack(fed.map(own_loss, w_t, key=loss_key, **settings))  # up   f_i(w')
        u = jnp.zeros(N).at[asked.ids].set(N / m * losses.astype(float))
        lam = simplex.project(lam + tau * self.ascent_size(fed.round) * u)
        return RobustState(w, Probabilities(simplex.raise_to(self.floor, lam)))


def steps_with_snapshot(
    client: Client,
    w: Tree,
    at: jax.Array,
    *,
    problem: SingleLevel,
    algorithm: DRFA,
    round: Count,
) -> tuple[Tree, Tree]:
    """The client's model after all its local steps, and after ``at`` of them."""
    rule, steps = algorithm.lr, algorithm.local_steps

    def step(nu, carry):
        w, snapshot, opt = carry
        w = projected(problem, "w", w)
        key = jax.random.fold_in(client.key, nu)
        sample = client.draw(problem.split, algorithm.batch_size, key)
        w, opt = move(rule, problem.gradient(w, sample), opt, w, round, steps)
        return w, tree.where(nu + 1 == at, w, snapshot), opt

    w, snapshot, _ = client.repeat(steps, step, (w, w, first_opt(rule, w)))
    return w, snapshot


def own_loss(client: Client, w: Tree, *, problem: SingleLevel, algorithm: DRFA) -> jax.Array:
    """The client's loss."""
    return problem.value(w, client.draw(problem.split, algorithm.loss_batch_size, client.key))
