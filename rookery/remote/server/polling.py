"""Asynchronous words as messages: a job is sent when it begins, and its reply awaited when due.

In virtual time a simulation says who begins, who arrives and when, as on the other engines; clients
work meanwhile, and the server waits for the replies that the simulation has arrive. In real time
the order is that of the messages.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from rookery import tree
from rookery.program.federation import Cached, Settings, Step
from rookery.program.memory import PerClient
from rookery.program.polling import (
    InFlight,
    PollResult,
    PollRules,
    Timetable,
    begun,
    check_poll,
    delivered,
    plain_values,
    received,
    timetable,
)
from rookery.remote.protocol import wire
from rookery.remote.protocol.plan import Call, spec
from rookery.remote.server.message_builder import Holdings, MessageBuilder
from rookery.remote.server.remote_values import Computed, RemoteValue, handles_of
from rookery.remote.server.requests import Reply, Request, TooFewReplies
from rookery.types import Key, Tree

if TYPE_CHECKING:
    from rookery.remote.server.federation import RemoteFederation


class PendingJob:
    """A job that a client was sent.

    Attributes:
        number: under which its reply comes.
        since: when it was sent, by the monotonic clock.
    """

    def __init__(self, holdings: Holdings, client: int, result: list[RemoteValue]):
        self.number, self.since = 0, 0.0
        self._holdings, self._client, self._result = holdings, client, result
        self._draft: tuple[int, MessageBuilder] | None = None

    def ask(self, round: int) -> Request:
        """What the client is asked for, in a round."""

        def build():
            draft = MessageBuilder(self._holdings, round, self._client, 0)
            self._draft = round, draft
            return draft.give(self._result)

        return Request(self._client, build, [spec(handle) for handle in self._result])

    def confirm(self, round: int) -> None:
        """The client has answered in a round; it keeps what it was sent in the same round."""
        if self._draft is not None and self._draft[0] == round:
            self._draft[1].confirm()


def poll(
    fed: RemoteFederation,
    jobs: InFlight,
    step: Step,
    values: tuple[Tree | Cached, ...],
    rules: PollRules,
    key: Key,
    settings: Settings,
) -> PollResult:
    """See :meth:`~rookery.program.federation.AbstractFederation.poll`."""
    plain, bills = plain_values(values), fed.bills
    check_poll(jobs, fed.n_clients, plain, rules, fed.aggregate)
    common = [None if isinstance(v, PerClient) else fed.handles(v) for v in values]

    def handles(client: int) -> list[RemoteValue]:
        """Of what a client is sent: its own row of some values, and what all have of others."""
        own = received(values, client)
        pairs = zip(common, own, strict=True)
        return jax.tree.leaves([fed.sent(row) if same is None else same for same, row in pairs])

    call, numbers = fed.plan.find(step, handles(0), dict(settings), True)
    if numbers:
        raise ValueError(
            f"{call.name}: a setting of a job is only known during the run. A job may outlive its "
            "round; send by position what changes from round to round."
        )
    nbytes_up = tree.nbytes(jobs.results) // fed.n_clients

    def nbytes(client: int) -> int:
        return bills.unsent(client, values) + nbytes_up

    if fed.in_real_time:
        table = _from_now_on(jobs, bills.now)
    else:
        table = timetable(jobs, fed.clock, bills.now, nbytes, rules)
    for client in table.begins:
        bills.send_job(client, values)
    jobs = begun(jobs, table, key, plain)
    errands = _errands(fed, jobs, call, {client: handles(client) for client in table.begins})
    if fed.in_real_time:
        replies, missing = _first(fed, jobs, call.name, errands, rules)
    else:
        due = {client: errands[client] for client in table.arrives}
        asks = {client: errand.ask(fed.round) for client, errand in due.items()}
        sent = {client: errand.number for client, errand in due.items()}
        replies = fed.session.ask(call.name, asks, needs_all=False, begun=sent)
        missing = due.keys() - replies.keys()
    for client, reply in replies.items():
        errands[client].confirm(fed.round)
        bills.work(*reply.work)
    for client in (*replies, *missing):
        del fed.holdings.errands[_identity(call, jobs, client)]
    bills.end_poll(len(replies), nbytes_up, table.now)
    structure = jax.tree.structure(call.reply)
    results = {
        client: jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in reply.leaves])
        for client, reply in replies.items()
    }
    if fed.in_real_time:  # how long a job took is only known now
        took = jnp.asarray(bills.now, jobs.start.dtype) - jobs.start
        answered = jnp.asarray([client in replies for client in range(fed.n_clients)])
        jobs = replace(jobs, seconds=jnp.where(answered, took, jobs.seconds))
    news = delivered(jobs, results, fed.weights, bills.now, rules)
    return news._replace(jobs=_given_back(news.jobs, missing, bills.now))


def _errands(
    fed: RemoteFederation, jobs: InFlight, call: Call, begins: dict[int, list[RemoteValue]]
) -> dict[int, PendingJob]:
    """All jobs in flight, by client.

    Those that begin are sent, and those that a server before this one had sent, again.
    """
    holdings, new, all_ = fed.holdings, dict[int, PendingJob](), dict[int, PendingJob]()
    for client in np.flatnonzero(~np.asarray(jobs.is_idle)).tolist():
        name = _identity(call, jobs, client)
        if name not in holdings.errands:
            values = begins.get(client)
            if values is None:
                row = jax.tree.map(lambda a, i=client: a[i], jobs.values)
                values = jax.tree.leaves(fed.sent(row, is_billed=False))
            key = wire.unwrapped(jax.random.wrap_key_data(jobs.keys[client]))
            token = holdings.new_tokens(1)
            source = Computed(token, call, values, [], key, None, has_own_key=True)
            result = jax.tree.leaves(handles_of(source, call.reply))
            new[client] = holdings.errands[name] = PendingJob(holdings, client, result)
        all_[client] = holdings.errands[name]
    _send(fed, call.name, new)
    return all_


def _send(
    fed: RemoteFederation, step: str, errands: dict[int, PendingJob], silent: Collection[int] = ()
) -> None:
    """Send jobs; of those that were only silent, a late reply will still do."""
    if not errands:
        return
    asks = {client: errand.ask(fed.round) for client, errand in errands.items()}
    again = {client: errands[client].number for client in silent}
    numbers, now = fed.session.begin(step, asks, again), time.monotonic()
    for client, errand in errands.items():
        errand.number, errand.since = numbers[client], now


def _first(
    fed: RemoteFederation,
    jobs: InFlight,
    step: str,
    errands: dict[int, PendingJob],
    rules: PollRules,
) -> tuple[dict[int, Reply], set[int]]:
    """The replies that come first, and the clients whose jobs are given up, in real time."""
    session, policy = fed.session, fed.session.policy
    wait_for, staleness = int(rules.needed(int(jobs.polls))), rules.staleness
    ages = (int(jobs.polls) - np.asarray(jobs.version)).tolist()
    replies, left = dict[int, Reply](), dict(errands)
    attempt, helped = 0, set[int]()
    spoiled, refused = dict[int, Reply](), set[int]()

    def is_enough(came, waiting):
        is_fresh = staleness is None or all(ages[client] < staleness for client in waiting)
        return is_fresh and len(replies) + len(came) >= wait_for

    while True:
        asks = {client: errand.ask(fed.round) for client, errand in left.items()}
        sent = {client: (errand.number, errand.since) for client, errand in left.items()}
        state = session.gather(step, asks, sent, is_enough)
        replies |= state.replies
        failed = state.failed.keys()
        if state.lost:
            session.remind(state.lost)
        spoiled |= state.spoiled
        refused |= state.refused
        left = {client: left[client] for client in failed - state.refused}
        if len(replies) >= wait_for:
            return replies, failed | refused
        if not set(state.lost) - helped:  # once for each of them, it costs no attempt
            least = policy.needed(wait_for)
            if len(replies) >= least:
                return replies, failed | refused
            if len(spoiled) == len(errands):
                return spoiled, set()
            count = f"{len(replies)} of {len(errands)} results came, {least} are needed"
            if attempt >= policy.retries or not left:
                missing = sorted(failed | refused)
                raise TooFewReplies(f"round {fed.round}, {step}: {count}; {missing} failed.")
            seconds = policy.pause(attempt)
            attempt += 1
            session.say(step, None, f"{count}; their jobs are given again in {seconds:g} s")
            time.sleep(seconds)
        helped |= set(state.lost)
        _send(fed, step, left, left.keys() & state.silent - state.lost.keys())


def _from_now_on(jobs: InFlight, now: float) -> Timetable:
    """Whoever is idle begins; who arrives, and when, is yet to be seen."""
    is_idle = np.asarray(jobs.is_idle)
    start = np.where(is_idle, now, np.asarray(jobs.start))
    seconds = np.where(is_idle, 0.0, np.asarray(jobs.seconds))
    return Timetable(now, np.flatnonzero(is_idle).tolist(), [], start.tolist(), seconds.tolist())


def _given_back(jobs: InFlight, clients: set[int], now: float) -> InFlight:
    """The jobs once some have failed: their clients begin again, with the values of then."""
    if not clients:
        return jobs
    failed = jnp.asarray(np.isin(np.arange(jobs.is_idle.shape[0]), sorted(clients)))
    start = jnp.where(failed, jnp.asarray(now, jobs.start.dtype), jobs.start)
    return replace(jobs, is_idle=jobs.is_idle | failed, start=start)


def _identity(call: Call, jobs: InFlight, client: int) -> tuple[int, int, bytes]:
    return call.number, client, np.asarray(jobs.keys[client]).tobytes()
