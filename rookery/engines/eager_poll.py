"""Asynchronous words in plain Python: what a poll means, one event after another."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery import _tree
from rookery._types import Key, Tree
from rookery.program.federation import Shared, Step, client_key
from rookery.program.jobs import (
    SIMULTANEOUS,
    Jobs,
    News,
    check_mean,
    check_poll,
    check_result,
    check_waiting,
    job_key,
)
from rookery.program.ledger import Ledger

if TYPE_CHECKING:
    from rookery.engines.eager import EagerFederation


def poll(
    fed: EagerFederation,
    jobs: Jobs,
    step: Step,
    values: tuple[Tree | Shared, ...],
    *,
    wait_for: Any,
    key: Key,
    staleness: Any = None,
    at_once: int | None = None,
    **settings: Any,
) -> News:
    """See :meth:`~rookery.program.federation.AbstractFederation.poll`."""
    plain = tuple(v.value if isinstance(v, Shared) else v for v in values)
    check_poll(jobs, fed.n_clients, plain, fed.aggregate)
    check_waiting(wait_for, staleness, fed.n_clients)
    clients = range(fed.n_clients)
    nbytes_up = _tree.nbytes(jobs.results) // fed.n_clients
    version = int(jobs.polls)
    start, seconds, versions, begun, is_idle = (
        np.asarray(a).tolist()
        for a in (jobs.start, jobs.seconds, jobs.version, jobs.begun, jobs.is_idle)
    )
    keys, held, results = jobs.keys, jobs.values, jobs.results

    for i in clients:  # who has just become idle: when it will come, and how long it will take
        if jobs.has_arrived[i]:
            here = jobs.began + jnp.asarray(start[i], float)
            comes, delay = fed.clock.job(jobs.kind, jnp.int32(i), begun[i], here)
            start[i], seconds[i] = start[i] + float(comes - here), float(delay)

    begins_at, ends_at = list(start), [0.0] * fed.n_clients
    for i in clients:
        lasts = seconds[i]
        if is_idle[i]:
            begins_at[i] = max(start[i], fed.now)
            lasts += _transfer_seconds(fed, i, _to_send(fed, i, values) + nbytes_up)
        ends_at[i] = begins_at[i] + lasts

    eps = SIMULTANEOUS * float(np.finfo(jobs.start.dtype).eps)
    slack = [eps * max(abs(b), e - b) for b, e in zip(begins_at, ends_at, strict=True)]
    events = [fed.now, *sorted(ends_at[i] for i in clients if ends_at[i] - slack[i] > fed.now)]
    now, arrived = fed.now, list[int]()
    for now in events:
        arrived = [i for i in clients if ends_at[i] - slack[i] <= now]
        at_work = [i for i in clients if begins_at[i] - slack[i] <= now and i not in arrived]
        ages = [0 if is_idle[i] else version - versions[i] for i in at_work]
        if len(arrived) >= wait_for and (staleness is None or all(a < staleness for a in ages)):
            break

    for i in clients:  # who has begun meanwhile receives the values
        if is_idle[i] and begins_at[i] - slack[i] <= now:
            fed.ledger += Ledger(bytes_down=_send(fed, i, values))
            keys = keys.at[i].set(jax.random.key_data(job_key(key, i, begun[i])))
            held = jax.tree.map(lambda a, v, i=i: a.at[i].set(v), held, plain)
            start[i], seconds[i] = begins_at[i], ends_at[i] - begins_at[i]
            versions[i], is_idle[i] = version, False
            begun[i] += 1

    weights = fed.weights
    total = change = jax.tree.map(lambda a: jnp.zeros(a.shape[1:], a.dtype), results)
    for i in arrived:
        mine = [jax.tree.map(lambda a, i=i: a[i], value) for value in held]
        reply, work = fed.run(i, jax.random.wrap_key_data(keys[i]), step, mine, settings)
        fed.ledger += work
        check_result(jobs, jax.tree.map(lambda a: jnp.asarray(a)[None], reply))
        total = _tree.axpy(weights[i], reply, total)
        before = jax.tree.map(lambda a, i=i: a[i], results)
        change = _tree.axpy(weights[i], _tree.sub(reply, before), change)
        results = jax.tree.map(lambda a, r, i=i: a.at[i].set(r), results, reply)
        start[i], is_idle[i] = now, True

    diary = jobs.diary
    for i in arrived:
        diary = diary.add(
            [True],
            client=i,
            began=jobs.began + begins_at[i],
            ended=jobs.began + ends_at[i],
            taken=jobs.began + now,
            version=versions[i],
            used_in=version,
        )

    fed.ledger += Ledger(
        exchanges=1,
        messages=2 * len(arrived),
        bytes_up=nbytes_up * len(arrived),
        seconds=now - fed.now,
    )
    fed.now = now
    return News(
        jobs=replace(
            jobs,
            values=held,
            results=results,
            start=jnp.asarray(start, jobs.start.dtype),
            seconds=jnp.asarray(seconds, jobs.seconds.dtype),
            version=jnp.asarray(versions, jnp.int32),
            begun=jnp.asarray(begun, jnp.int32),
            keys=keys,
            is_idle=jnp.asarray(is_idle, bool),
            has_arrived=jnp.asarray([i in arrived for i in clients]),
            polls=jobs.polls + 1,
            diary=diary,
        ),
        arrivals=jnp.asarray(len(arrived), jnp.int32),
        weight=jnp.asarray(sum(float(weights[i]) for i in arrived)),
        sum=total,
        change=change,
        stalest=jnp.asarray(max((version - versions[i] for i in arrived), default=0), jnp.int32),
    )


def ask(
    fed: EagerFederation,
    who: jax.Array,
    step: Step,
    values: tuple[Tree | Shared, ...],
    *,
    key: Key,
    at_once: int | None = None,
    **settings: Any,
) -> Tree:
    """See :meth:`~rookery.program.federation.AbstractFederation.ask`."""
    check_mean(fed.aggregate)
    plain = tuple(v.value if isinstance(v, Shared) else v for v in values)
    asked = [i for i, is_asked in enumerate(who.tolist()) if is_asked]
    weight = sum(float(fed.weights[i]) for i in asked)
    exchange, slowest, mean = fed.ledger.exchanges, 0.0, None
    for i in asked:
        reply, work = fed.run(i, client_key(key, i, None), step, plain, settings)
        down, up = _send(fed, i, values), _tree.nbytes(reply)
        id, active = jnp.array([i], jnp.int32), jnp.array([True])
        nbytes = jnp.array([float(down + up)])
        lasts = fed.clock.exchange_seconds(fed.kind, fed.round, exchange, id, active, nbytes)
        slowest = max(slowest, float(lasts))
        fed.ledger += work + Ledger(messages=2, bytes_down=down, bytes_up=up)
        mean = _tree.zeros_like(reply) if mean is None else mean
        mean = _tree.axpy(float(fed.weights[i]) / weight, reply, mean)
    fed.ledger += Ledger(exchanges=1, seconds=slowest)
    fed.now += slowest
    return mean


def _to_send(fed: EagerFederation, client: int, values: tuple[Tree | Shared, ...]) -> int:
    """Bytes of the values that a client does not hold."""
    nbytes = 0
    for value in values:
        if not isinstance(value, Shared):
            nbytes += _tree.nbytes(value)
        elif client not in fed.holders[value.token]:
            nbytes += _tree.nbytes(value.value)
    return nbytes


def _send(fed: EagerFederation, client: int, values: tuple[Tree | Shared, ...]) -> int:
    """The same, after which it holds them."""
    nbytes = _to_send(fed, client, values)
    for value in values:
        if isinstance(value, Shared):
            fed.holders[value.token].add(client)
    return nbytes


def _transfer_seconds(fed: EagerFederation, client: int, nbytes: int) -> float:
    return float(fed.clock.transfer_seconds(jnp.int32(client), jnp.asarray(float(nbytes))))
