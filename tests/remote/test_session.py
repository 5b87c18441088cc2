"""Single exchanges, with clients whose every word is given."""

import time
from typing import Any

import jax
import numpy as np
import pytest

from rookery.remote import Policy, agreement, wire
from rookery.remote.asking import Ask, TooFew
from rookery.remote.session import Session
from rookery.remote.wire import Kind, Message

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
    return {client: Ask(client, dict, WANTED) for client in range(n)}


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
    with pytest.raises(TooFew):
        session.ask(STEP, asks(1), needs_all=True)
    assert "key<fry>[0, 7]" in noted[0].reason


def test_keys_that_were_asked_for_come_as_keys():
    key = jax.random.key(5)
    session, _ = session_of(lambda asked, _: reply(asked, **{"give/1": key}))
    got = session.ask(STEP, {0: Ask(0, dict, [*WANTED, "key<fry>[]"])}, needs_all=True)
    assert jax.random.key_data(got[0].leaves[1]).tolist() == [0, 5]


def test_one_client_with_nan_is_not_the_answer_of_silent_ones():
    def answer(asked, count):
        return reply(asked, np.nan) if asked.client == 3 else None

    session, _ = session_of(answer)
    with pytest.raises(TooFew, match=r"0 of 5 clients answered, 1 are needed"):
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
    with pytest.raises(TooFew, match=r"\[1\] did not"):
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
    assert session.ask(STEP, {0: Ask(0, dict, wanted)}, needs_all=True)[0].leaves[1].size == 50_000


def test_an_agreement_of_more_than_64_kb_is_refused():
    def answer(asked, count):
        arrays = agreement.write({"algorithm": "x" * 70_000})
        return wire.encode(Message(Kind.HELLO, asked.name, 0, 0, asked.exchange, arrays))

    session, noted = session_of(answer)
    session.greet([0])
    assert "body claims" in noted[0].reason


def test_a_client_that_is_silent_is_asked_ever_less_often_and_noted_each_time():
    session, noted = session_of(lambda asked, _: None if asked.client == 1 else reply(asked))
    for _ in range(200):
        assert list(session.ask(STEP, asks(3), needs_all=False)) == [0, 2]
    count = sum(asked.client == 1 for asked in requests(session))
    assert 1 <= count <= 8  # after 0.05 s, 0.1 s, 0.2 s and so on
    assert len([event for event in noted if event.client == 1]) == 200
    assert sum("not asked" in event.reason for event in noted) == 200 - count


def test_a_client_that_has_answered_late_is_asked_again():
    owed = []

    class Late(Peers):
        def exchange(self, step, messages, wait_for):
            owing, owed[:] = list(owed), []
            yield from owing
            yield from super().exchange(step, messages, wait_for)

    def answer(asked, count):
        if asked.client == 1 and count == 0:
            owed.append((1, reply(asked)))
            return None
        return reply(asked)

    session, noted = Session(Late(answer), LENIENT, {"algorithm": "ours"}), []
    session.note = noted.append
    got = [list(session.ask(STEP, asks(3), needs_all=False)) for _ in range(3)]
    assert got == [[0, 2], [0, 2], [0, 1, 2]]
    reasons = [event.reason for event in noted]
    assert reasons[0].startswith("no reply within")
    assert any("late reply dropped" in reason for reason in reasons)
    assert any("not asked" in reason for reason in reasons)


def test_a_client_that_owes_an_answer_is_asked_where_it_is_needed():
    session, _ = session_of(lambda asked, n: None if asked.client == 1 and n == 0 else reply(asked))
    assert list(session.ask(STEP, asks(2), needs_all=False)) == [0]
    assert sorted(session.ask(STEP, asks(2), needs_all=True)) == [0, 1]
