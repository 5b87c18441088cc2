"""Transports: failures before the first step, actors that die, what a handshake shows."""

import sys
import types
from typing import Any

import numpy as np
import pytest
from world import FEDAVG, POPULATION, ZOO, go, plan, reasons, warm_worker

import rookery as rk
from rookery.engines.engine import Program
from rookery.remote import Policy
from rookery.remote.protocol import handshake
from rookery.remote.transports.ray.actors import Actors
from rookery.remote.transports.ray.transport import Ray


def test_an_error_in_make_worker_is_reported():
    def make(client, *rest):
        if client == 2:
            raise FileNotFoundError("no rows.csv")
        return warm_worker(client, *rest)

    result = go(make=make, policy=Policy(wait_for=60.0, min_replies=0.6), rounds=2)
    assert result.status == "finished"
    assert {event.client for event in result.events} == {2}
    assert reasons(result).count("FileNotFoundError: no rows.csv") == 3  # the handshake, two rounds


class TimedOut(Exception):
    """Ray's own error."""


def fake_ray():
    def get(calls, timeout):
        raise TimedOut

    exceptions = types.SimpleNamespace(GetTimeoutError=TimedOut)
    return types.SimpleNamespace(get=get, exceptions=exceptions)


def test_actors_that_do_not_start_are_explained():
    process = types.SimpleNamespace(remote=lambda: None)
    actor = types.SimpleNamespace(process=process)
    port: Any = Actors(fake_ray(), [(0,), (1,)], lambda clients: actor, 0, None, is_ours=False)
    with pytest.raises(TimeoutError, match=r"2 actors.*within 3 s.*start_within"):
        port.wait_until_up(3.0)


def test_ray_without_load_needs_rows(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", fake_ray())
    population = rk.Population.elsewhere(POPULATION.example("train"), 5)
    program = Program(ZOO.problem, population, rk.delays.Clock(), rk.aggregate.Mean())
    with pytest.raises(ValueError, match="Ray without load needs the clients' rows"):
        Ray().open(program, FEDAVG, None, None)  # pyright: ignore[reportArgumentType]


def test_clients_share_as_many_processes_as_there_are_cpus(monkeypatch):
    ray = fake_ray()
    ray.is_initialized, ray.available_resources = (lambda: True), (lambda: {"CPU": 8.0})
    monkeypatch.setitem(sys.modules, "ray", ray)
    assert [len(group) for group in Ray().groups(ray, 20)] == [3] * 4 + [2] * 4
    assert [len(group) for group in Ray(cpus_per_actor=0.5).groups(ray, 20)] == [2] * 4 + [1] * 12
    assert Ray().groups(ray, 3) == [(0,), (1,), (2,)]
    assert Ray(clients_per_actor=2).groups(ray, 3) == [(0, 1), (2,)]
    ray.is_initialized = lambda: False
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1}, raising=False)
    assert Ray().groups(ray, 4) == Ray(cpus_per_actor=0).groups(ray, 4) == [(0, 1), (2, 3)]


class Gone(Exception):
    """Ray's own error of an actor that is dead."""


class FakeRay:
    """Calls of actors that are answered, or not, as a test says."""

    exceptions = types.SimpleNamespace(RayActorError=Gone, RayError=Exception)

    def __init__(self):
        self.replies = {}  # by call, its reply or error
        self.calls = []
        self.stored = []

    def put(self, part):
        self.stored.append(part)
        return b"stored"

    def actor(self, clients):
        def answer(message):
            return answer_batch([[0]], message)

        def answer_batch(places, *parts):
            messages = (b"".join(parts[place] for place in mine) for mine in places)
            self.calls.append(tuple((int(m[:1]), m[1:]) for m in messages))
            return self.calls[-1]

        return types.SimpleNamespace(
            answer=types.SimpleNamespace(remote=answer),
            answer_batch=types.SimpleNamespace(remote=answer_batch),
        )

    def wait(self, calls, num_returns, timeout):
        return [c for c in calls if all(one in self.replies for one in c)][:num_returns], []

    def get(self, call):
        replies = [self.replies[one] for one in call]
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies[0] if len(replies) == 1 else replies


def messages(number, *clients):
    return [(client, (b"%d%d" % (client, number),)) for client in clients]


def test_all_clients_of_a_dead_process_fail_once_and_not_again():
    ray = FakeRay()
    port: Any = Actors(ray, [(0, 1), (2,)], ray.actor, 1, None, is_ours=False)
    assert list(port.exchange("s", messages(1, 0, 1, 2), 0.0)) == []
    asked_again = port.exchange("s", messages(2, 0, 1, 2), 1.0)
    ray.replies |= {(2, b"2"): b"fine"} | {(c, b"%d" % n): Gone() for c in (0, 1) for n in (1, 2)}
    came = dict(asked_again)
    assert came[2] == b"fine" and came.keys() == {0, 1, 2}
    assert all("has died (Gone); restarting" in came[c].reason for c in (0, 1))
    assert port.alive() == {0, 1, 2}
    ray.replies |= {(0, b"3"): b"new", (1, b"3"): b"new"}
    assert dict(port.exchange("s", messages(3, 0, 1), 1.0)) == {0: b"new", 1: b"new"}
    ray.replies |= {(0, b"4"): Gone()}
    ((client, failure),) = port.exchange("s", messages(4, 0), 1.0)
    assert client == 0 and "not restarted" in failure.reason
    assert port.alive() == {2}
    came = dict(port.exchange("s", messages(5, 0, 1), 1.0))
    assert all("restarts are used up" in came[c].reason for c in (0, 1))


def test_a_pending_client_of_a_dead_process_fails_in_the_next_exchange():
    ray = FakeRay()
    port: Any = Actors(ray, [(0, 1)], ray.actor, 5, None, is_ours=False)
    assert list(port.exchange("job", messages(1, 1), 0.0)) == []
    ray.replies |= {(0, b"2"): Gone()}
    asked = port.exchange("s", messages(2, 0), 1.0)
    first, _ = next(asked)
    asked.close()  # the caller has what it waited for
    ((second, failure),) = port.exchange("t", [], 1.0)
    assert {first, second} == {0, 1} and "has died" in failure.reason


def test_a_call_that_fails_in_a_living_process_fails_its_own_clients_only():
    ray = FakeRay()
    port: Any = Actors(ray, [(0, 1, 2)], ray.actor, 5, 2, is_ours=False)
    ray.replies |= {(0, b"1"): OSError("object lost"), (1, b"1"): b"lost too", (2, b"1"): b"fine"}
    came = dict(port.exchange("s", messages(1, 0, 1, 2), 1.0))
    assert came[2] == b"fine" and all("object lost" in came[c].reason for c in (0, 1))
    assert port._left[0, 1, 2] == 5  # nothing was restarted


def test_replies_that_arrive_together_are_not_lost_when_the_caller_takes_one():
    ray = FakeRay()
    port: Any = Actors(ray, [(0, 1), (2,)], ray.actor, 5, None, is_ours=False)
    ray.replies |= {(c, b"1"): b"%d" % c for c in range(3)}
    asked = port.exchange("s", messages(1, 0, 1, 2), 1.0)
    first = next(asked)
    asked.close()
    rest = dict(port.exchange("t", [], 0.0))
    assert dict([first]) | rest == {0: b"0", 1: b"1", 2: b"2"} and len(rest) == 2


def test_what_clients_have_in_common_is_stored_once():
    ray = FakeRay()
    port: Any = Actors(ray, [(0, 1), (2,)], ray.actor, 5, None, is_ours=False)
    large = np.zeros(100, np.uint8)
    sent = [(0, (b"0", large)), (1, (b"1", large)), (2, (b"2", large[:]))]  # a view, not a copy
    list(port.exchange("s", sent, 0.0))
    assert len(ray.stored) == 1 and ray.stored[0] is large
    assert ray.calls == [((0, b"stored"), (1, b"stored")), ((2, b"stored"),)]


def test_clients_at_once_bounds_the_size_of_a_call():
    ray = FakeRay()
    port: Any = Actors(ray, [tuple(range(5))], ray.actor, 5, 2, is_ours=False)
    ray.replies |= {(c, b"1"): b"%d" % c for c in range(5)}
    came = dict(port.exchange("s", messages(1, *range(5)), 1.0))
    assert came == {c: b"%d" % c for c in range(5)}
    assert [len(call) for call in ray.calls] == [2, 2, 1]


def test_a_difference_is_shown_where_it_is():
    same = "x" * 5000
    (line,) = handshake.differences({"p": f"{same}1{same}"}, {"p": f"{same}2{same}"})
    ours, theirs = line.split(", the client ")
    assert "x1x" in ours and "x2x" in theirs and len(line) < 500
    assert handshake.differences({"p": "a"}, {}) == ["p: the server has a, the client nothing"]
    assert len(handshake.differences({}, {str(i): "a" for i in range(5000)})) == 10


def test_versions_hold_that_of_python():
    versions = handshake.configuration(ZOO.problem, FEDAVG, 5, plan("FedAvg"))["versions"]
    assert f'"python": "{sys.version_info.major}.{sys.version_info.minor}"' in versions
