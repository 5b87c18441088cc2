"""Hostile peers: whatever they send is rejected and reported, and server and client live on."""

import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from some_slow import some_slow
from test_wire import resealed
from world import FEDAVG, POPULATION, QUICK, SCAFFOLD, ZOO, go, plan, warm_worker

import rookery as rk
from rookery.algorithms import BRFedBi, BRFedBiP
from rookery.engines.engine import Stopped
from rookery.program.algorithm import first_state, numbers_to_arrays
from rookery.remote import Policy, Worker
from rookery.remote.protocol import handshake, instructions, wire
from rookery.remote.protocol.tracing import trace_round
from rookery.remote.protocol.wire import Kind, Message
from rookery.remote.server.claimed_work import MOST_ROWS, ClaimedWork
from rookery.remote.server.requests import Request, read_reply
from rookery.remote.server.session import Session

STEP, WANTED = "module.step", ["float64[3]"]


def good(**changes) -> bytes:
    """A valid reply, apart from the given fields."""
    arrays = {"work": np.zeros(2, np.uint64), "reply/0": np.arange(3.0)}
    return wire.encode(
        Message(**{"kind": Kind.REPLY, "name": STEP, "client": 1, "arrays": arrays, **changes})
    )


def failure(lost) -> dict:
    return {"kind": Kind.FAILURE, "arrays": {"reason": wire.encode_text("so"), "lost": lost}}


def flipped(data: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(data)
    for _ in range(int(rng.integers(1, 6))):
        changed[int(rng.integers(len(changed)))] = int(rng.integers(256))
    return bytes(changed)


def header(data: bytes, index: int, value: int) -> bytes:
    fields = list(wire._HEADER.unpack_from(data))
    fields[index] = value
    return resealed(wire._HEADER.pack(*fields) + data[wire._HEADER.size :])


def huge_shape(data: bytes) -> bytes:
    at = data.index(struct.pack("<Q", 3), wire._HEADER.size)
    return resealed(data[:at] + struct.pack("<Q", 1 << 40) + data[at + 8 :])


class Peers:
    """A port to two clients: client 0 is honest, client 1 replies as ``hostile`` says."""

    is_reliable = False

    def __init__(self, hostile):
        self.hostile = hostile

    def alive(self):
        return frozenset((0, 1))

    def exchange(self, step, messages, wait_for):
        for client, data in messages:
            request = wire.decode(data)
            same = {"client": client, "slot": request.slot, "exchange": request.exchange}
            if request.kind is Kind.HELLO:
                arrays = handshake.write({"algorithm": "of another kind"})
                yield client, good(kind=Kind.HELLO, name="handshake", **same | {"arrays": arrays})
            else:
                yield client, self.hostile(same) if client == 1 else good(**same)

    def close(self):
        pass


@pytest.mark.parametrize("n_exchanges", some_slow([2_000, 10_000]))
def test_hostile_replies_are_all_rejected_and_reported(n_exchanges):
    rng = np.random.default_rng(0)

    def other(**changes):
        return lambda same: good(**{**same, **changes})

    def at(index, value):
        return lambda same: header(good(**same), index, value)

    ways = [
        lambda same: rng.bytes(int(rng.integers(0, 300))),
        lambda same: flipped(good(**same), rng),
        lambda same: resealed(flipped(good(**same), rng)),
        lambda same: good(**same)[: int(rng.integers(200))],
        lambda same: huge_shape(good(**same)),
        at(10, 2 << 30),  # a body of 2 GB
        at(9, 1 << 31),
        at(8, 60_000),
        other(client=0),
        other(client=77),
        other(name="os.system"),
        other(slot=0),
        other(slot=1 << 20),
        other(exchange=5),
        other(kind=Kind.HELLO),
        other(arrays={}),
        other(arrays={"work": np.zeros(2, np.uint64), "reply/0": np.zeros(4)}),
        other(arrays={"work": np.zeros(2, np.uint64), "reply/0": np.zeros(3, np.float32)}),
        other(arrays={"work": np.zeros(2, np.uint64), "reply/0": np.full(3, np.nan)}),
        other(**failure(np.array(1, np.uint8))),
        other(**failure(np.array(2, np.uint8))),
        other(**failure(np.array(9.0))),
    ]
    events, accepted = [], 0
    attempt = iter(range(1 << 30))
    session = Session(
        Peers(lambda same: ways[next(attempt) % len(ways)](same)),
        Policy(wait_for=1e-6, min_replies=0.5, retries=0, back_off=0.0),
        {"algorithm": "ours"},
        ["client 0", "client 1"],
        ClaimedWork(POPULATION),
        on_event=events.append,
    )
    for round in range(n_exchanges):
        session.begin_round(round)
        before = len(events)
        requests = {c: Request(c, dict, WANTED) for c in (0, 1)}
        replies = session.exchange(STEP, requests, needs_all=False)
        np.testing.assert_array_equal(replies[0].leaves[0], np.arange(3.0))
        assert {event.client for event in events[before:]} <= {1}
        if 1 in replies:  # other numbers in the right form are a reply
            assert [f"{a.dtype}{list(a.shape)}" for a in replies[1].leaves] == WANTED
            accepted += 1
        else:
            assert len(events) > before
    assert next(attempt) >= n_exchanges
    assert accepted < n_exchanges / 10
    reasons = " | ".join({event.reason for event in events})
    for said in (
        "claims 2147483648", "claims to be from client 0", "it is for step os.system", "expected",
        "NaN", "bad magic bytes", "checksum", "does not fit", "late reply", "another kind",
    ):  # fmt: skip
        assert said in reasons, said


class LiarAboutWork:
    """A client whose replies claim other work than it did."""

    def __init__(self, worker, claim):
        def answer(data):
            reply = wire.decode(worker.answer(data))
            if reply.arrays.get("reply/0") is None:
                return wire.encode_parts(reply)
            return wire.encode_parts(replace(reply, arrays={**reply.arrays, "work": claim}))

        self.answer_in_parts = answer


def lying_about_work(claim, **settings):
    """A run in which client 1 lies; two steps on two rows are four gradients."""

    def make(client, *made_of):
        worker = warm_worker(client, *made_of)
        return LiarAboutWork(worker, np.array(claim)) if client == 1 else worker

    return go(make=make, rounds=2, **settings)


@pytest.mark.parametrize("rule", [None, rk.aggregate.Median()], ids=["mean", "median"])
def test_a_client_that_lies_about_its_work_is_rejected_and_named(rule):
    most = replace(QUICK, min_replies=0.8, retries=0)
    result = lying_about_work(np.array([5, 0], np.uint64), policy=most, aggregate=rule)
    assert {(e.client, e.round) for e in result.events} == {(1, 0), (1, 1)}
    assert all("claims 5 gradients, asked for 4" in e.reason for e in result.events)
    assert (result.ledger.gradients, result.ledger.hessian_vectors) == (2 * 4 * 4, 0)
    with pytest.raises(Stopped, match="4 of 5 clients replied, 5 are needed; none from client 1"):
        lying_about_work(np.array([4, 1], np.uint64), policy=replace(QUICK, retries=0))
    assert not lying_about_work(np.array([4, 0], np.uint64)).events


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        (np.array([3, 0], np.uint64), "claims 3 gradients, asked for 4"),
        (np.array([4, 1], np.uint64), "claims 1 Hessian-vector products, asked for 0"),
        (np.array([2**64 - 1, 0], np.uint64), "claims 18446744073709551615 gradients"),
        (np.array([-4, 0], np.int64), "not the reply to a step"),
        (np.array([4.0, 0.0]), "not the reply to a step"),
        (np.array([4], np.uint64), "not the reply to a step"),
    ],
    ids=["too few", "another kind", "negative as unsigned", "negative", "a float", "one number"],
)
def test_impossible_claims_of_work_are_malformed_replies(claim, said):
    arrays = {"work": claim, "reply/0": np.arange(3.0)}
    request = Request(1, dict, WANTED, calls=lambda: plan("FedAvg").calls)
    with pytest.raises(wire.WireError, match=said):
        read_reply(Message(Kind.REPLY, STEP, 1, arrays=arrays), request, ClaimedWork(POPULATION))


def test_a_server_that_knows_no_rows_bounds_claims_by_what_it_asked_for():
    elsewhere = rk.Population.elsewhere({name: a[0, 0] for name, a in ZOO.data.items()}, 5)
    some, whole = ClaimedWork(elsewhere), replace(FEDAVG, batch_size=None)
    assert some.bounds(1, plan("FedAvg").calls) == ((2, 4), (0, 0))  # two steps on 1 or 2 rows
    state = first_state(whole, ZOO.problem, 5, ZOO.start)
    calls = trace_round(numbers_to_arrays(whole), ZOO.problem, elsewhere, state).calls
    assert some.bounds(1, calls) == ((2, 2 * MOST_ROWS), (0, 0))


def test_a_claim_out_of_all_proportion_to_the_others_is_rejected():
    """Where the number of rows is not known, and so no claim is impossible."""
    elsewhere = rk.Population.elsewhere({name: a[0, 0] for name, a in ZOO.data.items()}, 5)
    whole = replace(FEDAVG, batch_size=None)
    state = first_state(whole, ZOO.problem, 5, ZOO.start)
    calls = trace_round(numbers_to_arrays(whole), ZOO.problem, elsewhere, state).calls
    claims = {0: 60, 1: 2_000_000, 2: 80, 3: 40}

    class Claims(Peers):
        def exchange(self, step, messages, wait_for):
            for client, data in messages:
                request = wire.decode(data)
                work = np.array([claims[client], 0], np.uint64)
                same = {"client": client, "slot": request.slot, "exchange": request.exchange}
                yield client, good(**same, arrays={"work": work, "reply/0": np.arange(3.0)})

    for is_robust in (False, True):
        events = []
        session = Session(
            Claims(None), Policy(wait_for=1.0, min_replies=0.5), {}, [f"{i}" for i in range(5)],
            ClaimedWork(elsewhere), on_event=events.append, is_robust=is_robust,
        )  # fmt: skip
        requests = {c: Request(c, dict, WANTED, calls=lambda: calls) for c in claims}
        assert sorted(session.exchange(STEP, requests, needs_all=False)) == [0, 2, 3]
        assert [event.client for event in events] == [1]
        assert "2e+06 gradients, and the median of the others' is 60" in events[0].reason


def asked(worker, kind, exchange, arrays=None, name="handshake"):
    """What a worker answers to a message."""
    message = Message(kind, name, worker.id, 0, exchange, arrays or {})
    reply = wire.decode(worker.answer(wire.encode(message)))
    if reply.kind is not Kind.FAILURE:
        return reply.kind.name, 0
    return wire.decode_text(reply.arrays["reason"]), int(np.asarray(reply.arrays["lost"]))


def one_worker(algorithm: Any = FEDAVG):
    state = first_state(algorithm, ZOO.problem, POPULATION.n_clients, ZOO.start)
    traced = plan(type(algorithm).__name__)
    worker = Worker(0, ZOO.problem, algorithm, POPULATION.only(0), state, traced)
    hello = handshake.write(
        handshake.configuration(ZOO.problem, numbers_to_arrays(algorithm), 5, traced)
    )
    return worker, hello


def told(**changes):
    return instructions.write(instructions.Instructions(**{"round": 0, **changes}))


def test_no_request_number_locks_the_true_server_out():
    worker, hello = one_worker()
    huge, now = 2**64 - 1, 10**18
    assert asked(worker, Kind.HELLO, now, hello)[0] == "HELLO"
    assert asked(worker, Kind.RUN, huge, told(), "step") == (
        "the client does not have a handshake with this server", 2,
    )  # fmt: skip
    assert asked(worker, Kind.RUN, now + 2, told(), "step")[0] == "REPLY"
    assert "outdated" in asked(worker, Kind.RUN, now + 1, told(), "step")[0]
    assert asked(worker, Kind.HELLO, huge, hello)[0] == "HELLO"
    assert asked(worker, Kind.RUN, now + 3, told(), "step")[1] == 2  # so the server shakes hands,
    earlier = now - 10**15  # also if its clock went back
    assert asked(worker, Kind.HELLO, earlier, hello)[0] == "HELLO"
    assert asked(worker, Kind.RUN, earlier + 1, told(), "step")[0] == "REPLY"
    assert "outdated" in asked(worker, Kind.HELLO, now, hello)[0]  # a late copy changes nothing
    assert asked(worker, Kind.RUN, earlier + 2, told(), "step")[0] == "REPLY"


def test_a_worker_bounds_its_steps_values_and_memories():
    worker, hello = one_worker(SCAFFOLD)
    asked(worker, Kind.HELLO, 1, hello)
    step = instructions.Instruction(1, 0, -1, [])
    said, _ = asked(worker, Kind.RUN, 2, told(steps=[step] * 5000), "step")
    assert "5000 steps in one request, the limit is 4096" in said
    value = {"value/0/0": np.zeros(2)}
    for memory, refs in ((0, [(1, 0), (1, 0)]), (7, [(1, 0)])):
        changes = {"tokens": [1], "restore": [(memory, 1, refs)]}
        said, _ = asked(worker, Kind.RUN, 3, told(**changes) | value, "step")
        assert f"memory {memory} of {['float64[2]'] * len(refs)}" in said
    changes = {"tokens": [1], "restore": [(0, 1, [(1, 0)])]}
    assert asked(worker, Kind.RUN, 4, told(**changes) | value, "step")[0] == "REPLY"
    said = []
    for i in range(5, 12):  # of one round, each message within the limits
        some = list(range(i * 10_000, (i + 1) * 10_000))
        said.append(asked(worker, Kind.RUN, i, told(tokens=some), "step")[0])
    assert said[:6] == ["REPLY"] * 6 and "exceed 65536" in said[6]
    assert asked(worker, Kind.RUN, 20, told(tokens=[1]), "step")[0] == "REPLY"


def test_large_replies_are_not_kept_beyond_the_next_request(monkeypatch):
    monkeypatch.setattr("rookery.remote.client.worker._KEPT_BYTES", 100)
    worker, hello = one_worker()
    asked(worker, Kind.HELLO, 1, hello)
    for number in (2, 3):
        asked(
            worker, Kind.RUN, number, told(tokens=[1], reply=[(1, 0)]) | {"value/0/0": np.ones(9)}
        )
    assert [exchange for exchange, _ in worker._answered] == [3]


def calls_of(zoo: Any, algorithm: Any) -> tuple[ClaimedWork, Any]:
    """The check of claims for a population, and the calls of an algorithm."""
    population = rk.Population.stacked(zoo.data)
    state = first_state(algorithm, zoo.problem, population.n_clients, zoo.start)
    traced = trace_round(numbers_to_arrays(algorithm), zoo.problem, population, state)
    return ClaimedWork(population), traced.calls


def test_bounds_on_work_are_exact_but_for_loops_of_random_length():
    zoo = rk.zoo.quadratic_bilevel(n_clients=3, x_size=1, y_size=2, rows=3)
    rates: Any = {"outer_lr": 0.05, "inner_lr": 0.1, "batch_size": 2}
    claimed, calls = calls_of(zoo, BRFedBi(**rates))
    assert claimed.bounds(1, calls) == ((3 * 2, 3 * 2), (2 * 2, 2 * 2))
    claimed, calls = calls_of(zoo, BRFedBiP(**rates, page=rk.parts.PAGE(0.5)))
    # on all rows, or at two points on two: which of the two is the client's draw
    assert claimed.bounds(1, calls[:1]) == ((0, 3 * 3 + 2 * 3 * 2), (0, 2 * 3 + 2 * 2 * 2))
    claimed, calls = calls_of(ZOO, replace(FEDAVG, local_steps=(1, 2, 3, 1, 2)))
    assert claimed.bounds(0, calls) == ((0, 6), (0, 0))


@pytest.mark.parametrize("is_robust", [False, True], ids=["mean", "robust rule"])
@pytest.mark.parametrize("honest", [1.0, 0.0])
def test_whoever_sent_the_largest_finite_float_is_blamed(is_robust, honest):
    """Also where all others send zeros, and where a robust rule decides."""

    class Largest(Peers):
        def exchange(self, step, messages, wait_for):
            for client, data in messages:
                request = wire.decode(data)
                value = np.finfo(float).max if client == 2 else honest
                arrays = {"work": np.zeros(2, np.uint64), "reply/0": np.full(3, value)}
                same = {"client": client, "slot": request.slot, "exchange": request.exchange}
                yield client, good(**same, arrays=arrays)

    events = []
    session = Session(
        Largest(None), Policy(wait_for=1.0, min_replies=0.5), {}, [f"{i}" for i in range(4)],
        ClaimedWork(POPULATION), on_event=events.append, is_robust=is_robust,
    )  # fmt: skip
    replies = session.exchange(STEP, {c: Request(c, dict, WANTED) for c in range(4)})
    assert sorted(replies) == ([0, 1, 2, 3] if is_robust else [0, 1, 3])
    (event,) = events
    assert event.client == 2
    said = "the robust rule decides" if is_robust else "reply rejected: its norm is inf"
    assert said in event.reason
