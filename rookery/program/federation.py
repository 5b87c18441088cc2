"""The words an algorithm is written in.

Values are of two kinds. A *server* value is one pytree. A *placed* value is one pytree per client
of a cohort. ``broadcast`` and ``scatter`` go down, ``mean``, ``sum``, ``weighted_mean`` and
``stack`` go up, ``map``, ``recall`` and ``keep`` stay on the clients; ``poll`` and ``ask`` go down
and up. Every word that goes up ends one exchange.

Engines interpret the words; an algorithm never knows which one does.
"""

import abc
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from rookery import tree
from rookery.program.aggregate import AbstractRobust, Aggregate
from rookery.program.memory import Memory, PerClient
from rookery.program.participation import AbstractParticipation, Cohort
from rookery.program.polling import InFlight, PollResult, PollRules
from rookery.program.step import NO_SETTINGS as NO_SETTINGS
from rookery.program.step import Client as Client
from rookery.program.step import Settings as Settings
from rookery.program.step import Step as Step
from rookery.program.step import client_key as client_key
from rookery.types import Key, Tree

_tokens = itertools.count()


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Placed:
    """One value per client of a cohort: the same for all, or stacked along the first axis."""

    cohort: Cohort
    value: Tree
    is_stacked: bool = field(metadata={"static": True})

    def __iter__(self) -> Iterator["Placed"]:
        """The parts of a placed tuple."""
        if not isinstance(self.value, tuple):
            raise TypeError("only a placed tuple can be unpacked")
        return iter(Placed(self.cohort, part, self.is_stacked) for part in self.value)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Cached:
    """A server value that a client keeps once it has it: it is sent to newcomers only."""

    value: Tree
    token: int = field(metadata={"static": True}, default_factory=lambda: next(_tokens))


class AbstractFederation(abc.ABC):
    """The clients as an algorithm sees them during one round.

    Attributes:
        n_clients: how many clients there are.
        weights: [clients], summing to one.
        round: the number of this round, from 0.
        kind: of the exchanges made now, one of :data:`~rookery.program.delays.KINDS`.
    """

    def __init__(self, n_clients: int, weights: jax.Array, round: Any, aggregate: Aggregate):
        self.n_clients = n_clients
        self.weights = weights
        self.round = round
        self.aggregate = aggregate
        self.kind = "inner"

    @contextmanager
    def outer(self) -> Iterator[None]:
        """Exchanges in here bring the outer variable or its direction, at the outer delay."""
        before, self.kind = self.kind, "outer"
        try:
            yield
        finally:
            self.kind = before

    # ---- who

    def sample(
        self, rule: AbstractParticipation, key: Key, probabilities: jax.Array | None = None
    ) -> Cohort:
        """A fresh cohort."""
        return rule.draw(
            key, self.n_clients, self.weights if probabilities is None else probabilities
        )

    def slot_weights(self, cohort: Cohort) -> jax.Array:
        """[slots], what each slot counts in a mean; they sum to one."""
        return _shares(self.weights, cohort.ids, cohort.active, cohort.is_weighted)

    # ---- down

    def cache(self, value: Tree, held_by: jax.Array | None = None) -> Cached:
        """Mark a server value that several cohorts will need; nothing is sent yet.

        Clients where ``held_by`` is true have no need of it: nobody will send it to them.
        """
        shared = Cached(value)
        self._hold(shared, jnp.zeros(self.n_clients, bool) if held_by is None else held_by)
        return shared

    def broadcast(self, cohort: Cohort, *values: Tree | Cached) -> Any:
        """Send server values to a cohort: the same to each client, and to each client once."""
        for value in values:
            if isinstance(value, Cached):
                self._send_to_newcomers(cohort, value)
            else:
                self._send(cohort, cohort.distinct, tree.nbytes(value))
        placed = [Placed(cohort, self._sent(value), is_stacked=False) for value in values]
        return placed[0] if len(placed) == 1 else tuple(placed)

    def scatter(self, cohort: Cohort, rows: Tree) -> Placed:
        """Send the client in slot i the i-th row: to each client another value."""
        sizes = {jnp.shape(leaf)[0] for leaf in jax.tree.leaves(rows)}
        if sizes != {len(cohort)}:
            raise ValueError(f"{len(cohort)} clients need {len(cohort)} rows, got {sizes}.")
        self._send(cohort, cohort.active, tree.nbytes(rows) // len(cohort))
        return Placed(cohort, rows, is_stacked=True)

    # ---- on the clients

    @abc.abstractmethod
    def map(self, step: Step, *values: Placed, key: Key | None = None, **settings: Any) -> Placed:
        """Run ``step(client, *values, **settings)`` on every client of the values' cohort.

        What is communicated is positional; settings are configuration that both sides know. A
        step must not close over a server value: nobody would count it, and it could not travel.
        """

    @abc.abstractmethod
    def recall(self, cohort: Cohort, memory: Memory) -> Placed:
        """Each client's own row of a memory. Nothing is sent: it never left the client."""

    @abc.abstractmethod
    def keep(self, memory: Memory, placed: Placed) -> Memory:
        """The memory after the clients that take part have written their rows.

        Nothing is sent and no exchange ends. Rows of clients outside the cohort, and of slots that
        are switched off, stay as they were.
        """

    # ---- up

    def mean(self, placed: Placed) -> Tree:
        """The clients' mean, by their weights and by the run's aggregation rule."""
        replies, cohort = self._replies(placed)
        self._exchange(cohort, tree.nbytes(replies) // len(cohort))
        return self.aggregate(_floating(replies), self.slot_weights(cohort))

    def weighted_mean(self, placed: Placed, weights: Placed) -> Tree:
        """The mean by weights that the clients send along."""
        if isinstance(self.aggregate, AbstractRobust):
            raise ValueError(
                f"{type(self.aggregate).__name__} bears bad clients, and one that names its own "
                "weight could outweigh all others. Use fed.mean, or a run without aggregate=."
            )
        (replies, given), cohort = self._replies(_joined(placed, weights))
        self._exchange(cohort, tree.nbytes((replies, given)) // len(cohort))
        given = jnp.where(cohort.active, given, jnp.zeros_like(given))
        return self.aggregate(_floating(replies), given / jnp.sum(given))

    def sum(self, placed: Placed) -> Tree:
        """The plain sum over the clients that take part."""
        replies, cohort = self._replies(placed)
        self._exchange(cohort, tree.nbytes(replies) // len(cohort))
        return jax.tree.map(lambda r: jnp.tensordot(cohort.active.astype(r.dtype), r, 1), replies)

    def stack(self, placed: Placed) -> Tree:
        """All replies, one row per slot; the row of a switched-off slot means nothing."""
        replies, cohort = self._replies(placed)
        self._exchange(cohort, tree.nbytes(replies) // len(cohort))
        return replies

    # ---- down and up

    @abc.abstractmethod
    def poll(
        self,
        jobs: InFlight,
        step: Step,
        *values: Tree | Cached | PerClient,
        rules: PollRules,
        key: Key,
        settings: Settings = NO_SETTINGS,
    ) -> PollResult:
        """Let idle clients begin a job, and wait for results. One exchange.

        Idle clients begin ``step(client, *values, **settings)`` with the current values as soon as
        they are available, and only they are sent the values. The server waits as
        :class:`~rookery.program.polling.PollRules` say. Each result is computed from the copy that
        its client received, with a key of that client's job.

        Args:
            jobs: of the state.
            step: what a job computes.
            values: what a job is sent, of the shapes that the jobs were made with. Of a
                :class:`PerClient` every client is sent its own row, and only that is billed.
            rules: when the server stops waiting.
            key: of the jobs that begin.
            settings: keyword arguments of the step; configuration that both sides know.
        """

    @abc.abstractmethod
    def ask(
        self,
        who: jax.Array,
        step: Step,
        *values: Tree | Cached | PerClient,
        key: Key,
        settings: Settings = NO_SETTINGS,
    ) -> Tree:
        """The mean, by their weights, of what the clients where ``who`` is true reply.

        One synchronous exchange, as broadcast, map and mean are, with a set whose size is not known
        beforehand: its cost grows with the set and not with the number of all clients. Of a
        :class:`PerClient` every client is sent its own row.
        """

    # ---- loops

    @abc.abstractmethod
    def repeat(self, n: Any, body: Callable[[Any, Tree], Tree], init: Tree) -> Tree:
        """``body(i, value)`` n times over, starting from ``init``; n may be random."""

    def when(self, condition: Any, body: Callable[[Tree], Tree], value: Tree) -> Tree:
        """``body(value)`` if the condition holds, otherwise ``value``.

        The condition may be traced. What the body would have sent is not billed if it does not run.
        """
        return self.repeat(jnp.where(condition, 1, 0), lambda _, old: body(old), value)

    # ---- for engines

    @abc.abstractmethod
    def _hold(self, shared: Cached, holders: jax.Array) -> None:
        """Note who holds a shared value from the beginning."""

    @abc.abstractmethod
    def _send(self, cohort: Cohort, slots: jax.Array, nbytes: int) -> None:
        """Bill bytes going down to the given slots of a cohort."""

    @abc.abstractmethod
    def _send_to_newcomers(self, cohort: Cohort, shared: Cached) -> None:
        """Bill a shared value to the clients that do not hold it yet; now they do."""

    @abc.abstractmethod
    def _exchange(self, cohort: Cohort, nbytes: int) -> None:
        """Bill one exchange in which every active client sends so many bytes."""

    def _sent(self, value: Tree | Cached) -> Tree:
        """A value of the server as clients have it once it was sent."""
        return value.value if isinstance(value, Cached) else value

    def _replies(self, placed: Placed) -> tuple[Tree, Cohort]:
        if not isinstance(placed, Placed):
            raise TypeError(f"only a placed value can go up to the server, got {type(placed)}.")
        if placed.is_stacked:
            return placed.value, placed.cohort
        n = len(placed.cohort)
        same = jax.tree.map(lambda a: jnp.broadcast_to(a, (n, *jnp.shape(a))), placed.value)
        return same, placed.cohort


def common_cohort(step: Step, values: tuple[Placed, ...]) -> Cohort:
    """The cohort that all values are placed at, or an error."""
    name = getattr(step, "__name__", repr(step))
    if not values:
        raise ValueError(f"{name}: map needs at least one placed value; broadcast something.")
    for value in values:
        if not isinstance(value, Placed):
            raise TypeError(
                f"{name}: map takes placed values, got {type(value).__name__}. Broadcast it first, "
                "or pass it by keyword if it is configuration that the clients know."
            )
    if len({value.cohort.token for value in values}) > 1:
        raise ValueError(f"{name}: the values are placed at different cohorts.")
    return values[0].cohort


@partial(jax.jit, static_argnums=3)
def _shares(weights: jax.Array, ids: jax.Array, active: jax.Array, is_weighted: bool) -> jax.Array:
    own = jnp.ones(ids.shape) if is_weighted else weights[ids]
    own = jnp.where(active, own, 0.0)
    return own / jnp.sum(own)


def _floating(replies: Tree) -> Tree:
    for leaf in jax.tree.leaves(replies):
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise TypeError(
                f"a mean needs floating-point replies, got {leaf.dtype}. Use fed.sum or fed.stack "
                "for counts, or convert them on the client."
            )
    return replies


def _joined(a: Placed, b: Placed) -> Placed:
    if a.cohort.token != b.cohort.token or not (a.is_stacked and b.is_stacked):
        raise ValueError("the mean and its weights must both be replies of one cohort.")
    return Placed(a.cohort, (a.value, b.value), is_stacked=True)
