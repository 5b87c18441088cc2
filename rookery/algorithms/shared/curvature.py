"""L of rules that find their sizes: the largest curvature that steps of x and of y meet.

    of y    g_yy of a bilevel problem, f_yy of a minimax problem
    of x    the derivative of its map in x at fixed y and v: f_xx - (g_y v)_xx, or f_xx

A measurement is one exchange: the iterates go down, one number per measured variable comes up, one
more if the blocks have an adjoint v. Steps along means meet the mean Hessian, whose L is at most
the mean of the clients' L; clients that take several steps by themselves need the largest.

L of x leaves out how y follows x, so it is a bound on the steps of :class:`DoG` and not a size: it
holds them back where x enters the losses steeply, as the weights of a network do. Where the inner
variable of a composition follows a value, L of y is 1, that of x is unknown, and nothing is sent.
"""

from collections.abc import Callable
from typing import Protocol, Self, TypeVar

import jax
import jax.numpy as jnp

from rookery import tree
from rookery.algorithms.shared.auto import (
    AutoOpt,
    Curvature,
    DoG,
    DoGMemory,
    ServerOpts,
    following,
)
from rookery.algorithms.shared.blocks import draw_samples
from rookery.algorithms.shared.context import Context
from rookery.algorithms.shared.penalty_view import PenaltyView
from rookery.algorithms.shared.step_rule import StepRule, StepRules
from rookery.algorithms.shared.two_level import Opts, State, Warm
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
from rookery.program.federation import AbstractFederation, Cached, Client, Placed, Step
from rookery.program.participation import AbstractParticipation, Cohort
from rookery.types import BatchSize, Count, Key, Problem, Sample, Tree

Product = Callable[[Tree], Tree]
"""The Hessian of one sample times a vector."""

MEASURED = BilevelView | MinimaxView | PenaltyView
"""Views whose maps have curvatures to be measured."""


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
    context: Context,
    rule: StepRule | None,
    part: Part,
    state: State,
    key: Key,
    *,
    is_alone: bool = False,
) -> tuple[Opts, Part]:
    """The states of both rules with sizes for this round, and the part with the same L of y.

    Args:
        context: of the round.
        rule: of the inner steps.
        part: estimates the adjoint.
        state: with the iterates and the states of the rules.
        key: of the round; the keys of its two levels are split off the same.
        is_alone: as in :func:`measured_blocks`.
    """
    opts = state.opts
    both = tuple(map(_at_server, (opts.outer, opts.inner)))
    if not _found(both):
        return opts, part
    if isinstance(context.problem, Composition):
        if not isinstance(rule, Curvature):
            return opts, part
        inner = rule.renewed(_at_server(opts.inner), jnp.ones(()))
        opts = opts._replace(inner=_like(opts.inner, inner))
        return opts, part.with_lipschitz(1 / inner.size)
    view, blocks = view_of(context.problem), (state.x, state.y)
    if isinstance(view, BilevelView):
        warm = opts.adjoint
        blocks = *blocks, warm.v if isinstance(warm, Warm) else tree.zeros_like(state.y)
    outer, inner = measured_blocks(
        context.fed,
        context.problem,
        view,
        (None, rule),
        both,
        blocks,
        jax.random.fold_in(key, 2),
        clients=context.clients,
        batch_size=context.batch_size,
        is_alone=is_alone,
    )
    if isinstance(rule, Curvature):
        part = part.with_lipschitz(1 / inner.size)
    inner, outer = _like(opts.inner, inner), _like(opts.outer, outer)
    return opts._replace(inner=inner, outer=outer), part


def _at_server(opt: Tree) -> Tree:
    return opt.opts if isinstance(opt, ServerOpts) else opt


def _like(before: Tree, opt: Tree) -> Tree:
    return ServerOpts(opt) if isinstance(before, ServerOpts) else opt


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


def along(client: Client, direction: Callable[[Tree], Tree], w: Tree, key: Key) -> jax.Array:
    """The largest curvature of a client's direction, a function of its model."""

    def product(p):
        return jax.jvp(direction, (w,), (p,))[1]

    return largest(client, product, w, Curvature().iterations, key)


def bounded(
    fed: AbstractFederation,
    rule: StepRule,
    opt: Tree,
    step: Step,
    values: tuple[Placed, ...],
    *,
    is_alone: bool,
    settings: dict,
) -> Tree:
    """The state of a rule for the models of single-level methods, with L where it is due.

    Args:
        fed: the federation.
        rule: of the clients' steps; unless it finds its size, nothing changes.
        opt: its state.
        step: gives a client's L (:func:`along`).
        values: what the clients of a cohort have been sent.
        is_alone: as in :func:`measured_blocks`.
        settings: of the step.
    """
    if not isinstance(rule, DoG):
        return opt

    def measure(opt):
        each = fed.stack(fed.map(step, *values, **settings), is_aggregated=True)  # up    L
        cohort = values[0].cohort
        L = fed.largest(each, cohort) if is_alone else _mean_of(fed, cohort, each)
        return _like(opt, rule.renewed(_at_server(opt), L))

    return fed.when(is_due(Curvature(), fed.round), measure, opt)


# ---- blocks


def check_blocks(name: str, rule: StepRules, problem: Problem, view: AbstractView) -> None:
    """Raise if the blocks of a problem have no curvature that could be measured."""
    if is_measured(rule) and not isinstance(view, MEASURED | AbstractLayersView):
        raise TypeError(
            f"{name} is Curvature, and the maps of {type(view).__name__} have no inner Hessian "
            f"whose curvature could be measured on a {type(problem).__name__}. Give a number."
        )


def first_states(
    view: AbstractView,
    rules: tuple[StepRule, ...],
    opts: Tree,
    blocks: Blocks,
    *,
    is_followed: bool = True,
) -> Tree:
    """The states before round 0, with a damping for v where there is one.

    Args:
        view: of the problem.
        rules: one for each block.
        opts: their states before the first step.
        blocks: x and the others.
        is_followed: whether a measured size follows how directions agree (:class:`Curvature`).
    """
    if isinstance(opts, ServerOpts):
        how = {"is_followed": is_followed}
        return ServerOpts(first_states(view, rules, opts.opts, blocks, **how))
    if is_followed and isinstance(view, BilevelView | MinimaxView):
        opts = tuple(map(following, opts, blocks))
    if not isinstance(view, BilevelView) or not isinstance(rules[2], Curvature):
        return opts
    return (*opts[:2], opts[2]._replace(damping=jnp.zeros_like(opts[2].size)))


def _found(opts: Blocks) -> list[int]:
    """The places of the states that a measurement renews: of x, and the first of the others."""
    is_x = isinstance(opts[0], AutoOpt) and isinstance(opts[0].memory, DoGMemory)
    others = [i for i, opt in enumerate(opts) if i > 0 and _is_inner(opt)]
    return [0] * is_x + others[:1]


def _is_inner(opt: Tree) -> bool:
    return isinstance(opt, AutoOpt) and not isinstance(opt.memory, DoGMemory)


def measured_blocks(
    fed: AbstractFederation,
    problem: Problem,
    view: AbstractView | None,
    rules: tuple[StepRule | None, ...],
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
        rules: one for each block; there may be blocks without.
        opts: their states, or :class:`ServerOpts` with them.
        blocks: x and the others.
        key: of the measurement.
        clients: who takes part in it.
        batch_size: rows per client.
        is_alone: whether clients take several steps by themselves, so that the largest L of any
            client counts. Steps along means meet the curvature of the mean.
    """
    if isinstance(view, PenaltyView):
        fed.refuse_robust(
            "a penalty (PenaltyView)",
            "it multiplies what a Byzantine client makes the two inner variables differ by",
        )
    if isinstance(opts, ServerOpts):
        how = {"clients": clients, "batch_size": batch_size, "is_alone": is_alone}
        return ServerOpts(measured_blocks(fed, problem, view, rules, opts.opts, blocks, key, **how))
    if not opts or not _found(opts):
        return opts
    view = view_of(problem, view)
    if isinstance(view, AbstractLayersView):
        return _renewed(rules, opts, {i: jnp.ones(()) for i in _found(opts) if i > 0})
    if not isinstance(view, MEASURED):
        return opts
    places = tuple(_found(opts))
    how = next((rule for rule in rules if isinstance(rule, Curvature)), Curvature())
    who, sample_key = jax.random.split(key)

    def measure(opts):
        cohort = fed.sample(clients, who)
        at = fed.broadcast(cohort, blocks)  # --------------------------------- down  the blocks
        settings = {"problem": problem, "view": view, "batch_size": batch_size}
        settings |= {"iterations": how.iterations, "round": fed.round, "places": places}
        both = fed.map(curvatures_of, at, key=sample_key, **settings)
        each, bend = fed.stack(both, is_aggregated=True)  # ------------------ up    numbers
        L = [fed.largest(one, cohort) if is_alone else _mean_of(fed, cohort, one) for one in each]
        return _renewed(rules, opts, dict(zip(places, L, strict=True)), _mean_of(fed, cohort, bend))

    return fed.when(is_due(how, fed.round), measure, opts)


def curvatures_of(
    client: Client,
    blocks: Blocks,
    *,
    problem: Bilevel | Minimax,
    view: AbstractView,
    batch_size: BatchSize,
    round: Count,
    places: tuple[int, ...],
    iterations: int,
) -> tuple[tuple[jax.Array, ...], jax.Array]:
    """The largest curvatures of one sample, and v' g_yy v / v' v where there is a v."""
    start_key, sample_key = jax.random.split(client.key)
    samples = draw_samples(client, problem, view.at(round), batch_size, sample_key)
    how = {"view": view.at(round), "iterations": iterations, "key": start_key}
    each = tuple(curvature_of(client, problem, blocks, samples, place, **how) for place in places)
    if not isinstance(view, BilevelView) or not isinstance(problem, Bilevel):
        return each, jnp.zeros_like(each[0])
    return each, bend_of(problem, blocks, samples)


def curvature_of(
    client: Client,
    problem: Bilevel | Minimax,
    blocks: Blocks,
    samples: tuple[Sample, ...],
    place: int,
    *,
    view: AbstractView,
    iterations: int,
    key: Key,
) -> jax.Array:
    """The largest curvature in x at fixed y and v (place 0) or in y, on one sample of each level.

    With Gauss-Newton products steps of y and of v meet different matrices, and the larger counts.
    """
    x, y = blocks[:2]

    def x_map(x):
        return view.maps(problem, (x, *blocks[1:]), samples)[0]

    if place == 0:
        return largest(client, lambda p: jax.jvp(x_map, (x,), (p,))[1], x, iterations, key)
    if isinstance(problem, Minimax):
        return largest(client, lambda p: f_yy(problem, x, y, p, samples[0]), y, iterations, key)

    def g_yy(p):
        return problem.exact_inner_hvp(x, y, p, samples[-1])

    if isinstance(view, PenaltyView):

        def bent(p):
            f_yy = oracles.second_derivative(problem.outer, (x, y), 1, 1, p, samples[0])
            return tree.axpy(view.share, f_yy, g_yy(p))

        return largest(client, bent, y, iterations, key)
    found = largest(client, g_yy, y, iterations, key)
    if problem.has_exact_hessian:
        return found

    def gauss_newton(p):
        return problem.inner_hvp(x, y, p, samples[-1])

    return jnp.maximum(found, largest(client, gauss_newton, y, iterations, key))


def f_yy(problem: Minimax, x: Tree, y: Tree, p: Tree, sample: Sample) -> Tree:
    """The second derivative in y times a vector."""
    return oracles.second_derivative(problem.loss, (x, y), 1, 1, p, sample)


def bend_of(problem: Bilevel, blocks: Blocks, samples: tuple[Sample, ...]) -> jax.Array:
    """The curvature of the inner problem along v:  v' g_yy v / v' v."""
    x, y, v = blocks
    length = tree.dot(v, v)
    image = problem.inner_hvp(x, y, v, samples[-1])
    return tree.dot(v, image) / jnp.where(length > 0, length, jnp.ones_like(length))


def _renewed(
    rules: tuple[StepRule | None, ...],
    opts: Blocks,
    found: dict[int, jax.Array],
    bend: jax.Array | None = None,
) -> Blocks:
    """The states after a measurement: of x, of all other blocks, and of the curvature along v."""
    inner = next((L for place, L in found.items() if place > 0), None)

    def one(place, rule, opt):
        if place == 0 and place in found:
            return DoG().renewed(opt, found[0])
        if inner is None or not isinstance(rule, Curvature):
            return opt
        if bend is None or not jax.tree.leaves(opt.damping):
            return rule.renewed(opt, inner)
        was = opt.damping
        # the size of v is 1 / (L + damping)
        L = AutoOpt(jnp.where(opt.size > 0, opt.size / (1 - was * opt.size), opt.size))
        L = 1 / rule.renewed(L, inner).size
        damping = jnp.maximum(damping_for(bend.astype(was.dtype)), was / 2)
        return opt._replace(size=1 / (L + damping), damping=damping)

    each = zip(range(len(opts)), rules, opts, strict=True)
    return tuple(one(*three) for three in each)


def damping_for(bend: jax.Array) -> jax.Array:
    """Twice a negative curvature; zero for others."""
    return jnp.maximum(-2 * bend, jnp.zeros_like(bend))


def _mean_of(fed: AbstractFederation, cohort: Cohort, each: jax.Array) -> jax.Array:
    """The mean of one number from each client, or what a robust rule takes for it."""
    weights = fed.slot_weights(cohort)
    if robust_rule(fed.aggregate) is not None:
        return fed.aggregate(each, weights)
    return jnp.sum(weights.astype(each.dtype) * each)
