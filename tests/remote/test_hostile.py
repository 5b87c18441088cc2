"""Hostile peers: whatever they send is rejected and reported, and server and client live on."""

import struct
from typing import Any

import numpy as np
from test_wire import resealed
from world import FEDAVG, POPULATION, SCAFFOLD, ZOO, plan

from rookery.program.algorithm import first_state, numbers_to_arrays
from rookery.remote import Policy, Worker
from rookery.remote.protocol import handshake, instructions, wire
from rookery.remote.protocol.wire import Kind, Message
from rookery.remote.server.requests import Request
from rookery.remote.server.session import Session

STEP, WANTED = "module.step", ["float64[3]"]
EXCHANGES = 10_000


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


def test_ten_thousand_hostile_replies_are_all_rejected_and_reported():
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
        on_event=events.append,
    )
    for round in range(EXCHANGES):
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
    assert next(attempt) >= EXCHANGES
    assert accepted < EXCHANGES / 10
    reasons = " | ".join({event.reason for event in events})
    for said in (
        "claims 2147483648", "claims to be from client 0", "it is for step os.system", "expected",
        "NaN", "bad magic bytes", "checksum", "does not fit", "late reply", "another kind",
    ):  # fmt: skip
        assert said in reasons, said


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
