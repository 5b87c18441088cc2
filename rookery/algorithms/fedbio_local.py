"""FedBiO and FedBiOAcc for lower levels of the clients' own.

J. Li, F. Huang, H. Huang. Communication-efficient federated bilevel optimization with global and
local lower level problems. NeurIPS 2023, arXiv:2302.06701. Reconstructed from its abstract and from
the equations as others quote them; the full text was not at hand.

    paper           code                    meaning
    x               x                       the shared variable
    y_i, u_i        y, v, own               a client's own inner variable and adjoint
    ν, ω_i, q_i     d                       estimates of the maps of the three
    η, γ, θ         outer_lr, inner_lr      step sizes
    α_t             rate                    scales all steps
    c_ν, c_ω, c_u   renewal                 an estimate keeps 1 - c α_t² of its past
    I               local_steps             local steps between two averages

    s_i(w) = (f_x - g_xy v,  g_y,  g_yy v - f_y)  at  w = (x, y_i, v_i)
    FedBiOLocal     I times  w = w - η s_i(w; ξ);  then the mean of x
    FedBiOAccLocal  I times  d = s_i(w; ξ) + (1 - c α_t²) (d - s_i(w_old; ξ)),
                    w_old = w,  w = w - η α_t d;  then the means of x and ν

y_i, v_i, ω_i and q_i are neither averaged nor sent, nor is w_old, where d was made last: a
difference of the next round starts there, and so crosses the average of x. The clients' mean error
of ν then shrinks by 1 - c α_t² in every step, and the drift of I local steps falls with c.
:class:`FedBiOAcc` has its own order: its differences start at the averages, and its drift does not
depend on c. One local step is exact; with c α² = 1 both algorithms are the same.

Cost of a round: 1 exchange, x down and up, with FedBiOAccLocal ν as well. That needs all clients in
every round: the difference of a client that missed a round would be added to another ν than it was
taken from. It evaluates every map twice in a local step, and once more at the start of round 0.
FedBiOLocal's mean of x over a sampled cohort is normalised by the sum of its weights.
"""

from dataclasses import KW_ONLY

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.shared import local
from rookery.algorithms.shared.blocks import descend
from rookery.algorithms.shared.estimators import STORM
from rookery.algorithms.shared.personal import AbstractPersonal
from rookery.algorithms.shared.step_rule import (
    StepRules,
    check_step_rules,
    each_rule,
    first_opt,
    step_rules,
)
from rookery.algorithms.shared.views import BilevelView, Blocks
from rookery.problem.bilevel import PersonalBilevel
from rookery.problem.constraints import projected
from rookery.program.federation import Client
from rookery.program.participation import Everyone
from rookery.types import BatchSize, Key


class AbstractFedBiOLocal(AbstractPersonal):
    """Local steps of x, y and v at once.

    Args:
        inner_lr: step rule of y and v, or a tuple with one each.
    """

    _: KW_ONLY
    inner_lr: StepRules = eqx.field(converter=step_rules)

    def __check_init__(self):
        check_step_rules("inner_lr", self.inner_lr, 2, "local")


class FedBiOLocal(AbstractFedBiOLocal):
    """Local steps along the maps; the server averages x alone.

    >>> FedBiOLocal(outer_lr=0.05, inner_lr=(0.1, 0.05), local_steps=5, clients=10).local_steps
    5
    """

    def first_own(self, x, y):
        """y, and v = 0."""
        return y, tree.zeros_like(y)

    def train(self, client, x, beside, own, *, problem, round):
        """x_i, y_i and v_i after the local steps."""
        tau = local.steps_of(client, self.local_steps)
        rules, start = each_rule(self.outer_lr, self.inner_lr, 3), (x, *own)

        def step(k, carry):
            w, opts = carry
            w = within_set(problem, w)
            key = jax.random.fold_in(client.key, k)
            (d,) = maps_of_client(client, problem, self.batch_size, key, w)
            return descend(rules, d, opts, w, round, None, tau)

        first = start, tuple(map(first_opt, rules, start))
        most = local.most_steps(self.local_steps)
        (x_i, y, v), _ = client.repeat(tau, step, first, most=most)
        return (x_i, ()), (y, v)


class FedBiOAccLocal(AbstractFedBiOLocal):
    """The same with recursive momentum; the server averages x and the estimate of its map.

    Args:
        estimator: :class:`STORM` with α_t and c.
        first_batch: rows per client for the first estimates; None means all rows.

    >>> FedBiOAccLocal(outer_lr=0.05, inner_lr=0.1, estimator=STORM(0.5), local_steps=5).name
    'FedBiOAccLocal'
    """

    _: KW_ONLY
    estimator: STORM = eqx.field(default_factory=STORM)
    first_batch: int | None = None

    def __check_init__(self):
        if self.first_batch is not None:
            check.count("first_batch", self.first_batch)
        if not isinstance(self.clients, Everyone):
            raise ValueError(
                "FedBiOAccLocal needs all clients in every round: the estimate that it averages is "
                f"of the last points of those who took part; got {type(self.clients).__name__}. "
                "Leave clients out, or use FedBiOLocal."
            )

    def first_own(self, x, y):
        """y, v = 0, no estimates yet, and the point where they will be made."""
        v = tree.zeros_like(y)
        return y, v, (v, v), (x, y, v)

    def first_beside(self, x):
        """No estimate yet."""
        return tree.zeros_like(x)

    def train(self, client, x, beside, own, *, problem, round):
        """x_i and ν_i, and all that belongs to y_i and v_i, after the local steps."""
        y, v, d_own, old = own
        tau = local.steps_of(client, self.local_steps)
        rules, start = each_rule(self.outer_lr, self.inner_lr, 3), (x, y, v)

        def first_estimate(_, d):
            key = jax.random.fold_in(client.key, 1 << 20)  # no step has it
            return maps_of_client(client, problem, self.first_batch, key, start)[0]

        def step(k, carry):
            w, old, d, opts = carry
            w, a = within_set(problem, w), self.estimator.rate_at(round * tau + k)
            key = jax.random.fold_in(client.key, k)
            new, before = maps_of_client(client, problem, self.batch_size, key, w, old)
            d = self.estimator.corrected(d, new, before, a)
            moved, opts = descend(rules, tree.scale(a, d), opts, w, round, None, tau)
            return moved, w, d, opts

        is_first = jnp.where(jnp.asarray(round) == 0, 1, 0)
        d = client.repeat(is_first, first_estimate, (beside, *d_own), most=1)
        first = start, old, d, tuple(map(first_opt, rules, start))
        most = local.most_steps(self.local_steps)
        (x_i, y, v), old, (nu, *d_own), _ = client.repeat(tau, step, first, most=most)
        return (x_i, nu), (y, v, tuple(d_own), old)


def maps_of_client(
    client: Client, problem: PersonalBilevel, batch_size: BatchSize, key: Key, *points: Blocks
) -> tuple[Blocks, ...]:
    """The client's maps s_i at one or several points, all on the same rows."""
    outer_key, inner_key = jax.random.split(key)
    outer = client.draw(problem.outer_split, batch_size, outer_key)
    inner = client.draw(problem.inner_split, batch_size, inner_key)
    return tuple(BilevelView().maps(problem, point, (outer, inner)) for point in points)


def within_set(problem: PersonalBilevel, w: Blocks) -> Blocks:
    """The blocks with x in its set."""
    return projected(problem, "x", w[0]), *w[1:]
