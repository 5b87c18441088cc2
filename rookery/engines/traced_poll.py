"""Asynchronous words, traced: time goes from event to event, clients are visited a few at a time.

What is done for every client is a comparison of times. All that costs more, computing results and
moving rows, is done for those concerned, in loops whose length is their number.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from rookery import tree
from rookery.clients.local_client import LocalClient
from rookery.engines import uint64
from rookery.engines.masked_loop import visit_some, weighted_sum, width_of, worked, written
from rookery.program.async_trace import AsyncTrace
from rookery.program.federation import Cached, Settings, Step, client_key
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
    from rookery.engines.traced import TracedFederation


def poll(
    fed: TracedFederation,
    jobs: InFlight,
    step: Step,
    values: tuple[Tree | Cached, ...],
    rules: PollRules,
    key: Key,
    settings: Settings,
) -> PollResult:
    """See :meth:`~rookery.program.federation.AbstractFederation.poll`."""
    plain = tuple(v.value if isinstance(v, Cached) else v for v in values)
    check_poll(jobs, fed.n_clients, plain, rules, fed.aggregate)
    width = width_of(fed, rules.wait_for)
    everyone, now = jnp.arange(fed.n_clients, dtype=jnp.int32), fed.books.seconds

    # who has just become idle: when it will come, and how long it will take
    jobs = _draw(fed, jobs, width)

    # when the server stops waiting
    needed = rules.needed(jobs.polls)
    nbytes_up = tree.nbytes(jobs.results) // fed.n_clients
    nbytes = _bytes_down(fed, values) + nbytes_up
    lasts = jobs.seconds + fed.clock.transfer_seconds(everyone, nbytes)
    start = jnp.where(jobs.is_idle, jnp.maximum(jobs.start, now), jobs.start)
    seconds = jnp.where(jobs.is_idle, lasts, jobs.seconds)
    version = jnp.where(jobs.is_idle, jobs.polls, jobs.version)
    finish = start + seconds
    slack = SIMULTANEOUS * jnp.finfo(finish.dtype).eps * jnp.maximum(jnp.abs(start), seconds)
    due = finish - slack

    def must_wait(time):
        too_few = jnp.sum(due <= time, dtype=jnp.int32) < needed
        if rules.staleness is None:
            return too_few
        at_work = (start - slack <= time) & (due > time)
        return too_few | jnp.any(at_work & (jobs.polls - version >= rules.staleness))

    def next_event(time):
        return jnp.min(jnp.where(due > time, finish, jnp.inf))

    now = lax.while_loop(must_wait, next_event, now)
    is_in = due <= now

    # who has begun meanwhile receives the values
    begins = jobs.is_idle & (start - slack <= now)
    _send(fed, values, begins)
    jobs = _begin(fed, jobs, plain, begins, key, width)
    jobs = replace(
        jobs,
        start=jnp.where(is_in, now, start),
        seconds=jnp.where(jobs.is_idle & ~begins, jobs.seconds, seconds),
        version=jnp.where(begins, jobs.polls, jobs.version),
        begun=jobs.begun + begins.astype(jnp.int32),
        is_idle=is_in | (jobs.is_idle & ~begins),
        has_arrived=is_in,
        polls=jobs.polls + 1,
        diary=_noted(fed, jobs, is_in, width, start, finish, now, version),
    )

    # the results
    counts = fed.weights
    if rules.discount is not None:
        counts = counts * rules.discount(jobs.polls - 1 - version)
    results, total, change = _deliver(fed, jobs, step, is_in, counts, settings, width)
    arrivals = jnp.sum(is_in, dtype=jnp.uint32)
    fed.books = fed.books._replace(
        exchanges=fed.books.exchanges + jnp.uint32(1),
        messages=fed.books.messages + jnp.uint32(2) * arrivals,
        bytes_up=uint64.add(fed.books.bytes_up, nbytes_up, arrivals, fed.n_clients),
        seconds=now,
    )
    return PollResult(
        jobs=replace(jobs, results=results),
        arrivals=arrivals.astype(jnp.int32),
        weight=jnp.sum(jnp.where(is_in, fed.weights, 0.0)),
        sum=total,
        change=change,
        stalest=jnp.max(jnp.where(is_in, jobs.polls - 1 - version, 0)),
    )


def ask(
    fed: TracedFederation,
    who: jax.Array,
    step: Step,
    values: tuple[Tree | Cached, ...],
    key: Key,
    settings: Settings,
) -> Tree:
    """See :meth:`~rookery.program.federation.AbstractFederation.ask`."""
    plain = tuple(v.value if isinstance(v, Cached) else v for v in values)
    check_ask(fed.n_clients, plain, fed.aggregate)

    def one(id):
        client = LocalClient(fed.population, id, client_key(key, id, None), _loop)
        return step(client, *received(plain, id), **settings), client.work

    shape = jax.eval_shape(one, jax.ShapeDtypeStruct((), jnp.int32))[0]
    nbytes_up = tree.nbytes(shape)
    nbytes = _bytes_down(fed, values) + nbytes_up
    exchange = fed.books.exchanges

    def visit(ids, active, carry):
        total, slowest, work = carry
        replies, more = jax.vmap(one)(ids)
        lasts = fed.clock.exchange_seconds(fed.kind, fed.round, exchange, ids, active, nbytes[ids])
        total = tree.add(total, weighted_sum(fed.weights, ids, active, replies))
        return total, jnp.maximum(slowest, lasts), worked(work, active, more)

    zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shape)
    work = (fed.books.gradients, fed.books.hessian_vectors)
    carry = (zeros, jnp.zeros(()), work)
    total, slowest, work = visit_some(fed, who, width_of(fed), visit, carry)
    _send(fed, values, who)
    asked = jnp.sum(who, dtype=jnp.uint32)
    fed.books = fed.books._replace(
        exchanges=exchange + jnp.uint32(1),
        messages=fed.books.messages + jnp.uint32(2) * asked,
        bytes_up=uint64.add(fed.books.bytes_up, nbytes_up, asked, fed.n_clients),
        gradients=work[0],
        hessian_vectors=work[1],
        seconds=fed.books.seconds + slowest,
    )
    return tree.scale(1 / jnp.sum(jnp.where(who, fed.weights, 0.0)), total)


def _draw(fed: TracedFederation, jobs: InFlight, width: int) -> InFlight:
    def visit(ids, active, carry):
        def one(id):
            ready = jobs.start[id]
            here = jobs.began + ready
            comes, delay = fed.clock.job(jobs.kind, id, jobs.begun[id], here)
            return ready + (comes - here), delay

        rows = jax.vmap(one)(ids)
        return tuple(
            written(table, ids, active, new) for table, new in zip(carry, rows, strict=True)
        )

    carry = (jobs.start, jobs.seconds)
    start, seconds = visit_some(fed, jobs.has_arrived, width, visit, carry)
    return replace(jobs, start=start, seconds=seconds)


def _begin(fed, jobs: InFlight, values, begins: jax.Array, key: Key, width: int) -> InFlight:
    def visit(ids, active, carry):
        def one(id):
            return received(values, id), jax.random.key_data(job_key(key, id, jobs.begun[id]))

        return written(carry, ids, active, jax.vmap(one)(ids))

    held, keys = visit_some(fed, begins, width, visit, (jobs.values, jobs.keys))
    return replace(jobs, values=held, keys=keys)


def _noted(fed, jobs: InFlight, is_in, width: int, start, finish, now, version) -> AsyncTrace:
    def visit(ids, active, diary):
        return diary.add(
            active,
            client=ids,
            began=jobs.began + start[ids],
            ended=jobs.began + finish[ids],
            taken=jobs.began + now,
            version=version[ids],
            used_in=jobs.polls,
        )

    return visit_some(fed, is_in, width, visit, jobs.diary)


def _deliver(fed, jobs: InFlight, step: Step, is_in: jax.Array, counts, settings, width: int):
    """The new table of results, and the two sums of a :class:`PollResult`."""

    def visit(ids, active, carry):
        def one(id):
            client = LocalClient(fed.population, id, jax.random.wrap_key_data(jobs.keys[id]), _loop)
            values = jax.tree.map(lambda a: a[id], jobs.values)
            return step(client, *values, **settings), client.work

        results, total, change, work = carry
        replies, more = jax.vmap(one)(ids)
        check_result(jobs, replies)
        results = written(results, ids, active, replies)
        total = tree.add(total, weighted_sum(counts, ids, active, replies))
        change = tree.add(change, weighted_sum(fed.weights, ids, active, replies))
        return results, total, change, worked(work, active, more)

    def look_up(ids, active, change):
        before = jax.tree.map(lambda a: a[ids], jobs.results)
        return tree.sub(change, weighted_sum(fed.weights, ids, active, before))

    zeros = jax.tree.map(lambda a: jnp.zeros(a.shape[1:], a.dtype), jobs.results)
    # one loop that reads a table and writes it, or two of which neither must be first, would have
    # XLA copy the whole table
    change = visit_some(fed, is_in, width, look_up, zeros)
    work = (fed.books.gradients, fed.books.hessian_vectors)
    carry = (jobs.results, zeros, change, work)
    results, total, change, work = visit_some(fed, is_in, width, visit, carry)
    fed.books = fed.books._replace(gradients=work[0], hessian_vectors=work[1])
    return results, total, change


def _bytes_down(fed: TracedFederation, values: tuple[Tree | Cached, ...]) -> jax.Array:
    """What each client would have to be sent: all that it does not hold."""
    nbytes = jnp.zeros(fed.n_clients)
    for value in values:
        if isinstance(value, Cached):
            nbytes = nbytes + jnp.where(fed.holders(value), 0.0, tree.nbytes(value.value))
        else:
            nbytes = nbytes + nbytes_of(value)
    return nbytes


def _send(fed: TracedFederation, values: tuple[Tree | Cached, ...], who: jax.Array) -> None:
    for value in values:
        taking, nbytes = who, nbytes_of(value.value if isinstance(value, Cached) else value)
        if isinstance(value, Cached):
            holders = fed.holders(value)
            taking = who & ~holders
            fed._hold(value, holders | who)
        times = jnp.sum(taking, dtype=jnp.uint32)
        down = uint64.add(fed.books.bytes_down, nbytes, times, fed.n_clients)
        fed.books = fed.books._replace(bytes_down=down)


def _loop(n, body, init):
    return lax.fori_loop(0, n, body, init)
