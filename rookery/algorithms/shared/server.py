"""Steps that the server takes, along means of what the clients send."""

import dataclasses
from dataclasses import KW_ONLY

import equinox as eqx
import jax

from rookery.algorithms.shared import levels
from rookery.algorithms.shared.auto import Curvature, DoG
from rookery.algorithms.shared.context import Context
from rookery.algorithms.shared.levels import TwoLevel
from rookery.algorithms.shared.step_rule import (
    StepRule,
    check_curvature,
    check_no_curvature,
    check_step_rule,
    first_opt,
    inner_rule,
    move,
    step_rule,
)
from rookery.algorithms.shared.two_level import AbstractHypergradient, AbstractInner, AbstractOuter
from rookery.problem.constraints import projected
from rookery.program.federation import Client
from rookery.types import BatchSize, Key, Tree


def mean_inner_gradient(context: Context, x: Tree, y: Tree, key: Key) -> Tree:
    """One exchange: the mean inner gradient q at (x, y) over a fresh cohort."""
    who, sample_key = jax.random.split(key)
    cohort = context.sample(who)
    x, y = context.fed.broadcast(cohort, x, y)  # ---------------------------- down  x, y
    q_i = context.map(inner_gradient, x, y, key=sample_key)
    return context.fed.mean(q_i)  # ------------------------------------------ up    q


def inner_gradient(
    client: Client, x: Tree, y: Tree, *, problem: TwoLevel, batch_size: BatchSize
) -> Tree:
    """q_i = G_i(y; ζ)."""
    sample = client.draw(levels.inner_split(problem), batch_size, client.key)
    return levels.inner_gradient(problem, x, y, sample)


class ServerSGD(AbstractInner):
    """One exchange gives the mean inner gradient, and the server takes one step.

    Args:
        lr: β, the step rule.

    >>> ServerSGD(lr=0.1).lr
    0.1
    """

    _: KW_ONLY
    lr: StepRule = eqx.field(converter=inner_rule, default_factory=Curvature)

    def __check_init__(self):
        check_step_rule("ServerSGD.lr", self.lr, may_be_auto=True)
        check_curvature("ServerSGD.lr", self.lr)

    @property
    def rule(self):
        """β."""
        return self.lr

    def first_opt(self, y):
        """The optimiser's state, if there is one."""
        return first_opt(self.lr, y)

    def __call__(self, context, x, y, opt, key):
        """The inner variable y after one step, and the optimiser's state."""
        q = mean_inner_gradient(context, x, y, key)
        y, opt = move(self.lr, q, opt, y, context.fed.round)
        return projected(context.problem, "y", y), opt

    def check(self, n_clients):
        """Always fits."""


class ServerStep(AbstractOuter):
    """The server takes one step  x - α h.

    It costs what the estimate of h costs.

    Args:
        lr: α, the step rule.
        hypergradient: the estimator of h: :class:`PHE` or :class:`PHESum`, or an adjoint
            (:class:`FedIHGP`, :class:`FedIHGPSum`, :class:`FederatedCG`), which costs one exchange
            more to become a hypergradient.

    >>> import rookery as rk
    >>> ServerStep(lr=0.1, hypergradient=rk.parts.PHE(terms=3)).lr
    0.1
    """

    _: KW_ONLY
    lr: StepRule = eqx.field(converter=step_rule, default_factory=DoG)
    hypergradient: AbstractHypergradient

    def __check_init__(self):
        check_step_rule("ServerStep.lr", self.lr, may_be_auto=True)
        check_no_curvature("ServerStep", "lr", self.lr)

    def first_opt(self, x):
        """The optimiser's state, if there is one."""
        return first_opt(self.lr, x)

    def __call__(self, context, state, key):
        """The state with the x of one step."""
        h, L, memory = self.hypergradient.from_memory(context, state, key)
        x, opt = move(self.lr, h, state.opts.outer, state.x, context.fed.round)
        x = projected(context.problem, "x", x)
        opts = state.opts._replace(outer=opt, adjoint=memory)
        return state._replace(x=x, lipschitz=L, opts=opts)

    def first_memory(self, y):
        """What the estimator remembers."""
        return self.hypergradient.first_memory(y)

    def with_lipschitz(self, L):
        """The part whose estimator has a measured L."""
        return dataclasses.replace(self, hypergradient=self.hypergradient.with_lipschitz(L))

    def check(self, problem, n_clients):
        """The estimator must fit."""
        self.hypergradient.check(problem, n_clients)


class FrozenOuter(AbstractOuter):
    """Leaves x as it is, so that the inner problem alone is solved; it costs nothing.

    >>> FrozenOuter()
    FrozenOuter()
    """

    def first_opt(self, x):
        """Nothing."""
        return ()

    def __call__(self, context, state, key):
        """The same state."""
        return state

    def check(self, problem, n_clients):
        """Always fits."""
