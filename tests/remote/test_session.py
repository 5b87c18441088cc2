"""Single exchanges, with clients whose every word is given."""

import time
from typing import Any

import jax
import numpy as np
import pytest

from rookery.remote import Policy
from rookery.remote.protocol import handshake, wire
from rookery.remote.protocol.wire import Kind, Message
from rookery.remote.server.requests import Request, TooFewReplies
from rookery.remote.server.session import Session

STEP, WANTED = "module.step", ["float64[3]"]
LENIENT = Policy(wait_for=0.05, min_replies=0.2, retries=2, back_off=0.0)
STRICT = Policy(wait_for=0.05, retries=2, back_off=0.0)


def reply(asked, value: Any = 1.0, work: Any = (0, 0), **more: Any):
    arrays = {"work": np.array(work, np.uint64), "give/0": np.full(3, value), **more}
    return wire.encode(
        Message(Kind.REPLY, asked.name, asked.client, asked.slot, asked.exchange, arrays)
    )


def failure(asked, reason):
    arrays = {"reason": wire.text(reason), "lost": np.array(0, np.uint8)}
    return wire.encode(
        Message(Kind.FAILURE, asked.name, asked.client, asked.slot, asked.exchange, arrays)
    )


class Peers:
    """A port; ``answer`` gives what comes of a request that a client has for the n-th time."""

    def __init__(self, answer):
        self.answer, self.asked = answer, []

    def alive(self):
        return frozenset(range(5))

    def exchange(self, step, messages, wait_for):
        for client, data in messages:
            asked = wire.decode(data)
            count = sum(one.client == client for one in self.asked)
            self.asked.append(asked)
            if (data := self.answer(asked, count)) is not None:
                yield client, data

    def close(self):
        pass


def session_of(answer, policy=LENIENT):
    session, noted = Session(Peers(answer), policy, {"algorithm": "ours"}), []
    session.note = noted.append
    return session, noted


def requests(session: Any) -> list[Message]:
    return session.port.asked


def asks(n):
    return {client: Request(client, dict, WANTED) for client in range(n)}


def test_keys_that_nobody_asked_for_are_not_made():
    many = {f"x{i}": wire.Keys("threefry2x32", np.zeros((0, i, 2), np.uint32)) for i in range(300)}

    def answer(asked, count):
        return reply(asked, **(many if asked.client else {}))

    session, noted = session_of(answer)
    began = time.monotonic()
    assert list(session.ask(STEP, asks(2), needs_all=False)) == [0]
    assert time.monotonic() - began < 3.0
    assert "arrays claims 302" in noted[0].reason


def test_keys_of_another_shape_are_refused_as_plain_words(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a key was made before it was compared")

    monkeypatch.setattr(jax.random, "wrap_key_data", refuse)
    keys = wire.Keys("threefry2x32", np.zeros((0, 7, 2), np.uint32))
    session, noted = session_of(lambda asked, _: reply(asked, **{"give/1": keys}), STRICT)
    with pytest.raises(TooFewReplies):
        session.ask(STEP, asks(1), needs_all=True)
    assert "key<fry>[0, 7]" in noted[0].reason


def test_keys_that_were_asked_for_come_as_keys():
    key = jax.random.key(5)
    session, _ = session_of(lambda asked, _: reply(asked, **{"give/1": key}))
    got = session.ask(STEP, {0: Request(0, dict, [*WANTED, "key<fry>[]"])}, needs_all=True)
    assert jax.random.key_data(got[0].leaves[1]).tolist() == [0, 5]


def test_one_client_with_nan_is_not_the_answer_of_silent_ones():
    def answer(asked, count):
        return reply(asked, np.nan) if asked.client == 3 else None

    session, _ = session_of(answer)
    with pytest.raises(TooFewReplies, match=r"0 of 5 clients answered, 1 are needed"):
        session.ask(STEP, asks(5), needs_all=False)


def test_all_clients_with_nan_are_a_divergence():
    session, _ = session_of(lambda asked, _: reply(asked, np.nan))
    assert len(session.ask(STEP, asks(5), needs_all=False)) == 5


@pytest.mark.parametrize("value", [np.nan, 1e9])
def test_whose_numbers_were_refused_is_not_asked_for_them_again(value):
    policy = Policy(wait_for=0.05, retries=2, back_off=0.0, largest_norm=1e3)

    def answer(asked, count):
        return reply(asked, value if asked.client == 1 else 1.0)

    session, _ = session_of(answer, policy)
    with pytest.raises(TooFewReplies, match=r"\[1\] did not"):
        session.ask(STEP, asks(3), needs_all=False)
    assert [one.client for one in requests(session)] == [0, 1, 2]


def test_a_job_that_was_only_silent_keeps_its_number():
    session, noted = session_of(lambda asked, count: reply(asked) if count == 2 else None, STRICT)
    numbers = session.begin(STEP, asks(1))
    assert list(session.ask(STEP, asks(1), needs_all=True, begun=numbers)) == [0]
    assert {one.exchange for one in requests(session)} == set(numbers.values())
    assert ["no reply" in event.reason for event in noted if event.client == 0] == [True, True]


def test_a_job_that_has_failed_is_given_anew():
    def answer(asked, count):
        return reply(asked) if count else failure(asked, "out of memory")

    session, _ = session_of(answer, STRICT)
    numbers = session.begin(STEP, asks(1))
    assert list(session.ask(STEP, asks(1), needs_all=True, begun=numbers)) == [0]
    first, second = (one.exchange for one in requests(session))
    assert first == numbers[0] < second


def test_what_a_client_says_is_cut_and_holds_nothing_that_a_terminal_obeys():
    said = "\x1b[2J\u202e" + "long " * 1000
    session, noted = session_of(
        lambda asked, _: failure(asked, said) if asked.client else reply(asked)
    )
    session.ask(STEP, asks(2), needs_all=False)
    assert len(noted[0].reason) == 500 and noted[0].reason.isprintable()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"x": np.zeros(70_000, np.uint8)}, "body claims"),
        ({"x" * 5000: np.zeros(1)}, "description claims"),
        ({"work": (0, 2**53 + 1)}, "units of work"),
    ],
)
def test_a_reply_is_no_larger_than_what_was_asked_for(more, said):
    session, noted = session_of(
        lambda asked, _: reply(asked, **more) if asked.client else reply(asked)
    )
    assert list(session.ask(STEP, asks(2), needs_all=False)) == [0]
    assert said in noted[0].reason


def test_a_large_reply_is_taken_if_it_was_asked_for():
    large = np.zeros(50_000)
    session, _ = session_of(lambda asked, _: reply(asked, **{"give/1": large}))
    wanted = [*WANTED, "float64[50000]"]
    assert (
        session.ask(STEP, {0: Request(0, dict, wanted)}, needs_all=True)[0].leaves[1].size == 50_000
    )


def test_an_agreement_of_more_than_64_kb_is_refused():
    def answer(asked, count):
        arrays = handshake.write({"algorithm": "x" * 70_000})
        return wire.encode(Message(Kind.HELLO, asked.name, 0, 0, asked.exchange, arrays))

    session, noted = session_of(answer)
    session.greet([0])
    assert "body claims" in noted[0].reason


@pytest.fixture
def clock(monkeypatch):
    """Time that stands still until a test moves it."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def silent_at(times):
    """Client 1 does not answer the requests of these numbers; nobody else is ever silent."""
    return lambda asked, n: None if asked.client == 1 and n in times else reply(asked)


def test_a_silent_client_is_left_alone_for_longer_each_time_and_noted_in_every_round(clock):
    session, noted = session_of(silent_at(range(100)), Policy(wait_for=1.0, min_replies=0.5))
    asked_at, rounds = [], 60
    for session.round in range(rounds):
        before = len(requests(session))
        for _ in range(3):
            assert list(session.ask(STEP, asks(3), needs_all=False)) == [0, 2]
        if any(asked.client == 1 for asked in requests(session)[before:]):
            asked_at.append(session.round)
        clock[0] += 1.0
    assert asked_at == [0, 1, 3, 7, 15, 31, 47]  # and not 63: sixteen deadlines are the most
    assert {event.round for event in noted} == set(range(rounds))
    assert {event.client for event in noted} == {1}
    assert len(noted) <= 2 * rounds  # once for a step and a round, however many exchanges it has


def test_a_reply_in_time_ends_that(clock):
    session, noted = session_of(silent_at({0}), LENIENT)
    assert list(session.ask(STEP, asks(3), needs_all=False)) == [0, 2]
    assert list(session.ask(STEP, asks(3), needs_all=False)) == [0, 2]
    clock[0] += LENIENT.wait_for
    for _ in range(2):
        assert list(session.ask(STEP, asks(3), needs_all=False)) == [0, 1, 2]
    assert ["no reply" in e.reason for e in noted] == [True, False]


def test_a_client_that_is_left_alone_is_asked_where_it_is_needed(clock):
    session, _ = session_of(silent_at({0}))
    assert list(session.ask(STEP, asks(2), needs_all=False)) == [0]
    assert sorted(session.ask(STEP, asks(2), needs_all=True)) == [0, 1]
    session, _ = session_of(silent_at({0}))
    assert list(session.ask(STEP, asks(2), needs_all=False)) == [0]
    assert sorted(session.ask(STEP, asks(2), needs_all=False, spares=False)) == [0, 1]


def test_if_the_others_fail_it_is_asked_at_once(clock):
    def answer(asked, count):
        if asked.client == 1:
            return None if count == 0 else reply(asked)
        return failure(asked, "tired") if count > 0 and asked.client > 1 else reply(asked)

    session, _ = session_of(answer, Policy(wait_for=1.0, min_replies=0.5, retries=0))
    assert list(session.ask(STEP, asks(4), needs_all=False)) == [0, 2, 3]
    assert sorted(session.ask(STEP, asks(4), needs_all=False)) == [0, 1]


def test_a_reply_of_who_was_not_asked_is_refused(clock):
    """Numbers of exchanges can be guessed, so a client could answer before it is asked."""
    guesses, built = [], []

    class Guessing(Peers):
        def exchange(self, step, messages, wait_for):
            yield from guesses
            yield from super().exchange(step, messages, wait_for)

    def build(client):
        return lambda: built.append(client) or {}

    some = {client: Request(client, build(client), WANTED) for client in range(3)}
    session, noted = Session(Guessing(silent_at({0})), LENIENT, {"algorithm": "ours"}), []
    session.note = noted.append
    session.ask(STEP, some, needs_all=False)
    last = requests(session)[-1]
    for i in (1, 2):
        arrays = {"work": np.zeros(2, np.uint64), "give/0": np.ones(3)}
        guess = Message(Kind.REPLY, STEP, 1, 1, last.exchange + i, arrays)
        guesses.append((1, wire.encode(guess)))
    built.clear()
    assert list(session.ask(STEP, some, needs_all=False)) == [0, 2]
    assert built == [0, 2]
    assert any("refused" in event.reason for event in noted)
