"""Faults between machines: nothing hangs, and every client missing from a mean is reported."""

import json
import math

import jax
import numpy as np
import pytest
from world import (
    FEDAVG,
    POPULATION,
    QUICK,
    SCAFFOLD,
    ZOO,
    clean,
    go,
    only,
    plan,
    reasons,
    same,
)  # fmt: skip

import rookery as rk
from rookery.engines.engine import Stopped
from rookery.remote import Faults, Policy, Worker
from rookery.remote.protocol import wire
from rookery.remote.protocol.handshake import HandshakeError
from rookery.remote.server.session import Session

PATIENT = Policy(wait_for=0.3, back_off=0.0, retries=60)
MOST = Policy(wait_for=20.0, back_off=0.01, min_replies=0.6)


def test_without_faults_there_are_no_events():
    result = clean("FedAvg")
    assert result.events == ()
    np.testing.assert_allclose(result.state.w, only(0, 1, 2, 3, 4).state.w, rtol=1e-12)


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        (Faults(drop=0.06, seed=1), "no reply within"),
        (Faults(duplicate=0.5, seed=1), "reply dropped"),
        (Faults(reorder=0.2, seed=1), "no reply within"),
        (Faults(corrupt=0.08, seed=1), "rejected"),
    ],
    ids=["drop", "duplicate", "reorder", "corrupt"],
)
@pytest.mark.parametrize(
    "algorithm",
    [
        pytest.param(FEDAVG, id="FedAvg"),
        pytest.param(SCAFFOLD, id="Scaffold", marks=pytest.mark.slow),
    ],
)
def test_recoverable_faults_change_no_number(faults, said, algorithm):
    result = go(algorithm, faults, PATIENT)
    assert same(result, clean(type(algorithm).__name__))
    assert said in reasons(result)


def test_a_slow_client_is_left_out_and_reported_in_every_round():
    policy = Policy(wait_for=1.2, min_replies=0.8, back_off=0.01)
    result = go(faults=Faults(delays={1: 1.6}), policy=policy)
    np.testing.assert_allclose(result.state.w, only(0, 2, 3, 4).state.w, rtol=1e-12)
    assert "no reply within 1.2 s" in reasons(result)
    missing = [e for e in result.events if "no reply within" in e.reason or "skipped" in e.reason]
    steps = {e.step for e in missing if e.step != "handshake"}
    assert {e.client for e in missing} == {1}
    assert {e.round for e in missing if e.step != "handshake"} == {0, 1, 2, 3}
    assert len(steps) == 1 and steps.pop().endswith(".gradient_steps")


def test_what_clients_keep_is_asked_of_all_of_them(monkeypatch):
    """A client in back-off may be left out of a mean, but its memory must not be lost."""
    exchange, seen = Session.exchange, {}

    def spy(self, step, requests, *, may_skip=True, **rest):
        seen.setdefault(step, set()).add(may_skip)
        return exchange(self, step, requests, may_skip=may_skip, **rest)

    monkeypatch.setattr(Session, "exchange", spy)
    go(SCAFFOLD)
    assert seen.pop("memory") == {False}
    assert any(True in may_skip for may_skip in seen.values())


def test_a_crashed_client_is_reported_at_once_and_the_run_continues(tmp_path):
    result = go(faults=Faults(crashes={2: 2}), policy=MOST, directory=tmp_path)
    assert result.status == "finished"
    gone = [e for e in result.events if "process has died" in e.reason]
    assert {(e.client, e.round) for e in gone} == {(2, 1), (2, 2), (2, 3)}
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["client"] for line in lines] == [2, 2, 2]
    assert len(result.history) == 2  # before the first round and after the last


def test_two_of_five_clients_dead_from_the_start():
    result = go(faults=Faults(crashes={0: 0, 3: 0}), policy=MOST)
    np.testing.assert_allclose(result.state.w, only(1, 2, 4).state.w, rtol=1e-12)
    assert {e.client for e in result.events} == {0, 3}


@pytest.mark.parametrize("algorithm", [FEDAVG, SCAFFOLD], ids=["FedAvg", "Scaffold"])
def test_too_few_replies_stop_the_run_and_it_resumes_exactly(tmp_path, algorithm):
    name = type(algorithm).__name__
    policy = Policy(wait_for=1.0, retries=1, back_off=0.01)
    crashes = Faults(crashes=dict.fromkeys(range(5), 4))
    with pytest.raises(Stopped, match="clients replied"):
        go(algorithm, crashes, policy, directory=tmp_path, checkpoint_every=1)
    rounds = [p.stem for p in (tmp_path / "checkpoints").iterdir()]
    assert rounds and "round-000000004" not in rounds
    assert (tmp_path / "events.jsonl").read_text().count("retrying in")
    result = go(algorithm, directory=tmp_path, checkpoint_every=1)
    assert same(result, clean(name))
    assert result.ledger == clean(name).ledger


@pytest.mark.parametrize(
    ("faults", "policy", "said"),
    [
        (Faults(poison=(4,)), MOST, "NaN or infinity"),
        (Faults(scale={4: 1e6}), Policy(20.0, 0.6, largest_norm=1e3), "norm is"),
    ],
    ids=["NaN", "norm"],
)
def test_invalid_values_are_rejected_and_the_run_continues(faults, policy, said):
    result = go(faults=faults, policy=policy)
    np.testing.assert_allclose(result.state.w, only(0, 1, 2, 3).state.w, rtol=1e-12)
    assert {e.client for e in result.events} == {4}
    assert said in reasons(result)


def test_when_all_clients_send_nan_the_run_has_diverged():
    with pytest.warns(UserWarning, match="diverged in round 1"):
        result = go(faults=Faults(poison=(0, 1, 2, 3, 4)), guard=None)
    assert (result.status, result.rounds) == ("diverged", 1)


def test_a_handshake_with_another_algorithm_fails_and_shows_both_values():
    def other(client, program, algorithm, state, _):
        own = rk.FedAvg(lr=0.2, local_steps=2, batch_size=2) if client == 3 else algorithm
        rows = program.population.only(client)
        return Worker(client, ZOO.problem, own, rows, state, plan("FedAvg"))

    with pytest.raises(HandshakeError, match=r"client 3.*algorithm.*0\.1.*0\.2"):
        go(make=other)


class Byzantine:
    """A client that changes the form of its replies."""

    def __init__(self, worker, change):
        self.answer_in_parts = lambda data: wire.encode_parts(
            wire.Message(**{**vars(wire.decode(worker.answer(data))), **change})
        )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"client": 2}, "claims to be from client 2"),
        ({"name": "os.system"}, "it is for step os.system"),
        ({"slot": 3}, "slot 3"),
        ({"arrays": {"work": np.zeros(2, np.uint64), "reply/0": np.zeros(3)}}, "expected"),
        ({"arrays": {"work": np.zeros(2, np.uint64), "reply/0": np.zeros(2, "f4")}}, "expected"),
        ({"arrays": {}}, "not the reply"),
        ({"kind": wire.Kind.RUN}, "not the reply"),
    ],
    ids=["client", "step", "slot", "shape", "type", "nothing", "kind"],
)
def test_malformed_replies_are_rejected(change, said):
    def make(client, program, algorithm, state, _):
        rows = program.population.only(client)
        worker = Worker(client, ZOO.problem, algorithm, rows, state, plan("FedAvg"))
        return Byzantine(worker, change) if client == 1 else worker

    result = go(make=make, policy=MOST, rounds=2)
    assert result.status == "finished"
    assert {e.client for e in result.events} == {1}
    assert said in reasons(result)


@pytest.mark.parametrize("algorithm", [FEDAVG, SCAFFOLD], ids=["FedAvg", "Scaffold"])
def test_a_restarted_client_is_sent_everything_again(algorithm):
    # memories are collected before a client's fourth request, so nothing is lost
    restarts = Faults(restarts=dict.fromkeys(range(5), 4))
    result = go(algorithm, restarts, evaluate_every=1)
    assert same(result, clean(type(algorithm).__name__))
    assert "not have a handshake with this server" in reasons(result)


def test_a_client_that_loses_its_memory_stops_the_run_or_is_reported(tmp_path):
    restarts = Faults(restarts=dict.fromkeys(range(5), 3))  # when it is asked for its memory
    with pytest.raises(Stopped, match=r"client \d .*lost"):
        go(SCAFFOLD, restarts, directory=tmp_path, evaluate_every=1)
    result = go(SCAFFOLD, directory=tmp_path, evaluate_every=1)
    assert same(result, clean("Scaffold"))
    lenient = go(SCAFFOLD, restarts, Policy(wait_for=5.0, min_replies=0.5), evaluate_every=1)
    assert "its memory of the last rounds is lost" in reasons(lenient)


def test_a_client_survives_whatever_it_is_sent():
    rng = np.random.default_rng(0)
    rows = POPULATION.only(0)
    state = clean("FedAvg").state
    worker = Worker(0, ZOO.problem, FEDAVG, rows, state, plan("FedAvg"))
    texts = [b"", b"[", b"[[[[", b"[0,[],[],[[1,99,-1,[]]],[]]", b'[0,[],[],[],[["a",0]]]', b"{}"]
    for i in range(500):
        arrays = {
            "instructions": np.frombuffer(texts[i % len(texts)], np.uint8),
            "value/x/0": np.ones(1),
        }
        kind = wire.Kind(int(rng.integers(1, 5)))
        data = bytearray(wire.encode(wire.Message(kind, "step", i % 2, 0, i, arrays)))
        if i % 3 == 0:
            data[int(rng.integers(len(data)))] ^= 1
        assert wire.decode(worker.answer(bytes(data))).kind is wire.Kind.FAILURE


def test_a_byzantine_client_moves_the_mean_and_not_the_median():
    def distance(aggregate):
        result = go(faults=Faults(scale={2: -40.0}), policy=QUICK, aggregate=aggregate)
        return float(np.linalg.norm(result.state.w - clean("FedAvg").state.w))

    assert distance(rk.aggregate.Mean()) > 10 * distance(rk.aggregate.Median())
    assert distance(rk.aggregate.Mean()) > 10 * distance(rk.aggregate.Krum(bad=1))


@pytest.mark.parametrize("factor", [1e6, -1e300])
def test_a_reply_out_of_all_proportion_is_rejected_and_its_client_blamed(factor):
    """The second is near the largest finite number: added up, it would make all others NaN."""
    result = go(faults=Faults(scale={2: factor}), policy=MOST)
    np.testing.assert_allclose(result.state.w, only(0, 1, 3, 4).state.w, rtol=1e-12)
    blamed = [e for e in result.events if "largest_ratio=10000" in e.reason]
    assert [(e.client, e.round) for e in blamed] == [(2, round) for round in range(4)]
    with pytest.raises(Stopped, match=r"4 of 5 clients replied, 5 are needed; none from client 2"):
        go(faults=Faults(scale={2: factor}))


def test_a_robust_rule_is_given_what_is_not_finite():
    result = go(faults=Faults(poison=(2,)), aggregate=rk.aggregate.Median())
    assert result.status == "finished"
    told = [e for e in result.events if "NaN or infinity; the robust rule decides" in e.reason]
    assert {(e.client, e.round) for e in told} == {(2, round) for round in range(4)}
    kept = go(SCAFFOLD, Faults(poison=(2,)), aggregate=rk.aggregate.Median())
    assert kept.status == "finished" and np.isfinite(kept.solution[0]).all()


def test_a_run_without_any_protection_says_so_once():
    bare = Policy(wait_for=5.0, largest_ratio=math.inf)
    (event,) = go(policy=bare).events
    assert (event.client, event.step) == (None, "aggregate")
    assert "nothing limits what a client may send" in event.reason
    assert not go(policy=bare, aggregate=rk.aggregate.Median()).events
    assert not go().events
    with pytest.raises(ValueError, match="largest_ratio must be above 1, got 1"):
        Policy(largest_ratio=1)


def test_too_few_for_a_robust_rule_are_too_few_replies():
    policy = Policy(wait_for=20.0, back_off=0.01, min_replies=0.2, retries=0)
    crashes = Faults(crashes={0: 1})
    assert go(faults=crashes, policy=policy, aggregate=rk.aggregate.Median()).status == "finished"
    with pytest.raises(Stopped, match="4 of 5 clients replied, 5 are needed"):
        go(faults=crashes, policy=policy, aggregate=rk.aggregate.Krum(bad=1))


def test_several_runs_side_by_side_are_refused():
    runs = [rk.Run(FEDAVG, ZOO.start, seed) for seed in (0, 1)]
    with pytest.raises(ValueError, match="batch=1"):
        rk.sweep(runs, ZOO.problem, POPULATION, rounds=1, engine=rk.remote.Remote())


def test_a_memory_comes_back_only_for_those_that_took_part():
    state = clean("Scaffold").state
    assert state.own.n_clients == 5
    compiled = rk.run(SCAFFOLD, ZOO.problem, POPULATION, ZOO.start, rounds=4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-12, 1e-12), state, compiled.state)
