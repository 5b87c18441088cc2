"""Sizes of the clients' steps on blocks that are not given (:mod:`rookery.algorithms.shared.auto`).

The server finds them, and clients are sent them with the blocks. :class:`Curvature` is measured;
the first size of :class:`DoG` needs a direction, so clients are asked for the maps until there is
one: in round 0, and in round 1 too if that of round 0 is zero.
"""

import jax
import jax.numpy as jnp

from rookery.algorithms.shared.auto import AutoOpt, DoG, ServerOpts
from rookery.algorithms.shared.blocks import own_maps
from rookery.algorithms.shared.curvature import measured_blocks
from rookery.algorithms.shared.on_view import AbstractOnView
from rookery.algorithms.shared.step_rule import all_observed, direction_of, each_rule
from rookery.algorithms.shared.views import Blocks
from rookery.program.federation import AbstractFederation
from rookery.program.participation import Cohort
from rookery.types import Key, Problem, Tree


def sized(
    fed: AbstractFederation,
    problem: Problem,
    algorithm: AbstractOnView,
    cohort: Cohort,
    u: Blocks,
    own: Tree,
    key: Key,
    *,
    first_batch: int | None,
    is_alone: bool,
) -> Tree:
    """The states of the rules with sizes for this round; nothing happens if all are given.

    Args:
        fed: the federation.
        problem: the problem.
        algorithm: whose clients take the steps.
        cohort: who is asked for the maps.
        u: the blocks.
        own: the states of the rules.
        key: of the round.
        first_batch: rows per client for these maps.
        is_alone: whether clients take several steps by themselves (:func:`measured_blocks`).
    """
    rules = each_rule(algorithm.outer_lr, algorithm.inner_lr, len(u))
    measure_key, first_key = jax.random.fold_in(key, 2), jax.random.fold_in(key, 3)
    view, batch_size = algorithm.view, algorithm.batch_size
    how = {"clients": algorithm.clients, "batch_size": batch_size, "is_alone": is_alone}
    own = measured_blocks(fed, problem, view, rules, own, u, measure_key, **how)
    if not any(isinstance(rule, DoG) for rule in rules):
        return own

    def first(own: Tree) -> Tree:
        at = fed.broadcast(cohort, u)  # ------------------------------------ down  u
        settings = {"problem": problem, "view": view, "batch_size": first_batch}
        settings["round"] = fed.round
        s_i = fed.map(own_maps, at, key=first_key, **settings)
        return all_observed(rules, fed.mean(s_i), own, u)  # ---------------- up    s_i(u)

    is_known = jnp.stack([opt.size > 0 for opt in own.opts if isinstance(opt, AutoOpt)])
    return fed.when(~jnp.all(is_known), first, own)


def after(algorithm: AbstractOnView, own: Tree, u: Blocks, new: Blocks) -> Tree:
    """The states after a round that moved u: the mean directions were (u - new) / size."""
    if not isinstance(own, ServerOpts):
        return own
    rules = each_rule(algorithm.outer_lr, algorithm.inner_lr, len(u))
    along = tuple(map(direction_of, rules, own.opts, u, new))
    return all_observed(rules, along, own, new)
