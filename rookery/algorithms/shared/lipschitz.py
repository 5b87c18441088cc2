"""L, the largest eigenvalue of the inner Hessian: given, or estimated by power iteration."""

from dataclasses import KW_ONLY

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.shared.interface import Sampling
from rookery.problem.bilevel import Bilevel
from rookery.program.federation import AbstractFederation, Client
from rookery.types import Key, Tree


class PowerIteration(eqx.Module):
    """Estimates L as the largest eigenvalue of any asked client's inner Hessian.

    Each client iterates on its own data, so an estimate costs one exchange with one number up. The
    largest over clients bounds the eigenvalues of the mean Hessian.

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
        check.count("PowerIteration.iterations", self.iterations)
        check.count("PowerIteration.every", self.every)
        check.positive("PowerIteration.safety", self.safety)


Lipschitz = float | PowerIteration

REMEDY = "A smaller step size, or a larger lipschitz where there is one, is the usual remedy."
"""What algorithms say whose adjoint may need L, when a value is no longer finite."""


def check_lipschitz(name: str, rule: Lipschitz) -> None:
    """Raise unless L is a positive number or a way to estimate it."""
    if not isinstance(rule, PowerIteration):
        check.positive(name, rule)


def lipschitz(
    fed: AbstractFederation,
    problem: Bilevel,
    sampling: Sampling,
    x: Tree,
    y: Tree,
    rule: Lipschitz,
    previous: jax.Array,
    key: Key,
) -> jax.Array:
    """L for this round: given, kept from an earlier round, or estimated anew in one exchange."""
    if not isinstance(rule, PowerIteration):
        return jnp.asarray(rule).astype(previous.dtype)
    who, sample_key = jax.random.split(key)
    settings = {"problem": problem, "batch_size": sampling.batch_size}

    def estimate(_, previous):
        cohort = fed.sample(sampling.clients, who)
        point = fed.broadcast(cohort, (x, y))  # ----------------------------- down  x, y
        largest = fed.map(
            largest_eigenvalue, point, key=sample_key, iterations=rule.iterations, **settings
        )
        largest = fed.stack(largest)  # -------------------------------------- up    one number
        largest = jnp.max(jnp.where(cohort.active, largest, jnp.zeros_like(largest)))
        return tree.scale(rule.safety, largest).astype(previous.dtype)

    is_due = jnp.asarray(fed.round) % rule.every == 0
    return fed.repeat(jnp.where(is_due, 1, 0), estimate, previous)


def own_lipschitz(
    client: Client,
    problem: Bilevel,
    x: Tree,
    y: Tree,
    rule: Lipschitz,
    batch_size: int | None,
    key: Key,
) -> jax.Array:
    """L of a client's own inner Hessian: given, or estimated on the spot, which sends nothing."""
    if not isinstance(rule, PowerIteration):
        return jnp.asarray(rule).astype(jnp.result_type(*jax.tree.leaves(y)))
    found = _largest(client, problem, x, y, rule.iterations, batch_size, key)
    return tree.scale(rule.safety, found)


def largest_eigenvalue(
    client: Client,
    point: tuple[Tree, Tree],
    *,
    problem: Bilevel,
    batch_size: int | None,
    iterations: int,
) -> jax.Array:
    """By how much the inner Hessian of one sample stretches its leading direction."""
    return _largest(client, problem, *point, iterations, batch_size, client.key)


def _largest(client, problem, x, y, iterations, batch_size, key):
    start_key, sample_key = jax.random.split(key)
    sample = client.draw(problem.inner_split, batch_size, sample_key)

    def step(_, carry):
        direction, _ = carry
        image = problem.inner_hvp(x, y, direction, sample)
        stretch = tree.norm(image)
        # a Hessian of zeros gives the estimate zero and not a division by it
        return tree.scale(1 / jnp.maximum(stretch, jnp.finfo(stretch.dtype).tiny), image), stretch

    direction = tree.random_normal(start_key, y)
    norm = tree.norm(direction)
    init = (tree.scale(1 / norm, direction), jnp.zeros_like(norm))
    return client.repeat(iterations, step, init)[1]
