"""L of :class:`Curvature` rules: the largest curvature of the inner problem, measured on clients.

A measurement is one exchange: the iterates go down, one number comes up, two if the blocks have an
adjoint v. Where the inner variable of a composition follows a value, L is 1 and nothing is sent.
"""

from collections.abc import Callable
from typing import Protocol, Self, TypeVar

import jax
import jax.numpy as jnp

from rookery import tree
from rookery.algorithms.shared import levels
from rookery.algorithms.shared.auto import AutoOpt, Curvature, ServerOpts
from rookery.algorithms.shared.context import Context
from rookery.algorithms.shared.levels import TwoLevel
from rookery.algorithms.shared.penalty_view import PenaltyView
from rookery.algorithms.shared.step_rule import StepRule, StepRules
from rookery.algorithms.shared.two_level import State
from rookery.algorithms.shared.views import (
    AbstractLayersView,
    AbstractView,
    BilevelView,
    Blocks,
    MinimaxView,
    view_of,
)
from rookery.problem import oracles
from rookery.problem.bilevel import Bilevel
from rookery.problem.composition import Composition
from rookery.problem.minimax import Minimax
from rookery.program.aggregate import robust_rule
from rookery.program.federation import AbstractFederation, Cached, Client
from rookery.program.participation import AbstractParticipation, Cohort
from rookery.types import BatchSize, Count, Key, Problem, Sample, Tree

Product = Callable[[Tree], Tree]
"""The inner Hessian of one sample times a vector."""


def is_measured(rule: StepRules | None) -> bool:
    """Whether a rule, or one of several, needs L."""
    each = rule if isinstance(rule, tuple) else (rule,)
    return any(isinstance(one, Curvature) for one in each)


class HasSeries(Protocol):
    """A part that estimates the adjoint by a series, which needs an L."""

    def with_lipschitz(self, L: jax.Array) -> Self:
        """The part with an L that was measured elsewhere; an L that was given stays."""
        ...


Part = TypeVar("Part", bound=HasSeries)


def measured_for(
    context: Context, rule: StepRule | None, opt: Tree, part: Part, state: State, key: Key
) -> tuple[Tree, Part]:
    """The state of an inner rule with the size for this round, and the part with the same L.

    Args:
        context: of the round.
        rule: of the inner steps; unless it measures L, nothing changes.
        opt: the rule's state.
        part: estimates the adjoint.
        state: with the iterates.
        key: of the round; the keys of its two levels are split off the same.
    """
    if not isinstance(rule, Curvature):
        return opt, part
    opt = measured(context, rule, opt, state.x, state.y, jax.random.fold_in(key, 2))
    return opt, part.with_lipschitz(lipschitz_of(opt))


def measured(context: Context, rule: StepRule, opt: Tree, x: Tree, y: Tree, key: Key) -> Tree:
    """The state of an inner rule with the size for this round; other rules stay as they are."""
    if not isinstance(rule, Curvature):
        return opt
    if isinstance(opt, ServerOpts):
        return ServerOpts(measured(context, rule, opt.opts, x, y, key))
    if isinstance(context.problem, Composition):
        return rule.renewed(opt, jnp.ones_like(opt.size))
    fed, (who, sample_key) = context.fed, jax.random.split(key)

    def measure(opt):
        cohort = context.sample(who)
        point = fed.broadcast(cohort, (x, y))  # ------------------------------ down  x, y
        found = context.map(inner_curvature, point, key=sample_key, iterations=rule.iterations)
        found = fed.stack(found, is_aggregated=True)  # ----------------------- up    one number
        return rule.renewed(opt, fed.largest(found, cohort))

    return fed.when(is_due(rule, fed.round), measure, opt)


def lipschitz_of(opt: Tree) -> jax.Array:
    """L as a measured state has it."""
    return 1 / (opt.opts if isinstance(opt, ServerOpts) else opt).size


def at_least(rule: StepRule, opt: Tree, L: jax.Array) -> Tree:
    """The state of an inner rule, if it measures L, once a product has shown that L is larger."""
    if not isinstance(rule, Curvature):
        return opt
    if isinstance(opt, ServerOpts):
        return ServerOpts(at_least(rule, opt.opts, L))
    return opt._replace(size=jnp.minimum(opt.size, (1 / L).astype(opt.size.dtype)))


def is_due(rule: Curvature, round: Count) -> jax.Array:
    """Whether L is measured in a round; x moves most at the beginning."""
    round = jnp.asarray(round)
    return (round % rule.every == 0) | (round < rule.every)


def inner_curvature(
    client: Client,
    point: tuple[Tree, Tree],
    *,
    problem: TwoLevel,
    batch_size: BatchSize,
    iterations: int,
) -> jax.Array:
    """The largest curvature in y of one sample."""
    start_key, sample_key = jax.random.split(client.key)
    sample = _inner_sample(client, problem, batch_size, sample_key)
    return steepest(client, problem, *point, sample, iterations, start_key)


def steepest(
    client: Client,
    problem: Problem,
    x: Tree,
    y: Tree,
    sample: Sample,
    iterations: int,
    key: Key,
) -> jax.Array:
    """The largest curvature that steps of y and of v meet; with GaussNewton they differ."""
    found = largest(client, inner_product(problem, x, y, sample), y, iterations, key)
    if not isinstance(problem, Bilevel) or problem.has_exact_hessian:
        return found

    def exact(p):
        return problem.exact_inner_hvp(x, y, p, sample)

    return jnp.maximum(found, largest(client, exact, y, iterations, key))


def inner_product(problem: Problem, x: Tree, y: Tree, sample: Sample) -> Product:
    """g_yy p of a bilevel problem, -f_yy p of a minimax problem."""
    match problem:
        case Bilevel():
            return lambda p: problem.inner_hvp(x, y, p, sample)
        case Minimax():
            return lambda p: tree.scale(
                -1, oracles.second_derivative(problem.loss, (x, y), 1, 1, p, sample)
            )
    raise TypeError(f"{type(problem).__name__} problems have no inner Hessian.")


def largest(client: Client, product: Product, like: Tree, iterations: int, key: Key) -> jax.Array:
    """By how much a Hessian stretches its leading direction, by power iteration."""

    def step(_, carry):
        direction, _ = carry
        image = product(direction)
        stretch = tree.norm(image)
        return tree.scale(1 / jnp.maximum(stretch, jnp.finfo(stretch.dtype).tiny), image), stretch

    direction = tree.random_normal(key, like)
    norm = tree.norm(direction)
    start = tree.scale(1 / norm, direction), jnp.zeros_like(norm)
    return client.repeat(iterations, step, start)[1]


# ---- blocks


def check_blocks(name: str, rule: StepRules, problem: Problem, view: AbstractView) -> None:
    """Raise if the blocks of a problem have no curvature that could be measured."""
    known = BilevelView | MinimaxView | AbstractLayersView | PenaltyView
    if is_measured(rule) and not isinstance(view, known):
        raise TypeError(
            f"{name} is Curvature, and the maps of {type(view).__name__} have no inner Hessian "
            f"whose curvature could be measured on a {type(problem).__name__}. Give a number."
        )


def with_damping(view: AbstractView, rules: tuple[StepRule, ...], opts: Tree) -> Tree:
    """The states before round 0, with a damping for v where there is one."""
    if isinstance(opts, ServerOpts):
        return ServerOpts(with_damping(view, rules, opts.opts))
    if not isinstance(view, BilevelView) or not isinstance(rules[2], Curvature):
        return opts
    return (*opts[:2], opts[2]._replace(damping=jnp.zeros_like(opts[2].size)))


def measured_blocks(
    fed: AbstractFederation,
    problem: Problem,
    view: AbstractView | None,
    rules: tuple[StepRule, ...],
    opts: Tree,
    blocks: Blocks | Cached,
    key: Key,
    *,
    clients: AbstractParticipation,
    batch_size: BatchSize,
    is_alone: bool = False,
) -> Tree:
    """The states of the rules of all blocks, with sizes for this round where they are measured.

    Every round on a view calls it first; it refuses views that no robust rule protects.

    Args:
        fed: the federation.
        problem: the problem.
        view: of the problem; by its class if None.
        rules: one for each block.
        opts: their states, or :class:`ServerOpts` with them.
        blocks: x and the others.
        key: of the measurement.
        clients: who takes part in it.
        batch_size: rows per client.
        is_alone: whether the largest L of any client counts, as clients that take several steps
            by themselves need it. A step along the mean of a cohort meets the curvature of the
            mean, which is at most the mean of the clients' L.
    """
    if isinstance(view, PenaltyView):
        fed.refuse_robust(
            "a penalty (PenaltyView)",
            "it multiplies what a Byzantine client makes the two inner variables differ by",
        )
    if not is_measured(rules):
        return opts
    if isinstance(opts, ServerOpts):
        how = {"clients": clients, "batch_size": batch_size, "is_alone": is_alone}
        return ServerOpts(measured_blocks(fed, problem, view, rules, opts.opts, blocks, key, **how))
    view = view_of(problem, view)
    if isinstance(view, AbstractLayersView):
        return _renewed(rules, opts, jnp.ones(()), jnp.zeros(()))
    first = next(rule for rule in rules if isinstance(rule, Curvature))
    who, sample_key = jax.random.split(key)

    def measure(opts):
        cohort = fed.sample(clients, who)
        at = fed.broadcast(cohort, blocks)  # --------------------------------- down  the blocks
        settings = {"problem": problem, "view": view, "batch_size": batch_size}
        settings |= {"iterations": first.iterations, "round": fed.round}
        both = fed.map(block_curvature, at, key=sample_key, **settings)
        found, bend = fed.stack(both, is_aggregated=True)  # ------------------ up    two numbers
        L = fed.largest(found, cohort) if is_alone else _mean_of(fed, cohort, found)
        return _renewed(rules, opts, L, _mean_of(fed, cohort, bend))

    return fed.when(is_due(first, fed.round), measure, opts)


def block_curvature(
    client: Client,
    blocks: Blocks,
    *,
    problem: Bilevel | Minimax,
    view: AbstractView,
    batch_size: BatchSize,
    iterations: int,
    round: Count,
) -> tuple[jax.Array, jax.Array]:
    """The largest curvature in y of one sample, and v' g_yy v / v' v where there is a v."""
    start_key, sample_key = jax.random.split(client.key)
    x, y, *others = blocks
    sample = _inner_sample(client, problem, batch_size, sample_key)
    if isinstance(view, PenaltyView) and isinstance(problem, Bilevel):
        share = view.at(round).share
        outer = client.draw(problem.outer_split, batch_size, start_key)

        def both(p):
            bent = oracles.second_derivative(problem.outer, (x, y), 1, 1, p, outer)
            return tree.axpy(share, bent, problem.exact_inner_hvp(x, y, p, sample))

        found = largest(client, both, y, iterations, start_key)
        return found, jnp.zeros_like(found)
    found = steepest(client, problem, x, y, sample, iterations, start_key)
    if not isinstance(view, BilevelView):
        return found, jnp.zeros_like(found)
    (v,) = others
    product, length = inner_product(problem, x, y, sample), tree.dot(v, v)
    return found, tree.dot(v, product(v)) / jnp.where(length > 0, length, jnp.ones_like(length))


def _renewed(
    rules: tuple[StepRule, ...], opts: tuple[Tree, ...], found: jax.Array, bend: jax.Array
) -> tuple[Tree, ...]:
    """The states after a measurement of L and of the curvature along v."""

    def one(rule, opt):
        if not isinstance(rule, Curvature):
            return opt
        if not jax.tree.leaves(opt.damping):
            return rule.renewed(opt, found)
        was = opt.damping
        # the size of v is 1 / (L + damping)
        L = AutoOpt(jnp.where(opt.size > 0, opt.size / (1 - was * opt.size), opt.size))
        L = 1 / rule.renewed(L, found).size
        damping = jnp.maximum(damping_for(bend.astype(was.dtype)), was / 2)
        return AutoOpt(1 / (L + damping), damping)

    return tuple(map(one, rules, opts))


def damping_for(bend: jax.Array) -> jax.Array:
    """Twice a negative curvature; zero for others."""
    return jnp.maximum(-2 * bend, jnp.zeros_like(bend))


def _inner_sample(client: Client, problem: TwoLevel, batch_size: BatchSize, key: Key) -> Sample:
    return client.draw(levels.inner_split(problem), batch_size, key)


def _mean_of(fed: AbstractFederation, cohort: Cohort, each: jax.Array) -> jax.Array:
    """The mean of one number from each client, or what a robust rule takes for it."""
    weights = fed.slot_weights(cohort)
    if robust_rule(fed.aggregate) is not None:
        return fed.aggregate(each, weights)
    return jnp.sum(weights.astype(each.dtype) * each)
