"""Clients that share a process: batched, and each replies for itself."""

import sys
from contextlib import closing
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest
from world import FEDAVG, POPULATION, ZOO, plan, same

import rookery as rk
from rookery.engines.engine import Program
from rookery.program.algorithm import first_state
from rookery.remote import Policy, Remote, Worker
from rookery.remote.client import batching
from rookery.remote.engine import RemoteRunner
from rookery.remote.protocol import handshake, wire
from rookery.remote.protocol.plan import Call as PlanCall
from rookery.remote.protocol.plan import Inputs, spec
from rookery.remote.protocol.wire import Kind, Message

sys.path.append(str(Path(__file__).parents[1] / "contract"))
from instances import INSTANCES  # pyright: ignore[reportMissingImports]


class SharedProcesses(eqx.Module):
    """A transport in this thread, as if several clients shared a process.

    Args:
        size: clients of a process.
        forget_every: exchanges after which one client, a different one each time, loses everything.
    """

    size: int
    forget_every: int = 1_000_000

    def open(self, program, algorithm, state, plan):
        population = program.population
        rows = {}
        for first in range(0, population.n_clients, self.size):
            group = range(first, min(first + self.size, population.n_clients))
            rows |= dict.fromkeys(group, jax.device_put(population.only(*group)))

        def make(client):
            return Worker(client, program.problem, algorithm, rows[client], state, plan)

        return Port(make, population.n_clients, self.size, self.forget_every)


class Port:
    """The port of :class:`SharedProcesses`."""

    is_reliable = False

    def __init__(self, make, n_clients, size, forget_every):
        self._make, self._size, self._forget_every = make, size, forget_every
        self._workers = [make(client) for client in range(n_clients)]
        self._exchanges, self._arrivals = 0, []

    def alive(self):
        return frozenset(range(len(self._workers)))

    def exchange(self, step, messages, wait_for):
        messages = list(messages)
        self._exchanges += 1
        times, rest = divmod(self._exchanges, self._forget_every)
        if not rest:
            self._workers[times % len(self._workers)] = self._make(times % len(self._workers))
        for group in range(len(self._workers) // self._size + 1):
            mine = [(c, m) for c, m in messages if c // self._size == group]
            replies = batching.finish([self._workers[c].answering(m) for c, m in mine])
            self._arrivals += [(c, r) for (c, _), r in zip(mine, replies, strict=True)]
        while self._arrivals and wait_for:
            yield self._arrivals.pop(0)

    def close(self):
        pass


CASES = {
    "FedMBO": (INSTANCES["FedMBO"], SharedProcesses(3)),
    "Scaffold": (INSTANCES["Scaffold"], SharedProcesses(4)),
    "AFBO": (INSTANCES["AFBO"], SharedProcesses(2)),
}


@pytest.mark.parametrize(
    "name", ["Scaffold", *(pytest.param(n, marks=pytest.mark.slow) for n in ("FedMBO", "AFBO"))]
)
def test_numbers_and_ledgers_are_those_of_the_compiled_engine(name):
    instances, transport = CASES[name]
    zoo, algorithm = next(iter(instances.values()))
    population = rk.Population.stacked(zoo.data)
    program = Program(
        zoo.problem,
        population,
        rk.delays.Clock(rk.delays.LogNormalDelay(0.1), seed=3),
        rk.aggregate.Mean(),
    )
    state, key = (
        first_state(algorithm, zoo.problem, population.n_clients, zoo.start),
        jax.random.key(7),
    )
    (want,) = rk.Compiled().prepare(program, [algorithm]).advance([state], [key], 0, [3])
    runner = Remote(transport, Policy(wait_for=100.0)).prepare(program, [algorithm])
    assert isinstance(runner, RemoteRunner)
    with closing(runner):
        (got,) = runner.advance([state], [key], 0, [3])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-12, 1e-12), got.state, want.state)
    for a, b in zip(got.ledgers, want.ledgers, strict=True):
        assert a.values()[:-1] == b.values()[:-1]


@pytest.mark.slow
def test_a_client_that_loses_everything_recovers_without_affecting_others():
    def go(transport):
        return rk.run(
            FEDAVG, ZOO.problem, POPULATION, ZOO.start, rounds=25, evaluate_every=5,
            engine=Remote(transport, Policy(wait_for=100.0)),
        )  # fmt: skip

    clean, forgetful = go(SharedProcesses(3)), go(SharedProcesses(3, forget_every=5))
    assert same(clean, forgetful) and not clean.events
    assert {event.client for event in forgetful.events} == set(range(5))
    assert all(
        "not have a handshake with this server" in event.reason for event in forgetful.events
    )


def test_a_bad_message_is_one_clients_own():
    state = first_state(FEDAVG, ZOO.problem, POPULATION.n_clients, ZOO.start)
    rows = jax.device_put(POPULATION.only(0, 1, 2))
    workers = [Worker(i, ZOO.problem, FEDAVG, rows, state, plan("FedAvg")) for i in range(3)]
    configuration = handshake.configuration(
        ZOO.problem, FEDAVG, POPULATION.n_clients, plan("FedAvg")
    )
    hello = wire.encode(Message(Kind.HELLO, "", 0, 0, 1, handshake.write(configuration)))
    pairs = zip(workers, (hello, b"nonsense", hello), strict=True)
    replies = batching.finish([worker.answering(message) for worker, message in pairs])
    fine, malformed, strange = map(wire.decode, replies)
    assert fine.kind is Kind.HELLO
    assert "malformed" in wire.decode_text(malformed.arrays["reason"])
    assert "this is client 2, not 0" in wire.decode_text(strange.arrays["reason"])


class Call:
    """A step that records its batch sizes, and raises for client 13."""

    number, most_iterations = 0, None

    def __init__(self):
        self.batches = []

    def run(self, population, inputs):
        self.batches.append(len(inputs))
        if any(i.id == 13 for i in inputs):
            raise ArithmeticError("unlucky")
        return [([i], 0) for i in inputs]


def answering(call, i):
    try:
        (mine,), _ = yield batching.PendingCall(
            call, POPULATION, Inputs(np.int32(i), None, (), [], [])
        )
    except ArithmeticError as error:
        return (str(error).encode(),)
    return (b"%d" % mine.id,)


@pytest.mark.parametrize(
    ("n", "max_batch", "padded"),
    [(1, None, 1), (2, None, 2), (3, None, 4), (5, None, 8), (5, 6, 6), (5, 5, 5), (7, 20, 8)],
)
def test_batches_are_padded_to_few_sizes(n, max_batch, padded):
    call = Call()
    replies = batching.finish([answering(call, i) for i in range(n)], max_batch)
    assert replies == [(b"%d" % i,) for i in range(n)]
    assert call.batches == [padded]


def test_an_error_of_one_client_does_not_affect_the_others():
    call, alone = Call(), Call()
    alone.number = 1
    clients = [answering(call, i) for i in (12, 13, 14)] + [answering(alone, 9)]
    assert batching.finish(clients) == [(b"12",), (b"unlucky",), (b"14",), (b"9",)]
    assert call.batches == [4, 1, 1, 1] and alone.batches == [1]


def test_keys_and_halves_go_through_a_shared_call():
    def step(client, value, key):
        return value * 2, key, jax.random.fold_in(key, 1)

    like = (jax.ShapeDtypeStruct((2,), jax.numpy.bfloat16), jax.eval_shape(lambda: KEY))
    call = plan_call(step, like)
    words = wire.unwrap_keys(KEY)
    values = [[np.full(2, i, jax.numpy.bfloat16), words] for i in range(3)]
    inputs = [Inputs(np.int32(i), None, (), v, []) for i, v in enumerate(values)]
    for (leaves, _), (alone, _) in zip(
        call.run(POPULATION, inputs),
        (call.run(POPULATION, [one])[0] for one in inputs),
        strict=True,
    ):
        assert [spec(a) for a in leaves] == [spec(a) for a in alone]
        assert spec(leaves[0]) == "bfloat16[2]" and spec(leaves[1]) == spec(KEY)
        same = jax.tree.map(lambda a, b: (np.asarray(a) == np.asarray(b)).all(), leaves, alone)
        assert jax.tree.all(same)


KEY = jax.random.key(3)


def plan_call(step, arguments):
    _, structure = jax.tree.flatten({})
    return PlanCall(0, "step", step, arguments, None, (), structure, False)
