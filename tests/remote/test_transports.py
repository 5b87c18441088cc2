"""What goes wrong before the first step: it is said at once, and with its cause."""

import sys
import types

import pytest
from world import FEDAVG, PEOPLE, ZOO, go, plan, reasons, warm_worker

import rookery as rk
from rookery.engines.engine import Program
from rookery.remote import Policy, agreement
from rookery.remote.ray import Ray, _Actors


def test_a_client_that_cannot_be_made_says_why():
    def make(client, *rest):
        if client == 2:
            raise FileNotFoundError("no rows.csv")
        return warm_worker(client, *rest)

    result = go(make=make, policy=Policy(wait_for=60.0, min_replies=0.6), rounds=2)
    assert result.status == "finished"
    assert {event.client for event in result.events} == {2}
    assert reasons(result).count("FileNotFoundError: no rows.csv") == 3  # agreement, two rounds


class TimedOut(Exception):
    """Ray's own error."""


def fake_ray():
    def get(calls, timeout):
        raise TimedOut

    exceptions = types.SimpleNamespace(GetTimeoutError=TimedOut)
    return types.SimpleNamespace(get=get, exceptions=exceptions)


def test_actors_that_do_not_come_up_are_explained():
    process = types.SimpleNamespace(remote=lambda: None)
    actor = types.SimpleNamespace(process=process)
    port = _Actors(fake_ray(), [(0,), (1,)], lambda clients: actor, 0, is_ours=False)
    with pytest.raises(TimeoutError, match=r"2 processes.*within 3 s.*start_within"):
        port.wait_until_up(3.0)


def test_ray_without_load_needs_rows(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", fake_ray())
    people = rk.Population.elsewhere(PEOPLE.example("train"), 5)
    program = Program(ZOO.problem, people, rk.Clock(), rk.Mean())
    with pytest.raises(ValueError, match="Ray without load needs the clients' rows"):
        Ray().open(program, FEDAVG, None, None)  # pyright: ignore[reportArgumentType]


def test_clients_share_as_many_processes_as_there_are_cpus(monkeypatch):
    ray = fake_ray()
    ray.is_initialized, ray.cluster_resources = (lambda: True), (lambda: {"CPU": 8.0})
    monkeypatch.setitem(sys.modules, "ray", ray)
    assert [len(group) for group in Ray()._groups(ray, 20)] == [3] * 6 + [2]
    assert len(Ray(cpus_per_actor=0.5)._groups(ray, 20)) == 10  # two in each: one in each would need 20
    assert Ray(cpus_per_actor=20)._groups(ray, 3) == [(0, 1, 2)]
    assert Ray(clients_per_actor=1)._groups(ray, 3) == [(0,), (1,), (2,)]
    ray.is_initialized = lambda: False
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert Ray()._groups(ray, 4) == Ray(cpus_per_actor=0)._groups(ray, 4) == [(0, 1), (2, 3)]


def test_a_difference_is_shown_where_it_is():
    same = "x" * 5000
    (line,) = agreement.differences({"p": f"{same}1{same}"}, {"p": f"{same}2{same}"})
    ours, theirs = line.split(", the client ")
    assert "x1x" in ours and "x2x" in theirs and len(line) < 500
    assert agreement.differences({"p": "a"}, {}) == ["p: the server has a, the client nothing"]
    assert len(agreement.differences({}, {str(i): "a" for i in range(5000)})) == 10


def test_versions_hold_that_of_python():
    versions = agreement.agreement(ZOO.problem, FEDAVG, 5, plan("FedAvg"))["versions"]
    assert f'"python": "{sys.version_info.major}.{sys.version_info.minor}"' in versions
