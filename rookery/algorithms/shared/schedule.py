"""Step sizes that change from round to round."""

import abc
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from rookery import check
from rookery.types import Converted, Count


def number(value: object) -> Converted:
    """Field converter: whole numbers become floats, so that they can be swept over."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


class AbstractSchedule(eqx.Module):
    """A step size that changes from round to round."""

    @abc.abstractmethod
    def __call__(self, round: Count) -> jax.Array:
        """The step size in a round, counted from 0."""


class AbstractDecay(AbstractSchedule):
    """A step size that falls from ``lr`` in round 0."""

    lr: float = eqx.field(converter=number)

    def __check_init__(self):
        check.positive(f"{type(self).__name__}.lr", self.lr)


class Decay(AbstractDecay):
    """A step size that shrinks by a factor every round:  lr factor^r.

    >>> float(Decay(0.5, 0.5)(1))
    0.25

    Args:
        lr: in round 0.
        factor: at most 1.
    """

    factor: float = eqx.field(converter=number)

    def __check_init__(self):
        check.fraction("Decay.factor", self.factor)

    def __call__(self, round):
        """lr times a power of the factor."""
        return self.lr * jnp.asarray(self.factor) ** jnp.asarray(round, float)


class PowerDecay(AbstractDecay):
    """A step size that falls like a power of the round:  lr / (r + 1)^exponent.

    >>> float(PowerDecay(0.5, 1.0)(1))
    0.25

    Args:
        lr: in round 0.
        exponent: such as 1/2 or 3/4.
    """

    exponent: float = eqx.field(converter=number)

    def __check_init__(self):
        check.not_negative("PowerDecay.exponent", self.exponent)

    def __call__(self, round):
        """lr over a power of the number of the round."""
        return self.lr / (jnp.asarray(round, float) + 1) ** jnp.asarray(self.exponent)


class ByRound(AbstractSchedule):
    """Any function of the round, such as a schedule of Optax.

    >>> import optax
    >>> float(ByRound(optax.linear_schedule(1.0, 0.0, 4))(1))
    0.75

    Args:
        schedule: takes the round, counted from 0, and returns the step size. A warm-up may start
            at 0, unless the algorithm divides by the size (SCAFFOLD, q-FedAvg).
    """

    schedule: Callable[[jax.Array], ArrayLike]

    def __check_init__(self):
        if not callable(self.schedule):
            raise TypeError(f"ByRound takes a function of the round, got {self.schedule!r}.")
        check.not_negative("ByRound in round 0", self(0))

    def __call__(self, round):
        """The function's value."""
        return jnp.asarray(self.schedule(jnp.asarray(round, int)))  # the widest: int32 is float32

    def with_smaller_steps(self, factor: float) -> "ScaledSchedule":
        """The same function times a factor."""
        return ScaledSchedule(self, factor)


class ScaledSchedule(AbstractSchedule):
    """Another schedule times a factor, which is a number of the compiled program.

    >>> float(ScaledSchedule(Decay(0.5, 0.5), 0.5)(1))
    0.125

    Args:
        schedule: the other one.
        scale: the factor.
    """

    schedule: AbstractSchedule
    scale: float = eqx.field(converter=number)

    def __check_init__(self):
        check.positive("ScaledSchedule.scale", self.scale)

    def __call__(self, round):
        """The other schedule's value times the factor."""
        size = self.schedule(round)
        return size * jnp.asarray(self.scale).astype(size.dtype)

    def with_smaller_steps(self, factor: float) -> "ScaledSchedule":
        """The same schedule with a smaller factor."""
        return ScaledSchedule(self.schedule, self.scale * factor)
