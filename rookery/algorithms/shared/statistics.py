"""Which step rules may move the running statistics of BatchNorm layers.

The statistics follow the batches by gradient steps (:mod:`rookery.problem.batch_norm`). They become
the clients' mean only if a step is proportional to its gradient, as that of SGD and of momentum.
Adam divides by the gradient's size, clipping cuts it, and weight decay pulls statistics to zero.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from rookery.algorithms.shared.step_rule import Optimiser, StepRule
from rookery.problem import batch_norm
from rookery.problem.sample import Rows
from rookery.problem.single_level import SingleLevel
from rookery.types import Problem, Scalar, Tree

PROBE = 1e4
"""Size of the gradients that a rule is tried with; larger than usual limits of clipping."""


def follows_batches(problem: Problem, w: Tree, example: Callable[[str], Tree]) -> bool:
    """Whether a model has running statistics, and the loss of the problem moves them.

    Args:
        problem: of any kind; only single-level ones are looked into.
        w: the model.
        example: gives shapes and types of one row of a split.
    """
    is_there = any(jax.tree.leaves(batch_norm.is_statistic(w)))
    if not is_there or not isinstance(problem, SingleLevel):
        return False

    def value(w: Tree, rows: Tree) -> Scalar:
        return problem.value(w, Rows(rows, jax.random.key(0)))

    rows = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct((2, *a.shape), a.dtype), example(problem.split)
    )
    return batch_norm.is_followed(value, w, rows)


def check_statistics(name: str, rule: StepRule | None, w: Tree, *, follow: bool) -> None:
    """Raise if a rule would spoil the running statistics in a model.

    Args:
        name: of the step rule.
        rule: any; numbers and schedules are always fit.
        w: the model that the rule moves.
        follow: whether the loss moves the statistics; frozen ones have a gradient of zero.
    """
    if not isinstance(rule, Optimiser):
        return
    is_statistic = batch_norm.is_statistic(w)
    if not any(jax.tree.leaves(is_statistic)):
        return
    point = jax.tree.map(jnp.ones_like, w)  # at zero, weight decay does not show

    def step(size: float) -> list[jax.Array]:
        gradient = jax.tree.map(lambda a: jnp.full_like(a, size), point)
        moved = rule.first_update(gradient, point)
        pairs = zip(jax.tree.leaves(is_statistic), jax.tree.leaves(moved), strict=True)
        return [leaf for is_one, leaf in pairs if is_one]

    if any(jnp.any(leaf != 0) for leaf in step(0.0)):
        why = "moves them although their gradient is zero, as weight decay does"
    elif follow and not all(
        jnp.allclose(2 * one, two, rtol=1e-2, atol=0.0)
        for one, two in zip(step(PROBE), step(2 * PROBE), strict=True)
    ):
        why = "takes steps that are not proportional to the gradient, as Adam and clipping do"
    else:
        return
    raise ValueError(
        f"the model has running statistics of BatchNorm, and {name}={rule.name} {why}, which "
        "makes them wrong. Give them plain steps, with optax.partition "
        "and rookery.problem.batch_norm.is_statistic as docs/step-rules.md shows."
    )
