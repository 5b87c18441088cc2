"""Asynchronous polls as messages: a job is sent when it begins; its reply is awaited when due.

In virtual time the clock's simulation decides which jobs begin and arrive, and when, as on the
other engines; clients work meanwhile, and the server waits for the replies that are due. If the
clock has a time for the clients' work, the server, which must know when a job ends before it has
its reply, counts the evaluations itself. In real time the order is that of the messages.
"""

import time
from collections.abc import Collection, Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from rookery import tree, uint64
from rookery.clients.local_client import LocalClient
from rookery.engines.engine import Program
from rookery.program.accounting import CostMeter
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
    job_key,
    plain_values,
    received,
    timetable,
)
from rookery.program.step import python_loop
from rookery.remote.protocol import wire
from rookery.remote.protocol.plan import Call, Plan, spec
from rookery.remote.server.client_record import JobId, PendingJob
from rookery.remote.server.message_builder import MessageBuilder
from rookery.remote.server.remote_values import Computed, RemoteValue, remote_values
from rookery.remote.server.requests import Reply, Request
from rookery.remote.server.server_values import ServerValues
from rookery.remote.server.session import Session
from rookery.types import Key, Tree


class Poller:
    """The polls of one round.

    Args:
        program: population, clock and aggregation rule.
        session: the session, in the round.
        plan: the calls of the algorithm.
        values: the server values of the round.
        costs: counts the costs of the round.
        in_real_time: whether results are taken in the order in which they arrive.
    """

    def __init__(
        self,
        program: Program,
        session: Session,
        plan: Plan,
        values: ServerValues,
        costs: CostMeter,
        *,
        in_real_time: bool,
    ):
        self._program, self._session, self._plan = program, session, plan
        self._values, self._costs = values, costs
        self._in_real_time = in_real_time
        self._n_clients = program.population.n_clients
        self._weights = jnp.asarray(program.population.weights, float)

    def poll(
        self,
        jobs: InFlight,
        step: Step,
        values: tuple[Tree | Cached | PerClient, ...],
        rules: PollRules,
        key: Key,
        settings: Settings,
    ) -> PollResult:
        """See :meth:`~rookery.program.federation.AbstractFederation.poll`."""
        plain, costs, session = plain_values(values), self._costs, self._session
        check_poll(jobs, self._n_clients, plain, rules, self._program.aggregate)
        common = [None if isinstance(v, PerClient) else self._values.same(v) for v in values]

        def arguments(client: int) -> list[RemoteValue]:
            """A client's own row of PerClient values, and what all clients get of the others."""
            pairs = zip(common, received(values, client), strict=True)
            return jax.tree.leaves([self._values.same(own) if c is None else c for c, own in pairs])

        call, traced = self._plan.find(step, arguments(0), dict(settings), True)
        if traced:
            raise ValueError(
                f"round {session.round}, step {call.name}: a job may outlive its round, so its "
                "settings must be known before the run. Send values that change by position."
            )
        nbytes_up = tree.nbytes(jobs.results) // self._n_clients

        def nbytes(client: int) -> int:
            return costs.unsent(client, values) + nbytes_up

        if self._in_real_time:
            table = _begin_now(jobs, costs.now)
        else:

            def work(client: int) -> list[int]:
                own = job_key(key, client, jobs.begun[client])
                at = LocalClient(self._program.population, client, own, python_loop)
                step(at, *received(plain, client), **settings)
                return uint64.read(at.work)

            table = timetable(jobs, self._program.clock, costs.now, nbytes, rules, work)
        for client in table.begins:
            costs.send_job(client, values)
        jobs = begun(jobs, table, key, plain)
        pending = self._send_new(jobs, call, {client: arguments(client) for client in table.begins})
        if self._in_real_time:
            replies, missing = self._first(jobs, call.name, pending, rules)
        else:
            due = {client: pending[client] for client in table.arrives}
            sent = {client: job.number for client, job in due.items()}
            requests = self._requests(due)
            replies = session.exchange(call.name, requests, needs_all=False, sent=sent)
            missing = due.keys() - replies.keys()
        for client, reply in replies.items():
            pending[client].answered(session.round)
            costs.work(*reply.work)
        for client in (*replies, *missing):
            session.clients[client].finished_job(_job_id(call, jobs, client))
        costs.end_poll(len(replies), nbytes_up, table.now)
        structure = jax.tree.structure(call.reply)
        results = {
            client: jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in reply.leaves])
            for client, reply in replies.items()
        }
        if self._in_real_time:  # how long a job took is known only now
            took = jnp.asarray(costs.now, jobs.start.dtype) - jobs.start
            has_replied = jnp.asarray([client in replies for client in range(self._n_clients)])
            jobs = replace(jobs, seconds=jnp.where(has_replied, took, jobs.seconds))
        result = delivered(jobs, results, self._weights, costs.now, rules)
        return result._replace(jobs=_failed(result.jobs, missing, costs.now))

    def _send_new(
        self, jobs: InFlight, call: Call, begins: Mapping[int, list[RemoteValue]]
    ) -> dict[int, PendingJob]:
        """All pending jobs, by client; sends those not sent yet.

        These are the jobs that begin, and after a resume those that the previous server had sent.
        """
        records, new, pending = self._session.clients, dict[int, PendingJob](), {}
        for client in np.flatnonzero(~np.asarray(jobs.is_idle)).tolist():
            id = _job_id(call, jobs, client)
            job = records[client].job(id)
            if job is None:
                arguments = begins.get(client)
                if arguments is None:
                    row = jax.tree.map(lambda a, i=client: a[i], jobs.values)
                    arguments = jax.tree.leaves(self._values.same(row, is_counted=False))
                key = wire.keys_to_words(jax.random.wrap_key_data(jobs.keys[client]))
                token = records.new_tokens()
                source = Computed(token, call, arguments, [], key, None, has_own_key=True)
                job = PendingJob(jax.tree.leaves(remote_values(source, call.reply)))
                records[client].starts_job(id, job)
                new[client] = job
            pending[client] = job
        self._send(call.name, new)
        return pending

    def _send(
        self, step: str, jobs: Mapping[int, PendingJob], timed_out: Collection[int] = ()
    ) -> None:
        """Send jobs. Those that only timed out keep their number, so a late reply is accepted."""
        if not jobs:
            return
        resent = {client: jobs[client].number for client in timed_out}
        numbers = self._session.send(step, self._requests(jobs), resent)
        for client, job in jobs.items():
            job.sent(numbers[client])

    def _requests(self, jobs: Mapping[int, PendingJob]) -> dict[int, Request]:
        return {client: self._request(client, job) for client, job in jobs.items()}

    def _request(self, client: int, job: PendingJob) -> Request:
        round = self._session.round

        def build():
            builder = MessageBuilder(self._session.clients, round, client, 0)
            arrays = builder.request(job.result)
            job.built(round, builder.calls, builder.confirm)
            return arrays

        wanted = [spec(value) for value in job.result]
        return Request(client, build, wanted, calls=lambda: job.calls)

    def _first(
        self, jobs: InFlight, step: str, pending: Mapping[int, PendingJob], rules: PollRules
    ) -> tuple[dict[int, Reply], set[int]]:
        """The replies that arrive first, and the clients whose jobs are given up; in real time."""
        session, policy = self._session, self._session.policy
        wait_for, staleness = int(rules.needed(int(jobs.polls))), rules.staleness
        ages = (int(jobs.polls) - np.asarray(jobs.version)).tolist()
        replies, left = dict[int, Reply](), dict(pending)
        retries, recovered = 0, set[int]()
        non_finite, rejected = dict[int, Reply](), set[int]()

        def is_enough(arrived: Collection[int], waiting: Collection[int]) -> bool:
            is_fresh = staleness is None or all(ages[client] < staleness for client in waiting)
            return is_fresh and len(replies) + len(arrived) >= wait_for

        while True:
            sent = {client: (job.number, job.sent_at) for client, job in left.items()}
            state = session.collect(step, self._requests(left), sent, is_enough)
            replies |= state.replies
            failed = state.failed.keys()
            if state.lost:
                session.recover(state.lost)
            non_finite |= state.non_finite
            rejected |= state.rejected
            left = {client: left[client] for client in failed - state.rejected}
            if len(replies) >= wait_for:
                return replies, failed | rejected
            if not set(state.lost) - recovered:  # the first recovery of a client costs no retry
                needed = policy.needed(wait_for)
                if len(replies) >= needed:
                    return replies, failed | rejected
                if len(non_finite) == len(pending):
                    return non_finite, set()
                count = f"{len(replies)} of {len(pending)} results arrived, {needed} are needed"
                if retries >= policy.retries or not left:
                    raise session.too_few(step, count, failed | rejected)
                seconds = policy.pause(retries)
                retries += 1
                session.report(step, None, f"{count}; sending the jobs again in {seconds:g} s")
                time.sleep(seconds)
            recovered |= set(state.lost)
            self._send(step, left, left.keys() & state.timed_out - state.lost.keys())


def _begin_now(jobs: InFlight, now: float) -> Timetable:
    """All idle clients begin; which results arrive, and when, is not known yet."""
    is_idle = np.asarray(jobs.is_idle)
    start = np.where(is_idle, now, np.asarray(jobs.start))
    seconds = np.where(is_idle, 0.0, np.asarray(jobs.seconds))
    return Timetable(now, np.flatnonzero(is_idle).tolist(), [], start.tolist(), seconds.tolist())


def _failed(jobs: InFlight, clients: set[int], now: float) -> InFlight:
    """The jobs after some have failed: their clients are idle and begin again at the next poll."""
    if not clients:
        return jobs
    has_failed = jnp.asarray(np.isin(np.arange(jobs.is_idle.shape[0]), sorted(clients)))
    start = jnp.where(has_failed, jnp.asarray(now, jobs.start.dtype), jobs.start)
    return replace(jobs, is_idle=jobs.is_idle | has_failed, start=start)


def _job_id(call: Call, jobs: InFlight, client: int) -> JobId:
    return call.number, np.asarray(jobs.keys[client]).tobytes()
