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
    c_1, c_2        cut_ and consensus_damping      how strongly the multipliers are pulled to zero
    ε               tolerance                       how far clients may be from the inner solution
    K, μ, η_φ       admm                            how the inner solution is estimated
    k_pre, T_1      cut_every, cuts_until           when cuts are made
    M               max_cuts                        the most cuts that are kept
    S, τ            wait_for, staleness + 1         when the server stops waiting

The inner problem becomes the constraint  h(v, {y_i}, z) = Σ_i |y_i - φ_i|^2 + |z - φ_z|^2 <= ε,
where φ(v) is the result of K rounds of ADMM from (y_i, z), and h is replaced by planes tangent to
it. An idle client receives its own rows, takes one step in x_i and y_i down the Lagrangian

    Σ_i f_i(x_i, y_i) + Σ_l λ_l cut_l + Σ_i θ_i·(x_i - v) - c_1/2 Σ_l λ_l^2 - c_2/2 Σ_i |θ_i|^2

and sends both back; then the server moves v and z down, λ and the θ_i of the clients that delivered
up.
Clients remember nothing. A round is one such iteration. With p and q the sizes of x and y, m
clients, B of them starting a job and S delivering one, it costs

                        exchanges   down                up
    an iteration        1           B (2 p + 2 q)       S (p + q)
    and with a new cut  2 K more    m (p + 3 K q)       m K (p + 2 q)

All clients answer when a cut is made, busy ones included. A cut couples all clients, so a step of
the server reads the rows of all.

Departures from the paper: sums over clients are m times their weighted mean, so that weights count
and equal ones change nothing; cuts are kept in a fixed number of slots, and when all hold cuts
with λ > 0 the one with the smallest λ is replaced; c_1 and c_2 do not fall; the released code
has K = 1, whose h is far from zero at the solution where clients differ.
"""

from dataclasses import KW_ONLY
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.adbo.admm import ADMM, Setting, minus, total
from rookery.algorithms.adbo.cuts import Cuts, linear_part
from rookery.algorithms.shared.schedule import number
from rookery.algorithms.shared.step_rule import check_number
from rookery.problem.bilevel import Bilevel
from rookery.program.algorithm import PolledAlgorithm, check_kind, with_settings_of
from rookery.program.federation import AbstractFederation, Client
from rookery.program.memory import PerClient
from rookery.program.participation import Everyone
from rookery.program.polling import InFlight, PollRules
from rookery.types import Count, Key, Tree

REMEDY = (
    "Use smaller server_outer_lr, server_inner_lr and ADMM.server_lr first, since these steps go "
    "along sums over clients; then a smaller cut_lr."
)


PRIMAL_DUAL = (
    "Primal steps descend and dual steps ascend on one Lagrangian, and an optimiser on one of them "
    "moves their balance, which is the solution."
)
"""Why the step sizes of ADBO are numbers."""


class ADBOState(NamedTuple):
    """The server's copies, the multipliers, the cuts; the jobs hold the clients' copies."""

    v: Tree
    z: Tree
    theta: PerClient
    cuts: Cuts
    jobs: InFlight


class ADBO(PolledAlgorithm):
    """Primal steps on clients as they deliver, dual steps on the server, periodic cutting planes.

    >>> import rookery as rk
    >>> rk.ADBO(outer_lr=0.05, inner_lr=0.1, admm=rk.parts.ADMM(rounds=5), wait_for=10).cut_every
    50

    Args:
        outer_lr: η_x.
        inner_lr: η_y.
        server_outer_lr: η_v; None means ``outer_lr``.
        server_inner_lr: η_z; None means ``inner_lr``.
        consensus_lr: η_θ.
        cut_lr: η_λ.
        consensus_damping: c_2.
        cut_damping: c_1.
        tolerance: ε.
        admm: how the inner solution is estimated, with step sizes of its own.
        cut_every: k_pre, iterations from one new cut to the next.
        cuts_until: T_1, the iteration after which there are no new cuts; None means never.
        max_cuts: M.
        staleness: the largest staleness of a result, in iterations; None means no bound.
    """

    _: KW_ONLY
    outer_lr: float = eqx.field(converter=number)
    inner_lr: float = eqx.field(converter=number)
    server_outer_lr: float | None = eqx.field(converter=number, default=None)
    server_inner_lr: float | None = eqx.field(converter=number, default=None)
    consensus_lr: float = eqx.field(converter=number, default=1e-3)
    cut_lr: float = eqx.field(converter=number, default=0.1)
    consensus_damping: float = eqx.field(converter=number, default=2e-3)
    cut_damping: float = eqx.field(converter=number, default=0.04)
    tolerance: float = eqx.field(converter=number, default=0.0)
    admm: ADMM = eqx.field(default_factory=ADMM)
    cut_every: int = 50
    cuts_until: int | None = None
    max_cuts: int = 10
    staleness: int | None = 14

    def __check_init__(self):
        for name, value in vars(self).items():
            is_optional = name in ("server_outer_lr", "server_inner_lr")
            if name.endswith("_lr") and not (is_optional and value is None):
                check_number(self.name, name, value, PRIMAL_DUAL)
        for name in ("consensus_damping", "cut_damping", "tolerance"):
            check.not_negative(name, getattr(self, name))
        for name in ("cut_every", "max_cuts"):
            check.count(name, getattr(self, name))
        for name in ("cuts_until", "staleness"):
            if getattr(self, name) is not None:
                check.count(name, getattr(self, name), least=0)

    def check(self, problem: Bilevel, n_clients: int) -> None:
        """Raise unless the problem is bilevel and the clients can deliver what is waited for."""
        check_kind(self, problem, Bilevel)
        self._rules(n_clients).check(n_clients)

    def init(self, problem: Bilevel, x: Tree, y: Tree) -> ADBOState:
        """All copies at the given iterates, all multipliers zero; no cut, no job started."""
        x, y = tree.as_arrays((x, y))
        zero = tree.zeros_like((x, y))
        jobs = InFlight.of("outer", ((x, y), zero), (x, y))
        return ADBOState(x, y, PerClient.of(zero[0]), Cuts.none(self.max_cuts, x, y), jobs)

    def round(
        self, fed: AbstractFederation, problem: Bilevel, state: ADBOState, key: Key
    ) -> ADBOState:
        """One iteration, with a new cut every ``cut_every`` iterations."""
        v, z, theta, cuts, jobs = state
        step_key, cut_key = jax.random.split(key)
        settings = {"problem": problem, "algorithm": self}
        rules = self._rules(fed.n_clients)

        own, forces = PerClient(jobs.results), PerClient((theta.rows, cuts.force_on_clients()))
        arrived = fed.poll(
            jobs, primal_step, own, forces, rules=rules, key=step_key, settings=settings
        )
        x, y = arrived.jobs.results  # ---------- down  x_i, y_i, θ_i, Σ_l λ_l b_il  up  x_i, y_i

        force = tree.sub(cuts.force_on_v(), total(fed, theta.rows))
        v = tree.axpy(-_either(self.server_outer_lr, self.outer_lr), force, v)
        z = tree.axpy(-_either(self.server_inner_lr, self.inner_lr), cuts.force_on_z(), z)
        cuts = cuts.ascend(fed, v, y, z, self.cut_lr, self.cut_damping)
        apart = tree.axpy(-self.consensus_damping, theta.rows, minus(x, v))
        risen = tree.axpy(self.consensus_lr, apart, theta.rows)
        theta = PerClient(tree.where(arrived.jobs.has_arrived, risen, theta.rows))

        def new_cut(cuts):
            return cuts.add(*self._cut(fed, problem, v, y, z, cut_key))

        cuts = fed.when(self._is_due(fed.round), new_cut, cuts)
        return ADBOState(v, z, theta, cuts, arrived.jobs)

    def solution(self, state: ADBOState) -> tuple[Tree, Tree]:
        """(v, z)."""
        return state.v, state.z

    def remedy(self) -> str:
        """Smaller steps, and which first."""
        return REMEDY

    def _cut(self, fed, problem: Bilevel, v: Tree, y: Tree, z: Tree, key: Key) -> tuple:
        """(a, {b_i}, c, k): the plane tangent to h - ε at (v, {y_i}, z)."""
        everyone = fed.sample(Everyone(), key)
        at = fed.broadcast(everyone, v)  # ---------------------------------- down  v
        setting = Setting(fed, problem, everyone, at, self.batch_size, key)
        phi, phi_z, trail = self.admm.solve(setting, y, z)
        b, c = tree.scale(2, tree.sub(y, phi)), tree.scale(2, tree.sub(z, phi_z))
        a = self.admm.pull_back(setting, trail, tree.scale(-1, b), tree.scale(-1, c), v)
        h = (
            total(fed, jax.vmap(tree.dot)(b, b)) + tree.dot(c, c)
        ) / 4  # b and c are twice the gaps
        k = h - linear_part(fed, (a, b, c), v, y, z)
        return a, b, c, k - jnp.asarray(self.tolerance, k.dtype)

    def _is_due(self, t: Count) -> jax.Array:
        """Whether iteration t ends with a new cut."""
        t = jnp.asarray(t)
        is_due = (t + 1) % self.cut_every == 0
        if self.cuts_until is not None:
            is_due &= t < self.cuts_until
        return is_due

    def _rules(self, n_clients: int) -> PollRules:
        """When the server stops waiting."""
        return PollRules(self.results_needed(n_clients), staleness=self.staleness)


@with_settings_of(ADBO, without=("wait_for", "staleness"))
def SDBO(**settings: Any) -> ADBO:  # of the types of ADBO's fields
    """ADBO whose server waits for every client in every iteration.

    The settings are those of :class:`ADBO`, without ``wait_for`` and ``staleness``.

    >>> SDBO(outer_lr=0.05, inner_lr=0.1, cut_every=20).name
    'SDBO'
    """
    return ADBO(**settings, wait_for="all", staleness=None, label="SDBO")


def primal_step(
    client: Client, own: tuple[Tree, Tree], forces: tuple, *, problem: Bilevel, algorithm: ADBO
) -> tuple[Tree, Tree]:
    """x_i - η_x (f_x + θ_i)  and  y_i - η_y (f_y + Σ_l λ_l b_il)."""
    (x, y), (theta, force) = own, forces
    sample = client.draw(problem.outer_split, algorithm.batch_size, client.key)
    down_x = tree.add(problem.outer_grad_x(x, y, sample), theta)
    down_y = tree.add(problem.outer_grad_y(x, y, sample), force)
    return tree.axpy(-algorithm.outer_lr, down_x, x), tree.axpy(-algorithm.inner_lr, down_y, y)


def _either(step: float | None, otherwise: float) -> float:
    return otherwise if step is None else step
