"""L, the largest eigenvalue of the inner Hessian: given, or estimated by power iteration."""

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import _check, _tree
from rookery._types import Key, Tree
from rookery.problem.bilevel import Bilevel
from rookery.program.cohort import AbstractParticipation
from rookery.program.federation import AbstractFederation, Client


class PowerIteration(eqx.Module):
    """Estimates L as the largest eigenvalue of any asked client's inner Hessian.

    Each client iterates on its own data, so an estimate costs one exchange with one number up. The
    largest over clients bounds the eigenvalues of the mean Hessian.

    Args:
        iterations: Hessian-vector products per client.
        every: rounds from one estimate to the next; the first is made in round 0.
        safety: factor on the estimate, which approaches the eigenvalue from below.
    """

    iterations: int = 20
    every: int = 10
    safety: float = 1.1

    def __check_init__(self):
        _check.count("PowerIteration.iterations", self.iterations)
        _check.count("PowerIteration.every", self.every)
        _check.positive("PowerIteration.safety", self.safety)


def lipschitz(
    fed: AbstractFederation,
    problem: Bilevel,
    x: Tree,
    y: Tree,
    rule: float | PowerIteration,
    previous: jax.Array,
    clients: AbstractParticipation,
    batch_size: int | None,
    key: Key,
) -> jax.Array:
    """L for this round: given, kept from an earlier round, or estimated anew in one exchange."""
    if not isinstance(rule, PowerIteration):
        return jnp.asarray(rule).astype(previous.dtype)
    who, sample_key = jax.random.split(key)
    settings = {"problem": problem, "batch_size": batch_size, "iterations": rule.iterations}

    def estimate(_, previous):
        cohort = fed.sample(clients, who)
        point = fed.broadcast(cohort, (x, y))  # ----------------------------- down  x, y
        largest = fed.map(largest_eigenvalue, point, key=sample_key, **settings)
        largest = fed.stack(largest)  # -------------------------------------- up    one number
        largest = jnp.max(jnp.where(cohort.active, largest, jnp.zeros_like(largest)))
        return _tree.scale(rule.safety, largest).astype(previous.dtype)

    is_due = jnp.asarray(fed.round) % rule.every == 0
    return fed.repeat(jnp.where(is_due, 1, 0), estimate, previous)


def largest_eigenvalue(
    client: Client,
    point: tuple[Tree, Tree],
    *,
    problem: Bilevel,
    batch_size: int | None,
    iterations: int,
) -> jax.Array:
    """By how much the inner Hessian of one sample stretches its leading direction."""
    start_key, sample_key = jax.random.split(client.key)
    sample = client.draw(problem.inner_split, batch_size, sample_key)

    def step(_, carry):
        direction, _ = carry
        image = problem.inner_hvp(*point, direction, sample)
        stretch = _tree.norm(image)
        # a Hessian of zeros gives the estimate zero and not a division by it
        return _tree.scale(1 / jnp.maximum(stretch, jnp.finfo(stretch.dtype).tiny), image), stretch

    direction = _tree.random_normal(start_key, point[1])
    norm = _tree.norm(direction)
    init = (_tree.scale(1 / norm, direction), jnp.zeros_like(norm))
    return client.repeat(iterations, step, init)[1]
