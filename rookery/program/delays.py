"""Virtual time: how long a client takes to answer in a simulation.

Delays have a seed of their own, so all algorithms meet the same slow clients. The key of an
exchange is folded with the round, the number of the exchange within the round and the client; the
key of a job (:class:`~rookery.program.polling.InFlight`) with its kind, the client and its number.

    delay               median                  mean
    ConstantDelay       value                   value
    UniformDelay        (low + high) / 2        (low + high) / 2
    LogNormalDelay      median                  median exp(sigma^2 / 2), 1.65 medians if sigma is 1
    ParetoDelay         least 2^(1/shape)       least shape / (shape - 1)
    Stragglers          factor times that of the clients that are not

Delays do not know what a client does: they stand for the network and for what else its machine has
to do. Its own work takes time by :class:`Compute`, if a clock has one.
"""

import abc
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check
from rookery.program.availability import AbstractAvailability, AlwaysOn
from rookery.rng import quick
from rookery.types import Converted

KINDS = ("inner", "outer")
"""Kinds of exchanges and jobs; each may have delays of its own."""

_JOBS = 0x4A000000  # larger than any round number, with which the seed is folded elsewhere


def _numbers(value: object) -> Converted:
    """Field converter: a list becomes a tuple, and whole numbers become floats."""
    if isinstance(value, list | tuple):
        return tuple(map(_numbers, value))
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _as_tuple(value: object) -> Converted:
    """Field converter: a list becomes a tuple."""
    return tuple(value) if isinstance(value, Sequence) else value


class AbstractDelay(eqx.Module):
    """Seconds that a client needs for its part of an exchange, apart from moving bytes.

    >>> isinstance(ConstantDelay(1.0), AbstractDelay)
    True
    """

    @abc.abstractmethod
    def seconds(self, key: jax.Array, client: jax.Array) -> jax.Array:
        """One draw for one client."""


class NoDelay(AbstractDelay):
    """Every exchange is instant.

    >>> float(NoDelay().seconds(None, 0))
    0.0
    """

    def seconds(self, key, client):
        """Zero."""
        return jnp.zeros(())


class ConstantDelay(AbstractDelay):
    """The same time for every client.

    >>> float(ConstantDelay(2.0).seconds(None, None))
    2.0
    """

    value: float

    def __check_init__(self):
        check.not_negative("ConstantDelay.value", self.value)

    def seconds(self, key, client):
        """The value."""
        return jnp.asarray(self.value, float)


class UniformDelay(AbstractDelay):
    """Uniform between two times.

    >>> UniformDelay(low=1.0, high=3.0).high
    3.0
    """

    low: float
    high: float

    def __check_init__(self):
        check.not_negative("UniformDelay.low", self.low)
        if not self.high > self.low:
            raise ValueError(
                f"UniformDelay.high must be above low, got low={self.low}, high={self.high}."
            )

    def seconds(self, key, client):
        """One draw."""
        return jax.random.uniform(key, (), minval=self.low, maxval=self.high)


class LogNormalDelay(AbstractDelay):
    """Log-normal with a given median; the mean is median * exp(sigma^2 / 2).

    >>> LogNormalDelay(median=1.0).sigma
    1.0
    """

    median: float
    sigma: float = 1.0

    def __check_init__(self):
        check.positive("LogNormalDelay.median", self.median)
        check.positive("LogNormalDelay.sigma", self.sigma)

    def seconds(self, key, client):
        """One draw."""
        return self.median * jnp.exp(self.sigma * jax.random.normal(key, ()))


class ParetoDelay(AbstractDelay):
    """Pareto: never below ``least``, heavy-tailed; the mean is least * shape / (shape - 1).

    >>> ParetoDelay(least=1.0, shape=1.0)
    Traceback (most recent call last):
    ValueError: ParetoDelay.shape must be above 1, got 1.0: the mean would be infinite.
    """

    least: float
    shape: float = 2.0

    def __check_init__(self):
        check.positive("ParetoDelay.least", self.least)
        if not self.shape > 1:
            raise ValueError(
                f"ParetoDelay.shape must be above 1, got {self.shape}: the mean would be infinite."
            )

    def seconds(self, key, client):
        """One draw."""
        return self.least * jnp.exp(jax.random.exponential(key, ()) / self.shape)


class Stragglers(AbstractDelay):
    """Some clients are slower than the others by a factor.

    >>> Stragglers(ConstantDelay(1.0), clients=(0, 3), factor=10.0).clients
    (0, 3)
    """

    delay: AbstractDelay
    clients: tuple[int, ...] = eqx.field(converter=_as_tuple, static=True)
    factor: float = 5.0

    def __check_init__(self):
        check.typed("Stragglers.delay", self.delay, AbstractDelay)
        check.typed("Stragglers.clients", self.clients, tuple[int, ...])
        check.positive("Stragglers.factor", self.factor)
        for client in self.clients:
            check.count("Stragglers.clients", client, least=0)

    def seconds(self, key, client):
        """A draw of the underlying delay, times the factor for a straggler."""
        slow = jnp.any(client == jnp.array(self.clients, jnp.int32))
        return self.delay.seconds(key, client) * jnp.where(slow, self.factor, 1.0)


class Compute(eqx.Module):
    """How long clients take for their evaluations, in seconds per row.

    A client that takes twice as many local steps, or steps on twice as many rows, works twice as
    long. What counts as an evaluation is what the ledger counts.

    >>> Compute(gradient=1e-3).of_hessian_vector
    0.002

    Args:
        gradient: seconds for one gradient of one row, or one number per client.
        hessian_vector: the same of a product with a second derivative; None is twice ``gradient``,
            since a derivative along a direction passes twice through what a gradient passes once.
    """

    gradient: float | tuple[float, ...] = eqx.field(converter=_numbers)
    hessian_vector: float | tuple[float, ...] | None = eqx.field(converter=_numbers, default=None)

    def __check_init__(self):
        for name, value in self._given.items():
            for one in value if isinstance(value, tuple) else (value,):
                check.not_negative(f"Compute.{name}", one)

    def check(self, n_clients: int) -> None:
        """Raise unless there is a number for each client where there are several."""
        for name, value in self._given.items():
            if isinstance(value, tuple) and len(value) != n_clients:
                raise ValueError(
                    f"Compute.{name} has {len(value)} numbers for {n_clients} clients. Give one "
                    "for each, or one for all."
                )

    @property
    def of_hessian_vector(self) -> float | tuple[float, ...]:
        """``hessian_vector``, or what it is if not given."""
        if self.hessian_vector is not None:
            return self.hessian_vector
        if isinstance(self.gradient, tuple):
            return tuple(2 * seconds for seconds in self.gradient)
        return 2 * self.gradient

    def seconds(self, clients: jax.Array, work: jax.Array) -> jax.Array:
        """How long clients take for their gradients and products, along the last axis of work."""
        per = [jnp.asarray(s, float) for s in (self.gradient, self.of_hessian_vector)]
        each = [s[clients] if s.ndim else s for s in per]
        return work[..., 0] * each[0] + work[..., 1] * each[1]

    @property
    def is_free(self) -> bool:
        """Whether work takes no time at all."""
        given = (each if isinstance(each, tuple) else (each,) for each in self._given.values())
        return not any(any(each) for each in given)

    @property
    def _given(self) -> dict[str, float | tuple[float, ...]]:
        given = {"gradient": self.gradient, "hessian_vector": self.hessian_vector}
        return {name: value for name, value in given.items() if value is not None}


def _counted(compute: Compute | None) -> Compute | None:
    """None in place of work that takes no time and need not be counted."""
    return None if compute is None or compute.is_free else compute


class Clock(eqx.Module):
    """The delay model, the clients' bandwidth and availability, and the seed of all delays.

    >>> Clock(LogNormalDelay(0.1), bandwidth=1e6).is_instant
    False

    Args:
        delay: seconds per exchange and client, or per job.
        bandwidth: bytes per second of every client, or one number per client; None means infinite.
        seed: of the delays and the availability alone.
        outer_delay: seconds of a job or an exchange of kind ``outer``; None means ``delay``.
        availability: when clients start jobs; synchronous exchanges ignore it.
        compute: seconds of the clients' work, beside delays and transfers; None is no time, and so
            is ``Compute(gradient=0)``, which says it in a file.
    """

    delay: AbstractDelay = eqx.field(default_factory=NoDelay)
    bandwidth: float | tuple[float, ...] | None = None
    seed: int = eqx.field(static=True, default=0)
    outer_delay: AbstractDelay | None = None
    availability: AbstractAvailability = eqx.field(default_factory=AlwaysOn)
    compute: Compute | None = eqx.field(converter=_counted, default=None)

    def __check_init__(self):
        if isinstance(self.bandwidth, tuple):
            for value in self.bandwidth:
                check.positive("Clock.bandwidth", value)
        elif self.bandwidth is not None:
            check.positive("Clock.bandwidth", self.bandwidth)
        check.count("Clock.seed", self.seed, least=0)

    def check(self, n_clients: int) -> None:
        """Raise unless the clock fits a population of this size."""
        if isinstance(self.bandwidth, tuple) and len(self.bandwidth) != n_clients:
            raise ValueError(
                f"Clock.bandwidth has {len(self.bandwidth)} numbers for {n_clients} clients."
            )
        for delay in (self.delay, self.outer_delay):
            if isinstance(delay, Stragglers) and max(delay.clients, default=0) >= n_clients:
                raise ValueError(
                    f"Stragglers.clients names client {max(delay.clients)}, "
                    f"but there are {n_clients} clients (0 to {n_clients - 1})."
                )
        self.availability.check(n_clients)
        if self.compute is not None:
            self.compute.check(n_clients)

    @property
    def _key(self) -> jax.Array:
        return quick(jax.random.key(self.seed))

    @property
    def is_instant(self) -> bool:
        """Whether no exchange takes any time."""
        others = (self.outer_delay, self.bandwidth, self.compute)
        return isinstance(self.delay, NoDelay) and all(other is None for other in others)

    def exchange_seconds(
        self, kind: str, round, exchange, clients, active, nbytes, work=None
    ) -> jax.Array:
        """How long an exchange lasts: its slowest active client.

        Args:
            kind: one of :data:`KINDS`.
            round: number of the round.
            exchange: number of the exchange within the round.
            clients: ids of the cohort.
            active: which of them take part.
            nbytes: bytes that each of them receives and sends.
            work: gradients and Hessian-vector products of each, in rows; None is none.
        """
        if self.is_instant:
            return jnp.zeros(())
        key = jax.random.fold_in(jax.random.fold_in(self._key, round), exchange)

        def one(client):
            return self._delay(kind).seconds(jax.random.fold_in(key, client), client)

        seconds = jax.vmap(one)(clients) + self.transfer_seconds(clients, nbytes)
        if self.compute is not None and work is not None:
            seconds = seconds + self.compute.seconds(clients, work)
        return jnp.max(jnp.where(active, seconds, 0.0))

    def transfer_seconds(self, clients, nbytes) -> jax.Array:
        """How long each of the clients takes to move its bytes."""
        nbytes = nbytes.astype(float)
        if self.bandwidth is None:
            return jnp.zeros_like(nbytes)
        bandwidth = jnp.asarray(self.bandwidth, nbytes.dtype)
        return nbytes / (bandwidth[clients] if bandwidth.ndim else bandwidth)

    def job(self, kind: str, client, number, now) -> tuple[jax.Array, jax.Array]:
        """When a client that could begin a job at time ``now`` begins it, and its delay.

        Args:
            kind: one of :data:`KINDS`.
            client: whose job it is.
            number: how many jobs of this kind the client has begun before.
            now: seconds since the run began.
        """
        key = jax.random.fold_in(self._key, _JOBS + KINDS.index(kind))
        key = jax.random.fold_in(jax.random.fold_in(key, client), number)
        when, how_long = jax.random.split(key)
        delay = self._delay(kind).seconds(how_long, client)
        return self.availability.comes(when, client, now), delay

    def _delay(self, kind: str) -> AbstractDelay:
        if kind == "outer" and self.outer_delay is not None:
            return self.outer_delay
        return self.delay
