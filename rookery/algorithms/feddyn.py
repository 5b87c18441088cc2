"""FedDyn: local losses are regularised dynamically, so that their minima agree with the global one.

D. A. E. Acar, Y. Zhao, R. Matas Navarro, M. Mattina, P. N. Whatmough, V. Saligrama. Federated
learning based on dynamic regularization. ICLR 2021, arXiv:2111.04263.

    paper       code            meaning
    θ           w               the server's model
    α           alpha           strength of the regulariser
    ∇L_k(θ_k)   own             g_i, a client's estimate of its own gradient
    h           h               mean of the g_i
    m, P_t      clients         how many clients there are, and who takes part
    -           lr, local_steps of the client's solver

    client      w_i = local steps on  f_i(w_i) - <g_i, w_i> + α/2 |w_i - w|²,
                g_i = g_i - α (w_i - w)
    server      h = h - α Σ p_i (w_i - w)  over the cohort, by the clients' weights p_i,
                w = (mean of w_i over the cohort) - h / α

The sum for h is over the cohort and counts by the weights of all clients (divided by m, if equal);
the mean of models is over the cohort alone. With any number of local steps the limit is exact,
h = 0, and g_i is the client's gradient there. Cost of a round: that of FedAvg; g_i never travel,
unless there is a robust rule: h is then its value of the g_i, since a sum over rounds would add up
what a Byzantine client moves the rule by. Departures from the authors' program: α is the same for
all clients, and gradients are not clipped.
"""

from dataclasses import KW_ONLY
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax

from rookery import check, tree
from rookery.algorithms.shared import local
from rookery.algorithms.shared.schedule import number
from rookery.algorithms.shared.step_rule import StepRule, is_keeping, step_rule
from rookery.problem.constraints import projected, projection
from rookery.problem.single_level import SingleLevel
from rookery.program.algorithm import SampledAlgorithm, check_kind
from rookery.program.federation import AbstractFederation, Client, Placed
from rookery.program.memory import Memory, check_rule
from rookery.types import Count, Key, Tree


class FedDynState(NamedTuple):
    """The model, the mean of the clients' gradients, and these."""

    w: Tree
    h: Tree
    own: Memory


class FedDyn(SampledAlgorithm):
    """Local steps on dynamically regularised losses.

    Args:
        lr: step rule of the local steps, reset in every round.
        alpha: α.
        local_steps: of the client's solver, one number or one per client.

    >>> FedDyn(lr=0.1, alpha=0.1, local_steps=10, clients=10).alpha
    0.1
    """

    projects: ClassVar[bool] = True

    _: KW_ONLY
    lr: StepRule = eqx.field(converter=step_rule)
    alpha: float = eqx.field(converter=number)
    local_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)

    def __check_init__(self):
        local.check_fields(self)
        check.positive("alpha", self.alpha)
        if is_keeping(self.lr):
            raise ValueError(
                "lr of FedDyn got keep=True, but its clients keep gradients, not states of "
                "optimisers. Leave keep out."
            )
        check_rule("FedDyn", self.clients)

    def check(self, problem: SingleLevel, n_clients: int) -> None:
        """Raise unless the problem has one level and the settings fit the clients."""
        check_kind(self, problem, SingleLevel)
        local.check_fields(self, n_clients)
        self.clients.check(n_clients)

    def init(self, problem: SingleLevel, w: Tree) -> FedDynState:
        """The given model; all gradients are taken for zero."""
        zero = tree.zeros_like(w)
        return FedDynState(w, zero, Memory.of(zero))

    def round(
        self, fed: AbstractFederation, problem: SingleLevel, state: FedDynState, key: Key
    ) -> FedDynState:
        """One exchange."""
        who, local_key = jax.random.split(key)
        cohort = fed.sample(self.clients, who)
        at = fed.broadcast(cohort, state.w), fed.recall(cohort, state.own)  # down  w
        settings = {"problem": problem, "algorithm": self, "round": fed.round}
        moved, g_i = fed.map(regularised_steps, *at, key=local_key, **settings)
        weight = fed.weight_of(cohort)
        if fed.is_robust:
            # h adds up the moves, and so what a client that lies moves the rule by: send g_i too
            both = Placed(cohort, (moved.value, g_i.value), is_stacked=True)
            mean, g = fed.mean(both)  # -------------------------------------- up    w_i - w, g_i
            h = tree.axpy(weight, tree.sub(g, state.h), state.h)
        else:
            mean = fed.mean(moved)  # ---------------------------------------- up    w_i - w
            h = tree.axpy(-self.alpha * weight, mean, state.h)
        w = tree.axpy(-1 / self.alpha, h, tree.add(state.w, mean))
        return FedDynState(projected(problem, "w", w), h, fed.keep(state.own, g_i))

    def solution(self, state: FedDynState) -> tuple[Tree]:
        """(w,)."""
        return (state.w,)


def regularised_steps(
    client: Client, w: Tree, g: Tree, *, problem: SingleLevel, algorithm: FedDyn, round: Count
) -> tuple[Tree, Tree]:
    """w_i - w after the local steps, and the new g_i."""
    alpha = algorithm.alpha

    def gradient(own, key):
        sample = client.draw(problem.split, algorithm.batch_size, key)
        pull = tree.axpy(alpha, tree.sub(own, w), tree.scale(-1, g))
        return tree.add(problem.gradient(own, sample), pull)

    steps, how = algorithm.local_steps, {"project": projection(problem, "w"), "round": round}
    own, _ = local.plain_steps(client, gradient, w, algorithm.lr, steps, client.key, **how)
    moved = tree.sub(own, w)
    return moved, tree.axpy(-alpha, moved, g)
