"""L, the largest eigenvalue of the inner Hessian: given, or estimated by power iteration."""

import dataclasses
from dataclasses import KW_ONLY
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.shared import levels
from rookery.algorithms.shared.context import Context
from rookery.algorithms.shared.schedule import number
from rookery.algorithms.shared.system import LocalSystem
from rookery.algorithms.shared.two_level import State
from rookery.problem.bilevel import Bilevel
from rookery.program.federation import Client
from rookery.types import BatchSize, Count, Key, Tree


class PowerIteration(eqx.Module):
    """Estimates L as the largest eigenvalue of the inner Hessian of any client in a cohort.

    Each client iterates on its own data, so an estimate costs one exchange with one number up. The
    largest over clients bounds the eigenvalues of the mean Hessian. With a robust rule it is the
    largest without as many as there may be Byzantine clients.

        >>> PowerIteration(iterations=10, every=5).is_due(10).item()
        True

    Args:
        iterations: Hessian-vector products per client.
        every: rounds from one estimate to the next; the first is made in round 0.
        safety: factor on the estimate, which approaches the eigenvalue from below.
    """

    _: KW_ONLY
    iterations: int = 20
    every: int = 10
    safety: float = 1.1

    def __check_init__(self):
        for name in ("iterations", "every"):
            check.count(f"PowerIteration.{name}", getattr(self, name))
        check.positive("PowerIteration.safety", self.safety)

    def is_due(self, round: Count) -> jax.Array:
        """Whether L is estimated in a round."""
        return jnp.asarray(round) % self.every == 0


Lipschitz = float | PowerIteration


def given_or_estimated(rule: Lipschitz | None) -> Lipschitz:
    """L as given; None means :class:`PowerIteration`."""
    return PowerIteration() if rule is None else rule


def check_lipschitz(name: str, rule: Lipschitz) -> None:
    """Raise unless L is a positive number or a way to estimate it."""
    if not isinstance(rule, PowerIteration):
        check.positive(name, rule)


class NeumannSettings(eqx.Module):
    """The settings of every Neumann series (1/L) Σ_n (I - g_yy/L)^n.

    Args:
        terms: N, its length.
        lipschitz: L, or how to estimate it.
    """

    _: KW_ONLY
    terms: int = 5
    lipschitz: Lipschitz = eqx.field(converter=number, default_factory=PowerIteration)

    def __check_init__(self):
        check.count(f"{type(self).__name__}.terms", self.terms)
        check_lipschitz(f"{type(self).__name__}.lipschitz", self.lipschitz)

    def with_lipschitz(self, L: jax.Array) -> Self:
        """The series with an L that was measured elsewhere; an L that was given stays."""
        if not isinstance(self.lipschitz, PowerIteration):
            return self
        return dataclasses.replace(self, lipschitz=L)


def lipschitz(context: Context, state: State, rule: Lipschitz, key: Key) -> jax.Array:
    """L for this round: given, kept from an earlier round, or estimated in one exchange."""
    x, y, previous = state.x, state.y, state.lipschitz
    if not isinstance(rule, PowerIteration):
        return jnp.asarray(rule).astype(previous.dtype)
    who, sample_key = jax.random.split(key)

    def estimate(previous):
        cohort = context.sample(who)
        point = context.fed.broadcast(cohort, (x, y))  # --------------------- down  x, y
        largest = context.map(largest_eigenvalue, point, key=sample_key, iterations=rule.iterations)
        largest = context.fed.stack(largest, is_aggregated=True)  # ---------- up    one number
        largest = context.fed.largest(largest, cohort)
        return tree.scale(rule.safety, largest).astype(previous.dtype)

    return context.fed.when(rule.is_due(context.fed.round), estimate, previous)


def own_lipschitz(at: LocalSystem, rule: Lipschitz, key: Key) -> jax.Array:
    """L of a client's own inner Hessian: given, or estimated on the spot, which sends nothing."""
    if not isinstance(rule, PowerIteration):
        return jnp.asarray(rule).astype(jnp.result_type(*jax.tree.leaves(at.y)))
    return tree.scale(rule.safety, _largest(at, rule.iterations, key))


def largest_eigenvalue(
    client: Client,
    point: tuple[Tree, Tree],
    *,
    problem: Bilevel,
    batch_size: BatchSize,
    iterations: int,
) -> jax.Array:
    """By how much the inner Hessian of one sample stretches its leading direction."""
    return _largest(LocalSystem(client, problem, *point, batch_size), iterations, client.key)


def _largest(at: LocalSystem, iterations: int, key: Key) -> jax.Array:
    start_key, sample_key = jax.random.split(key)
    sample = at.inner_sample(sample_key)

    def step(_, carry):
        direction, _ = carry
        image = levels.hessian_vector(at.problem, at.x, at.y, direction, sample)
        stretch = tree.norm(image)
        # a Hessian of zeros gives the estimate zero and not a division by it
        return tree.scale(1 / jnp.maximum(stretch, jnp.finfo(stretch.dtype).tiny), image), stretch

    direction = tree.random_normal(start_key, at.y)
    norm = tree.norm(direction)
    init = (tree.scale(1 / norm, direction), jnp.zeros_like(norm))
    return at.client.repeat(iterations, step, init)[1]
