"""Rounds in a loop, traced: one after another, of one run or of several at once."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from rookery import tree
from rookery.engines.engine import Program
from rookery.engines.job_index import indexed, moved_on, without_index
from rookery.engines.round_costs import RoundCosts
from rookery.engines.spread import AbstractSpread
from rookery.engines.traced import ONE_DEVICE, TracedFederation
from rookery.program.aggregate import robust_rule
from rookery.program.algorithm import AbstractAlgorithm
from rookery.program.polling import later, memories_are_finite, server_is_finite
from rookery.rng import quick
from rookery.types import Key, Tree


def one_round(
    program: Program,
    algorithm: AbstractAlgorithm,
    clients_at_once: int | None,
    state: Tree,
    key: Key,
    round: int | jax.Array,
    spread: AbstractSpread = ONE_DEVICE,
) -> tuple[Tree, RoundCosts, Bool[Array, ""]]:
    """Trace one round of a program: pure, so it can be jitted and mapped over.

    Returns the state, the costs, and whether all is finite that the round has written.
    """
    fed = TracedFederation(program, round, clients_at_once, spread)
    fed.note_lists(state)
    if not any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(state)):
        key = quick(key)  # a key that the state holds must keep its type
    state = algorithm.round(fed, program.problem, state, jax.random.fold_in(key, round))
    is_finite = server_is_finite(state, program.aggregate)
    if robust_rule(program.aggregate) is None:  # otherwise a client may keep what it likes
        is_finite = is_finite & fed.has_kept_finite
    is_finite = spread.all_agree(is_finite)
    state = moved_on(later(state, fed.costs.seconds), fed.costs.seconds)
    return state, fed.costs, is_finite


def many_rounds(
    program: Program,
    algorithm: AbstractAlgorithm,
    clients_at_once: int | None,
    capacity: int,
    state: Tree,
    key: Key,
    first: int | jax.Array,
    n: int | jax.Array,
    spread: AbstractSpread = ONE_DEVICE,
) -> tuple[Tree, RoundCosts, Int[Array, "2"]]:
    """``n <= capacity`` rounds, n traced.

    Returns the state, the costs with one row per round, and (rounds done, whether all is finite).
    The loop ends early after a round that left NaN or infinity in the state.
    """
    begins_finite = spread.all_agree(_begins_finite(state, first))

    def once(state, round):
        state, costs, is_finite = one_round(
            program, algorithm, clients_at_once, state, key, round, spread
        )
        return state, costs, is_finite & begins_finite

    state, costs, status = _loop(once, capacity, indexed(state), first, n, ())
    return without_index(state), costs, status


class Lanes(NamedTuple):
    """Runs whose algorithms have one structure and differ in numbers.

    Attributes:
        structure: of the algorithms, without their numbers.
        numbers: of each lane's algorithm, along the first axis.
        states: of each lane.
        keys: of each lane.
    """

    structure: Tree
    numbers: Tree
    states: Tree
    keys: Key


def many_rounds_of_lanes(
    program: Program,
    lanes: Lanes,
    clients_at_once: int | None,
    capacity: int,
    first: int | jax.Array,
    n: int | jax.Array,
    matters: Bool[Array, " lanes"],
) -> tuple[Tree, RoundCosts, Int[Array, " lanes+1"]]:
    """At most ``n`` rounds of several runs in step.

    A loop whose lanes ended one by one would have to copy the states of all lanes in every round.
    This one ends for all of them after the first round that left NaN or infinity in a lane that
    matters; what the others compute is discarded.

    Args:
        program: what the lanes have in common.
        lanes: the runs.
        clients_at_once: see :class:`rookery.Compiled`.
        capacity: the most rounds.
        first: the number of the first round.
        n: how many rounds.
        matters: the lanes that decide when the loop ends.

    Returns:
        The states, the costs with a row per round and lane, and (rounds done, whether each lane is
        finite, or does not matter).
    """
    structure, numbers, states, keys = lanes
    begins_finite = jax.vmap(lambda state: _begins_finite(state, first))(states)

    def one(numbers, state, key, round):
        algorithm = eqx.combine(numbers, structure)
        return one_round(program, algorithm, clients_at_once, state, key, round)

    def once(states, round):
        states, costs, is_finite = jax.vmap(one, (0, 0, 0, None))(numbers, states, keys, round)
        return states, costs, (is_finite & begins_finite) | ~matters

    return _loop(once, capacity, states, first, n, matters.shape)


def _begins_finite(state: Tree, first: int | jax.Array) -> Bool[Array, ""]:
    """Whether memories are finite before round 0; later, rounds search the rows that they write."""
    return lax.cond(first == 0, memories_are_finite, lambda _: jnp.array(True), state)


def _loop(
    once: Callable[[Tree, jax.Array], tuple[Tree, RoundCosts, jax.Array]],
    capacity: int,
    state: Tree,
    first: int | jax.Array,
    n: int | jax.Array,
    lanes: tuple[int, ...],
) -> tuple[Tree, RoundCosts, jax.Array]:
    """Rounds until ``n`` are done or one leaves a state that is not finite."""
    costs = jax.tree.map(
        lambda a: jnp.zeros((capacity, *lanes, *a.shape), a.dtype), RoundCosts.zero()
    )

    def is_unfinished(carry):
        done, is_finite, _, _ = carry
        return (done < n) & jnp.all(is_finite)

    def body(carry):
        done, _, state, costs = carry
        state, own, is_finite = once(state, first + done)
        costs = jax.tree.map(lambda all, one: all.at[done].set(one), costs, own)
        return done + 1, is_finite, state, costs

    done, is_finite, state, costs = lax.while_loop(
        is_unfinished, body, (jnp.zeros((), jnp.int32), jnp.ones(lanes, bool), state, costs)
    )
    return state, costs, jnp.append(done, is_finite.astype(jnp.int32))


def many_runs(
    program: Program,
    lanes: Lanes,
    clients_at_once: int | None,
    capacity: int,
    first: int | jax.Array,
    n: jax.Array,
    spread: AbstractSpread = ONE_DEVICE,
) -> tuple[Tree, RoundCosts, Int[Array, "runs 2"]]:
    """:func:`many_rounds` of several runs, which may have different numbers of rounds.

    Runs may end one by one. A vmap of the loop would also copy the costs of all rounds in each.
    """
    structure, numbers, states, keys = lanes
    if n.shape[0] == 1:
        # a single run keeps real branches and loop lengths, which a vmap would turn into selects
        numbers, state, key = jax.tree.map(lambda a: a[0], (numbers, states, keys))
        algorithm = eqx.combine(numbers, structure)
        alone = many_rounds(
            program, algorithm, clients_at_once, capacity, state, key, first, n[0], spread
        )
        return jax.tree.map(lambda a: a[None], alone)

    def one(numbers, state, key, round):
        algorithm = eqx.combine(numbers, structure)
        return one_round(program, algorithm, clients_at_once, state, key, round, spread)

    def begins_finite(state):
        return spread.all_agree(_begins_finite(state, first))

    is_sound = jax.vmap(begins_finite)(states)

    def once(carry, round):
        states, done, is_finite = carry
        goes_on = is_finite & (done < n)
        new, costs, now_finite = jax.vmap(one, (0, 0, 0, None))(numbers, states, keys, round)
        states = jax.tree.map(lambda a, b: tree.where(goes_on, a, b), new, states)
        is_finite = jnp.where(goes_on, now_finite & is_sound, is_finite)
        done = done + goes_on.astype(done.dtype)
        is_any_left = jnp.any(is_finite & (done < n))
        return (states, done, is_finite), costs, jnp.broadcast_to(is_any_left, n.shape)

    carry = (states, jnp.zeros_like(n), jnp.ones(n.shape, bool))
    (states, done, is_finite), costs, _ = _loop(once, capacity, carry, first, jnp.max(n), n.shape)
    costs = jax.tree.map(lambda a: jnp.swapaxes(a, 0, 1), costs)
    return states, costs, jnp.stack([done, is_finite.astype(done.dtype)], axis=1)
