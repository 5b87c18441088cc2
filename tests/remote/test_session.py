"""Single exchanges with scripted clients."""

import time
from typing import Any

import jax
import numpy as np
import pytest

import rookery as rk
from rookery.remote import Policy
from rookery.remote.protocol import handshake, wire
from rookery.remote.protocol.wire import Kind, Message
from rookery.remote.server.claimed_work import ClaimedWork
from rookery.remote.server.requests import Request, TooFewReplies
from rookery.remote.server.session import Session

STEP, WANTED = "module.step", ["float64[3]"]
LENIENT = Policy(wait_for=0.05, min_replies=0.2, retries=2, back_off=0.0)
STRICT = Policy(wait_for=0.05, retries=2, back_off=0.0)


def reply(request, value: Any = 1.0, work: Any = (0, 0), **more: Any):
    arrays = {"work": np.array(work, np.uint64), "reply/0": np.full(3, value), **more}
    return wire.encode(
        Message(Kind.REPLY, request.name, request.client, request.slot, request.exchange, arrays)
    )


def failure(request, reason):
    arrays = {"reason": wire.encode_text(reason), "lost": np.array(0, np.uint8)}
    return wire.encode(
        Message(Kind.FAILURE, request.name, request.client, request.slot, request.exchange, arrays)
    )


class Peers:
    """A port; ``answer(request, n)`` replies to the n-th request of a client."""

    is_reliable = False

    def __init__(self, answer):
        self.answer, self.requests = answer, []

    def alive(self):
        return frozenset(range(5))

    def exchange(self, step, messages, wait_for):
        for client, data in messages:
            request = wire.decode(data)
            count = sum(one.client == client for one in self.requests)
            self.requests.append(request)
            if (data := self.answer(request, count)) is not None:
                yield client, data

    def close(self):
        pass


def session_of(answer, policy=LENIENT):
    return session_over(Peers(answer), policy)


def session_over(port, policy=LENIENT):
    events = []
    names = [f"client {i}" for i in range(5)]
    claimed = ClaimedWork(rk.Population.elsewhere(np.zeros(1), 5))
    ours = {"algorithm": "ours"}
    return Session(port, policy, ours, names, claimed, on_event=events.append), events


def requests(session: Any) -> list[Message]:
    return session.port.requests


def to_clients(n):
    return {client: Request(client, dict, WANTED) for client in range(n)}


def test_keys_that_were_not_requested_are_not_made():
    many = {f"x{i}": wire.Keys("threefry2x32", np.zeros((0, i, 2), np.uint32)) for i in range(300)}

    def answer(request, count):
        return reply(request, **(many if request.client else {}))

    session, events = session_of(answer)
    began = time.monotonic()
    assert list(session.exchange(STEP, to_clients(2), needs_all=False)) == [0]
    assert time.monotonic() - began < 3.0
    assert "arrays claims 302" in events[0].reason


def test_keys_of_another_shape_are_rejected_as_raw_words(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a key was made before it was compared")

    monkeypatch.setattr(jax.random, "wrap_key_data", refuse)
    keys = wire.Keys("threefry2x32", np.zeros((0, 7, 2), np.uint32))
    session, events = session_of(lambda request, _: reply(request, **{"reply/1": keys}), STRICT)
    with pytest.raises(TooFewReplies):
        session.exchange(STEP, to_clients(1), needs_all=True)
    assert "key<fry>[0, 7]" in events[0].reason


def test_requested_keys_arrive_as_keys():
    key = jax.random.key(5)
    session, _ = session_of(lambda request, _: reply(request, **{"reply/1": key}))
    got = session.exchange(STEP, {0: Request(0, dict, [*WANTED, "key<fry>[]"])}, needs_all=True)
    assert jax.random.key_data(got[0].leaves[1]).tolist() == [0, 5]


def test_one_reply_with_nan_is_no_divergence_when_the_others_time_out():
    def answer(request, count):
        return reply(request, np.nan) if request.client == 3 else None

    session, _ = session_of(answer)
    with pytest.raises(TooFewReplies, match=r"0 of 5 clients replied, 1 are needed"):
        session.exchange(STEP, to_clients(5), needs_all=False)


def test_all_clients_with_nan_are_a_divergence():
    session, _ = session_of(lambda request, _: reply(request, np.nan))
    assert len(session.exchange(STEP, to_clients(5), needs_all=False)) == 5


@pytest.mark.parametrize("value", [np.nan, 1e9])
def test_a_client_whose_values_were_rejected_is_not_asked_again(value):
    policy = Policy(wait_for=0.05, retries=2, back_off=0.0, largest_norm=1e3)

    def answer(request, count):
        return reply(request, value if request.client == 1 else 1.0)

    session, _ = session_of(answer, policy)
    with pytest.raises(TooFewReplies, match=r"none from client 1\."):
        session.exchange(STEP, to_clients(3), needs_all=False)
    assert [one.client for one in requests(session)] == [0, 1, 2]


def test_a_job_that_timed_out_keeps_its_number():
    session, events = session_of(
        lambda request, count: reply(request) if count == 2 else None, STRICT
    )
    numbers = session.send(STEP, to_clients(1))
    assert list(session.exchange(STEP, to_clients(1), needs_all=True, sent=numbers)) == [0]
    assert {one.exchange for one in requests(session)} == set(numbers.values())
    assert ["no reply" in event.reason for event in events if event.client == 0] == [True, True]


def test_a_job_that_failed_gets_a_new_number():
    def answer(request, count):
        return reply(request) if count else failure(request, "out of memory")

    session, _ = session_of(answer, STRICT)
    numbers = session.send(STEP, to_clients(1))
    assert list(session.exchange(STEP, to_clients(1), needs_all=True, sent=numbers)) == [0]
    first, second = (one.exchange for one in requests(session))
    assert first == numbers[0] < second


def test_a_clients_text_is_truncated_and_has_no_control_characters():
    said = "\x1b[2J\u202e" + "long " * 1000
    session, events = session_of(
        lambda request, _: failure(request, said) if request.client else reply(request)
    )
    session.exchange(STEP, to_clients(2), needs_all=False)
    assert len(events[0].reason) == 500 and events[0].reason.isprintable()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"x": np.zeros(70_000, np.uint8)}, "body claims"),
        ({"x" * 5000: np.zeros(1)}, "description claims"),
        ({"work": (0, 2**53 + 1)}, "claims 9007199254740993 Hessian-vector products, asked for 0"),
    ],
)
def test_a_reply_larger_than_its_request_allows_is_rejected(more, said):
    session, events = session_of(
        lambda request, _: reply(request, **more) if request.client else reply(request)
    )
    assert list(session.exchange(STEP, to_clients(2), needs_all=False)) == [0]
    assert said in events[0].reason


def test_a_large_reply_is_accepted_if_it_was_requested():
    large = np.zeros(50_000)
    session, _ = session_of(lambda request, _: reply(request, **{"reply/1": large}))
    wanted = [*WANTED, "float64[50000]"]
    assert (
        session.exchange(STEP, {0: Request(0, dict, wanted)}, needs_all=True)[0].leaves[1].size
        == 50_000
    )


def test_a_handshake_of_more_than_64_kb_is_rejected():
    def answer(request, count):
        arrays = handshake.write({"algorithm": "x" * 70_000})
        return wire.encode(Message(Kind.HELLO, request.name, 0, 0, request.exchange, arrays))

    session, events = session_of(answer)
    session.handshake([0])
    assert "body claims" in events[0].reason


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test moves by hand."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def no_reply_at(times):
    """Client 1 does not reply to its requests of these numbers; all others always reply."""
    return lambda request, n: None if request.client == 1 and n in times else reply(request)


def test_back_off_doubles_at_each_timeout_and_is_reported_in_every_round(clock):
    session, events = session_of(no_reply_at(range(100)), Policy(wait_for=1.0, min_replies=0.5))
    asked_in, rounds = [], 60
    for round in range(rounds):
        session.begin_round(round)
        before = len(requests(session))
        for _ in range(3):
            assert list(session.exchange(STEP, to_clients(3), needs_all=False)) == [0, 2]
        if any(request.client == 1 for request in requests(session)[before:]):
            asked_in.append(round)
        clock[0] += 1.0
    assert asked_in == [0, 1, 3, 7, 15, 31, 47]  # and not 63: sixteen deadlines are the most
    assert {event.round for event in events} == set(range(rounds))
    assert {event.client for event in events} == {1}
    assert len(events) <= 2 * rounds  # once for a step and a round, however many exchanges it has


def test_a_reply_in_time_ends_the_back_off(clock):
    session, events = session_of(no_reply_at({0}), LENIENT)
    assert list(session.exchange(STEP, to_clients(3), needs_all=False)) == [0, 2]
    assert list(session.exchange(STEP, to_clients(3), needs_all=False)) == [0, 2]
    clock[0] += LENIENT.wait_for
    for _ in range(2):
        assert list(session.exchange(STEP, to_clients(3), needs_all=False)) == [0, 1, 2]
    assert ["no reply" in e.reason for e in events] == [True, False]


def test_a_client_in_back_off_is_asked_where_it_is_needed(clock):
    session, _ = session_of(no_reply_at({0}))
    assert list(session.exchange(STEP, to_clients(2), needs_all=False)) == [0]
    assert sorted(session.exchange(STEP, to_clients(2), needs_all=True)) == [0, 1]
    session, _ = session_of(no_reply_at({0}))
    assert list(session.exchange(STEP, to_clients(2), needs_all=False)) == [0]
    assert sorted(session.exchange(STEP, to_clients(2), needs_all=False, may_skip=False)) == [0, 1]


def test_a_client_in_back_off_is_asked_at_once_if_the_others_fail(clock):
    def answer(request, count):
        if request.client == 1:
            return None if count == 0 else reply(request)
        return failure(request, "busy") if count > 0 and request.client > 1 else reply(request)

    session, _ = session_of(answer, Policy(wait_for=1.0, min_replies=0.5, retries=0))
    assert list(session.exchange(STEP, to_clients(4), needs_all=False)) == [0, 2, 3]
    assert sorted(session.exchange(STEP, to_clients(4), needs_all=False)) == [0, 1]


def test_a_reply_to_a_request_that_was_not_sent_is_rejected(clock):
    """Exchange numbers can be guessed, so a client could reply before it is asked."""
    guesses, built = [], []

    class Guessing(Peers):
        def exchange(self, step, messages, wait_for):
            yield from guesses
            yield from super().exchange(step, messages, wait_for)

    def build(client):
        return lambda: built.append(client) or {}

    some = {client: Request(client, build(client), WANTED) for client in range(3)}
    session, events = session_over(Guessing(no_reply_at({0})))
    session.exchange(STEP, some, needs_all=False)
    last = requests(session)[-1]
    for i in (1, 2):
        arrays = {"work": np.zeros(2, np.uint64), "reply/0": np.ones(3)}
        guess = Message(Kind.REPLY, STEP, 1, 1, last.exchange + i, arrays)
        guesses.append((1, wire.encode(guess)))
    built.clear()
    assert list(session.exchange(STEP, some, needs_all=False)) == [0, 2]
    assert built == [0, 2]
    assert any("rejected" in event.reason for event in events)
