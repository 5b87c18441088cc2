"""AFBO: anarchic federated bilevel optimisation, whose clients work when and as long as they like.

D. Li, Y. Zhu, X. Gong, S. Mao, Y. Zhou. Anarchic federated bilevel optimization. WiOpt 2024.

    paper       code                        meaning
    x, y        x, y                        outer and inner variable
    η, β        outer_lr, inner_lr          step sizes of the server
    K^t         inner_rounds                inner steps of the server per round
    E_i         inner_steps                 local iterations of a job, given or random
    -           local_lr                  step size of the local iterations; 0: all at one point
    G_i, H_i    inner, outer (results)      the latest averaged gradient and hypergradient piece
    ρ, τ        inner_ and outer_staleness  largest staleness, here 0 for a fresh result (theirs: 1)
    U           aphe.terms                  hops of APHE
    ℓ_g,1       aphe.lipschitz              largest eigenvalue of the inner Hessian

The server never waits for the slowest. It goes on when half of the clients have delivered and none
is staler than the bound, along the mean of all clients' latest results; only those who delivered
are sent the new values.

Cost of a round: K + U + 2 exchanges with APHESum and APHEPaper, K + N' + 2 with APHERandom, K + 1
with LocalHessians, and one more in a round that estimates L. Departures from the paper: a sum where
algorithm 2 has one product of fixed length, which recovers less than 1/e of the inverse Hessian;
hops are answered by the clients that just delivered, since no server has the stale Hessians of all;
y is the newest in the outer step; before its first steps the server waits for everyone, so that
there is something of each client to average.
"""

from dataclasses import KW_ONLY
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.afbo.aphe import AbstractAPHE, APHESum
from rookery.algorithms.afbo.hessians import AbstractHessians, ActiveHessians
from rookery.algorithms.shared import local
from rookery.algorithms.shared.two_level import REMEDY
from rookery.problem.bilevel import Bilevel
from rookery.program.algorithm import AbstractAlgorithm
from rookery.program.federation import AbstractFederation, Client
from rookery.program.polling import InFlight, PollRules
from rookery.types import Key, Tree


class AFBOState(NamedTuple):
    """The iterates, L, the means of all clients' latest results, and the jobs that bring them."""

    x: Tree
    y: Tree
    lipschitz: jax.Array
    g: Tree
    h: Tree
    inner: InFlight
    outer: InFlight


class AFBO(AbstractAlgorithm):
    """Steps of the server along the mean of all clients' latest results, however old.

    Args:
        outer_lr: η.
        inner_lr: β.
        inner_rounds: K.
        aphe: how the adjoint is estimated: :class:`APHESum`, :class:`APHERandom`,
            :class:`APHEPaper`.
        hessians: whose Hessians its hops meet: :class:`ActiveHessians`, :class:`StaleHessians`,
            :class:`LocalHessians`.
        inner_steps: E_i, one number, one per client, or :class:`RandomSteps`, drawn for each job.
        local_lr: step size of the local iterations; None is ``inner_lr``, and 0 takes all their
            gradients at the values received.
        wait_for: how many results the server waits for at least; None is half of the clients.
        first_wait_for: the same before its first steps; None is everyone. What has not come then
            counts as zero.
        inner_staleness: the largest of an inner result, in inner steps of the server; None is any.
        outer_staleness: the largest of an outer result, in rounds; None is any.
        batch_size: rows per evaluation on a client; None is all.
    """

    _: KW_ONLY
    outer_lr: float = eqx.field(converter=local.number)
    inner_lr: float = eqx.field(converter=local.number)
    inner_rounds: int = 1
    aphe: AbstractAPHE = eqx.field(default_factory=APHESum)
    hessians: AbstractHessians = eqx.field(default_factory=ActiveHessians)
    inner_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)
    local_lr: float | None = eqx.field(converter=local.number, default=None)
    wait_for: int | None = None
    first_wait_for: int | None = None
    inner_staleness: int | None = 9
    outer_staleness: int | None = 9
    batch_size: int | None = None

    def __check_init__(self):
        local.check_fields(self, may_be_drawn=True, except_for=("local_lr",))
        check.count("inner_rounds", self.inner_rounds)
        if self.local_lr is not None:
            check.not_negative("local_lr", self.local_lr)
        for name in ("wait_for", "first_wait_for", "batch_size"):
            if getattr(self, name) is not None:
                check.count(name, getattr(self, name))
        for name in ("inner_staleness", "outer_staleness"):
            if getattr(self, name) is not None:
                check.count(name, getattr(self, name), least=0)

    def check(self, problem: Bilevel, n_clients: int) -> None:
        """Raise unless the problem is bilevel and there are as many clients as are waited for."""
        if not isinstance(problem, Bilevel):
            raise TypeError(
                f"{type(self).__name__} solves Bilevel problems, got {type(problem).__name__}."
            )
        local.check_fields(self, n_clients, may_be_drawn=True, except_for=("local_lr",))
        for name in ("wait_for", "first_wait_for"):
            if (getattr(self, name) or 1) > n_clients:
                raise ValueError(
                    f"{name}={getattr(self, name)} results cannot come from {n_clients} clients."
                )

    def init(self, problem: Bilevel, x: Tree, y: Tree) -> AFBOState:
        """The given iterates; no result has been delivered, no job begun."""
        g, h = tree.zeros_like(y), tree.zeros_like(x)
        L = jnp.zeros((), jnp.result_type(*jax.tree.leaves(y)))
        return AFBOState(x, y, L, g, h, InFlight.of("inner", (x, y), g), self.hessians.jobs(x, y))

    def round(
        self, fed: AbstractFederation, problem: Bilevel, state: AFBOState, key: Key
    ) -> AFBOState:
        """K inner steps, then an outer one."""
        x, y, L, g, h, inner, outer = state
        inner_key, outer_key = jax.random.split(key)
        settings = {"problem": problem, "algorithm": self}
        inner_rules = self._rules(fed.n_clients, self.inner_staleness)
        outer_rules = self._rules(fed.n_clients, self.outer_staleness)

        def inner_step(k, carry):
            y, g, jobs = carry
            key = jax.random.fold_in(inner_key, k)
            news = fed.poll(
                jobs, inner_iterations, x, y, rules=inner_rules, key=key, settings=settings
            )
            g = tree.add(g, news.change)  # --------------------------------- down  x, y  up  G_i
            return tree.axpy(-self.inner_lr, g, y), g, news.jobs

        y, g, inner = fed.repeat(self.inner_rounds, inner_step, (y, g, inner))
        news, L = self.hessians.poll(
            fed, problem, outer, self.aphe, x, y, L, self.batch_size, outer_key, outer_rules
        )
        h = tree.add(h, news.change)
        x = tree.axpy(-self.outer_lr, h, x)
        return AFBOState(x, y, L, g, h, inner, news.jobs)

    def solution(self, state: AFBOState) -> tuple[Tree, Tree]:
        """(x, y)."""
        return state.x, state.y

    def remedy(self) -> str:
        """A smaller step, or a larger L."""
        return REMEDY

    def _rules(self, n_clients: int, staleness: int | None) -> PollRules:
        """When the server stops waiting."""
        return PollRules(
            wait_for=self.wait_for or -(-n_clients // 2),
            first_wait_for=self.first_wait_for or n_clients,
            staleness=staleness,
        )


def inner_iterations(
    client: Client, x: Tree, y: Tree, *, problem: Bilevel, algorithm: AFBO
) -> Tree:
    """G_i, the mean of the gradients along the client's local iterations from y."""
    count_key, key = jax.random.split(client.key)
    steps = local.steps_of(client, algorithm.inner_steps, count_key)
    size = algorithm.inner_lr if algorithm.local_lr is None else algorithm.local_lr

    def iteration(e, carry):
        y_i, total = carry
        sample = client.draw(problem.inner_split, algorithm.batch_size, jax.random.fold_in(key, e))
        g = problem.inner_grad_y(x, y_i, sample)
        return tree.axpy(-size, g, y_i), tree.add(total, g)

    _, total = client.repeat(steps, iteration, (y, tree.zeros_like(y)))
    return tree.scale(1 / jnp.asarray(steps).astype(float), total)
