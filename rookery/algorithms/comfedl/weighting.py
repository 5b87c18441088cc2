"""How much a client's gradient counts in robust learning: exp((f - level) / γ), for some level.

    weighting           level                       weight                    a step is one on
    PrintedWeights      0                           exp(f / γ) / γ            F = mean exp(f_i / γ)
    ShiftedWeights      greatest f_i(w̄)             exp((f - level) / γ) / γ  F exp(-level / γ)
    NormalisedWeights   γ log mean exp(f_i(w̄) / γ)  exp((f - level) / γ)      γ log F

All three have the same minimiser. The first is ComFedL's equation (6) as printed: its step grows
like exp(f / γ) / γ, so a smaller γ is also a larger step size, and it overflows. The weights of the
last have mean one at the start of a round, and all are one for γ = inf. All clients of a round have
the same level.

Weights are exponential in f: a batch whose loss is k γ above the level has the weight e^k, and its
step is e^k times as long. With heterogeneous clients and small batches large k occur, and a step
that is too long makes the next loss, hence the next weight, larger still: within a few local steps
values are no longer finite. A stale level, which comes from another cohort at an older model, makes
this more frequent. Computed on all rows, a normalised weight cannot exceed the inverse of the
client's share in the cohort; ``max_weight`` set to that, the size of the cohort, prevents it.

Departures from the paper, beside the last two rows: everything is computed in the precision of the
run, so PrintedWeights overflows from f / γ = 88 on in float32, from 709 on in float64. A stale
level is that of the last round's cohort, not one made of every client's own last loss.
"""

import abc
from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check
from rookery.algorithms.shared.schedule import number
from rookery.program.aggregate import robust_rule
from rookery.program.federation import AbstractFederation, Placed
from rookery.program.participation import Cohort
from rookery.types import Number, Tree

MaybeNumber = Any  # a weighting that needs one does not test for None
"""A number, or None where a weighting needs none; None takes no bytes in a message."""

Ask = Callable[[], Placed]
"""Gives the cohort's losses at the model that it was sent."""


class AbstractWeighting(eqx.Module):
    """A way to weigh clients by their losses.

    Attributes:
        batch_size: rows per loss of a level; None means all.
    """

    batch_size: eqx.AbstractVar[int | None]

    @abc.abstractmethod
    def check_gamma(self, gamma: Number) -> None:
        """Raise unless the weights are defined for this γ."""

    @abc.abstractmethod
    def init(self, w: Tree) -> Tree:
        """What the server keeps from round to round."""

    @abc.abstractmethod
    def level(
        self, fed: AbstractFederation, cohort: Cohort, ask: Ask, gamma: Number, kept: Tree
    ) -> tuple[MaybeNumber, Tree]:
        """The level of this round, or None if clients need none, and what is kept."""

    @abc.abstractmethod
    def weight(self, loss: jax.Array, level: MaybeNumber, gamma: Number) -> jax.Array:
        """What multiplies a client's gradient."""

    @abc.abstractmethod
    def report(
        self, ask: Callable[[], jax.Array], level: MaybeNumber, gamma: Number
    ) -> MaybeNumber:
        """What a client adds to its reply; ``ask`` gives its loss at the model it was sent."""

    @abc.abstractmethod
    def after(self, mean_report: MaybeNumber, gamma: Number, kept: Tree) -> Tree:
        """What is kept after the round."""

    @abc.abstractmethod
    def remedy(self) -> str:
        """What to try when a value is no longer finite."""


class PrintedWeights(AbstractWeighting):
    """The weights exp(f / γ) / γ, as printed. Nothing more is sent.

    >>> PrintedWeights(max_exponent=3.0).max_exponent
    3.0

    Args:
        max_exponent: the largest f / γ, to which larger ones are clipped; None clips nothing.
    """

    max_exponent: float | None = eqx.field(converter=number, default=None)
    batch_size: int | None = eqx.field(init=False, default=None)

    def __check_init__(self):
        if self.max_exponent is not None:
            check.positive("PrintedWeights.max_exponent", self.max_exponent)

    def check_gamma(self, gamma):
        """A finite number."""
        check.positive("gamma", gamma)

    def init(self, w):
        """Nothing."""

    def level(self, fed, cohort, ask, gamma, kept):
        """None is needed."""
        return None, kept

    def weight(self, loss, level, gamma):
        """exp(f / γ) / γ."""
        gamma = _like(loss, gamma)
        exponent = loss / gamma
        if self.max_exponent is not None:
            exponent = jnp.minimum(exponent, _like(loss, self.max_exponent))
        return jnp.exp(exponent) / gamma

    def report(self, ask, level, gamma):
        """Nothing."""

    def after(self, mean_report, gamma, kept):
        """Nothing."""

    def remedy(self):
        """Another weighting, or a larger gamma."""
        return (
            "Weights exp(loss / gamma) / gamma, as printed, overflow or make steps far too large "
            "where losses are large beside gamma. Use weighting=NormalisedWeights(), or a larger "
            "gamma."
        )


class ShiftedWeights(AbstractWeighting):
    """Printed weights divided by the greatest one at the round's start, so that none overflows.

    It is PrintedWeights with the step size lr exp(-level / γ), which changes from round to round.
    The losses take an exchange of their own.

    >>> ShiftedWeights(batch_size=50).batch_size
    50

    Args:
        batch_size: rows per loss of a level; None means all.
    """

    _: KW_ONLY
    batch_size: int | None = None

    def __check_init__(self):
        _check_batch("ShiftedWeights.batch_size", self.batch_size)

    def check_gamma(self, gamma):
        """A finite number."""
        check.positive("gamma", gamma)

    def init(self, w):
        """Nothing."""

    def level(self, fed, cohort, ask, gamma, kept):
        """The greatest loss of the cohort."""
        losses = fed.stack(ask(), is_aggregated=True)  # --------------------- up    f_i(w̄)
        return fed.largest(losses, cohort), kept

    def weight(self, loss, level, gamma):
        """exp((f - level) / γ) / γ."""
        gamma = _like(loss, gamma)
        return jnp.exp((loss - level) / gamma) / gamma

    def report(self, ask, level, gamma):
        """Nothing."""

    def after(self, mean_report, gamma, kept):
        """Nothing."""

    def remedy(self):
        """A smaller step."""
        return "A smaller step size, or a larger gamma, is the usual remedy."


class LastLevel(NamedTuple):
    """The level of the last round's cohort, and whether there was one (0 or 1)."""

    level: jax.Array
    is_known: jax.Array


class NormalisedWeights(AbstractWeighting):
    """Weights with mean one at the start of a round: steps on γ log mean exp(f_i / γ).

    Adding a number to all losses changes nothing, and with γ = inf all weights are one.

    >>> NormalisedWeights(stale_scalar=True, max_weight=10).max_weight
    10.0

    Args:
        stale_scalar: use the level of the round before, which its cohort sends along with its
            models, instead of an exchange of its own; only the first round has that exchange. All
            weights of a round are then off by a common factor.
        batch_size: rows per loss of a level; None means all.
        max_weight: the largest weight, to which larger ones are clipped; None clips nothing, and
            then small batches can make values overflow (see the top of this file). The number of
            clients in a cohort is a good choice.
    """

    _: KW_ONLY
    stale_scalar: bool = False
    batch_size: int | None = None
    max_weight: float | None = eqx.field(converter=number, default=None)

    def __check_init__(self):
        _check_batch("NormalisedWeights.batch_size", self.batch_size)
        if self.max_weight is not None:
            check.positive("NormalisedWeights.max_weight", self.max_weight)

    def check_gamma(self, gamma):
        """A number, or inf."""
        check.positive_or_infinite("gamma", gamma)

    def init(self, w):
        """No level is known."""
        if not self.stale_scalar:
            return None
        dtype = jnp.result_type(*jax.tree.leaves(w))
        return LastLevel(jnp.zeros((), dtype), jnp.zeros((), jnp.int32))

    def level(self, fed, cohort, ask, gamma, kept):
        """γ log mean exp(f_i / γ), of this cohort or of the last."""

        def now():
            losses = fed.stack(ask(), is_aggregated=True)  # ----------------- up    f_i(w̄)
            weights = fed.slot_weights(cohort)
            if robust_rule(fed.aggregate) is None:
                return soft_maximum(losses, weights, gamma)
            # the rule takes the place of the mean of exp(f_i / γ)
            greatest, gamma_ = fed.largest(losses, cohort), _like(losses, gamma)
            mean = fed.aggregate(jnp.exp((losses - greatest) / gamma_), weights)
            soft = greatest + gamma_ * jnp.log(mean)
            return jnp.where(jnp.isinf(gamma_), fed.aggregate(losses, weights), soft)

        if not self.stale_scalar:
            return now(), kept

        def first(_):
            return LastLevel(now(), jnp.ones((), jnp.int32))

        kept = fed.when(kept.is_known == 0, first, kept)
        return kept.level, kept

    def weight(self, loss, level, gamma):
        """exp((f - level) / γ), at most ``max_weight``."""
        weight = jnp.exp((loss - _like(loss, level)) / _like(loss, gamma))
        if self.max_weight is not None:
            weight = jnp.minimum(weight, _like(loss, self.max_weight))
        return weight

    def report(self, ask, level, gamma):
        """The client's weight at the round's start; the mean of these gives the new level."""
        if not self.stale_scalar:
            return None
        # Clipping keeps the mean and its logarithm finite in float32. When the losses jump by more
        # than 80 γ, the level moves by 80 γ per round until it has caught up.
        exponent = (ask() - level) / _like(level, gamma)
        return jnp.exp(jnp.clip(exponent, -80.0, 80.0))

    def after(self, mean_report, gamma, kept):
        """The level at which the weights of this round would have had mean one."""
        if not self.stale_scalar:
            return None
        gamma = _like(mean_report, gamma)
        moved = jnp.where(jnp.isinf(gamma), 0, gamma * jnp.log(mean_report))
        return LastLevel(kept.level + moved, kept.is_known)

    def remedy(self):
        """Bounded weights, or a smaller step."""
        return (
            "Weights exp((loss - level) / gamma) grow without bound where a batch's loss is many "
            "gamma above the level. Use NormalisedWeights(max_weight=the number of clients in a "
            "cohort), a larger gamma, a larger batch_size or a smaller step size."
        )


def soft_maximum(losses: jax.Array, weights: jax.Array, gamma: Number) -> jax.Array:
    """γ log Σ w_i exp(f_i / γ), without overflow; for γ = inf the mean."""
    gamma, takes_part = _like(losses, gamma), weights > 0
    greatest = jnp.max(jnp.where(takes_part, losses, -jnp.inf))
    each = jnp.exp(jnp.where(takes_part, losses - greatest, 0) / gamma)
    weights = weights.astype(losses.dtype)
    mean = jnp.dot(weights, jnp.where(takes_part, losses, 0))
    return jnp.where(jnp.isinf(gamma), mean, greatest + gamma * jnp.log(jnp.dot(weights, each)))


def _like(loss: jax.Array, value: Number) -> jax.Array:
    return jnp.asarray(value).astype(loss.dtype)


def _check_batch(name: str, value: int | None) -> None:
    if value is not None:
        check.count(name, value)
