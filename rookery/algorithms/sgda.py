"""FedAvg-S: local stochastic gradient descent-ascent, the plain baseline of minimax problems.

The comparison method of FedNest's section 4.3 (arXiv:2205.02215).

    paper   code                    meaning
    x, y    x, y                    minimising and maximising variable
    α, β    outer_lr, inner_lr      step sizes
    τ       local_steps             local steps between two averages
    S       clients                 who takes part in an exchange

Cost of a round: 1 exchange. With several local steps and heterogeneous clients it converges to a
biased point, not to the saddle point. Departures from the paper: both variables move at once, as
its name says; the released notebook moves y first, which is the order ``Alternating``.
"""

import abc
from dataclasses import KW_ONLY
from typing import ClassVar

import equinox as eqx
import jax

from rookery.algorithms.shared import local
from rookery.algorithms.shared.field import ascent_field
from rookery.algorithms.shared.saddle import SaddleState
from rookery.algorithms.shared.step_rule import (
    StepRule,
    check_keeping,
    kept_opts,
    move,
    opts_to_keep,
    starting_opts,
    step_rule,
)
from rookery.problem.constraints import projected
from rookery.problem.minimax import Minimax
from rookery.program.algorithm import SampledAlgorithm, check_kind
from rookery.program.federation import AbstractFederation, Client
from rookery.types import Count, Key, Tree


class AbstractOrder(eqx.Module):
    """Which of the two variables of a local step moves first."""

    @abc.abstractmethod
    def __call__(self, y: Tree, new_y: Tree) -> Tree:
        """The y at which the gradient of x is taken: that before its step, or the one after."""


class Simultaneous(AbstractOrder):
    """Both move along their gradients at the old pair: x - α f_x(x, y) and y + β f_y(x, y).

    >>> Simultaneous()(1.0, 2.0)
    1.0
    """

    def __call__(self, y, new_y):
        """The old y."""
        return y


class Alternating(AbstractOrder):
    """First y moves, then x: y+ = y + β f_y(x, y) and x - α f_x(x, y+).

    >>> Alternating()(1.0, 2.0)
    2.0
    """

    def __call__(self, y, new_y):
        """The new y."""
        return new_y


class FedAvgS(SampledAlgorithm):
    """Local descent in x and ascent in y; both are averaged.

    >>> import rookery as rk
    >>> rk.FedAvgS(outer_lr=0.05, inner_lr=0.1, local_steps=5, order=rk.parts.Alternating()).order
    Alternating()

    Args:
        outer_lr: α, the rule of every local step, or a size for the whole round
            (:class:`PerCall`), which lets clients with unequal numbers of local steps move equally
            far.
        inner_lr: β, likewise.
        local_steps: τ, one number or one per client.
        order: which variable moves first.
    """

    projects: ClassVar[bool] = True

    _: KW_ONLY
    outer_lr: StepRule = eqx.field(converter=step_rule)
    inner_lr: StepRule = eqx.field(converter=step_rule)
    local_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)
    order: AbstractOrder = eqx.field(default_factory=Simultaneous)

    def __check_init__(self):
        local.check_fields(self)
        check_keeping(self.name, self.clients, self.outer_lr, self.inner_lr)

    def check(self, problem: Minimax, n_clients: int) -> None:
        """Raise unless the problem is minimax and the settings fit the clients."""
        check_kind(self, problem, Minimax)
        local.check_fields(self, n_clients)
        self.clients.check(n_clients)

    def init(self, problem: Minimax, x: Tree, y: Tree) -> SaddleState:
        """The given iterates; no optimiser has taken a step."""
        return SaddleState(x, y, kept_opts((self.outer_lr, self.inner_lr), (x, y)))

    def round(
        self, fed: AbstractFederation, problem: Minimax, state: SaddleState, key: Key
    ) -> SaddleState:
        """One exchange."""
        who, local_key = jax.random.split(key)
        cohort = fed.sample(self.clients, who)
        x, y = fed.broadcast(cohort, state.x, state.y)  # -------------------- down  x, y
        how, kept = {"key": local_key, "problem": problem, "algorithm": self}, state.opts
        both, kept = local.map_steps(fed, cohort, kept, saddle_steps, x, y, **how)
        with fed.outer():
            x, y = fed.mean(both, around=(x, y))  # -------------------------- up    x, y
        x, y = projected(problem, "x", x), projected(problem, "y", y)
        return SaddleState(x, y, kept)

    def solution(self, state: SaddleState) -> tuple[Tree, Tree]:
        """(x, y)."""
        return state.x, state.y


def saddle_steps(
    client: Client,
    x: Tree,
    y: Tree,
    kept: tuple[Tree, Tree] | None = None,
    *,
    problem: Minimax,
    algorithm: FedAvgS,
    round: Count,
) -> tuple[tuple[Tree, Tree], tuple[Tree, ...]]:
    """The client's pair after its local steps, and what it keeps."""
    steps = local.steps_of(client, algorithm.local_steps)
    rules = algorithm.outer_lr, algorithm.inner_lr

    def step(nu, carry):
        (x, y), (x_opt, y_opt) = carry
        x, y = projected(problem, "x", x), projected(problem, "y", y)
        key = jax.random.fold_in(client.key, nu)
        sample = client.draw(problem.split, algorithm.batch_size, key)
        back_y = ascent_field(problem, (x, y), sample)
        new_y, y_opt = move(rules[1], back_y, y_opt, y, round, steps)
        f_x = problem.grad_x(x, algorithm.order(y, projected(problem, "y", new_y)), sample)
        x, x_opt = move(rules[0], f_x, x_opt, x, round, steps)
        return (x, new_y), (x_opt, y_opt)

    first = (x, y), starting_opts(rules, (x, y), kept)
    most = local.most_steps(algorithm.local_steps)
    pair, opts = client.repeat(steps, step, first, most=most)
    return pair, opts_to_keep(rules, opts)
