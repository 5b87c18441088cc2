"""What algorithms do with blocks: evaluate their maps on a client, and step against them."""

import math

import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.shared.step_rule import StepRule, move
from rookery.algorithms.shared.views import AbstractView, Blocks, view_of
from rookery.problem.bilevel import Bilevel
from rookery.program.federation import Client
from rookery.types import BatchSize, Count, Key, Number, Problem, Sample, Tree

Radius = float | tuple[float, ...] | None
"""The largest norm of the blocks other than x, one for all or one each; None bounds none."""


def check_radius(name: str, radius: Radius, n_blocks: int | None = None) -> None:
    """Raise unless all are above zero, inf included, and there is one for each block."""
    for r in radius if isinstance(radius, tuple) else (radius,):
        if r is not None and r != math.inf:
            check.positive(name, r)
    if n_blocks is not None and isinstance(radius, tuple) and len(radius) != n_blocks:
        raise ValueError(f"{name} has {len(radius)} entries for {n_blocks} blocks.")


def evaluate(
    client: Client,
    problem: Problem,
    view: AbstractView | None,
    batch_size: BatchSize,
    key: Key,
    *points: Blocks,
    round: Count,
) -> tuple[Blocks, ...]:
    """The client's maps of a round at one or several points, all on the same rows."""
    view = view_of(problem, view).at(round)
    samples = draw_samples(client, problem, view, batch_size, key)
    return tuple(view.maps(problem, point, samples) for point in points)


def draw_samples(
    client: Client, problem: Problem, view: AbstractView, batch_size: BatchSize, key: Key
) -> tuple[Sample, ...]:
    """A sample of each split that an evaluation of the view's maps needs."""
    splits = view.splits(problem)
    keys = jax.random.split(key, len(splits))
    return tuple(client.draw(split, batch_size, keys[i]) for i, split in enumerate(splits))


def own_maps(
    client: Client,
    u: Blocks,
    *,
    problem: Problem,
    view: AbstractView | None,
    batch_size: BatchSize,
    round: Count,
) -> Blocks:
    """s_i(u; ξ): what a client is asked for its maps with."""
    return evaluate(client, problem, view, batch_size, client.key, u, round=round)[0]


def descend(
    rules: tuple[StepRule, ...],
    direction: Blocks,
    opts: tuple[Tree, ...],
    blocks: Blocks,
    round: Count,
    radius: Radius = None,
    steps: Count = 1,
) -> tuple[Blocks, tuple[Tree, ...]]:
    """Every block a step by its own rule against its direction, within its radius.

    Args:
        rules: one for each block.
        direction: shaped like the blocks.
        opts: the rules' states.
        blocks: x and the others.
        round: of the run, for schedules.
        radius: the largest norm of the blocks other than x.
        steps: how many steps this call takes in all, for :class:`PerCall`.

    Returns:
        the blocks, and the rules' states.
    """
    each = zip(rules, direction, opts, blocks, strict=True)
    moved, opts = zip(*(move(*one, round, steps) for one in each), strict=True)
    if radius is None:
        return moved, opts
    x, *others = moved
    radii = radius if isinstance(radius, tuple) else (radius,) * len(others)
    return (x, *(within(r, block) for r, block in zip(radii, others, strict=True))), opts


def within(radius: Number, block: Tree) -> Tree:
    """A block, pulled back to the ball of a radius if it is outside."""
    norm = tree.norm(block)
    largest = jnp.asarray(radius).astype(norm.dtype)
    return tree.scale(jnp.where(norm > largest, largest / norm, jnp.ones_like(norm)), block)


def draw_levels(client: Client, problem: Bilevel, batch_size: BatchSize) -> tuple[Sample, Sample]:
    """Independent samples of the outer and of the inner level."""
    outer_key, inner_key = jax.random.split(client.key)
    outer = client.draw(problem.outer_split, batch_size, outer_key)
    return outer, client.draw(problem.inner_split, batch_size, inner_key)
