"""pFedMe: every client has a model of its own, held near the global one by a Moreau envelope.

C. T. Dinh, N. H. Tran, T. D. Nguyen. Personalized federated learning with Moreau envelopes.
NeurIPS 2020, arXiv:2006.08848.

    paper       code            meaning
    w           w               the global model
    θ_i         own             a client's own model, argmin f_i(θ) + λ/2 |θ - w_i|²
    λ           mu              strength of the pull
    K           inner_steps     gradient steps for θ, on one batch
    -           inner_lr        their step size
    R           local_steps     local rounds of a client
    η           lr              step of w_i
    β           server_lr       w = (1 - β) w + β (mean of w_i)

    client      w_i = w;  R times:  θ by K steps from θ,  w_i = w_i - η λ (w_i - θ)
    server      w = (1 - β) w + β (mean of w_i)

The outer problem is  min over w of  mean of F_i(w),  F_i(w) = min over θ of f_i(θ) + λ/2 |θ - w|²,
a bilevel problem whose lower levels are the clients' own. Cost of a round: 1 exchange, w down,
w_i up; own models never travel. Departures from the authors' program: no weight decay in the inner
steps, and only the sampled clients train. A client's inner steps start where its last ones ended.
"""

from dataclasses import KW_ONLY

import equinox as eqx
import jax

from rookery import check, tree
from rookery.algorithms.shared import local
from rookery.algorithms.shared.own_models import AbstractOwnModels
from rookery.algorithms.shared.schedule import number
from rookery.algorithms.shared.step_rule import check_number, first_opt, move
from rookery.problem.constraints import projected
from rookery.problem.single_level import SingleLevel
from rookery.program.federation import Client
from rookery.types import Count, Tree


class PFedMe(AbstractOwnModels):
    """Own models near a global one, which moves towards them.

    Args:
        lr: η, step rule of a client's copy of w.
        mu: λ.
        inner_lr: step size of the steps for θ; below 2 / (L + λ).
        inner_steps: K, gradient steps for θ, on one batch.

    >>> PFedMe(lr=0.05, mu=15.0, inner_lr=0.05, local_steps=20, clients=10).inner_steps
    5
    """

    _: KW_ONLY
    inner_lr: float = eqx.field(converter=number)
    inner_steps: int = 5

    def __check_init__(self):
        check.positive("mu", self.mu)
        check_number("PFedMe", "inner_lr", self.inner_lr, "It solves a problem on one batch.")
        check.count("inner_steps", self.inner_steps)

    def train(
        self, client: Client, w: Tree, own: Tree, *, problem: SingleLevel, round: Count
    ) -> tuple[Tree, Tree]:
        """w_i and θ_i after R local rounds: steps of θ_i, then one of w_i towards it."""
        R = local.steps_of(client, self.local_steps)

        def local_round(r, carry):
            w_i, theta, opt = carry
            key = jax.random.fold_in(client.key, r)
            sample = client.draw(problem.split, self.batch_size, key)

            def inner(_, theta):
                g = tree.axpy(self.mu, tree.sub(theta, w_i), problem.gradient(theta, sample))
                return projected(problem, "w", tree.axpy(-self.inner_lr, g, theta))

            theta = client.repeat(self.inner_steps, inner, theta)
            pull = tree.scale(self.mu, tree.sub(w_i, theta))  # the gradient of the envelope
            w_i, opt = move(self.lr, pull, opt, w_i, round, R)
            return w_i, theta, opt

        first = w, own, first_opt(self.lr, w)
        most = local.most_steps(self.local_steps)
        w_i, theta, _ = client.repeat(R, local_round, first, most=most)
        return w_i, theta
