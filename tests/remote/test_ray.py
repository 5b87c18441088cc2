"""The remote engine on Ray, with real processes that are killed, slow or faulty."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
import ray_program
import ray_rows
from world import FEDAVG, POPULATION, ZOO, only, reasons

import rookery as rk
from rookery.engines.engine import Program, Stopped
from rookery.program.algorithm import first_state
from rookery.remote import Failure, Policy, Remote, SecureAggregation
from rookery.remote.engine import RemoteRunner

sys.path.append(str(Path(__file__).parents[1] / "contract"))
from instances import INSTANCES  # pyright: ignore[reportMissingImports]

pytest.importorskip("ray", reason="Ray has an environment of its own: make test-ray")

from rookery.remote.transports.ray.transport import Ray

LONG = Policy(wait_for=300.0)
SMALL: dict[str, Any] = {"cpus_per_actor": 0.1, "object_store_memory": 100_000_000}
ALONE: dict[str, Any] = {"clients_per_actor": 1, **SMALL}  # so that one can be killed


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """A small cluster that all tests use and none of them stops."""
    transport = Ray(**SMALL)
    ray = transport.package()
    transport.start_cluster(ray, 10)
    yield ray
    ray.shutdown()


CASES = {
    "FedNest": (INSTANCES["FedNest"]["random length, partial, mini-batch"], 1),
    "FedMBO": (next(iter(INSTANCES["FedMBO"].values())), 2),
    "FedMSA": (next(iter(INSTANCES["FedMSA"].values())), 3),
    "Scaffold": (next(iter(INSTANCES["Scaffold"].values())), 2),
    "AFBO": (INSTANCES["AFBO"]["active, random local iterations"], 3),
}


@pytest.mark.parametrize("name", CASES)
def test_numbers_and_ledgers_are_those_of_the_compiled_engine(name):
    (zoo, algorithm), per_actor = CASES[name]
    clock = rk.delays.Clock(rk.delays.LogNormalDelay(0.1), bandwidth=1e4, seed=3)
    population = rk.Population.stacked(zoo.data)
    program = Program(zoo.problem, population, clock, rk.aggregate.Mean())
    state, key = (
        first_state(algorithm, zoo.problem, population.n_clients, zoo.start),
        jax.random.key(7),
    )
    (want,) = rk.Compiled().prepare(program, [algorithm]).advance([state], [key], 0, [3])
    runner = Remote(Ray(clients_per_actor=per_actor, **SMALL), LONG).prepare(program, [algorithm])
    assert isinstance(runner, RemoteRunner)
    with closing(runner):
        (got,) = runner.advance([state], [key], 0, [3])
        carried = runner.session.bytes_down, runner.session.bytes_up
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-12, 1e-12), got.state, want.state)
    for a, b in zip(got.ledgers, want.ledgers, strict=True):
        assert a.values()[:-1] == b.values()[:-1]
        assert a.seconds == pytest.approx(b.seconds, rel=1e-12)
    down, up = (sum(getattr(b, f"bytes_{way}") for b in want.ledgers) for way in ("down", "up"))
    assert carried == (down, up)


class Recorded(eqx.Module):
    """Ray, with a record of its processes and of the times of failures."""

    inner: Ray
    processes: dict = eqx.field(default_factory=dict)
    failures: list = eqx.field(default_factory=list)

    def open(self, *arguments):
        port: Any = self.inner.open(*arguments)
        self.processes.update(port.processes())
        return RecordedPort(port, self.failures)


class RecordedPort:
    """The port, with a record of the times of failures."""

    def __init__(self, port, failures):
        self._port, self._failures = port, failures
        self.alive, self.close = port.alive, port.close
        self.is_reliable = port.is_reliable

    def exchange(self, step, messages, wait_for):
        for client, arrival in self._port.exchange(step, messages, wait_for):
            if isinstance(arrival, Failure):
                self._failures.append((client, time.monotonic()))
            yield client, arrival


def go(transport, policy, directory, rounds=8, secure=None):
    began = time.monotonic()
    result = rk.run(
        FEDAVG, ZOO.problem, POPULATION, ZOO.start, rounds=rounds,
        engine=Remote(transport, policy, secure=secure),
        evaluate=[rk.metrics.OfSolution(size)], evaluate_every=1, checkpoint_every=1,
        directory=directory,
    )  # fmt: skip
    lines = (directory / "history.jsonl").read_text().splitlines()
    assert [int(row["round"]) for row in result.history] == list(range(rounds + 1))
    assert len(lines) == rounds + 1  # no line of metrics is lost
    return result, time.monotonic() - began


def size(w):
    """Norm of the model."""
    return {"size": jax.numpy.linalg.norm(w)}


def when_lines(directory, count, then):
    """Call ``then`` as soon as ``count`` lines of metrics are written."""

    def watch():
        path = directory / "history.jsonl"
        while not path.exists() or path.read_text().count("\n") < count:
            time.sleep(0.01)
        then()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def test_clients_load_their_own_rows_and_a_killed_one_is_started_again(tmp_path, capsys):
    clean, _ = go(Ray(load=ray_rows.own, **ALONE), LONG, tmp_path / "clean")
    recorded, killed = Recorded(Ray(load=ray_rows.own_but_slow_at_1, **ALONE)), []

    def kill():  # client 1 takes two seconds for an answer, so it is in the middle of one
        killed.append(time.monotonic())
        os.kill(recorded.processes[1], signal.SIGKILL)

    thread = when_lines(tmp_path / "killed", 3, kill)
    policy = Policy(wait_for=120.0, back_off=0.01)
    result, took = go(recorded, policy, tmp_path / "killed")
    thread.join()
    assert not Path(f"/proc/{recorded.processes[1]}").exists()
    pairs = zip(jax.tree.leaves(result.state), jax.tree.leaves(clean.state), strict=True)
    assert all(bool((a == b).all()) for a, b in pairs)
    assert "client 1: its process has died" in reasons(result)
    assert "client 1: the client does not have a handshake with this server" in reasons(result)
    ((client, seen),) = recorded.failures
    assert client == 1 and seen - killed[0] < 10
    with capsys.disabled():
        print(f"\nkill -9 seen after {seen - killed[0]:.2f} s, no round lost; run of {took:.1f} s")


def test_clients_that_share_a_killed_process_all_come_back(tmp_path):
    shared: dict[str, Any] = {"clients_per_actor": 3, "clients_at_once": 2, **SMALL}
    clean, _ = go(Ray(load=ray_rows.own, **shared), LONG, tmp_path / "clean")
    recorded = Recorded(Ray(load=ray_rows.own, **shared))

    def kill():
        assert len(set(recorded.processes.values())) == 2
        os.kill(recorded.processes[1], signal.SIGKILL)

    thread = when_lines(tmp_path / "killed", 3, kill)
    result, _ = go(recorded, Policy(wait_for=120.0, back_off=0.01), tmp_path / "killed")
    thread.join()
    pairs = zip(jax.tree.leaves(result.state), jax.tree.leaves(clean.state), strict=True)
    assert all(bool((a == b).all()) for a, b in pairs)
    gone = [client for client, _ in recorded.failures]
    assert gone and len(gone) == len(set(gone)) and set(gone) <= {0, 1, 2}
    assert "its process has died" in reasons(result)


def test_a_cluster_that_is_there_is_joined_by_its_address(tmp_path, cluster):
    address = cluster.get_runtime_context().gcs_address
    program = str(Path(__file__).with_name("ray_program.py"))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, program, str(tmp_path), address]
    subprocess.run(command, env=environment, check=True, timeout=400)
    want = rk.run(**ray_program.settings(None), engine=rk.Compiled())
    rows = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    np.testing.assert_allclose([row["size"] for row in rows], want.history["size"], rtol=1e-12)
    assert cluster.nodes()[0]["Alive"]  # left as it was


def test_a_cluster_without_a_token_is_not_started(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(ValueError, match="RAY_AUTH_MODE=disabled"):
        Ray(**SMALL).start_cluster(None, 1)


def test_a_server_that_has_no_rows_comes_to_the_same():
    example = POPULATION.example("train")
    population = rk.Population.elsewhere(example, POPULATION.n_clients)
    transport = Ray(load=ray_rows.own, clients_per_actor=3, **SMALL)
    result = rk.run(
        FEDAVG, ZOO.problem, population, ZOO.start, rounds=4, engine=Remote(transport, LONG)
    )
    np.testing.assert_allclose(result.state.w, only(0, 1, 2, 3, 4).state.w, rtol=1e-12)


def test_a_slow_client_is_left_out_by_the_deadline(tmp_path, capsys):
    transport = Ray(load=ray_rows.own_but_slow_at_1, **ALONE)
    go(Ray(load=ray_rows.own, **ALONE), LONG, tmp_path / "warm", 1)
    policy = Policy(wait_for=1.0, min_replies=0.8, back_off=0.01, retries=20)
    result, took = go(transport, policy, tmp_path / "slow")
    timed_out = [e for e in result.events if "no reply within 1 s" in e.reason]
    skipped = [e for e in result.events if "skipped" in e.reason]
    reported = [e for e in (*timed_out, *skipped) if e.step != "handshake"]
    missing = {e.round for e in reported if e.client == 1}
    assert timed_out and missing == set(range(8))
    # the others only while they compile
    assert all(e.client == 1 for e in reported if e.round > 4)
    with capsys.disabled():
        print(f"\nslow client: {len(missing)} of 8 rounds without it, run of {took:.1f} s")


def test_nan_is_refused_by_name(tmp_path):
    policy = Policy(wait_for=120.0, min_replies=0.8)
    result, _ = go(Ray(load=ray_rows.own_but_nan_at_4, **ALONE), policy, tmp_path, 4)
    np.testing.assert_allclose(result.state.w, only(0, 1, 2, 3).state.w, rtol=1e-12)
    assert {e.client for e in result.events} == {4}
    assert "NaN or infinity" in reasons(result)


def test_secure_means_are_exact_and_stop_beyond_the_threshold(tmp_path):
    """Of five clients in three processes, one may be missing."""
    secure, transport = SecureAggregation(), Ray(clients_per_actor=2, restarts=0, **SMALL)
    clean, _ = go(transport, LONG, tmp_path / "clean", 4, secure)
    assert [event.client for event in clean.events] == [None]  # what it cannot protect from
    difference = abs(np.asarray(clean.state.w) - np.asarray(only(0, 1, 2, 3, 4).state.w)).max()
    assert 0 < difference < 1e-8  # 0 would be the plain mean

    recorded = Recorded(transport)
    threads = [
        when_lines(tmp_path / "gone", lines, lambda c=client: os.kill(recorded.processes[c], 9))
        for client, lines in ((4, 2), (0, 6))
    ]
    policy = Policy(wait_for=120.0, min_replies=0.6, back_off=0.01, retries=1)
    with pytest.raises(Stopped, match="needs 4 of 5 clients"):
        go(recorded, policy, tmp_path / "gone", 4000, secure)
    for thread in threads:
        thread.join()
    lines = (tmp_path / "gone" / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    assert len({e["round"] for e in events if e["client"] == 4}) > 1  # went on with four clients
    assert {e["client"] for e in events} == {None, 0, 1, 4}


def test_a_third_of_the_clients_dead(tmp_path, capsys):
    recorded, killed = Recorded(Ray(restarts=0, **ALONE)), []

    def kill():
        killed.append(time.monotonic())
        for client in (0, 3):
            os.kill(recorded.processes[client], signal.SIGKILL)

    thread = when_lines(tmp_path, 2, kill)
    policy = Policy(wait_for=120.0, min_replies=0.6, back_off=0.01)
    result, took = go(recorded, policy, tmp_path)
    thread.join()
    gone = {(e.client, e.round) for e in result.events if "its process has died" in e.reason}
    assert {client for client, _ in gone} == {0, 3}
    assert {round for _, round in gone} >= set(range(3, 8))
    seconds = max(min(t for c, t in recorded.failures if c == i) for i in (0, 3)) - killed[0]
    with capsys.disabled():
        print(
            f"\n2 of 5 dead: both seen within {seconds:.2f} s, no round lost; {took:.1f} s in all"
        )


def test_a_killed_server_goes_on_exactly_and_leaves_no_process(tmp_path, capsys):
    program = str(Path(__file__).with_name("ray_program.py"))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, program, str(tmp_path)]
    lines = tmp_path / "history.jsonl"
    server = subprocess.Popen(command, env=environment)
    try:
        until = time.monotonic() + 240
        while not lines.exists() or lines.read_text().count("\n") < 4:
            assert server.poll() is None and time.monotonic() < until
            time.sleep(0.05)
        started = descendants(server.pid)
    finally:
        server.kill()
        server.wait()
    assert len(started) > 3  # Ray's and the actors'
    killed = time.monotonic()
    until = killed + 240  # Ray's own agents look for their parent now and then
    while left := [name for pid in started if (name := running(pid))]:
        assert time.monotonic() < until, f"{left} live on"
        time.sleep(0.1)
    ended, done = time.monotonic() - killed, lines.read_text().count("\n")
    subprocess.run(command, env=environment, check=True, timeout=400)
    want = rk.run(**ray_program.settings(None), engine=rk.Compiled())
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [row["round"] for row in rows] == list(range(31))
    sizes = [row["size"] for row in rows]
    np.testing.assert_allclose(sizes, want.history["size"], rtol=1e-12)
    with capsys.disabled():
        print(
            f"\nserver killed after {done} lines of metrics, resumed to {len(rows)}; its last "
            f"process ended after {ended:.1f} s"
        )


def running(pid):
    """What a process is, unless it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    fields = dict(line.split(":", 1) for line in status if ":" in line)
    return "" if fields["State"].strip()[0] in "ZX" else f"{pid} {fields['Name'].strip()}"


def descendants(pid):
    """The child processes of a process, and theirs."""
    found, parents = [], [pid]
    while parents:
        children = Path(f"/proc/{parents[0]}/task")
        for task in children.iterdir() if children.exists() else ():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread may end
                new = [int(child) for child in (task / "children").read_text().split()]
                found, parents = found + new, parents + new
        parents = parents[1:]
    return found
