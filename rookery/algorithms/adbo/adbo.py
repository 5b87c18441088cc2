"""ADBO and SDBO: bilevel optimisation by consensus and cutting planes, with and without waiting.

Y. Jiao, K. Yang, T. Wu, D. Song, C. Jian. Asynchronous distributed bilevel optimization. ICLR 2023,
arXiv:2212.10048.

    paper           code                            meaning
    x_i, y_i        x, y (results of jobs)          the clients' copies of both variables
    v, z            v, z                            the server's copies: the solution
    θ_i             theta                           multipliers of x_i = v
    η_x, η_y        outer_lr, inner_lr              step sizes of the clients' copies
    η_v, η_z        server_outer_lr, server_inner_lr    of the server's, along sums over clients
    η_θ, η_λ        consensus_lr, cut_lr            of the multipliers of consensus and of cuts
    c_1, c_2        cut_ and consensus_damping      how the multipliers are drawn to zero
    ε               tolerance                       how far clients may be from the inner solution
    K, μ, η_φ       admm                            how the inner solution is estimated
    k_pre, T_1      cut_every, cuts_until           when cuts are made
    M               max_cuts                        how many are kept at most
    S, τ            wait_for, staleness + 1         for whom the server waits

The inner problem becomes the constraint  h(v, {y_i}, z) = Σ_i |y_i - φ_i|^2 + |z - φ_z|^2 <= ε,
where φ(v) is what K rounds of ADMM from (y_i, z) arrive at, and h is replaced by planes that touch
it. A client that is free receives its own rows, takes one step in x_i and y_i down the Lagrangian

    Σ_i f_i(x_i, y_i) + Σ_l λ_l cut_l + Σ_i θ_i·(x_i - v) - c_1/2 Σ_l λ_l^2 - c_2/2 Σ_i |θ_i|^2

and sends both back; then the server moves v and z down, λ and the θ_i of those who delivered up.
Clients remember nothing. A round is one such iteration. With p and q the sizes of x and y, m
clients, B of them beginning a job and S delivering one, it costs

                        exchanges   down                up
    an iteration        1           B (2 p + 2 q)       S (p + q)
    and with a new cut  2 K more    m (p + 3 K q)       m K (p + 2 q)

Everyone answers when a cut is made, also clients that are at work. The cuts join all clients, so a
server's step reads the rows of all.

Departures from the paper: sums over clients are m times their weighted mean, so that weights count
and equal ones change nothing; cuts are kept in a fixed number of slots, and where all are taken by
cuts with λ > 0 the one with the smallest λ makes room; c_1 and c_2 do not fall; the released code
has K = 1, whose h is far from zero at the solution where clients differ.
"""

from dataclasses import KW_ONLY
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.adbo.admm import ADMM, Setting, minus, total
from rookery.algorithms.adbo.cuts import Cuts, linear_part
from rookery.algorithms.shared import local
from rookery.problem.bilevel import Bilevel
from rookery.program.algorithm import AbstractAlgorithm
from rookery.program.federation import AbstractFederation, Client
from rookery.program.memory import PerClient
from rookery.program.participation import Everyone
from rookery.program.polling import InFlight, PollRules
from rookery.types import Key, Tree

REMEDY = (
    "Smaller steps of the server and of ADMM.server_lr are the usual remedy, since they go along "
    "sums over clients; then a smaller cut_lr."
)


class ADBOState(NamedTuple):
    """The server's copies, the multipliers, the cuts; the jobs hold the clients' copies."""

    v: Tree
    z: Tree
    theta: PerClient
    cuts: Cuts
    jobs: InFlight


class ADBO(AbstractAlgorithm):
    """Primal steps on the clients as they come, dual steps on the server, cuts now and then.

    Args:
        outer_lr: η_x.
        inner_lr: η_y.
        server_outer_lr: η_v; None is ``outer_lr``.
        server_inner_lr: η_z; None is ``inner_lr``.
        consensus_lr: η_θ.
        cut_lr: η_λ.
        consensus_damping: c_2.
        cut_damping: c_1.
        tolerance: ε.
        admm: how the inner solution is estimated, with step sizes of its own.
        cut_every: k_pre, iterations from one new cut to the next.
        cuts_until: T_1, the iteration from which on there are no new cuts; None is never.
        max_cuts: M.
        wait_for: S, how many results the server waits for at least; None is half of the clients.
        staleness: the largest of a result, in iterations; None is any.
        batch_size: rows per evaluation on a client; None is all.
    """

    _: KW_ONLY
    outer_lr: float = eqx.field(converter=local.number)
    inner_lr: float = eqx.field(converter=local.number)
    server_outer_lr: float | None = eqx.field(converter=local.number, default=None)
    server_inner_lr: float | None = eqx.field(converter=local.number, default=None)
    consensus_lr: float = eqx.field(converter=local.number, default=1e-3)
    cut_lr: float = eqx.field(converter=local.number, default=0.1)
    consensus_damping: float = eqx.field(converter=local.number, default=2e-3)
    cut_damping: float = eqx.field(converter=local.number, default=0.04)
    tolerance: float = eqx.field(converter=local.number, default=0.0)
    admm: ADMM = eqx.field(default_factory=ADMM)
    cut_every: int = 50
    cuts_until: int | None = None
    max_cuts: int = 10
    wait_for: int | None = None
    staleness: int | None = 14
    batch_size: int | None = None

    def __check_init__(self):
        local.check_fields(self, except_for=("server_outer_lr", "server_inner_lr"))
        for name in ("server_outer_lr", "server_inner_lr"):
            if getattr(self, name) is not None:
                check.positive(name, getattr(self, name))
        for name in ("consensus_damping", "cut_damping", "tolerance"):
            check.not_negative(name, getattr(self, name))
        for name in ("cut_every", "max_cuts"):
            check.count(name, getattr(self, name))
        for name, least in (("wait_for", 1), ("cuts_until", 0), ("staleness", 0)):
            if getattr(self, name) is not None:
                check.count(name, getattr(self, name), least=least)

    def check(self, problem: Bilevel, n_clients: int) -> None:
        """Raise unless the problem is bilevel and there are as many clients as are waited for."""
        check_bilevel("ADBO", problem)
        if (self.wait_for or 1) > n_clients:
            raise ValueError(
                f"wait_for={self.wait_for} results cannot come from {n_clients} clients."
            )

    def init(self, problem: Bilevel, x: Tree, y: Tree) -> ADBOState:
        """All copies at the given iterates, all multipliers zero; no cut, no job begun."""
        x, y = tree.as_arrays((x, y))
        zero = tree.zeros_like((x, y))
        jobs = InFlight.of("outer", ((x, y), zero), (x, y))
        return ADBOState(x, y, PerClient.of(zero[0]), Cuts.none(self.max_cuts, x, y), jobs)

    def round(
        self, fed: AbstractFederation, problem: Bilevel, state: ADBOState, key: Key
    ) -> ADBOState:
        """One iteration, and now and then a new cut."""
        v, z, theta, cuts, jobs = state
        step_key, cut_key = jax.random.split(key)

        own, forces = PerClient(jobs.results), PerClient((theta.rows, cuts.force_on_clients()))
        settings = {"problem": problem, "algorithm": self}
        rules = PollRules(self.wait_for or -(-fed.n_clients // 2), staleness=self.staleness)
        news = fed.poll(
            jobs, primal_step, own, forces, rules=rules, key=step_key, settings=settings
        )
        x, y = news.jobs.results  # ------------- down  x_i, y_i, θ_i, Σ_l λ_l b_il  up  x_i, y_i

        force = tree.sub(cuts.force_on_v(), total(fed, theta.rows))
        v = tree.axpy(-_either(self.server_outer_lr, self.outer_lr), force, v)
        z = tree.axpy(-_either(self.server_inner_lr, self.inner_lr), cuts.force_on_z(), z)
        cuts = cuts.ascend(fed, v, y, z, self.cut_lr, self.cut_damping)
        apart = tree.axpy(-self.consensus_damping, theta.rows, minus(x, v))
        risen = tree.axpy(self.consensus_lr, apart, theta.rows)
        theta = PerClient(tree.where(news.jobs.has_arrived, risen, theta.rows))

        def new_cut(_, cuts):
            return cuts.add(*self._cut(fed, problem, v, y, z, cut_key))

        cuts = fed.repeat(self._is_due(fed.round), new_cut, cuts)
        return ADBOState(v, z, theta, cuts, news.jobs)

    def solution(self, state: ADBOState) -> tuple[Tree, Tree]:
        """(v, z)."""
        return state.v, state.z

    def remedy(self) -> str:
        """Smaller steps, and which first."""
        return REMEDY

    def _cut(self, fed, problem: Bilevel, v: Tree, y: Tree, z: Tree, key: Key) -> tuple:
        """(a, {b_i}, c, k): the plane that touches h - ε at (v, {y_i}, z)."""
        everyone = fed.sample(Everyone(), key)
        at = fed.broadcast(everyone, v)  # ---------------------------------- down  v
        setting = Setting(fed, problem, everyone, at, self.batch_size, key)
        phi, phi_z, trail = self.admm.solve(setting, y, z)
        b, c = tree.scale(2, tree.sub(y, phi)), tree.scale(2, tree.sub(z, phi_z))
        a = self.admm.pull_back(setting, trail, tree.scale(-1, b), tree.scale(-1, c), v)
        h = (total(fed, jax.vmap(tree.dot)(b, b)) + tree.dot(c, c)) / 4  # they are twice the gaps
        k = h - linear_part(fed, (a, b, c), v, y, z)
        return a, b, c, k - jnp.asarray(self.tolerance, k.dtype)

    def _is_due(self, t) -> jax.Array:
        """1 if iteration t ends with a new cut, otherwise 0."""
        t = jnp.asarray(t)
        is_due = (t + 1) % self.cut_every == 0
        if self.cuts_until is not None:
            is_due &= t < self.cuts_until
        return jnp.where(is_due, 1, 0)


class SDBO(AbstractAlgorithm):
    """ADBO whose server waits for everyone in every iteration.

    Args:
        outer_lr: η_x.
        inner_lr: η_y.
        server_outer_lr: η_v; None is ``outer_lr``.
        server_inner_lr: η_z; None is ``inner_lr``.
        consensus_lr: η_θ.
        cut_lr: η_λ.
        consensus_damping: c_2.
        cut_damping: c_1.
        tolerance: ε.
        admm: how the inner solution is estimated, with step sizes of its own.
        cut_every: k_pre, iterations from one new cut to the next.
        cuts_until: T_1, the iteration from which on there are no new cuts; None is never.
        max_cuts: M.
        batch_size: rows per evaluation on a client; None is all.
    """

    _: KW_ONLY
    outer_lr: float = eqx.field(converter=local.number)
    inner_lr: float = eqx.field(converter=local.number)
    server_outer_lr: float | None = eqx.field(converter=local.number, default=None)
    server_inner_lr: float | None = eqx.field(converter=local.number, default=None)
    consensus_lr: float = eqx.field(converter=local.number, default=1e-3)
    cut_lr: float = eqx.field(converter=local.number, default=0.1)
    consensus_damping: float = eqx.field(converter=local.number, default=2e-3)
    cut_damping: float = eqx.field(converter=local.number, default=0.04)
    tolerance: float = eqx.field(converter=local.number, default=0.0)
    admm: ADMM = eqx.field(default_factory=ADMM)
    cut_every: int = 50
    cuts_until: int | None = None
    max_cuts: int = 10
    batch_size: int | None = None

    def parts(self, n_clients: int | None = None) -> ADBO:
        """ADBO that waits for so many."""
        return ADBO(**vars(self), wait_for=n_clients, staleness=None)

    def __check_init__(self):
        self.parts()  # which checks what it is given

    def check(self, problem: Bilevel, n_clients: int) -> None:
        """Raise unless the problem is bilevel."""
        check_bilevel("SDBO", problem)

    def init(self, problem: Bilevel, x: Tree, y: Tree) -> ADBOState:
        """All copies at the given iterates, all multipliers zero; no cut, no job begun."""
        return self.parts().init(problem, x, y)

    def round(
        self, fed: AbstractFederation, problem: Bilevel, state: ADBOState, key: Key
    ) -> ADBOState:
        """One iteration, and now and then a new cut."""
        return self.parts(fed.n_clients).round(fed, problem, state, key)

    def solution(self, state: ADBOState) -> tuple[Tree, Tree]:
        """(v, z)."""
        return state.v, state.z

    def remedy(self) -> str:
        """Smaller steps, and which first."""
        return REMEDY


def primal_step(
    client: Client, own: tuple[Tree, Tree], forces: tuple, *, problem: Bilevel, algorithm: ADBO
) -> tuple[Tree, Tree]:
    """x_i - η_x (f_x + θ_i)  and  y_i - η_y (f_y + Σ_l λ_l b_il)."""
    (x, y), (theta, force) = own, forces
    sample = client.draw(problem.outer_split, algorithm.batch_size, client.key)
    down_x = tree.add(problem.outer_grad_x(x, y, sample), theta)
    down_y = tree.add(problem.outer_grad_y(x, y, sample), force)
    return tree.axpy(-algorithm.outer_lr, down_x, x), tree.axpy(-algorithm.inner_lr, down_y, y)


def check_bilevel(name: str, problem: Bilevel) -> None:
    """Raise unless the problem is bilevel."""
    if not isinstance(problem, Bilevel):
        raise TypeError(f"{name} solves Bilevel problems, got {type(problem).__name__}.")


def _either(step: float | None, otherwise: float) -> float:
    return otherwise if step is None else step
