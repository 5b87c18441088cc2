"""Step sizes of several blocks: constant, or falling from round to round."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check
from rookery.algorithms.shared.local import number
from rookery.types import Count, Number


class AbstractSchedule(eqx.Module):
    """A step size that falls from ``lr`` in round 0."""

    lr: eqx.AbstractVar[float]

    @abc.abstractmethod
    def __call__(self, round: Count) -> jax.Array:
        """The step size in a round, counted from 0."""


class Decay(AbstractSchedule):
    """A step size that shrinks by a factor every round:  lr factor^r.

    >>> float(Decay(0.5, 0.5)(1))
    0.25

    Args:
        lr: in round 0.
        factor: at most 1.
    """

    lr: float = eqx.field(converter=number)
    factor: float = eqx.field(converter=number)

    def __check_init__(self):
        check.positive("Decay.lr", self.lr)
        check.fraction("Decay.factor", self.factor)

    def __call__(self, round):
        """lr times a power of the factor."""
        return self.lr * jnp.asarray(self.factor) ** jnp.asarray(round, float)


class PowerDecay(AbstractSchedule):
    """A step size that falls like a power of the round:  lr / (r + 1)^exponent.

    >>> float(PowerDecay(0.5, 1.0)(1))
    0.25

    Args:
        lr: in round 0.
        exponent: such as 1/2 or 3/4.
    """

    lr: float = eqx.field(converter=number)
    exponent: float = eqx.field(converter=number)

    def __check_init__(self):
        check.positive("PowerDecay.lr", self.lr)
        check.not_negative("PowerDecay.exponent", self.exponent)

    def __call__(self, round):
        """lr over a power of the number of the round."""
        return self.lr / (jnp.asarray(round, float) + 1) ** jnp.asarray(self.exponent)


Rate = float | AbstractSchedule
Rates = Rate | tuple[Rate, ...]
"""One for all blocks, or one for each."""


def rates(value: object) -> Any:  # of the type of the field that it converts
    """Field converter: whole numbers become floats, lists tuples."""
    several = isinstance(value, list | tuple)
    return tuple(map(number, value)) if several else number(value)


def check_rates(name: str, value: Rates, n_blocks: int | None = None) -> None:
    """Raise unless all are positive or fall from round to round, and there is one for each block.

    Args:
        name: what the message calls them.
        value: one rate, or a tuple.
        n_blocks: how many blocks a tuple must have rates for; None is any number.
    """
    for rate in value if isinstance(value, tuple) else (value,):
        if not isinstance(rate, AbstractSchedule):
            check.positive(name, rate)
    if n_blocks is not None and isinstance(value, tuple) and len(value) != n_blocks:
        raise ValueError(f"{name} has {len(value)} entries for {n_blocks} blocks.")


def size_at(rate: Rate, round: Count) -> Number:
    """The step size in a round."""
    return rate(round) if isinstance(rate, AbstractSchedule) else rate


def sizes_at(outer: Rate, others: Rates, n_blocks: int, round: Count) -> tuple[Number, ...]:
    """The step sizes of x and of the other blocks in a round."""
    each = others if isinstance(others, tuple) else (others,) * (n_blocks - 1)
    return tuple(size_at(rate, round) for rate in (outer, *each))
