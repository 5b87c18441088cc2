"""A hostile peer: the server rejects whatever it sends, reports it, and lives on."""

import struct

import numpy as np
from test_wire import resealed

from rookery.remote import Policy
from rookery.remote.protocol import handshake, wire
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
