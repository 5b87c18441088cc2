"""Multiply all step sizes of an algorithm by one factor.

Step sizes are found by their names: ``lr``, ``..._lr`` and the ``learning_rate`` of an optimiser,
in the algorithm and in its parts. 1/L is the step of a series, so a ``lipschitz`` that was given as
a number is divided by the factor, and so is the ``safety`` of one that is estimated. A step rule
that holds no number of its own, such as a function of the round, has a method
``with_smaller_steps``. Of a rule that finds its sizes during the run, the ``first`` is multiplied.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax

from rookery import check
from rookery.types import Tree

T = TypeVar("T", bound=eqx.Module)


@runtime_checkable
class Shrinkable(Protocol):
    """A step rule that knows how to take smaller steps."""

    def with_smaller_steps(self, factor: float) -> object:
        """The rule with all its steps multiplied by a factor; its state has the same structure."""
        ...


def scale_steps(algorithm: T, factor: float) -> T:
    """An algorithm, or a part of one, with all step sizes multiplied by a factor.

    Numbers stay numbers, so that the compiled program is the same.

    >>> import rookery as rk
    >>> smaller = scale_steps(rk.FedNest(outer_lr=0.2, inner_lr=rk.parts.Decay(0.4, 0.9)), 0.5)
    >>> smaller.outer_lr, smaller.inner_lr.lr, smaller.inner_lr.factor
    (0.1, 0.2, 0.9)

    Args:
        algorithm: whose step sizes.
        factor: above 0, at most 1.
    """
    check.positive("factor", factor)
    return _scaled_module(algorithm, factor)


def smaller(rule: Shrinkable | eqx.Module, factor: float) -> object:
    """A step rule whose steps are multiplied by a factor."""
    return _scaled_field("lr", rule, factor)


def is_step_size(name: str) -> bool:
    """Whether a field of this name is a step size.

    >>> is_step_size("inner_lr"), is_step_size("local_steps")
    (True, False)
    """
    return name in ("lr", "learning_rate") or name.endswith("_lr")


def _scaled_module(module: T, factor: float) -> T:
    changed = {}
    for field in fields(module):
        old = getattr(module, field.name)
        new = _scaled_field(field.name, old, factor)
        if new is not old:
            changed[field.name] = new
    if not changed:
        return module
    return eqx.tree_at(
        lambda m: [getattr(m, name) for name in changed],
        module,
        list(changed.values()),
        is_leaf=lambda node: any(node is getattr(module, name) for name in changed),
    )


def _scaled_field(name: str, value: Tree, factor: float) -> Tree:
    if isinstance(value, Shrinkable):
        return value.with_smaller_steps(factor)
    if isinstance(value, eqx.Module):
        new = _scaled_module(value, factor)
        if is_step_size(name) and isinstance(first := getattr(value, "first", None), float):
            new = eqx.tree_at(lambda rule: rule.first, new, first * factor)
        return new
    if isinstance(value, tuple | list):
        new = [_scaled_field(name, each, factor) for each in value]
        is_same = all(a is b for a, b in zip(new, value, strict=True))
        return value if is_same else type(value)(new)
    if isinstance(value, Mapping):
        new = {key: _scaled_field(str(key), each, factor) for key, each in value.items()}
        return value if all(new[key] is value[key] for key in value) else new
    if isinstance(value, float | jax.Array):
        if is_step_size(name):
            return value * factor
        if name in ("lipschitz", "safety"):
            return value / factor
    return value
