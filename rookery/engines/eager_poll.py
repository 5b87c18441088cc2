"""Asynchronous words in plain Python: what a poll means, one event after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from rookery import tree
from rookery.program.delays import Clock
from rookery.program.federation import Cached, Settings, Step, client_key
from rookery.program.ledger import Ledger
from rookery.program.polling import (
    SIMULTANEOUS,
    InFlight,
    PollResult,
    PollRules,
    check_ask,
    check_poll,
    check_result,
    job_key,
    nbytes_of,
    received,
)
from rookery.types import Key, Tree

if TYPE_CHECKING:
    from rookery.engines.eager import EagerFederation


@dataclass(frozen=True)
class Timetable:
    """What happens during a poll; times are seconds since the round began.

    Attributes:
        now: when the server goes on.
        begins: the clients whose jobs have begun by then.
        arrives: the clients whose results are in by then.
        start: per client, when its job in flight began, or from when it could begin.
        seconds: per client, how long its job in flight lasts, or the delay of the next one.
    """

    now: float
    begins: list[int]
    arrives: list[int]
    start: list[float]
    seconds: list[float]


def poll(
    fed: EagerFederation,
    jobs: InFlight,
    step: Step,
    values: tuple[Tree | Cached, ...],
    rules: PollRules,
    key: Key,
    settings: Settings,
) -> PollResult:
    """See :meth:`~rookery.program.federation.AbstractFederation.poll`."""
    plain = plain_values(values)
    check_poll(jobs, fed.n_clients, plain, rules, fed.aggregate)
    nbytes_up = tree.nbytes(jobs.results) // fed.n_clients

    def nbytes(client: int) -> int:
        return _to_send(fed, client, values) + nbytes_up

    table = timetable(jobs, fed.clock, fed.now, nbytes, rules)
    for i in table.begins:
        fed.ledger += Ledger(bytes_down=_send(fed, i, values))
    jobs = begun(jobs, table, key, plain)
    replies: dict[int, Tree] = {}
    for i in table.arrives:
        mine = [jax.tree.map(lambda a, i=i: a[i], value) for value in jobs.values]
        own = jax.random.wrap_key_data(jobs.keys[i])
        replies[i], work = fed.run(i, own, step, mine, settings)
        fed.ledger += work
    fed.ledger += Ledger(
        exchanges=1,
        messages=2 * len(replies),
        bytes_up=nbytes_up * len(replies),
        seconds=table.now - fed.now,
    )
    fed.now = table.now
    return delivered(jobs, replies, fed.weights, table.now, rules)


def timetable(
    jobs: InFlight,
    clock: Clock,
    now: float,
    nbytes: Callable[[int], int],
    rules: PollRules,
) -> Timetable:
    """Who begins, who arrives, and when the server goes on, by simulation.

    Args:
        jobs: before the poll.
        clock: of the simulation.
        now: when the poll begins, in seconds since the round began.
        nbytes: bytes that move, down and up, for the job of a client that begins now.
        rules: when the server stops waiting.
    """
    start, seconds, versions, numbers, is_idle, is_new = (
        np.asarray(a).tolist()
        for a in (
            jobs.start, jobs.seconds, jobs.version, jobs.begun, jobs.is_idle, jobs.has_arrived
        )
    )  # fmt: skip
    clients, version = range(len(start)), int(jobs.polls)
    needed, staleness = rules.needed(version), rules.staleness

    for i in clients:  # who has just become idle: when it will come, and how long it will take
        if is_new[i]:
            here = jobs.began + jnp.asarray(start[i], float)
            comes, delay = clock.job(jobs.kind, jnp.int32(i), numbers[i], here)
            start[i], seconds[i] = start[i] + float(comes - here), float(delay)

    begins_at, ends_at = list(start), [0.0] * len(start)
    for i in clients:
        lasts = seconds[i]
        if is_idle[i]:
            begins_at[i] = max(start[i], now)
            lasts += _transfer_seconds(clock, i, nbytes(i))
        ends_at[i] = begins_at[i] + lasts

    eps = SIMULTANEOUS * float(np.finfo(jobs.start.dtype).eps)
    slack = [eps * max(abs(b), e - b) for b, e in zip(begins_at, ends_at, strict=True)]
    events = [now, *sorted(ends_at[i] for i in clients if ends_at[i] - slack[i] > now)]
    arrives = list[int]()
    for now in events:
        arrives = [i for i in clients if ends_at[i] - slack[i] <= now]
        at_work = [i for i in clients if begins_at[i] - slack[i] <= now and i not in arrives]
        ages = [0 if is_idle[i] else version - versions[i] for i in at_work]
        if len(arrives) >= needed and (staleness is None or all(a < staleness for a in ages)):
            break

    begins = [i for i in clients if is_idle[i] and begins_at[i] - slack[i] <= now]
    for i in begins:
        start[i], seconds[i] = begins_at[i], ends_at[i] - begins_at[i]
    return Timetable(now, begins, arrives, start, seconds)


def begun(jobs: InFlight, table: Timetable, key: Key, values: tuple[Tree, ...]) -> InFlight:
    """The jobs once those that begin have received the values, each with a key of its own."""
    keys, held = jobs.keys, jobs.values
    for i in table.begins:
        keys = keys.at[i].set(jax.random.key_data(job_key(key, i, jobs.begun[i])))
        held = jax.tree.map(lambda a, v, i=i: a.at[i].set(v), held, received(values, i))
    begins = _mask(jobs, table.begins)
    return replace(
        jobs,
        values=held,
        start=jnp.asarray(table.start, jobs.start.dtype),
        seconds=jnp.asarray(table.seconds, jobs.seconds.dtype),
        version=jnp.where(begins, jobs.polls, jobs.version),
        begun=jobs.begun + begins.astype(jnp.int32),
        keys=keys,
        is_idle=jobs.is_idle & ~begins,
    )


def delivered(
    jobs: InFlight,
    replies: Mapping[int, Tree],
    weights: jax.Array,
    now: float,
    rules: PollRules,
) -> PollResult:
    """What a poll has brought, when clients have replied, at a time since the round began."""
    arrived, version, versions = sorted(replies), int(jobs.polls), jobs.version.tolist()
    results, start, diary = jobs.results, jobs.start, jobs.diary
    total = change = jax.tree.map(lambda a: jnp.zeros(a.shape[1:], a.dtype), results)
    for i in arrived:
        reply = replies[i]
        check_result(jobs, jax.tree.map(lambda a: jnp.asarray(a)[None], reply))
        factor = 1.0 if rules.discount is None else rules.discount(jnp.int32(version - versions[i]))
        total = tree.axpy(weights[i] * factor, reply, total)
        before = jax.tree.map(lambda a, i=i: a[i], results)
        change = tree.axpy(weights[i], tree.sub(reply, before), change)
        results = jax.tree.map(lambda a, r, i=i: a.at[i].set(r), results, reply)
        diary = diary.add(
            [True],
            client=i,
            began=jobs.began + jobs.start[i],
            ended=jobs.began + jobs.start[i] + jobs.seconds[i],
            taken=jobs.began + now,
            version=versions[i],
            used_in=version,
        )
        start = start.at[i].set(now)
    has_arrived = _mask(jobs, arrived)
    return PollResult(
        jobs=replace(
            jobs,
            results=results,
            start=start,
            is_idle=jobs.is_idle | has_arrived,
            has_arrived=has_arrived,
            polls=jobs.polls + 1,
            diary=diary,
        ),
        arrivals=jnp.asarray(len(arrived), jnp.int32),
        weight=jnp.asarray(sum(float(weights[i]) for i in arrived)),
        sum=total,
        change=change,
        stalest=jnp.asarray(max((version - versions[i] for i in arrived), default=0), jnp.int32),
    )


def plain_values(values: tuple[Tree | Cached, ...]) -> tuple[Tree, ...]:
    """The values themselves, whether they are shared or not."""
    return tuple(v.value if isinstance(v, Cached) else v for v in values)


def ask(
    fed: EagerFederation,
    who: jax.Array,
    step: Step,
    values: tuple[Tree | Cached, ...],
    key: Key,
    settings: Settings,
) -> Tree:
    """See :meth:`~rookery.program.federation.AbstractFederation.ask`."""
    plain = plain_values(values)
    check_ask(fed.n_clients, plain, fed.aggregate)
    asked = [i for i, is_asked in enumerate(who.tolist()) if is_asked]
    weight = sum(float(fed.weights[i]) for i in asked)
    exchange, slowest, mean = fed.ledger.exchanges, 0.0, None
    for i in asked:
        reply, work = fed.run(i, client_key(key, i, None), step, received(plain, i), settings)
        down, up = _send(fed, i, values), tree.nbytes(reply)
        id, active = jnp.array([i], jnp.int32), jnp.array([True])
        nbytes = jnp.array([float(down + up)])
        lasts = fed.clock.exchange_seconds(fed.kind, fed.round, exchange, id, active, nbytes)
        slowest = max(slowest, float(lasts))
        fed.ledger += work + Ledger(messages=2, bytes_down=down, bytes_up=up)
        mean = tree.zeros_like(reply) if mean is None else mean
        mean = tree.axpy(float(fed.weights[i]) / weight, reply, mean)
    fed.ledger += Ledger(exchanges=1, seconds=slowest)
    fed.now += slowest
    return mean


def _to_send(fed: EagerFederation, client: int, values: tuple[Tree | Cached, ...]) -> int:
    """Bytes of the values that a client does not hold."""
    nbytes = 0
    for value in values:
        if not isinstance(value, Cached):
            nbytes += nbytes_of(value)
        elif client not in fed.holders[value.token]:
            nbytes += tree.nbytes(value.value)
    return nbytes


def _send(fed: EagerFederation, client: int, values: tuple[Tree | Cached, ...]) -> int:
    """The same, after which it holds them."""
    nbytes = _to_send(fed, client, values)
    for value in values:
        if isinstance(value, Cached):
            fed.holders[value.token].add(client)
    return nbytes


def _transfer_seconds(clock: Clock, client: int, nbytes: int) -> float:
    return float(clock.transfer_seconds(jnp.int32(client), jnp.asarray(float(nbytes))))


def _mask(jobs: InFlight, clients: list[int]) -> jax.Array:
    """[clients], true for those named."""
    return jnp.asarray(np.isin(np.arange(jobs.is_idle.shape[0]), clients))
