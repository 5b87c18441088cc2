"""What the server knows about its clients: values only kept, two slots of one client, losses."""

from contextlib import closing
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from world import POPULATION, QUICK, ZOO, reasons

import rookery as rk
from rookery.engines.engine import Program, Stopped
from rookery.program.algorithm import first_state
from rookery.program.participation import Cohort
from rookery.remote import Faults, InProcess, Policy, Remote
from rookery.remote.protocol import instructions
from rookery.remote.server.client_record import ClientRecord, ClientRecords, PendingJob
from rookery.remote.server.message_builder import Messages
from rookery.remote.server.remote_values import RemoteValue, Sent


class State(NamedTuple):
    """The iterate, and what clients keep of it."""

    w: Any
    own: rk.program.Memory


class Keeping(rk.AbstractAlgorithm):
    """Clients keep the model that they are sent; no step needs it in the same round.

    Args:
        step_too: whether some clients also run a step whose result is only kept.
    """

    step_too: bool = False

    def check(self, problem, n_clients):
        """Any problem is fine."""

    def init(self, problem, w):
        """Zeros."""
        return State(w, rk.program.Memory.of(jnp.zeros_like(w)))

    def round(self, fed, problem, state, key):
        """The mean of what was kept, and the next thing to keep."""
        everyone = fed.sample(rk.participation.Everyone(), key)
        kept = fed.mean(fed.map(slope, fed.recall(everyone, state.own), key=key, problem=problem))
        w = state.w - 0.1 * kept
        some = fed.sample(rk.participation.Fixed((0, 3)), key)
        own = fed.keep(state.own, fed.broadcast(some, w))
        if self.step_too:
            others = fed.sample(rk.participation.Fixed((1, 2)), key)
            new = fed.map(slope, fed.broadcast(others, w), key=key, problem=problem)
            own = fed.keep(own, new)
        return State(w, own)

    def solution(self, state):
        """The iterate."""
        return (state.w,)


class Twice(Keeping):
    """One client stands in two slots."""

    def round(self, fed, problem, state, key):
        """A mean over three slots."""
        ids, occurrence = jnp.array([1, 1, 2]), jnp.array([0, 1, 0])
        cohort = Cohort(ids, jnp.ones(3, bool), occurrence)
        w = fed.broadcast(cohort, state.w)
        slopes = fed.mean(fed.map(slope, w, key=key, problem=problem))
        return State(state.w - 0.1 * slopes, state.own)


def slope(client, w, *, problem):
    return problem.gradient(w, client.draw("train", 2, client.key))


def both(algorithm, faults=None, rounds=3):
    def run(engine):
        return rk.run(algorithm, ZOO.problem, POPULATION, ZOO.start, rounds=rounds, engine=engine)

    result = run(Remote(InProcess(faults or Faults()), QUICK))
    want = run(rk.Eager())
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, 1e-12, 1e-12), result.state, want.state
    )
    return result, want


@pytest.mark.parametrize("step_too", [False, True])
def test_a_value_that_is_only_kept_is_sent(step_too):
    result, want = both(Keeping(step_too))
    assert result.events == ()
    assert result.ledger.values()[:-1] == want.ledger.values()[:-1]


def test_a_client_restarted_between_two_of_its_slots_is_sent_everything_again():
    # the handshake, its first slot, and then it has lost everything
    result, _ = both(Twice(), Faults(restarts={1: 3}))
    assert "client 1: the client does not have a handshake" in reasons(result)


def test_a_value_counts_as_received_once_it_is_confirmed():
    record = ClientRecord()
    assert not record.is_carried(7, slot=0) and record.is_carried(7, slot=1)
    assert not record.has(7)  # it was sent, but it may not have arrived
    record.confirmed([7])
    assert record.has(7)
    record.new_round()
    assert not record.has(7)


def test_memory_changes_are_repeated_until_they_are_confirmed():
    record = ClientRecord()
    record.changes_memory(0, 1, [(7, 0)])
    record.changes_memory(0, 2, [(8, 0)])
    told = record.unconfirmed_changes
    record.changes_memory(0, 3, [(9, 0)])
    record.confirmed(changes=told)
    assert record.unconfirmed_changes == ((0, 3, [(9, 0)]),)
    assert record.has_new_memory
    record.memory_collected()
    assert not record.has_new_memory


def test_a_restarted_client_has_nothing_and_still_owes_its_job():
    record, job = ClientRecord(), PendingJob([])
    record.confirmed([7], has_memory=True)
    record.changes_memory(0, 1, [(7, 0)])
    record.starts_job((0, b"key"), job)
    record.restarted()
    assert not record.has(7) and not record.has_memory
    assert not record.unconfirmed_changes and not record.has_new_memory
    assert record.job((0, b"key")) is job
    record.finished_job((0, b"key"))
    assert record.job((0, b"key")) is None


def test_a_reply_in_a_later_round_confirms_nothing():
    confirmed, job = [], PendingJob([])
    job.answered(0)  # no message was built
    job.built(3, [], lambda: confirmed.append(3))
    job.answered(4)
    assert confirmed == []
    job.answered(3)
    assert confirmed == [3]


def test_collected_rows_are_what_the_next_restore_sends():
    records = ClientRecords(2)
    records.restore([[np.zeros((2, 3))], [np.zeros(2), np.ones(2)]])
    records[1].changes_memory(0, records.new_stamp(), [(7, 0)])
    assert records.with_new_memory == [1]
    records.collected(1, [np.full(3, 4.0), 5.0, 6.0])
    assert records.with_new_memory == []
    (a,), (b, c) = records.memories
    assert a[1].tolist() == [4, 4, 4] and a[0].tolist() == [0, 0, 0]
    assert (b[1], c[1], c[0]) == (5, 6, 1)


def test_tokens_and_stamps_are_never_used_twice():
    records = ClientRecords(1)
    tokens = [records.new_tokens(3), records.new_tokens(), records.new_tokens(2)]
    assert tokens == [1, 4, 5]
    assert records.new_stamp() < records.new_stamp()


def test_a_client_that_does_not_reply_is_named():
    population = rk.Population.stacked(
        ZOO.data, names=["Oslo", "Bergen", "Narvik", "Molde", "Vadsø"]
    )
    policy = Policy(wait_for=60.0, retries=0)
    engine = Remote(InProcess(Faults(crashes={2: 1})), policy)
    with pytest.raises(Stopped, match=r"round 0, step .*slope.*4 of 5.*none from Narvik\."):
        rk.run(Keeping(), ZOO.problem, population, ZOO.start, rounds=1, engine=engine)


@pytest.mark.parametrize("algorithm", [Keeping(), Twice()], ids=["Keeping", "Twice"])
def test_cohorts_are_those_of_the_eager_engine(algorithm):
    program = Program(ZOO.problem, POPULATION, rk.delays.Clock(), rk.aggregate.Mean())
    state = first_state(algorithm, ZOO.problem, POPULATION.n_clients, ZOO.start)
    key = jax.random.key(2)
    (want,) = rk.Eager().prepare(program, [algorithm]).advance([state], [key], 0, [2])
    with closing(Remote(policy=QUICK).prepare(program, [algorithm])) as runner:
        (got,) = runner.advance([state], [key], 0, [2])
    assert want.cohorts and got.cohorts == want.cohorts


def test_a_client_that_did_not_reply_is_not_in_the_cohort():
    engine = Remote(InProcess(Faults(crashes={2: 1})), Policy(wait_for=60.0, min_replies=0.5))
    program = Program(ZOO.problem, POPULATION, rk.delays.Clock(), rk.aggregate.Mean())
    state = first_state(Keeping(), ZOO.problem, POPULATION.n_clients, ZOO.start)
    with closing(engine.prepare(program, [Keeping()])) as runner:
        (got,) = runner.advance([state], [jax.random.key(2)], 0, [1])
    assert got.cohorts == [((0, 1, 3, 4),)]


def test_clients_with_equal_holdings_are_sent_the_same_arrays():
    records = ClientRecords(4)
    records[1].confirmed([5])  # has the value
    records[3].changes_memory(0, 1, [(5, 0)])  # is to be told something of its own
    value = RemoteValue(Sent(5, [np.zeros(2)], are_rows=False), 0, (2,), np.dtype(float))
    messages = Messages(records, 0, [value])
    first, has, again, own = (messages.build(client, client) for client in (0, 1, 2, 3))
    assert again is first and "value/0/0" in first and "value/0/0" not in has
    assert own is not first and instructions.read(own).commit == [(0, 1, [(5, 0)])]
    messages.confirm(2)
    assert [records[client].has(5) for client in range(4)] == [False, True, True, False]
    rows = RemoteValue(Sent(6, [np.zeros((4, 2))], are_rows=True), 0, (2,), np.dtype(float))
    one, other = (Messages(records, 0, [rows]).build(slot, slot) for slot in (0, 2))
    assert instructions.read(one).tokens == [6] and instructions.read(other).tokens == [8]
