"""The federation as messages: the server plans steps, and sends requests when it needs replies.

``broadcast``, ``scatter`` and ``map`` send nothing by themselves. They make remote values, and one
message per client carries whatever is needed when a mean, a sum or a stack requests one of them: an
exchange is one message down and one up, however many steps it takes.
"""

import math
import time
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from rookery import tree
from rookery.engines.engine import Program
from rookery.program.accounting import CostMeter
from rookery.program.aggregate import Mean, robust_rule
from rookery.program.federation import (
    NO_SETTINGS,
    AbstractFederation,
    Cached,
    Placed,
    Step,
    ask_as_cohort,
    common_cohort,
)
from rookery.program.memory import Memory, check_recall
from rookery.program.participation import Cohort
from rookery.program.polling import PollResult
from rookery.program.step import python_loop
from rookery.remote.protocol import wire
from rookery.remote.protocol.plan import Plan, spec
from rookery.remote.server.message_builder import Messages
from rookery.remote.server.polling import Poller
from rookery.remote.server.remote_values import (
    Computed,
    Recalled,
    RemoteValue,
    Sent,
    remote_values,
    step_of,
)
from rookery.remote.server.requests import Reply, Request
from rookery.remote.server.secure_sums import SecureSums, WantedSum
from rookery.remote.server.server_values import ServerValues
from rookery.remote.server.session import Session
from rookery.types import Key, Tree

Leaves = dict[int, list[np.ndarray | jax.Array]]
"""By slot, the leaves of its reply."""

_BLOCK = 8 << 20  # bytes of all replies that are stacked at a time for the mean of large ones


class RemoteFederation(AbstractFederation):
    """The clients during one round of a session.

    Args:
        program: problem, population, clock and aggregation rule.
        session: the session, in the round.
        plan: the calls of the algorithm.
        in_real_time: whether results of jobs are taken in the order in which they arrive.
        secure_sums: sums that hide single replies, with secure aggregation.

    Attributes:
        costs: the costs of the round so far.
        cohorts: the clients that replied in each exchange so far.
    """

    def __init__(
        self,
        program: Program,
        session: Session,
        plan: Plan,
        *,
        in_real_time: bool,
        secure_sums: SecureSums | None = None,
    ):
        weights = jnp.asarray(program.population.weights, float)
        n_clients = program.population.n_clients
        super().__init__(
            n_clients, weights, session.round, program.aggregate,
            hidden_total=None if secure_sums is None else partial(self._hidden, secure_sums),
        )  # fmt: skip
        began = time.monotonic()
        timer = (lambda: time.monotonic() - began) if in_real_time else None
        self.costs = CostMeter(program.clock, session.round, timer)
        self.cohorts: list[tuple[int, ...]] = []
        self._session, self._plan = session, plan
        self._values = ServerValues(n_clients, session.clients.new_tokens)
        self._poller = Poller(
            program, session, plan, self._values, self.costs, in_real_time=in_real_time
        )

    def as_sent(self, placed: Placed) -> Tree:
        """The arrays that the remote values were made of."""

        def one(value):
            return jnp.asarray(value.source.leaves[value.leaf])

        return jax.tree.map(one, placed.value)

    # ---- on the clients

    def map(
        self, step: Step, *values: Placed, key: Key | None = None, **settings: object
    ) -> Placed:
        """Plan a step."""
        cohort = common_cohort(step, values)
        leaves = jax.tree.leaves([value.value for value in values])
        call, traced = self._plan.find(step, leaves, settings, key is not None)
        occurrences = None if cohort.occurrence is None else cohort.occurrence.tolist()
        token = self._session.clients.new_tokens(len(cohort))
        words = None if key is None else wire.keys_to_words(key)
        source = Computed(token, call, leaves, traced, words, occurrences)
        return Placed(cohort, remote_values(source, call.reply), is_stacked=True)

    def recall(self, cohort: Cohort, memory: Memory) -> Placed:
        """A memory's rows; one that a round has made itself becomes remote."""
        check_recall(cohort, memory, self.n_clients)
        rows = memory.rows
        if not isinstance(jax.tree.leaves(rows)[0], RemoteValue):
            rows = self._values.recalled(memory)
        return Placed(cohort, rows, is_stacked=True)

    def keep(self, memory: Memory, placed: Placed) -> Memory:
        """Record what clients keep; they are told with their next message."""
        cohort = placed.cohort
        check_recall(cohort, memory, self.n_clients)
        old, structure = jax.tree.flatten(memory.rows)
        new = jax.tree.leaves(placed.value)
        wanted, got = [spec(value) for value in old], [spec(value) for value in new]
        if wanted != got or structure != jax.tree.structure(placed.value):
            raise ValueError(f"fed.keep: new rows have type {got}, but the memory holds {wanted}.")
        before = old[0].source if isinstance(old[0], RemoteValue) else None
        if not isinstance(before, Recalled):
            raise TypeError(
                "fed.keep: only a Memory in the state can be kept; clients have no copy of others."
            )
        changed = dict(before.changed)
        for slot, client in _active(cohort):
            if not any(slot in _missing(value) for value in new):
                changed[client] = (new, slot)
        source = Recalled(before.memory, changed)
        return Memory(remote_values(source, memory.rows), memory.n_clients)

    # ---- loops

    def repeat(self, n, body, init):
        """A Python loop."""
        return python_loop(n, body, init)

    # ---- down and up

    def poll(self, jobs, step, *values, rules, key, settings=NO_SETTINGS) -> PollResult:
        """Jobs are sent as they begin; see :mod:`rookery.remote.server.polling`."""
        result = self._poller.poll(jobs, step, values, rules, key, settings)
        arrived = np.flatnonzero(np.asarray(result.jobs.has_arrived))
        self.cohorts.append(tuple(arrived.tolist()))
        return result

    def ask(self, who, step, *values, key, settings=NO_SETTINGS) -> Tree:
        """An exchange with the cohort of the clients where ``who`` is true."""
        return ask_as_cohort(self, who, step, values, key, settings)

    def mean(self, placed, *, decode=None, apart=False, around=None) -> Tree:
        """The mean; that of large replies is taken block by block, without a stack of them."""
        is_plain = type(self.aggregate) is Mean and decode is None and not self.hides_replies
        if not is_plain or not isinstance(placed, Placed) or not _are_large(placed):
            return super().mean(placed, decode=decode, apart=apart, around=around)
        values, structure = jax.tree.flatten(placed.value)
        replies, cohort = self._replies(placed.cohort, values, needs_all=False)
        self._end_exchange(cohort, sum(map(_nbytes, values)))
        weights = self.slot_weights(cohort)
        leaves = [_mean_of_leaf(replies, i, value, weights) for i, value in enumerate(values)]
        mean = jax.tree.unflatten(structure, leaves)
        return tuple(mean) if apart else mean

    # ---- for the base class

    def _new_cohort(self, cohort: Cohort) -> None:
        """Nothing: costs of a cohort are counted from its first message on."""

    def _new_cached(self, cached: Cached, holders: jax.Array) -> None:
        self.costs.cache(cached, np.flatnonzero(np.asarray(holders)).tolist())

    def _send(self, cohort: Cohort, value: Tree | Cached, *, as_rows: bool) -> Tree:
        self.costs.send(cohort, value, as_rows=as_rows)
        return self._values.rows(value, len(cohort)) if as_rows else self._values.same(value)

    def _collect(self, placed: Placed, *, needs_all: bool) -> tuple[Tree, Cohort]:
        cohort = placed.cohort
        values, structure = jax.tree.flatten(placed.value)
        if _are_sent(values):  # clients would only return what they were sent
            leaves = [_server_rows(value, len(cohort)) for value in values]
        else:
            replies, cohort = self._replies(cohort, values, needs_all)
            leaves = [_stacked(replies, i, v, len(cohort)) for i, v in enumerate(values)]
        rows = jax.tree.unflatten(structure, leaves)
        self._end_exchange(cohort, tree.nbytes(rows) // len(cohort))
        return rows, cohort

    def _hidden(
        self, sums: SecureSums, placed: Placed, weights: jax.Array | None, *, needs_all: bool
    ) -> tuple[Tree, Cohort]:
        cohort = placed.cohort
        values, structure = jax.tree.flatten(placed.value)
        by_slot = None if weights is None else dict(enumerate(np.asarray(weights).tolist()))
        messages, requests = self._requests(values, cohort)
        like = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in values]
        wanted = WantedSum(step_of(values), requests, like, by_slot)
        total, replies = sums.total(wanted, needs_all=needs_all)
        cohort = self._replied(values, cohort, messages, replies)
        self._end_exchange(cohort, next(iter(replies.values())).leaves[0].nbytes)
        return jax.tree.unflatten(structure, map(jnp.asarray, total)), cohort

    def _end_exchange(self, cohort: Cohort, nbytes: int) -> None:
        self.costs.end_exchange(self.kind, cohort, nbytes)
        self.cohorts.append(tuple(client for _, client in _active(cohort)))

    def _replies(
        self, cohort: Cohort, values: list[RemoteValue], needs_all: bool
    ) -> tuple[Leaves, Cohort]:
        """Exchange with the cohort; slots that did not reply are inactive in the result."""
        messages, requests = self._requests(values, cohort)
        rule = robust_rule(self.aggregate)
        replies = self._session.exchange(
            step_of(values),
            requests,
            needs_all=needs_all,
            at_least=1 if rule is None else rule.fewest,
        )
        cohort = self._replied(values, cohort, messages, replies)
        return {slot: reply.leaves for slot, reply in replies.items()}, cohort

    def _requests(
        self, values: list[RemoteValue], cohort: Cohort
    ) -> tuple[Messages, dict[int, Request]]:
        """The messages that ask a cohort for some leaves, and the requests by slot."""
        messages = Messages(self._session.clients, int(self.round), values)
        wanted = [spec(value) for value in values]
        requests = {
            slot: Request(
                client,
                partial(messages.build, slot, client),
                wanted,
                calls=partial(messages.calls, slot),
            )
            for slot, client in _active(cohort)
        }
        return messages, requests

    def _replied(
        self,
        values: list[RemoteValue],
        cohort: Cohort,
        messages: Messages,
        replies: dict[int, Reply],
    ) -> Cohort:
        """Note who has replied; returns the cohort in which all other slots are inactive."""
        active = [slot for slot, _ in _active(cohort)]
        missing = set(active) - replies.keys()
        for value in values:
            if isinstance(value.source, Computed):
                value.source.missing.update(missing)
        for slot, reply in replies.items():
            messages.confirm(slot)
            self.costs.work(*reply.work, cohort, slot)
        if not missing:
            return cohort
        has_replied = np.array([slot in replies for slot in range(len(cohort))])
        return replace(cohort, active=jnp.asarray(np.asarray(cohort.active) & has_replied))


def _active(cohort: Cohort) -> list[tuple[int, int]]:
    """Slot and client of every active slot."""
    pairs = zip(cohort.ids.tolist(), cohort.active.tolist(), strict=True)
    return [(slot, id) for slot, (id, is_active) in enumerate(pairs) if is_active]


def _missing(value: RemoteValue) -> set[int]:
    return value.source.missing if isinstance(value.source, Computed) else set()


def _are_sent(values: list[RemoteValue]) -> bool:
    return all(isinstance(value.source, Sent) for value in values)


def _are_large(placed: Placed) -> bool:
    """Whether the mean of these replies is taken block by block."""
    values: list[RemoteValue] = jax.tree.leaves(placed.value)
    are_numbers = all(jnp.issubdtype(value.dtype, jnp.inexact) for value in values)
    return are_numbers and not _are_sent(values) and max(map(_nbytes, values), default=0) > _BLOCK


def _nbytes(value: RemoteValue) -> int:
    return math.prod(value.shape) * np.dtype(value.dtype).itemsize


def _server_rows(value: RemoteValue, slots: int) -> jax.Array:
    assert isinstance(value.source, Sent)
    array = jnp.asarray(value.source.leaves[value.leaf])
    return array if value.source.are_rows else jnp.broadcast_to(array, (slots, *array.shape))


def _stacked(replies: Leaves, leaf: int, value: RemoteValue, slots: int) -> jax.Array:
    """One row per slot; zeros, which are never used, for slots without a reply."""
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        some = next(iter(replies.values()))
        return jnp.stack([replies.get(slot, some)[leaf] for slot in range(slots)])
    out = _empty((slots, *value.shape), np.dtype(value.dtype))
    for slot in range(slots):
        out[slot] = replies[slot][leaf] if slot in replies else 0
    return jax.device_put(out)


def _mean_of_leaf(replies: Leaves, leaf: int, value: RemoteValue, weights: jax.Array) -> jax.Array:
    """The mean of one leaf; the replies are stacked one block at a time."""
    slots, out = len(weights), _empty(value.shape, np.dtype(value.dtype))
    flat = out.reshape(-1)
    size = max(min(_BLOCK // (slots * out.itemsize), flat.size), 1)
    for begin in range(0, flat.size, size):
        begin = min(begin, flat.size - size)  # all blocks are equally long: one program for all
        rows = np.zeros((slots, size), out.dtype)
        for slot, leaves in replies.items():
            rows[slot] = np.asarray(leaves[leaf]).reshape(-1)[begin : begin + size]
        flat[begin : begin + size] = np.asarray(Mean()(jnp.asarray(rows), weights))
    return jax.device_put(out)


def _empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array aligned to 64 bytes, which JAX takes over without a copy."""
    nbytes = math.prod(shape) * dtype.itemsize
    raw = np.empty(nbytes + 64, np.uint8)
    begin = -raw.ctypes.data % 64
    return raw[begin : begin + nbytes].view(dtype).reshape(shape)
