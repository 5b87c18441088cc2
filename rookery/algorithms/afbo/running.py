"""The adjoint as a variable that moves with y: no hops, no waiting, an exact limit.

A client's inner job brings the mean gradient G_i and the residual  R_i = g_yy v - f_y  of the
adjoint at the (x, y, v) that it received. The server keeps the latest of every client and steps

    y <- y - β mean_i G_i,    v <- v - β mean_i R_i,    x <- x - η mean_i H_i

with means over all clients, however old. If the iterates converge, then every client's latest
results are those at the same (x, y, v), and the three means are those of all clients. They are
zero: g_y = 0, so y solves the inner problem; g_yy v = f_y with the means of both sides, so v is the
adjoint of all clients together; and f_x - g_xy v = 0, so x is stationary. Neither delays nor
numbers of local iterations enter, as long as a job takes all its gradients at the values received.

**Sizes that are found.** The means lag behind, and a step that is safe for fresh results is not
for old ones. With L_i the largest eigenvalue of client i's inner Hessian, w_i its weight and D_i
how far y has stepped since the client read it (the sum of the sizes since then), the next size of y
and v is what is left of 1 / L:

    size = (3/2 - Σ_i w_i L_i D_i) / L,  L = Σ_i w_i L_i,  at most 1 / L and at least zero

In a time that counts path instead of steps, D_i is the delay of client i, and Σ_i w_i L_i D_i < 3/2
is enough for  y' = -Σ_i w_i L_i y(t - D_i)  to converge, however the delays vary; the sum here is
that before the step, and the measured L_i have a margin. With results of one age a the size settles
at 3/2 / (L (1 + a)). If a client of large curvature is away, y soon waits for it. Clients measure
L_i in their jobs; the server keeps the paths.

As elsewhere (:class:`Curvature`), all L_i are divided by a factor that grows while directions
agree. Mean gradients of successive steps always do, since most results are in both, and the swings
that delays cause have periods of about four delays. So a mean is compared with the one that was
compared last once y has gone three times the mean delay, Σ w_i L_i D_i / L, since then.

**Rounding.** A mean that is moved by differences keeps the rounding errors of the largest results
that it ever had. It is summed again from all latest results whenever as many have arrived as there
are clients, so that this costs a step of the server as many rows as arrive in it.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import tree
from rookery.algorithms.shared.auto import Agreement, AutoOpt, Curvature, renewed_curvature
from rookery.algorithms.shared.blocks import draw_samples
from rookery.algorithms.shared.curvature import bend_of, curvature_of, damping_for, is_due
from rookery.algorithms.shared.step_rule import (
    StepRule,
    check_curvature,
    check_step_rule,
    first_opt,
    inner_rule,
)
from rookery.algorithms.shared.views import BilevelView
from rookery.problem.bilevel import Bilevel
from rookery.program.federation import AbstractFederation, Client
from rookery.program.memory import PerClient
from rookery.program.polling import InFlight
from rookery.types import BatchSize, Tree


class RunningAdjoint(eqx.Module):
    """v moves with y along the mean of all clients' latest residuals (see the top of this file).

    It costs no exchange of its own, and its limit is exact.

    Args:
        lr: step rule of v; None means the rule of y.

    >>> import rookery as rk
    >>> rk.AFBO().aphe == rk.parts.RunningAdjoint()
    True
    """

    lr: StepRule | None = eqx.field(converter=inner_rule, default=None)

    def __check_init__(self):
        if self.lr is not None:
            check_step_rule("RunningAdjoint.lr", self.lr, may_be_auto=True)
            check_curvature("RunningAdjoint.lr", self.lr)


MOST_LAG = 1.5
"""The largest sum of L_i D_i, the next step included."""
MOST_DELAYS = 3.0
"""Between two mean gradients that are compared: more than half the period of a swing."""


class Measured(NamedTuple):
    """What a client knows of the curvature of its inner problem.

    Attributes:
        L: the largest eigenvalue of its inner Hessian.
        bend: v' g_yy v / v' v, negative where the Hessian is indefinite along v.
        outer: the curvature in x at fixed y and v (:mod:`rookery.algorithms.shared.curvature`);
            empty if steps of x are given.
    """

    L: jax.Array
    bend: jax.Array
    outer: Tree


class Results(NamedTuple):
    """What an inner job brings, and the mean of it; ``measured`` is empty if no size is found."""

    g: Tree
    r: Tree
    measured: Measured | tuple[()] = ()


class Rules(NamedTuple):
    """The step rules of y and v."""

    y: StepRule
    v: StepRule

    @property
    def measured(self) -> Curvature | None:
        """The first of them that finds its size."""
        return next((rule for rule in self if isinstance(rule, Curvature)), None)

    def found_size(self, opts: tuple[Tree, Tree]) -> jax.Array:
        """The size of a step of the first rule that finds it, y's before v's."""
        each = zip(self, opts, strict=True)
        return next(rule.size(opt) for rule, opt in each if isinstance(rule, Curvature))

    def first_opts(self, y: Tree) -> tuple[Tree, Tree]:
        """The states of the rules before the first step, with a damping for v."""
        y_opt, v_opt = first_opt(self.y, y), first_opt(self.v, y)
        if isinstance(self.v, Curvature):
            v_opt = v_opt._replace(damping=jnp.zeros_like(v_opt.size))
        return y_opt, v_opt


def first_results(rules: Rules, y: Tree, *, is_x_found: bool) -> Results:
    """What counts as a client's latest results before it has delivered any."""
    zero = jnp.zeros((), jnp.result_type(*jax.tree.leaves(y)))
    outer = zero if is_x_found else ()
    measured = () if rules.measured is None else Measured(zero, zero, outer)
    return Results(tree.zeros_like(y), tree.zeros_like(y), measured)


def orders(rules: Rules, jobs: InFlight) -> tuple[PerClient, ...]:
    """What a client that begins a job is told about measuring: whether to, and what it knows."""
    if rules.measured is None:
        return ()
    return (PerClient((is_due(rules.measured, jobs.begun), jobs.results.measured)),)


def measured_curvature(
    client: Client,
    problem: Bilevel,
    x: Tree,
    y: Tree,
    v: Tree,
    is_due: jax.Array,
    known: Measured,
    *,
    batch_size: BatchSize,
    iterations: int,
) -> Measured:
    """What is known, or what the client finds now if it is due; L falls by a fifth at most."""
    start_key, sample_key = jax.random.split(jax.random.fold_in(client.key, 2))
    view, blocks = BilevelView(), (x, y, v)
    how = {"view": view, "iterations": iterations, "key": start_key}

    def measure(_, known):
        samples = draw_samples(client, problem, view, batch_size, sample_key)
        outer = known.outer
        if isinstance(outer, jax.Array):
            found = curvature_of(client, problem, blocks, samples, 0, **how)
            outer = renewed_curvature(outer, found, 1.0)
        L = curvature_of(client, problem, blocks, samples, 1, **how)
        return Measured(
            renewed_curvature(known.L, L, 1.0),
            bend_of(problem, blocks, samples).astype(known.bend.dtype),
            outer,
        )

    return client.repeat(jnp.where(is_due, 1, 0), measure, known, most=1)


def summed_again(fed: AbstractFederation, mean: Tree, jobs: InFlight, wait_for: int) -> Tree:
    """The mean of all clients' latest results, summed again where rounding errors add up.

    Args:
        fed: the federation.
        mean: the same, moved by differences.
        jobs: with the latest results.
        wait_for: how many results the server waits for.
    """
    polls = -(-fed.n_clients // wait_for)

    def total(_):
        return jax.tree.map(
            lambda rows: jnp.tensordot(fed.weights.astype(rows.dtype), rows, 1), jobs.results
        )

    return fed.when(jobs.polls % polls == 0, total, mean)


class Paths(NamedTuple):
    """Sums of sizes, for each client.

    Attributes:
        job: since the client began its last job.
        results: D_i, since it read what its latest results were computed at.
    """

    job: jax.Array
    results: jax.Array

    def arrived(self, jobs: InFlight) -> "Paths":
        """The paths after a poll, in which some clients have begun a job and some delivered."""
        job = jnp.where(jobs.version == jobs.polls - 1, 0, self.job)
        return Paths(job, jnp.where(jobs.has_arrived, job, self.results))

    def stepped(self, size: jax.Array) -> "Paths":
        """The paths after a step of this size."""
        return Paths(self.job + size, self.results + size)


class Lag(NamedTuple):
    """What the server keeps to find sizes for results of any age.

    Attributes:
        paths: how far y has stepped since clients read it (:class:`Paths`).
        agreement: the factor on 1 / L, and the mean gradient that was last compared.
        path: how far y has stepped since then.
        steps: in how many steps.
    """

    paths: PerClient
    agreement: Agreement
    path: jax.Array
    steps: jax.Array


def first_lag(y: Tree) -> Lag:
    """No step has been taken."""
    zero = jnp.zeros((), jnp.result_type(*jax.tree.leaves(y)))
    agreement = Agreement(tree.zeros_like(y), jnp.ones_like(zero))
    return Lag(PerClient.of(Paths(zero, zero)), agreement, zero, zero)


def sized(
    fed: AbstractFederation,
    rules: Rules,
    opts: tuple[Tree, Tree],
    mean: Results,
    jobs: InFlight,
    lag: Lag,
) -> tuple[jax.Array, tuple[Tree, Tree], Lag]:
    """The mean of the clients' L, the states of the rules with their sizes, and the lag after them.

    Args:
        fed: the federation.
        rules: of y and v.
        opts: their states.
        mean: of all clients' latest results.
        jobs: with these results.
        lag: before the poll that brought some of them.
    """
    rule = rules.measured
    assert rule is not None and isinstance(mean.measured, Measured)
    dtype, bend = mean.measured.L.dtype, mean.measured.bend
    weights, paths = fed.weights.astype(dtype), lag.paths.rows.arrived(jobs)
    each = tree.scale(rule.safety, jobs.results.measured.L).astype(dtype)  # L_i
    L, behind = jnp.dot(weights, each), jnp.dot(weights, each * paths.results)  # Σ w_i L_i D_i

    direction = mean.g if isinstance(rules.y, Curvature) else mean.r

    def compared(agreement):
        return rule.agreed(agreement, direction, steps=lag.steps)

    is_due = L * lag.path >= MOST_DELAYS * behind
    agreement = fed.when(is_due, compared, lag.agreement)
    factor = agreement.factor
    left = jnp.clip(MOST_LAG - behind / factor, 0, 1)

    def size(L):
        return jnp.where(L > 0, left / jnp.where(L > 0, L, jnp.ones_like(L)), jnp.zeros_like(L))

    def one(rule, opt):
        if not isinstance(rule, Curvature):
            return opt
        if not jax.tree.leaves(opt.damping):
            return AutoOpt(size(L / factor))
        damping = jnp.maximum(damping_for(bend), tree.scale(0.9, opt.damping))
        return AutoOpt(size(L / factor + damping), damping)

    opts = one(rules.y, opts[0]), one(rules.v, opts[1])
    step, none = rules.found_size(opts), jnp.zeros_like(lag.path)
    path, steps = jnp.where(is_due, none, lag.path), jnp.where(is_due, none, lag.steps)
    return L, opts, Lag(PerClient(paths.stepped(step)), agreement, path + step, steps + 1)
