"""AFBO: anarchic federated bilevel optimisation, whose clients work when and as long as they like.

D. Li, Y. Zhu, X. Gong, S. Mao, Y. Zhou. Anarchic federated bilevel optimization. WiOpt 2024.

    paper       code                        meaning
    x, y        x, y                        outer and inner variable
    η, β        outer_lr, inner_lr          step rules of the server
    K^t         inner_rounds                inner steps of the server per round
    E_i         inner_steps                 local iterations of a job, given or random
    -           local_lr                    rule of the local iterations; 0: all at one point
    G_i, H_i    inner, outer (results)      the latest averaged gradient and hypergradient piece
    ρ, τ        inner_ and outer_staleness  largest staleness, here 0 for a fresh result (theirs: 1)
    U           aphe.terms                  hops of APHE
    ℓ_g,1       aphe.lipschitz              largest eigenvalue of the inner Hessian
    -           v                           the adjoint

The server never waits for the slowest client. It steps when half of the clients have delivered and
no result would exceed the staleness bound, along the mean of all clients' latest results; only the
clients that delivered are sent the new values.

The adjoint, which the paper estimates by hops (APHE), is by default a variable that moves with y
(:mod:`rookery.algorithms.afbo.running`): the limit is then exact, whatever the delays, and no
exchange is synchronous. The paper's forms have hops. They converge to a biased point where clients
differ (ActiveHessians, LocalHessians, APHEPaper), or wait for all clients at every hop
(StaleHessians).

    aphe            hessians                cost of a round in exchanges
    RunningAdjoint  -                       K + 1
    APHESum         Active-, StaleHessians  K + U + 2, and one more in a round that estimates L
    APHEPaper       the same                the same
    APHERandom      the same                K + N' + 2, and one more in a round that estimates L
    any with hops   LocalHessians           K + 1

Departures from the paper: no hops unless ``aphe`` has them; then, a sum where algorithm 2 has one
product of fixed length, which recovers less than 1/e of the inverse Hessian; hops are answered by
the clients that have just delivered, since no server has the stale Hessians of all; U is 5 unless
given, not the number of clients. The outer step uses the newest y; before its first steps the
server waits for every client, so that it has a result of each to average.
"""

from dataclasses import KW_ONLY
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.afbo import running
from rookery.algorithms.afbo.aphe import AbstractAPHE
from rookery.algorithms.afbo.hessians import AbstractHessians, ActiveHessians, LocalHessians, Point
from rookery.algorithms.afbo.running import Lag, Measured, RunningAdjoint
from rookery.algorithms.shared import local
from rookery.algorithms.shared.adjoint import own_piece
from rookery.algorithms.shared.auto import AutoOpt, Curvature, DoG
from rookery.algorithms.shared.lipschitz import own_lipschitz
from rookery.algorithms.shared.step_rule import (
    StepRule,
    check_step_rule,
    first_opt,
    inner_rule,
    is_auto,
    move,
    step_rule,
)
from rookery.algorithms.shared.system import LocalSystem
from rookery.algorithms.shared.two_level import REMEDY, Opts
from rookery.problem.bilevel import Bilevel
from rookery.problem.constraints import projected, projection
from rookery.program.algorithm import PolledAlgorithm, check_kind
from rookery.program.federation import AbstractFederation, Client
from rookery.program.polling import InFlight, PollRules
from rookery.types import BatchSize, Key, Tree


class AFBOState(NamedTuple):
    """The iterates, L, the means of all clients' latest results, and the jobs that bring them.

    ``opts`` are the states of the server's rules. ``v``, a running adjoint, is empty with hops;
    ``lag``, what the server keeps to find the sizes of y, where its steps are given.
    """

    x: Tree
    y: Tree
    lipschitz: jax.Array
    g: Tree
    h: Tree
    inner: InFlight
    outer: InFlight
    opts: Opts = Opts()
    v: Tree = ()
    lag: Lag | tuple[()] = ()


class AFBO(PolledAlgorithm):
    """Steps of the server along the mean of all clients' latest results, however old.

    >>> import rookery as rk
    >>> afbo = rk.AFBO(outer_lr=0.05, inner_lr=0.1, inner_steps=rk.parts.RandomSteps(1, 5))
    >>> afbo.aphe == rk.parts.RunningAdjoint()
    True

    Args:
        outer_lr: η, the server's step rule of x.
        inner_lr: β, that of y, and of a running adjoint. :class:`Curvature` is 1 / L less what y
            has stepped since clients read it (:mod:`rookery.algorithms.afbo.running`). With hops it
            is 1 / (2 L) with their L, half as much as elsewhere since results are old; y then rests
            in round 0, whose hops estimate L.
        inner_rounds: K, inner steps of the server per round.
        aphe: how the adjoint is estimated: without hops and exactly by :class:`RunningAdjoint`;
            with hops, as in the paper, by :class:`APHESum`, :class:`APHERandom`,
            :class:`APHEPaper`.
        hessians: whose Hessians the hops use: :class:`ActiveHessians`, :class:`StaleHessians`,
            :class:`LocalHessians`; None means the first. A running adjoint takes none.
        inner_steps: E_i, one number, one per client, or :class:`RandomSteps`, drawn for each job.
        local_lr: rule of the local iterations; no schedule, since a job spans several rounds. With
            0 all gradients of a job are at the values received; otherwise unequal numbers of
            iterations, or clients that differ, move the limit. None is 0 with a running adjoint and
            where ``inner_lr`` finds its size, and with hops ``inner_lr``, reset in every job.
        first_wait_for: how many results the server waits for before its first steps; None means one
            from every client. A result that has not arrived by then counts as zero.
        inner_staleness: the largest staleness of an inner result, in inner steps of the server;
            None is no bound.
        outer_staleness: the same of an outer result, in rounds.
    """

    projects: ClassVar[bool] = True

    _: KW_ONLY
    outer_lr: StepRule = eqx.field(converter=step_rule, default_factory=DoG)
    inner_lr: StepRule = eqx.field(converter=inner_rule, default_factory=Curvature)
    inner_rounds: int = 1
    aphe: AbstractAPHE | RunningAdjoint = eqx.field(default_factory=RunningAdjoint)
    hessians: AbstractHessians | None = None
    inner_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)
    local_lr: StepRule | None = eqx.field(converter=step_rule, default=None)
    first_wait_for: int | None = None
    inner_staleness: int | None = 9
    outer_staleness: int | None = 9

    def __check_init__(self):
        how = {"may_be_drawn": True, "may_be_auto": True}
        local.check_fields(self, place="server", except_for=("local_lr",), **how)
        check.count("inner_rounds", self.inner_rounds)
        if isinstance(self.aphe, RunningAdjoint) and self.hessians is not None:
            raise ValueError(
                f"hessians={self.hessians} says whose Hessians answer hops, and RunningAdjoint has "
                "none. Leave hessians out, or give the hops: aphe=APHESum()."
            )
        if is_auto(self.inner_lr) and isinstance(self.hessians, LocalHessians):
            raise ValueError(
                "inner_lr is found from the L of the hops, and LocalHessians has none. Give a "
                "number, or use ActiveHessians."
            )
        if self.local_lr is None and self._starts_only:
            pass  # no local step is taken
        elif self.local_lr is None:
            check_step_rule("local_lr, which is inner_lr if not given,", self.inner_lr, "job")
        elif isinstance(self.local_lr, float):
            check.not_negative("local_lr", self.local_lr)
        else:
            check_step_rule("local_lr", self.local_lr, "job")
        if self.first_wait_for is not None:
            check.count("first_wait_for", self.first_wait_for)
        for name in ("inner_staleness", "outer_staleness"):
            if getattr(self, name) is not None:
                check.count(name, getattr(self, name), least=0)

    def check(self, problem: Bilevel, n_clients: int) -> None:
        """Raise unless the problem is bilevel and the settings fit the clients."""
        check_kind(self, problem, Bilevel)
        but = ("local_lr",)
        how = {"may_be_drawn": True, "may_be_auto": True}
        local.check_fields(self, n_clients, place="server", except_for=but, **how)
        self._rules(n_clients, None).check(n_clients)

    def init(self, problem: Bilevel, x: Tree, y: Tree) -> AFBOState:
        """The given iterates; no result has arrived, no job has started."""
        g, h = tree.zeros_like(y), tree.zeros_like(x)
        L = jnp.zeros((), jnp.result_type(*jax.tree.leaves(y)))
        x_opt = first_opt(self.outer_lr, x)
        outer = self._hessians.jobs(x, y)
        if not isinstance(self.aphe, RunningAdjoint):
            opts = Opts(first_opt(self.inner_lr, y), x_opt)
            return AFBOState(x, y, L, g, h, InFlight.of("inner", (x, y), g), outer, opts)
        rules = self.inner_rules
        is_x_found = isinstance(self.outer_lr, DoG)
        v, results = tree.zeros_like(y), running.first_results(rules, y, is_x_found=is_x_found)
        y_opt, v_opt = rules.first_opts(y)
        opts = Opts(y_opt, x_opt, v_opt)
        if not isinstance(results.measured, Measured):
            inner = InFlight.of("inner", (x, y, v), results)
            return AFBOState(x, y, L, results, h, inner, outer, opts, v)
        inner = InFlight.of("inner", (x, y, v, (jnp.array(False), results.measured)), results)
        return AFBOState(x, y, L, results, h, inner, outer, opts, v, running.first_lag(y))

    def round(
        self, fed: AbstractFederation, problem: Bilevel, state: AFBOState, key: Key
    ) -> AFBOState:
        """K inner steps, then an outer one."""
        if isinstance(self.aphe, RunningAdjoint):
            return self._round_without_hops(fed, problem, state, key)
        return self._round_with_hops(fed, problem, state, key, self.aphe)

    def _round_without_hops(
        self, fed: AbstractFederation, problem: Bilevel, state: AFBOState, key: Key
    ) -> AFBOState:
        """K inner steps of y and v at once, then an outer one, all of them from polls."""
        x, _, _, _, h, _, outer, opts, *_ = state
        inner_key, outer_key = jax.random.split(key)
        rules, wait_for = self.inner_rules, self.results_needed(fed.n_clients)
        inner_rules = self._rules(fed.n_clients, self.inner_staleness)
        outer_rules = self._rules(fed.n_clients, self.outer_staleness)
        settings = {"problem": problem, "algorithm": self}

        def inner_step(k, carry):
            y, v, L, g, jobs, lag, opts = carry
            arrived = fed.poll(
                jobs,
                inner_iterations_with_residuals,
                x,
                y,
                v,
                *running.orders(rules, jobs),
                rules=inner_rules,
                key=jax.random.fold_in(inner_key, k),
                settings=settings,
            )  # -------------------------------------------------- down  x, y, v  up  G_i, R_i
            jobs = arrived.jobs
            g = running.summed_again(fed, tree.add(g, arrived.change), jobs, wait_for)
            if isinstance(lag, Lag):
                L, opts, lag = running.sized(fed, rules, opts, g, jobs, lag)
            y, y_opt = move(rules.y, g.g, opts[0], y, fed.round)
            v, v_opt = move(rules.v, g.r, opts[1], v, fed.round)
            return projected(problem, "y", y), v, L, g, jobs, lag, (y_opt, v_opt)

        first = state.y, state.v, state.lipschitz, state.g, state.inner, state.lag
        y, v, L, g, inner, lag, (y_opt, v_opt) = fed.repeat(
            self.inner_rounds, inner_step, (*first, (opts.inner, opts.adjoint))
        )
        here = {"problem": problem, "batch_size": self.batch_size}
        arrived = fed.poll(
            outer, piece, (x, y), v, rules=outer_rules, key=outer_key, settings=here
        )  # -------------------------------------------------------- down  x, y, v  up  H_i
        h = running.summed_again(fed, tree.add(h, arrived.change), arrived.jobs, wait_for)
        x_opt = opts.outer
        if isinstance(g.measured, Measured) and isinstance(self.outer_lr, DoG):
            x_opt = self.outer_lr.renewed(x_opt, g.measured.outer)
        moved, x_opt = move(self.outer_lr, h, x_opt, x, fed.round)
        x = projected(problem, "x", moved)
        opts = Opts(y_opt, x_opt, v_opt)
        return AFBOState(x, y, L, g, h, inner, arrived.jobs, opts, v, lag)

    def _round_with_hops(
        self,
        fed: AbstractFederation,
        problem: Bilevel,
        state: AFBOState,
        key: Key,
        aphe: AbstractAPHE,
    ) -> AFBOState:
        """K inner steps, then the adjoint by hops (algorithm 2) and an outer step."""
        x, y, L, g, h, inner, outer, (y_opt, x_opt, _), *_ = state
        inner_key, outer_key = jax.random.split(key)
        if isinstance(self.inner_lr, Curvature):
            y_opt = _sized(y_opt, L)
        inner_rules = self._rules(fed.n_clients, self.inner_staleness)
        outer_rules = self._rules(fed.n_clients, self.outer_staleness)

        def inner_step(k, carry):
            (y, opt), g, jobs = carry
            key = jax.random.fold_in(inner_key, k)
            settings = {"problem": problem, "algorithm": self}
            arrived = fed.poll(
                jobs, inner_iterations, x, y, rules=inner_rules, key=key, settings=settings
            )
            g = tree.add(g, arrived.change)  # ------------------------------ down  x, y  up  G_i
            return move(self.inner_lr, g, opt, y, fed.round), g, arrived.jobs

        (y, y_opt), g, inner = fed.repeat(self.inner_rounds, inner_step, ((y, y_opt), g, inner))

        # algorithm 2: the adjoint v by hops, then each client's piece of the hypergradient
        here = {"problem": problem, "batch_size": self.batch_size}
        system = self._hessians.system(fed, problem, self.batch_size, (x, y), outer)
        if system is None:
            here |= {"aphe": aphe}
            arrived = fed.poll(
                outer, local_piece, (x, y), rules=outer_rules, key=outer_key, settings=here
            )  # ------------------------------------------------------------ down  x, y  up  H_i
        else:
            L_key, chain_key, job_key = jax.random.split(outer_key, 3)
            L = system.lipschitz(aphe.lipschitz, L, L_key)
            v = aphe.solve(system, L, chain_key)  # -------------------- down  p  up  g_yy p
            arrived = fed.poll(
                outer, piece, system.point, v, rules=outer_rules, key=job_key, settings=here
            )  # ------------------------------------------------------------ down  v  up  H_i

        h = tree.add(h, arrived.change)
        x, x_opt = move(self.outer_lr, h, x_opt, x, fed.round)
        x = projected(problem, "x", x)
        return AFBOState(x, y, L, g, h, inner, arrived.jobs, Opts(y_opt, x_opt))

    def solution(self, state: AFBOState) -> tuple[Tree, Tree]:
        """(x, y)."""
        return state.x, state.y

    def remedy(self) -> str:
        """A smaller step, or a larger L."""
        return REMEDY

    @property
    def _hessians(self) -> AbstractHessians:
        """Those of the hops; where there are none, they give the outer jobs their form."""
        return ActiveHessians() if self.hessians is None else self.hessians

    @property
    def _starts_only(self) -> bool:
        """Whether all gradients of a job are at the values received unless ``local_lr`` is set."""
        return is_auto(self.inner_lr) or isinstance(self.aphe, RunningAdjoint)

    @property
    def inner_rules(self) -> running.Rules:
        """The step rules of y and of a running adjoint."""
        own = self.aphe.lr if isinstance(self.aphe, RunningAdjoint) else None
        return running.Rules(self.inner_lr, self.inner_lr if own is None else own)

    def local_rule(self) -> StepRule:
        """The rule of the local iterations."""
        if self.local_lr is not None:
            return 0.0 if is_auto(self.local_lr) else self.local_lr
        return 0.0 if self._starts_only else self.inner_lr

    def _rules(self, n_clients: int, staleness: int | None) -> PollRules:
        """When the server stops waiting."""
        first = self.first_wait_for or n_clients
        return PollRules(self.results_needed(n_clients), first, staleness)


def _sized(opt: AutoOpt, L: jax.Array) -> AutoOpt:
    """Half the inverse of L; zero as long as L is not known."""
    known = jnp.where(L > 0, L, jnp.ones_like(L))
    return opt._replace(size=jnp.where(L > 0, 0.5 / known, jnp.zeros_like(L)))


def inner_iterations(
    client: Client, x: Tree, y: Tree, *, problem: Bilevel, algorithm: AFBO
) -> Tree:
    """G_i, the mean of the gradients along the client's local iterations from y."""

    def gradient(y, key):
        sample = client.draw(problem.inner_split, algorithm.batch_size, key)
        return problem.inner_grad_y(x, y, sample)

    rule, steps, project = algorithm.local_rule(), algorithm.inner_steps, projection(problem, "y")
    return local.mean_gradient(client, gradient, y, rule, steps, project=project)


def inner_iterations_with_residuals(
    client: Client, x: Tree, y: Tree, v: Tree, *orders: Tree, problem: Bilevel, algorithm: AFBO
) -> running.Results:
    """G_i and R_i, the means of  g_y  and  g_yy v - f_y  along the client's local iterations.

    ``orders`` are for the client's own curvature; empty if no size is found.
    """

    def directions(at, key):
        y, v = at
        outer_key, inner_key = jax.random.split(key)
        outer = client.draw(problem.outer_split, algorithm.batch_size, outer_key)
        inner = client.draw(problem.inner_split, algorithm.batch_size, inner_key)
        r = tree.sub(problem.inner_hvp(x, y, v, inner), problem.outer_grad_y(x, y, outer))
        return problem.inner_grad_y(x, y, inner), r

    project_y = projection(problem, "y")

    def project(at):
        return project_y(at[0]), at[1]

    rule, steps = algorithm.local_rule(), algorithm.inner_steps
    g, r = local.mean_gradient(client, directions, (y, v), rule, steps, project=project)
    measured = ()
    if orders:
        curvature = algorithm.inner_rules.measured
        assert curvature is not None
        is_due, known = orders[0]
        how = {"batch_size": algorithm.batch_size, "iterations": curvature.iterations}
        measured = running.measured_curvature(client, problem, x, y, v, is_due, known, **how)
    return running.Results(g, r, measured)


def piece(
    client: Client, point: Point, v: Tree, *, problem: Bilevel, batch_size: BatchSize
) -> Tree:
    """H_i = f_x(x, y; ξ) - g_xy(x, y; ζ) v."""
    return own_piece(LocalSystem(client, problem, *point, batch_size), v, client.key)


def local_piece(
    client: Client,
    point: Point,
    *,
    problem: Bilevel,
    batch_size: BatchSize,
    aphe: AbstractAPHE,
) -> Tree:
    """H_i with the client's own adjoint."""
    L_key, chain_key, piece_key = jax.random.split(client.key, 3)
    at = LocalSystem(client, problem, *point, batch_size)
    L = own_lipschitz(at, aphe.lipschitz, L_key)
    v = aphe.solve(at, L, chain_key)
    return own_piece(at, v, piece_key)
