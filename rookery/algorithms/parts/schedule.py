"""Step sizes that change from round to round."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp

from rookery import _check


class Decaying(eqx.Module):
    """A step size that falls with the round k = 0, 1, ...: lr / (k + 1)^power.

    It depends on the number of the round alone, so a run that is resumed goes on with the size it
    would have had.

    Args:
        lr: the size in round 0.
        power: how fast it falls.
    """

    lr: float
    power: float

    def __check_init__(self):
        _check.positive("Decaying.lr", self.lr)
        _check.positive("Decaying.power", self.power)


ServerRate = float | Decaying


def check_server_rate(name: str, value: ServerRate) -> None:
    """Raise unless a step size is a positive number or falls from one."""
    if not isinstance(value, Decaying):
        _check.positive(name, value)


def in_round(rate: ServerRate, round: Any):
    """The size of the steps of a round."""
    if not isinstance(rate, Decaying):
        return rate
    lr, power = (jnp.asarray(number).astype(float) for number in (rate.lr, rate.power))
    return lr / jnp.asarray(round + 1).astype(float) ** power
