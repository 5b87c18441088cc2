"""AFL: anarchic federated learning, and its use on bilevel problems, each client on its own.

H. Yang, X. Zhang, P. Khanduri, J. Liu. Anarchic federated learning. ICML 2022, arXiv:2108.09875.

    paper   code                        meaning
    x       w; y, and x                 what is learnt; on bilevel problems the inner and the outer
    η       server_lr; inner_lr, outer_lr   step rules of the server
    K_i     local_steps; inner_steps    local steps of a job, given or random
    η_L     lr; local_lr              their rule
    G_i     jobs.results                a job's mean gradient, whatever the number of its steps
    m       wait_for                    results that the server waits for
    τ       staleness                   largest staleness, 0 for a fresh result

A client starts whenever it likes with the current model, takes as many local steps as it likes and
returns the mean of their gradients. AFA-CD steps along the mean of the results that have just
arrived, so a client counts as often as it delivers: with heterogeneous clients it converges to a
point biased towards the fast ones. AFA-CS keeps the latest result of every client and steps along
the mean of all; with one local step each it converges to the minimiser, however unequal the delays.

Cost of a round of either: 1 exchange, w down to the clients that start a job and G_i up from those
that deliver. Departures from the paper: clients count by their weights; results that finish at the
same moment arrive together, so there may be more than ``wait_for``; before its first step the
server of AFA-CS waits for every client. The pseudo-code is reconstructed from the idea of the
paper.

Anarchic papers compare with AFL on bilevel problems and do not say how. Here, in
:func:`AFLBilevel`, AFA-CS learns y along inner gradients and x along every client's own
hypergradient  f_x - g_xy [g_yy]^{-1} f_y,  by a Neumann series on the client. The mean of these is
not the hypergradient of the means, so with heterogeneous clients it converges to a biased point.
Cost of a round: K + 1 exchanges. It is :class:`AFBO` with :class:`LocalHessians`.
"""

import abc
from dataclasses import KW_ONLY
from typing import ClassVar, Literal, NamedTuple

import equinox as eqx

from rookery import check, tree
from rookery.algorithms.afbo.afbo import AFBO
from rookery.algorithms.afbo.aphe import AbstractAPHE, APHESum
from rookery.algorithms.afbo.hessians import LocalHessians
from rookery.algorithms.shared import local
from rookery.algorithms.shared.async_model import AbstractAsyncModel, AsyncModelState
from rookery.algorithms.shared.step_rule import (
    StepRule,
    first_opt,
    move,
    move_by_sum,
    step_rule,
)
from rookery.problem.constraints import projected, projection
from rookery.problem.single_level import SingleLevel
from rookery.program.algorithm import PolledAlgorithm, check_kind
from rookery.program.federation import AbstractFederation, Client
from rookery.program.polling import InFlight, PollRules
from rookery.types import BatchSize, Key, Tree


class AFACSState(NamedTuple):
    """The model, the mean of all clients' latest results, the jobs that bring them, and opt.

    The last is the state of the server's rule.
    """

    w: Tree
    g: Tree
    jobs: InFlight
    opt: Tree = ()


class AbstractAFA(PolledAlgorithm):
    """Jobs of local steps; the server's step, a subclass says.

    Args:
        lr: η_L, the rule of every local step, or a size for a whole job (:class:`PerCall`); no
            schedule, since a job spans several rounds. An optimiser is reset in every job, and
            only decides where the gradients of a job are taken.
        server_lr: η, the step rule of the server.
        local_steps: K_i, one number, one per client, or :class:`RandomSteps`, drawn for each job.
        staleness: the largest staleness of a result, in steps of the server; None means no bound.
    """

    projects: ClassVar[bool] = True

    _: KW_ONLY
    lr: StepRule = eqx.field(converter=step_rule)
    server_lr: StepRule = eqx.field(converter=step_rule)
    local_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)
    staleness: int | None = None

    def __check_init__(self):
        local.check_fields(self, place="job", may_be_drawn=True)
        if self.staleness is not None:
            check.count("staleness", self.staleness, least=0)

    @abc.abstractmethod
    def rules(self, n_clients: int) -> PollRules:
        """When the server stops waiting."""

    def check(self, problem: SingleLevel, n_clients: int) -> None:
        """Raise unless the problem is single-level and the settings fit the clients."""
        check_kind(self, problem, SingleLevel)
        local.check_fields(self, n_clients, place="job", may_be_drawn=True)
        self.rules(n_clients).check(n_clients)


class AFACD(AbstractAFA, AbstractAsyncModel):
    """AFA-CD: steps of the server along the mean of the results that have just arrived.

    >>> import rookery as rk
    >>> rk.AFACD(lr=0.1, server_lr=0.5, local_steps=rk.parts.RandomSteps(1, 5), wait_for=3).wait_for
    3
    """

    def rules(self, n_clients: int) -> PollRules:
        """When the server stops waiting."""
        return PollRules(self.results_needed(n_clients), staleness=self.staleness)

    def round(
        self, fed: AbstractFederation, problem: SingleLevel, state: AsyncModelState, key: Key
    ) -> AsyncModelState:
        """One step of the server."""
        rules = self.rules(fed.n_clients)
        arrived = self.poll(local_steps, fed, problem, state, rules, key)
        g, n = arrived.sum, arrived.weight  # ------------------------------- down  w  up  G_i
        w, opt = move_by_sum(self.server_lr, g, n, state.opt, state.w, fed.round)
        return AsyncModelState(projected(problem, "w", w), arrived.jobs, opt)


class AFACS(AbstractAFA):
    """AFA-CS: steps of the server along the mean of all clients' latest results, however old.

    >>> import rookery as rk
    >>> rk.AFACS(lr=0.1, server_lr=0.5, local_steps=5, staleness=10).staleness
    10

    Args:
        first_wait_for: how many results the server waits for before its first step; None means one
            from every client. A result that has not arrived by then counts as zero.
    """

    _: KW_ONLY
    first_wait_for: int | None = None

    def __check_init__(self):
        if self.first_wait_for is not None:
            check.count("first_wait_for", self.first_wait_for)

    def rules(self, n_clients: int) -> PollRules:
        """When the server stops waiting."""
        first = self.first_wait_for or n_clients
        return PollRules(self.results_needed(n_clients), first, self.staleness)

    def init(self, problem: SingleLevel, w: Tree) -> AFACSState:
        """The given model; no result has arrived, no job has started."""
        g = tree.zeros_like(w)
        return AFACSState(w, g, InFlight.of("inner", (w,), g), first_opt(self.server_lr, w))

    def round(
        self, fed: AbstractFederation, problem: SingleLevel, state: AFACSState, key: Key
    ) -> AFACSState:
        """One step of the server."""
        w, g, jobs, opt = state
        settings = {"problem": problem, "algorithm": self}
        rules = self.rules(fed.n_clients)
        arrived = fed.poll(jobs, local_steps, w, rules=rules, key=key, settings=settings)
        g = tree.add(g, arrived.change)  # ---------------------------------- down  w  up  G_i
        w, opt = move(self.server_lr, g, opt, w, fed.round)
        w = projected(problem, "w", w)
        return AFACSState(w, g, arrived.jobs, opt)

    def solution(self, state: AFACSState) -> tuple[Tree]:
        """(w,)."""
        return (state.w,)


def local_steps(client: Client, w: Tree, *, problem: SingleLevel, algorithm: AbstractAFA) -> Tree:
    """G_i, the mean of the gradients along the client's local steps from w."""

    def gradient(w, key):
        return problem.gradient(w, client.draw(problem.split, algorithm.batch_size, key))

    rule, steps, project = algorithm.lr, algorithm.local_steps, projection(problem, "w")
    return local.mean_gradient(client, gradient, w, rule, steps, project=project)


def AFLBilevel(
    *,
    outer_lr: StepRule,
    inner_lr: StepRule,
    inner_rounds: int = 1,
    series: AbstractAPHE | None = None,
    inner_steps: local.LocalSteps = 1,
    local_lr: StepRule | None = None,
    wait_for: int | Literal["all"] | None = None,
    first_wait_for: int | None = None,
    inner_staleness: int | None = None,
    outer_staleness: int | None = None,
    batch_size: BatchSize = None,
) -> AFBO:
    """AFA-CS on y, and on x along the clients' own hypergradients.

    The settings are those of :class:`AFBO`, here without bounds on the staleness; ``series`` is how
    a client estimates its own adjoint, AFBO's ``aphe``.

    >>> AFLBilevel(outer_lr=0.05, inner_lr=0.1).hessians
    LocalHessians()
    """
    return AFBO(
        label="AFLBilevel",
        outer_lr=outer_lr,
        inner_lr=inner_lr,
        inner_rounds=inner_rounds,
        aphe=series or APHESum(),
        hessians=LocalHessians(),
        inner_steps=inner_steps,
        local_lr=local_lr,
        wait_for=wait_for,
        first_wait_for=first_wait_for,
        inner_staleness=inner_staleness,
        outer_staleness=outer_staleness,
        batch_size=batch_size,
    )
