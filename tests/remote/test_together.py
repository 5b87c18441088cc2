"""Clients that share a process: computed together, and each of them answers for itself."""

import sys
from contextlib import closing
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest
from world import FEDAVG, PEOPLE, ZOO, plan

import rookery as rk
from rookery.engines.engine import Program
from rookery.program.algorithm import first_state
from rookery.remote import Policy, Remote, Worker, agreement, together, wire
from rookery.remote.engine import RemoteRunner
from rookery.remote.wire import Kind, Message
from rookery.remote.worker import answer_together

sys.path.append(str(Path(__file__).parents[1] / "contract"))
from instances import INSTANCES  # pyright: ignore[reportMissingImports]


class Households(eqx.Module):
    """A transport in this thread; so many clients share a process."""

    size: int
    at_once: int | None = None

    def open(self, program, algorithm, state, plan):
        people = program.population
        groups = [
            range(i, min(i + self.size, people.n_clients))
            for i in range(0, people.n_clients, self.size)
        ]
        workers = {}
        for group in groups:
            rows = jax.device_put(people.only(*group))
            for client in group:
                workers[client] = Worker(client, program.problem, algorithm, rows, state, plan)
        return Port(groups, workers, self.at_once)


class Port:
    """The port of :class:`Households`."""

    def __init__(self, groups, workers, at_once):
        self._groups, self._workers, self._at_once = groups, workers, at_once
        self._arrivals = []

    def alive(self):
        return frozenset(self._workers)

    def exchange(self, step, messages, wait_for):
        messages = list(messages)
        for group in self._groups:
            mine = [(self._workers[c], m) for c, m in messages if c in group]
            replies = answer_together(mine, self._at_once)
            self._arrivals += [(w.id, r) for (w, _), r in zip(mine, replies, strict=True)]
        while self._arrivals and wait_for:
            yield self._arrivals.pop(0)

    def close(self):
        pass


CASES = {
    "FedMBO": (INSTANCES["FedMBO"], Households(3)),
    "Scaffold": (INSTANCES["Scaffold"], Households(4, at_once=2)),
    "AFBO": (INSTANCES["AFBO"], Households(2)),
}


@pytest.mark.parametrize(
    "name", ["Scaffold", *(pytest.param(n, marks=pytest.mark.slow) for n in ("FedMBO", "AFBO"))]
)
def test_numbers_and_ledgers_are_those_of_the_compiled_engine(name):
    instances, transport = CASES[name]
    zoo, algorithm = next(iter(instances.values()))
    people = rk.Population.stacked(zoo.data)
    program = Program(zoo.problem, people, rk.Clock(rk.LogNormalDelay(0.1), seed=3), rk.Mean())
    state, key = first_state(algorithm, zoo.problem, people.n_clients, zoo.start), jax.random.key(7)
    (want,) = rk.Compiled().prepare(program, [algorithm]).advance([state], [key], 0, [3])
    runner = Remote(transport, Policy(wait_for=100.0)).prepare(program, [algorithm])
    assert isinstance(runner, RemoteRunner)
    with closing(runner):
        (got,) = runner.advance([state], [key], 0, [3])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-12, 1e-12), got.state, want.state)
    for a, b in zip(got.ledgers, want.ledgers, strict=True):
        assert a.values()[:-1] == b.values()[:-1]


def household(n=5):
    state = first_state(FEDAVG, ZOO.problem, PEOPLE.n_clients, ZOO.start)
    rows = jax.device_put(PEOPLE.only(*range(n)))
    return [Worker(i, ZOO.problem, FEDAVG, rows, state, plan("FedAvg")) for i in range(n)]


def hello(client, number=1):
    agreed = agreement.agreement(ZOO.problem, FEDAVG, PEOPLE.n_clients, plan("FedAvg"))
    return wire.encode(Message(Kind.HELLO, "", client, 0, number, agreement.write(agreed)))


def test_a_bad_message_is_one_clients_own():
    workers = household(3)
    messages = [hello(0), b"nonsense", hello(0)]
    replies = map(wire.decode, answer_together(list(zip(workers, messages, strict=True))))
    fine, malformed, strange = replies
    assert fine.kind is Kind.HELLO
    assert "malformed" in wire.read_text(malformed.arrays["reason"])
    assert "this is client 2, not 0" in wire.read_text(strange.arrays["reason"])


def test_messages_to_one_client_are_answered_in_order():
    worker, other = household(2)
    asked = [(worker, hello(0, 5)), (other, hello(1, 5)), (worker, hello(0, 4))]
    first, second, old = map(wire.decode, answer_together(asked))
    assert (first.client, second.client) == (0, 1)
    assert first.kind is second.kind is Kind.HELLO
    assert "older" in wire.read_text(old.arrays["reason"])


class Call:
    """A step that notes how many clients it has met at a time, and fails for more than four."""

    number = 0

    def __init__(self):
        self.met = []

    def run(self, population, inputs):
        self.met.append(len(inputs))
        if len(inputs) > 4:
            raise MemoryError("too many")
        return [([i], 0) for i in inputs]


def asking(call, inputs):
    try:
        (mine,), _ = yield together.Turn(call, PEOPLE, inputs)
    except MemoryError as error:
        return str(error).encode()
    return b"%d" % mine.id


def inputs(i):
    return together.Inputs(np.int32(i), None, (), [], [])


@pytest.mark.parametrize(
    ("n", "at_once", "met"),
    [
        (1, None, [1]),
        (3, None, [4]),
        (4, 4, [4]),
        (5, 2, [2, 2, 1]),
        (5, 3, [3, 2]),
        (7, 4, [4, 4]),
    ],
)
def test_chunks_are_filled_up_to_few_sizes(n, at_once, met):
    call = Call()
    replies = together.finish([asking(call, inputs(i)) for i in range(n)], at_once)
    assert replies == [b"%d" % i for i in range(n)]
    assert call.met == met


def test_what_a_shared_call_raises_everyone_hears():
    call, alone = Call(), Call()
    alone.number = 1
    clients = [asking(call, inputs(i)) for i in range(5)] + [asking(alone, inputs(9))]
    assert together.finish(clients) == [b"too many"] * 5 + [b"9"]
