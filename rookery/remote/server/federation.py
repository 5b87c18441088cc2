"""The words as messages: the server plans, and clients are asked when a reply is needed.

``broadcast`` and ``map`` send nothing by themselves. What they make is kept as handles, and goes
out in one message per client when a word that goes up asks for it: one exchange is one message down
and one up, however many steps lie between.
"""

import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery import tree
from rookery.engines.engine import Program
from rookery.program.accounting import CostMeter
from rookery.program.aggregate import AbstractRobust
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
from rookery.remote.server.message_builder import Holdings, MessageBuilder
from rookery.remote.server.polling import poll
from rookery.remote.server.remote_values import (
    Computed,
    Copied,
    Recalled,
    RemoteValue,
    Sent,
    handles_of,
    name_of,
)
from rookery.remote.server.requests import Request
from rookery.remote.server.session import Session
from rookery.types import Key, Tree


class RemoteFederation(AbstractFederation):
    """The clients during one round, over a session."""

    def __init__(
        self,
        program: Program,
        round: int,
        session: Session,
        plan: Plan,
        holdings: Holdings,
        in_real_time: bool,
    ):
        weights = jnp.asarray(program.population.weights, float)
        super().__init__(program.population.n_clients, weights, round, program.aggregate)
        self.clock = program.clock
        self.in_real_time = in_real_time
        began = time.monotonic()
        timer = (lambda: time.monotonic() - began) if in_real_time else None
        self.bills = CostMeter(program.clock, round, timer)
        self.session, self.plan, self.holdings = session, plan, holdings
        self._shared: dict[int, Tree] = {}
        self._copies: dict[int, tuple[Memory, Copied]] = {}

    # ---- on the clients

    def map(self, step: Step, *values: Placed, key: Key | None = None, **settings: Any) -> Placed:
        """Plan a step."""
        cohort = common_cohort(step, values)
        leaves = jax.tree.leaves([value.value for value in values])
        call, numbers = self.plan.find(step, leaves, settings, key is not None)
        occurrences = None if cohort.occurrence is None else cohort.occurrence.tolist()
        token = self.holdings.new_tokens(len(cohort))
        words = None if key is None else wire.unwrapped(key)
        source = Computed(token, call, leaves, numbers, words, occurrences)
        return Placed(cohort, handles_of(source, call.reply), is_stacked=True)

    def recall(self, cohort: Cohort, memory: Memory) -> Placed:
        """The handles of a memory are its rows; one that a round has made of its own gets some."""
        check_recall(cohort, memory, self.n_clients)
        rows = memory.rows
        if not isinstance(jax.tree.leaves(rows)[0], RemoteValue):
            like = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), rows)
            rows = handles_of(self._copied(memory), like)
        return Placed(cohort, rows, is_stacked=True)

    def keep(self, memory: Memory, placed: Placed) -> Memory:
        """Note what clients keep; they are told with the next message."""
        cohort = placed.cohort
        check_recall(cohort, memory, self.n_clients)
        old, structure = jax.tree.flatten(memory.rows)
        new = jax.tree.leaves(placed.value)
        wanted, got = [spec(h) for h in old], [spec(h) for h in new]
        if wanted != got or structure != jax.tree.structure(placed.value):
            raise ValueError(f"a client remembers {wanted}, and {got} was to be kept.")
        before = old[0].source if isinstance(old[0], RemoteValue) else None
        if not isinstance(before, Recalled):
            raise TypeError("clients keep what is in a Memory of the state, and in no other.")
        changed = dict(before.changed)
        for slot, id in _active(cohort):
            if not any(slot in _missing(handle) for handle in new):
                changed[id] = (new, slot)
        source = Recalled(before.memory, changed)
        return Memory(handles_of(source, memory.rows), memory.n_clients)

    # ---- loops

    def repeat(self, n: Any, body: Callable[[Any, Tree], Tree], init: Tree) -> Tree:
        """A Python loop."""
        return python_loop(n, body, init)

    # ---- down and up

    def poll(self, jobs, step, *values, rules, key, settings=NO_SETTINGS) -> PollResult:
        """Jobs are sent as they begin; see :mod:`rookery.remote.server.polling`."""
        return poll(self, jobs, step, values, rules, key, settings)

    def ask(self, who, step, *values, key, settings=NO_SETTINGS) -> Tree:
        """An exchange with a cohort of those asked."""
        return ask_as_cohort(self, who, step, values, key, settings)

    # ---- for engines

    def _collect(self, placed: Placed, *, needs_all: bool) -> tuple[Tree, Cohort]:
        replies, cohort = self._replies(placed, needs_all)
        self.bills.end_exchange(self.kind, cohort, tree.nbytes(replies) // len(cohort))
        return replies, cohort

    def _replies(self, placed: Placed, needs_all: bool) -> tuple[Tree, Cohort]:
        """Request the cohort; slots that have not answered are switched off in what comes back."""
        cohort = placed.cohort
        handles, structure = jax.tree.flatten(placed.value)
        sent = [h.source for h in handles if isinstance(h.source, Sent)]
        if len(sent) == len(handles):  # a client would only give back what it was sent
            pairs = zip(sent, handles, strict=True)
            rows = [_own_rows(source, h.leaf, len(cohort)) for source, h in pairs]
            return jax.tree.unflatten(structure, rows), cohort
        drafts: dict[int, MessageBuilder] = {}
        self.holdings.carried.clear()
        wanted = [spec(handle) for handle in handles]

        def ask(slot: int, client: int) -> Request:
            def build():
                drafts[slot] = MessageBuilder(
                    self.holdings, self.round, client, slot, is_shared=True
                )
                return drafts[slot].give(handles)

            return Request(client, build, wanted)

        asks = {slot: ask(slot, client) for slot, client in _active(cohort)}
        rule = self.aggregate
        replies = self.session.ask(
            name_of(handles),
            asks,
            needs_all=needs_all,
            fewest=rule.fewest if isinstance(rule, AbstractRobust) else 1,
        )
        for handle in handles:
            if isinstance(handle.source, Computed):
                handle.source.missing.update(asks.keys() - replies.keys())
        for slot, reply in replies.items():
            drafts[slot].confirm()
            self.bills.work(*reply.work)
        given = {slot: reply.leaves for slot, reply in replies.items()}
        leaves = [_stacked(given, i, handle, len(cohort)) for i, handle in enumerate(handles)]
        if len(replies) < len(asks):
            answered = np.array([slot in replies for slot in range(len(cohort))])
            active = jnp.asarray(np.asarray(cohort.active) & answered)
            cohort = Cohort(cohort.ids, active, cohort.occurrence, cohort.token, cohort.is_weighted)
        return jax.tree.unflatten(structure, leaves), cohort

    def handles(self, value: Tree | Cached) -> Tree:
        """Handles of a value for all clients; a shared value has the same ones always."""
        if not isinstance(value, Cached):
            return self.sent(value)
        if value.token not in self._shared:
            self._shared[value.token] = self.sent(value.value)
        return self._shared[value.token]

    def sent(self, value: Tree, slots: int | None = None, is_billed: bool = True) -> Tree:
        """Handles of a value that will be sent: the same to all, or a row to each of some slots."""
        leaves = [_plain(leaf) for leaf in jax.tree.leaves(value)]
        token = self.holdings.new_tokens(slots or 1)
        shapes = [np.shape(a)[1:] if slots else np.shape(a) for a in leaves]
        like = [jax.ShapeDtypeStruct(s, a.dtype) for s, a in zip(shapes, leaves, strict=True)]
        source = Sent(token, leaves, slots is not None, is_billed)
        return handles_of(source, jax.tree.unflatten(jax.tree.structure(value), like))

    def _copied(self, memory: Memory) -> Copied:
        """What clients have copies of: a value that was shared with them, or else a server's row.

        A row is what a client received in an earlier round, and has forgotten since. It is not
        billed again.
        """
        if id(memory) not in self._copies:
            leaves, structure = jax.tree.flatten(jax.tree.map(np.asarray, memory.rows))
            sent: dict[int, list[RemoteValue]] = {}
            for value in self._shared.values():
                handles = jax.tree.leaves(value)
                if jax.tree.structure(value) == structure:
                    same = [_is_row(a, h) for a, h in zip(leaves, handles, strict=True)]
                    sent |= dict.fromkeys(np.flatnonzero(np.all(same, axis=0)).tolist(), handles)
            token = self.holdings.new_tokens(self.n_clients)
            rows = Sent(token, leaves, are_rows=True, is_billed=False)
            self._copies[id(memory)] = memory, Copied(rows, sent)
        return self._copies[id(memory)][1]

    def _new_cohort(self, cohort: Cohort) -> None:
        """Nothing: the meter counts from a cohort's first message on."""

    def _new_cached(self, cached: Cached, holders: jax.Array) -> None:
        self.bills.cache(cached, np.flatnonzero(np.asarray(holders)).tolist())

    def _send(self, cohort: Cohort, value: Tree | Cached, *, as_rows: bool) -> Tree:
        self.bills.send(cohort, value, as_rows=as_rows)
        return self.sent(value, len(cohort)) if as_rows else self.handles(value)


def _active(cohort: Cohort) -> list[tuple[int, int]]:
    pairs = zip(cohort.ids.tolist(), cohort.active.tolist(), strict=True)
    return [(slot, id) for slot, (id, is_active) in enumerate(pairs) if is_active]


def _missing(handle: RemoteValue) -> set[int]:
    return handle.source.missing if isinstance(handle.source, Computed) else set()


def _is_row(rows: np.ndarray, handle: RemoteValue) -> np.ndarray:
    """[clients], whose row is the value of a handle."""
    assert isinstance(handle.source, Sent)
    value = np.asarray(handle.source.leaves[handle.leaf])
    if rows.shape[1:] != value.shape or rows.dtype != value.dtype:
        return np.zeros(len(rows), bool)
    return (rows == value).reshape(len(rows), -1).all(axis=1)


def _plain(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return leaf
    return np.asarray(leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf))


def _own_rows(source: Sent, leaf: int, slots: int) -> jax.Array:
    value = jnp.asarray(source.leaves[leaf])
    return value if source.are_rows else jnp.broadcast_to(value, (slots, *value.shape))


def _stacked(given: dict[int, list], leaf: int, handle: RemoteValue, slots: int) -> jax.Array:
    """One row per slot; zeros, which mean nothing, where there is none."""
    if jnp.issubdtype(handle.dtype, jax.dtypes.prng_key):
        some = next(iter(given.values()))
        return jnp.stack([given.get(slot, some)[leaf] for slot in range(slots)])
    out = _empty((slots, *handle.shape), np.dtype(handle.dtype))
    for slot in range(slots):
        out[slot] = given[slot][leaf] if slot in given else 0
    return jax.device_put(out)


def _empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array that JAX takes as it is, without a copy, where it lies at a multiple of 64."""
    nbytes = math.prod(shape) * dtype.itemsize
    raw = np.empty(nbytes + 64, np.uint8)
    begin = -raw.ctypes.data % 64
    return raw[begin : begin + nbytes].view(dtype).reshape(shape)
