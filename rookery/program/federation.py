"""The words an algorithm is written in.

Values are of two kinds. A *server* value is one pytree. A *placed* value is one pytree per client
of a cohort. ``broadcast`` and ``scatter`` go down, ``mean``, ``sum``, ``weighted_mean`` and
``stack`` go up, ``map``, ``recall`` and ``keep`` stay on the clients; ``poll`` and ``ask`` go down
and up. Every word that goes up ends one exchange.

Engines interpret the words; an algorithm never knows which engine does.
"""

import abc
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, overload

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rookery.program.aggregate import Aggregate, Attacked, Mean, robust_rule
from rookery.program.memory import Memory, PerClient
from rookery.program.participation import AbstractParticipation, Cohort, Poisson
from rookery.program.polling import InFlight, PollResult, PollRules, check_ask, plain_values
from rookery.program.step import NO_SETTINGS as NO_SETTINGS
from rookery.program.step import Client as Client
from rookery.program.step import Settings as Settings
from rookery.program.step import Step as Step
from rookery.program.step import client_key as client_key
from rookery.program.values import Cached as Cached
from rookery.program.values import Placed as Placed
from rookery.types import Count, Key, Tree

Around = Placed | tuple["Around", ...] | None
"""What replies have moved away from: a value that was sent, or one for each of several replies."""


class HiddenTotal(Protocol):
    """Sums of an engine that hides replies (secure aggregation)."""

    def __call__(
        self, placed: Placed, weights: Float[Array, " slots"] | None, *, needs_all: bool
    ) -> tuple[Tree, Cohort]:
        """Bill one exchange; return the sum of weight times reply, and the cohort that replied."""
        ...


class AbstractFederation(abc.ABC):
    """The clients as an algorithm sees them during one round.

    An exchange is a few lines of a round:

    >>> import rookery as rk
    >>> def gradient(client, w, *, problem):
    ...     return problem.gradient(w, client.draw("train", None, client.key))
    >>> class Descent(rk.AbstractAlgorithm):
    ...     def check(self, problem, n_clients): ...
    ...     def init(self, problem, w): return w
    ...     def round(self, fed, problem, w, key):
    ...         cohort = fed.sample(rk.participation.Everyone(), key)
    ...         there = fed.broadcast(cohort, w)
    ...         gradients = fed.map(gradient, there, key=key, problem=problem)
    ...         return w - 0.1 * fed.mean(gradients)
    ...     def solution(self, w): return (w,)
    >>> zoo = rk.zoo.quadratic_losses(n_clients=3)
    >>> clients = rk.Population.stacked(zoo.data)
    >>> result = rk.run(Descent(), zoo.problem, clients, zoo.start, rounds=2, engine=rk.Eager())
    >>> result.ledger.exchanges, result.ledger.gradients
    (2, 6)

    Attributes:
        n_clients: how many clients there are.
        weights: of the clients, summing to one.
        round: the number of this round, from 0; traced on the compiled engine.
        aggregate: the rule of ``mean``.
        kind: of the current exchanges, one of :data:`~rookery.program.delays.KINDS`.
        hidden_total: the sums of an engine that hides replies; None on others.
    """

    def __init__(
        self,
        n_clients: int,
        weights: Float[Array, " clients"],
        round: Count,
        aggregate: Aggregate,
        *,
        hidden_total: HiddenTotal | None = None,
    ):
        self.n_clients = n_clients
        self.weights = weights
        self.round = round
        self.aggregate = aggregate
        self.kind = "inner"
        self.hidden_total = hidden_total

    @property
    def hides_replies(self) -> bool:
        """Whether replies reach the server only as sums (secure aggregation)."""
        return self.hidden_total is not None

    @property
    def is_robust(self) -> bool:
        """Whether a robust rule combines the replies."""
        return robust_rule(self.aggregate) is not None

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
        self,
        rule: AbstractParticipation,
        key: Key,
        probabilities: Float[Array, " clients"] | None = None,
    ) -> Cohort:
        """A fresh cohort."""
        if isinstance(rule, Poisson) and robust_rule(self.aggregate) is not None:
            raise ValueError(
                f"{rule} cannot be used with a robust rule: a cohort may have too few clients to "
                "outvote a Byzantine one. Draw a fixed number, clients=n."
            )
        cohort = rule.draw(
            key, self.n_clients, self.weights if probabilities is None else probabilities
        )
        self._new_cohort(cohort)
        return cohort

    def slot_weights(self, cohort: Cohort) -> Float[Array, " slots"]:
        """What each slot counts in a mean; they sum to one."""
        return slot_weights(self.weights, cohort.ids, cohort.active, cohort.counts)

    def weight_of(self, cohort: Cohort) -> Float[Array, ""]:
        """The sum of the cohort's weights: 1 if everyone is in it."""
        return jnp.sum(jnp.where(cohort.active, self.weights[cohort.ids], 0.0))

    # ---- down

    def cache(self, value: Tree, held_by: Bool[Array, " clients"] | None = None) -> Cached:
        """Mark a server value that several cohorts will need; nothing is sent yet.

        Clients where ``held_by`` is true have it already and are never sent it.
        """
        cached = Cached(value)
        self._new_cached(cached, jnp.zeros(self.n_clients, bool) if held_by is None else held_by)
        return cached

    @overload
    def broadcast(self, cohort: Cohort, value: Tree | Cached, /) -> Placed: ...

    @overload
    def broadcast(
        self, cohort: Cohort, first: Tree | Cached, second: Tree | Cached, /, *more: Tree | Cached
    ) -> tuple[Placed, ...]: ...

    def broadcast(self, cohort: Cohort, *values: Tree | Cached) -> Placed | tuple[Placed, ...]:
        """Send server values to a cohort: the same to each client, and to each client once.

        One value gives one :class:`Placed`, several give a tuple of them.
        """
        placed = [
            Placed(cohort, self._send(cohort, value, as_rows=False), is_stacked=False)
            for value in values
        ]
        return placed[0] if len(placed) == 1 else tuple(placed)

    def scatter(self, cohort: Cohort, rows: Tree) -> Placed:
        """Send the client in slot i the i-th row."""
        sizes = {jnp.shape(leaf)[0] for leaf in jax.tree.leaves(rows)}
        if sizes != {len(cohort)}:
            raise ValueError(
                f"fed.scatter: {len(cohort)} clients need {len(cohort)} rows, got {sizes}."
            )
        return Placed(cohort, self._send(cohort, rows, as_rows=True), is_stacked=True)

    def as_sent(self, placed: Placed) -> Tree:
        """The server's copy of a value that was broadcast."""
        return placed.value

    # ---- on the clients

    @abc.abstractmethod
    def map(
        self,
        step: Step,
        *values: Placed,
        key: Key | None = None,
        **settings: object,
    ) -> Placed:
        """Run ``step(client, *values, **settings)`` on every client of the values' cohort.

        What is communicated is positional; settings are configuration that both sides know. A step
        must not close over a server value: it would not be counted, and could not be sent.
        """

    @abc.abstractmethod
    def recall(self, cohort: Cohort, memory: Memory) -> Placed:
        """Each client's own row of a memory. Nothing is sent: it never left the client."""

    @abc.abstractmethod
    def keep(self, memory: Memory, placed: Placed) -> Memory:
        """The memory after the active clients have written their rows.

        Nothing is sent and no exchange ends. Rows of clients outside the cohort, and of inactive
        slots, stay as they were.
        """

    # ---- up

    def mean(
        self,
        placed: Placed,
        *,
        decode: Callable[[Tree], Tree] | None = None,
        apart: bool = False,
        around: Around = None,
    ) -> Tree:
        """The clients' mean, by their weights and by the run's aggregation rule.

        Args:
            placed: the replies.
            decode: turns the message of one client into its reply, if clients encode them
                (:mod:`rookery.program.codec`). What is billed is the message.
            apart: whether replies are tuples whose entries are aggregated each by itself. A rule
                that chooses clients may then choose others for each entry.
            around: what the clients were sent and have moved away from, if a reply is an iterate;
                for a tuple of replies a tuple, with None for those that are not. It does not
                change the mean. A private run clips the way from there
                (:mod:`rookery.program.privacy`).
        """
        if self.hidden_total is not None:
            if decode is not None:
                raise only_sums("a compressed upload", "the server decodes each by itself")
            mean = self._mean_of_total(placed, self.hidden_total)
            return tuple(mean) if apart else mean
        replies, cohort = self._collect(_checked(placed), needs_all=False)
        if decode is not None:
            replies = jax.vmap(decode)(replies)
        elif placed.mean is not None and isinstance(self.aggregate, Mean):
            _floating(replies)
            return tuple(placed.mean) if apart else placed.mean
        weights = self.slot_weights(cohort)
        if apart:
            return tuple(self.aggregate(_floating(entry), weights) for entry in replies)
        return self.aggregate(_floating(replies), weights)

    def weighted_mean(self, placed: Placed, weights: Placed) -> Tree:
        """The mean by weights that the clients send along."""
        self.refuse_robust(
            "fed.weighted_mean", "a Byzantine client could report an arbitrarily large weight"
        )
        if self.hides_replies:
            raise only_sums("fed.weighted_mean", "the server would see the weight of each")
        both = _joined(placed, weights)
        (replies, given), cohort = self._collect(both, needs_all=False)
        given = jnp.where(cohort.active, given, jnp.zeros_like(given))
        return self.aggregate(_floating(replies), given / jnp.sum(given))

    def sum(self, placed: Placed, *, weights: Float[Array, " slots"] | None = None) -> Tree:
        """The sum over the active clients; all of them must reply.

        Args:
            placed: the replies.
            weights: factors of the slots, zero for inactive ones; None means one.
        """
        self.refuse_robust("fed.sum", "a Byzantine client could add anything to it")
        if self.hidden_total is not None:
            _summable(_checked(placed), weights)
            return self.hidden_total(placed, weights, needs_all=True)[0]
        replies, cohort = self._collect(_checked(placed), needs_all=True)
        if weights is not None:
            return Mean()(_floating(replies), weights)
        return jax.tree.map(lambda r: jnp.tensordot(cohort.active.astype(r.dtype), r, 1), replies)

    def stack(self, placed: Placed, *, is_aggregated: bool = False) -> Tree:
        """All replies, one row per slot; all active clients must reply.

        The row of an inactive slot has no meaning.

        Args:
            placed: the replies.
            is_aggregated: whether the rows go through ``fed.aggregate`` or :meth:`largest` and
                nowhere else. A run with a robust rule refuses other stacks, which its rule would
                not see.
        """
        if not is_aggregated:
            self.refuse_robust(
                "fed.stack", "single replies would bypass the rule, and one may be anything"
            )
        if self.hides_replies:
            raise only_sums("fed.stack", "it shows the reply of every single client")
        return self._collect(_checked(placed), needs_all=True)[0]

    def largest(self, values: Float[Array, " slots"], cohort: Cohort) -> Float[Array, ""]:
        """The largest of stacked numbers of the active clients.

        With a robust rule the largest that is left without as many as there may be Byzantine
        clients (:meth:`~rookery.program.aggregate.AbstractRobust.largest`). Nothing is sent.
        """
        if isinstance(self.aggregate, Attacked):
            values = self.aggregate.sent(values)
        rule = robust_rule(self.aggregate)
        if rule is not None:
            return rule.largest(values, cohort.active)
        return jnp.max(jnp.where(cohort.active, values, -jnp.inf))

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
        who: Bool[Array, " clients"],
        step: Step,
        *values: Tree | Cached | PerClient,
        key: Key,
        settings: Settings = NO_SETTINGS,
    ) -> Tree:
        """The weighted mean of the replies of the clients where ``who`` is true.

        One synchronous exchange, like broadcast, map and mean, with a set whose size is not known
        beforehand: its cost grows with the set and not with the number of all clients. Of a
        :class:`PerClient` every client is sent its own row.
        """

    # ---- loops

    @abc.abstractmethod
    def repeat(
        self, n: int | Int[Array, ""], body: Callable[[jax.Array, Tree], Tree], init: Tree
    ) -> Tree:
        """Apply ``value = body(i, value)`` n times, starting from ``init``; n may be random."""

    def when(
        self, condition: bool | Bool[Array, ""], body: Callable[[Tree], Tree], value: Tree
    ) -> Tree:
        """``body(value)`` if the condition holds, otherwise ``value``.

        The condition may be traced. If the body does not run, nothing of it is billed.
        """
        return self.repeat(jnp.where(condition, 1, 0), lambda _, old: body(old), value)

    def refuse_robust(self, word: str, reason: str) -> None:
        """Raise if the run has a robust rule, which a word would bypass, or a method undo."""
        rule = robust_rule(self.aggregate)
        if rule is not None:
            raise ValueError(
                f"{word} cannot be used with a robust rule ({type(rule).__name__}): {reason}. Use "
                "an algorithm that takes means alone, such as FedNest or BRFedBi, or a run without "
                "aggregate=."
            )

    # ---- what an engine implements besides

    @abc.abstractmethod
    def _new_cohort(self, cohort: Cohort) -> None:
        """Note a cohort that was drawn."""

    @abc.abstractmethod
    def _new_cached(self, cached: Cached, holders: Bool[Array, " clients"]) -> None:
        """Note a cached value and the clients that hold it already."""

    @abc.abstractmethod
    def _send(self, cohort: Cohort, value: Tree | Cached, *, as_rows: bool) -> Tree:
        """Bill a value going down, and return it as the clients have it.

        Of ``as_rows`` each active slot is sent its own row; otherwise each active client is sent
        the whole value once, and a cached value only if it does not hold it.
        """

    @abc.abstractmethod
    def _collect(self, placed: Placed, *, needs_all: bool) -> tuple[Tree, Cohort]:
        """Bill one exchange; return the replies, one row per slot, and the cohort that replied.

        Unless ``needs_all`` is set, slots that failed to reply may be inactive in that cohort.
        """

    def _mean_of_total(self, placed: Placed, hidden_total: HiddenTotal) -> Tree:
        """The mean where replies are hidden: a sum over the weight of those who replied."""
        weights = self.slot_weights(_checked(placed).cohort)
        _summable(placed, weights)
        total, cohort = hidden_total(placed, weights, needs_all=False)
        share = jnp.sum(jnp.where(cohort.active, weights, 0.0))
        return jax.tree.map(lambda leaf: leaf / share.astype(leaf.dtype), total)


def only_sums(what: str, why: str) -> ValueError:
    """The error of a word that needs single replies, where they are hidden."""
    return ValueError(
        f"secure aggregation cannot be used with {what}: {why}. Use an algorithm whose uploads are "
        "means of drawn cohorts, or run without secure=."
    )


def ask_as_cohort(
    fed: AbstractFederation,
    who: Bool[Array, " clients"],
    step: Step,
    values: tuple[Tree | Cached | PerClient, ...],
    key: Key,
    settings: Settings,
) -> Tree:
    """``fed.ask`` in terms of the other words, for engines on which ``who`` is known."""
    check_ask(fed.n_clients, plain_values(values), fed.aggregate)
    ids = jnp.flatnonzero(who).astype(jnp.int32)
    if not ids.size:
        raise ValueError(f"{step_name(step)}: fed.ask of no client; there is no mean.")
    cohort = Cohort(ids, jnp.ones(ids.shape, bool))
    placed = [
        fed.scatter(cohort, jax.tree.map(lambda a: a[ids], value.rows))
        if isinstance(value, PerClient)
        else fed.broadcast(cohort, value)
        for value in values
    ]
    return fed.mean(fed.map(step, *placed, key=key, **settings))


def common_cohort(step: Step, values: tuple[Placed, ...]) -> Cohort:
    """The cohort that all values are placed at, or an error."""
    name = step_name(step)
    if not values:
        raise ValueError(f"{name}: fed.map needs at least one placed value; broadcast something.")
    for value in values:
        if not isinstance(value, Placed):
            raise TypeError(
                f"{name}: fed.map takes placed values, got {type(value).__name__}. Broadcast it "
                "first, or pass it by keyword if it is configuration that the clients know."
            )
    if len({value.cohort.token for value in values}) > 1:
        raise ValueError(f"{name}: the values are placed at different cohorts.")
    return values[0].cohort


def check_step(step: Step, settings: Settings) -> None:
    """Raise unless a step is a module-level function and its settings hide no server value."""
    name = getattr(step, "__qualname__", None)
    if not inspect.isfunction(step) or name is None or "<locals>" in name or "<lambda>" in name:
        raise ValueError(
            f"a client step must be a module-level function, got {step!r}. Server and clients know "
            "it by its name, and a closure could hide a server value that nobody counts."
        )
    for setting, value in settings.items():
        if isinstance(value, eqx.Module) and not isinstance(value, Memory | PerClient):
            continue  # a problem or an algorithm, which both sides have
        if isinstance(value, Placed) or any(
            getattr(leaf, "ndim", 0) for leaf in jax.tree.leaves(value)
        ):
            raise ValueError(
                f"{name}: setting {setting!r} holds an array. Settings are configuration that both "
                "sides know; send arrays with fed.broadcast so that they are counted."
            )


def step_name(step: Step) -> str:
    """The name of a step, for messages."""
    return getattr(step, "__name__", repr(step))


@jax.jit
def slot_weights(
    weights: jax.Array, ids: jax.Array, active: jax.Array, counts: jax.Array | None
) -> jax.Array:
    """What each slot counts in a mean: by ``counts`` or the clients' weights, summing to one."""
    own = weights[ids] if counts is None else counts
    own = jnp.where(active, own, 0.0)
    return own / jnp.sum(own)


def _checked(placed: Placed) -> Placed:
    if not isinstance(placed, Placed):
        raise TypeError(
            f"only a placed value can go up to the server, got {type(placed).__name__}."
        )
    return placed


def _floating(replies: Tree) -> Tree:
    for leaf in jax.tree.leaves(replies):
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise TypeError(
                f"a mean needs floating-point replies, got {leaf.dtype}. Use fed.sum or fed.stack "
                "for counts, or convert them on the client."
            )
    return replies


def _summable(placed: Placed, weights: jax.Array | None) -> None:
    """Raise unless fixed-point numbers can stand for the replies."""
    if weights is not None:
        _floating(placed.value)
    for leaf in jax.tree.leaves(placed.value):
        if not any(jnp.issubdtype(leaf.dtype, kind) for kind in (jnp.floating, jnp.integer)):
            raise only_sums(f"replies of type {leaf.dtype}", "it sums real numbers and integers")


def _joined(a: Placed, b: Placed) -> Placed:
    if a.cohort.token != b.cohort.token or not (a.is_stacked and b.is_stacked):
        raise ValueError("the mean and its weights must both be replies of one cohort.")
    return Placed(a.cohort, (a.value, b.value), is_stacked=True)
