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
for old ones. With L_i the largest eigenvalue of client i's inner Hessian, w_i its weight and a_i
the age of its results in steps of the server, all steps of y and v have the size

    1 / (2 Σ_i w_i L_i (1 + a_i))

A client feeds back at most  size · w_i L_i a_i,  together below 1/2, and the mean Hessian has an L
of at most  Σ w_i L_i.  Clients measure L_i in their jobs, and every result in a mean comes with the
L_i of its client. Twice this size would do for clients that are always busy, and diverges where one
of large curvature is away for long: its results age while the size still is that of younger ones.

**Rounding.** A mean that is moved by differences keeps the rounding errors of the largest results
that it ever had. It is summed again from all latest results whenever as many have arrived as there
are clients, so that this costs a step of the server as many rows as arrive in it.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import tree
from rookery.algorithms.shared.auto import AutoOpt, Curvature
from rookery.algorithms.shared.curvature import damping_for, inner_product, is_due, steepest
from rookery.algorithms.shared.step_rule import (
    StepRule,
    check_curvature,
    check_step_rule,
    first_opt,
    inner_rule,
)
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


class Measured(NamedTuple):
    """What a client knows of the curvature of its inner problem.

    Attributes:
        L: the largest eigenvalue of its inner Hessian.
        bend: v' g_yy v / v' v, negative where the Hessian is indefinite along v.
    """

    L: jax.Array
    bend: jax.Array


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

    def first_opts(self, y: Tree) -> tuple[Tree, Tree]:
        """The states of the rules before the first step, with a damping for v."""
        y_opt, v_opt = first_opt(self.y, y), first_opt(self.v, y)
        if isinstance(self.v, Curvature):
            v_opt = v_opt._replace(damping=jnp.zeros_like(v_opt.size))
        return y_opt, v_opt


def first_results(rules: Rules, y: Tree) -> Results:
    """What counts as a client's latest results before it has delivered any."""
    zero = jnp.zeros((), jnp.result_type(*jax.tree.leaves(y)))
    measured = () if rules.measured is None else Measured(zero, zero)
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

    def measure(_, known):
        sample = client.draw(problem.inner_split, batch_size, sample_key)
        product = inner_product(problem, x, y, sample)
        found = steepest(client, problem, x, y, sample, iterations, start_key)
        length = tree.dot(v, v)
        bend = tree.dot(v, product(v)) / jnp.where(length > 0, length, jnp.ones_like(length))
        L = jnp.maximum(found, tree.scale(0.8, known.L))
        return Measured(L.astype(known.L.dtype), bend.astype(known.bend.dtype))

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


def versions_used(jobs: InFlight, before: PerClient) -> PerClient:
    """The version of the server at which each client's latest results were begun."""
    return PerClient(jnp.where(jobs.has_arrived, jobs.version, before.rows))


def ages(jobs: InFlight, versions: PerClient) -> jax.Array:
    """The age of every client's latest results, in polls; a fresh one has the age 0."""
    return (jobs.polls - 1 - versions.rows).astype(jobs.results.measured.L.dtype)


def mean_age(fed: AbstractFederation, jobs: InFlight, versions: PerClient) -> jax.Array:
    """The mean of these ages over all clients."""
    each = ages(jobs, versions)
    return jnp.dot(fed.weights.astype(each.dtype), each)


def sized(
    fed: AbstractFederation,
    rules: Rules,
    opts: tuple[Tree, Tree],
    mean: Results,
    jobs: InFlight,
    versions: PerClient,
) -> tuple[jax.Array, tuple[Tree, Tree]]:
    """The mean of the clients' L, and the states of the rules with the sizes that they give."""
    assert rules.measured is not None and isinstance(mean.measured, Measured)
    dtype, bend = mean.measured.L.dtype, mean.measured.bend
    each = tree.scale(rules.measured.safety, jobs.results.measured.L).astype(dtype)  # L_i
    weights, stretched = fed.weights.astype(dtype), 1 + ages(jobs, versions)  # 1 + a_i

    def size(each):
        total = jnp.dot(weights, each * stretched)
        known = jnp.where(total > 0, total, jnp.ones_like(total))
        return jnp.where(total > 0, 0.5 / known, jnp.zeros_like(total))

    def one(rule, opt):
        if not isinstance(rule, Curvature):
            return opt
        if not jax.tree.leaves(opt.damping):
            return AutoOpt(size(each))
        damping = jnp.maximum(damping_for(bend), tree.scale(0.9, opt.damping))
        return AutoOpt(size(each + damping), damping)

    return jnp.dot(weights, each), (one(rules.y, opts[0]), one(rules.v, opts[1]))
