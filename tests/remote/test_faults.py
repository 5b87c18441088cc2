"""What goes wrong between machines: nothing hangs, and no mean is silent about who is missing."""

import json

import jax
import numpy as np
import pytest
from world import (
    FEDAVG,
    PEOPLE,
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


def test_without_faults_nothing_is_noted():
    result = clean("FedAvg")
    assert result.events == ()
    np.testing.assert_allclose(result.state.w, only(0, 1, 2, 3, 4).state.w, rtol=1e-12)


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        (Faults(drop=0.06, seed=1), "no reply within"),
        (Faults(duplicate=0.5, seed=1), "reply dropped"),
        (Faults(reorder=0.2, seed=1), "no reply within"),
        (Faults(corrupt=0.08, seed=1), "refused"),
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
def test_what_can_be_mended_changes_no_number(faults, said, algorithm):
    result = go(algorithm, faults, PATIENT)
    assert same(result, clean(type(algorithm).__name__))
    assert said in reasons(result)


def test_a_slow_client_is_left_out_and_named_in_every_round():
    policy = Policy(wait_for=1.2, min_replies=0.8, back_off=0.01)
    result = go(faults=Faults(delays={1: 1.6}), policy=policy)
    np.testing.assert_allclose(result.state.w, only(0, 2, 3, 4).state.w, rtol=1e-12)
    assert "no reply within 1.2 s" in reasons(result)
    missing = [e for e in result.events if "no reply within" in e.reason or "not asked" in e.reason]
    steps = {e.step for e in missing if e.step != "agreement"}
    assert {e.client for e in missing} == {1}
    assert {e.round for e in missing if e.step != "agreement"} == {0, 1, 2, 3}
    assert len(steps) == 1 and steps.pop().endswith(".gradient_steps")


def test_what_clients_keep_is_asked_of_all_of_them(monkeypatch):
    """Who is left out of a mean has lost little; not asked for its memory, it would lose that."""
    ask, seen = Session.ask, {}

    def spy(self, step, asks, *, spares=True, **rest):
        seen.setdefault(step, set()).add(spares)
        return ask(self, step, asks, spares=spares, **rest)

    monkeypatch.setattr(Session, "ask", spy)
    go(SCAFFOLD)
    assert seen.pop("memory") == {False}
    assert any(True in spares for spares in seen.values())


def test_a_crashed_client_is_noticed_at_once_and_the_run_goes_on(tmp_path):
    result = go(faults=Faults(crashes={2: 2}), policy=MOST, directory=tmp_path)
    assert result.status == "finished"
    gone = [e for e in result.events if "process is gone" in e.reason]
    assert {(e.client, e.round) for e in gone} == {(2, 1), (2, 2), (2, 3)}
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["client"] for line in lines] == [2, 2, 2]
    assert len(result.history) == 2  # before the first round and after the last


def test_two_of_five_clients_dead_from_the_start():
    result = go(faults=Faults(crashes={0: 0, 3: 0}), policy=MOST)
    np.testing.assert_allclose(result.state.w, only(1, 2, 4).state.w, rtol=1e-12)
    assert {e.client for e in result.events} == {0, 3}


@pytest.mark.parametrize("algorithm", [FEDAVG, SCAFFOLD], ids=["FedAvg", "Scaffold"])
def test_too_few_replies_stop_the_run_and_it_goes_on_exactly(tmp_path, algorithm):
    name = type(algorithm).__name__
    policy = Policy(wait_for=1.0, retries=1, back_off=0.01)
    crashes = Faults(crashes=dict.fromkeys(range(5), 4))
    with pytest.raises(Stopped, match="clients answered"):
        go(algorithm, crashes, policy, directory=tmp_path, checkpoint_every=1)
    rounds = [p.stem for p in (tmp_path / "checkpoints").iterdir()]
    assert rounds and "round-000000004" not in rounds
    assert (tmp_path / "events.jsonl").read_text().count("asking again")
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
def test_nonsense_is_refused_by_name_and_the_run_goes_on(faults, policy, said):
    result = go(faults=faults, policy=policy)
    np.testing.assert_allclose(result.state.w, only(0, 1, 2, 3).state.w, rtol=1e-12)
    assert {e.client for e in result.events} == {4}
    assert said in reasons(result)


@pytest.mark.filterwarnings("ignore::rookery.runner.run_state.DivergenceWarning")
def test_when_all_clients_send_nan_the_run_has_diverged():
    result = go(faults=Faults(poison=(0, 1, 2, 3, 4)))
    assert (result.status, result.rounds) == ("diverged", 1)


def test_a_client_with_another_algorithm_is_refused_with_both_values():
    def other(client, program, algorithm, state, _):
        own = rk.FedAvg(lr=0.2, local_steps=2, batch_size=2) if client == 3 else algorithm
        rows = program.population.only(client)
        return Worker(client, ZOO.problem, own, rows, state, plan("FedAvg"))

    with pytest.raises(HandshakeError, match=r"client 3.*algorithm.*0\.1.*0\.2"):
        go(make=other)


class Liar:
    """A client that changes the form of its replies."""

    def __init__(self, worker, change):
        self.answer = lambda data: wire.encode(
            wire.Message(**{**vars(wire.decode(worker.answer(data))), **change})
        )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"client": 2}, "claims to be of client 2"),
        ({"name": "os.system"}, "it is of os.system"),
        ({"slot": 3}, "it is of"),
        ({"arrays": {"work": np.zeros(2, np.uint64), "give/0": np.zeros(3)}}, r"was wanted"),
        ({"arrays": {"work": np.zeros(2, np.uint64), "give/0": np.zeros(2, "f4")}}, "was wanted"),
        ({"arrays": {}}, "not the reply"),
        ({"kind": wire.Kind.RUN}, "not the reply"),
    ],
    ids=["client", "step", "slot", "shape", "type", "nothing", "kind"],
)
def test_replies_of_another_form_are_refused(change, said):
    def make(client, program, algorithm, state, _):
        rows = program.population.only(client)
        worker = Worker(client, ZOO.problem, algorithm, rows, state, plan("FedAvg"))
        return Liar(worker, change) if client == 1 else worker

    result = go(make=make, policy=MOST, rounds=2)
    assert result.status == "finished"
    assert {e.client for e in result.events} == {1}
    assert said in reasons(result)


@pytest.mark.parametrize("algorithm", [FEDAVG, SCAFFOLD], ids=["FedAvg", "Scaffold"])
def test_a_client_that_was_started_anew_is_given_all_again(algorithm):
    # memories have come to the server before a client's fourth request, so nothing is lost
    restarts = Faults(restarts=dict.fromkeys(range(5), 4))
    result = go(algorithm, restarts, evaluate_every=1)
    assert same(result, clean(type(algorithm).__name__))
    assert "no agreement with this server" in reasons(result)


def test_a_client_that_loses_its_memory_stops_the_run_or_is_noted(tmp_path):
    restarts = Faults(restarts=dict.fromkeys(range(5), 3))  # when it is asked for its memory
    with pytest.raises(Stopped, match="lost what it kept"):
        go(SCAFFOLD, restarts, directory=tmp_path, evaluate_every=1)
    result = go(SCAFFOLD, directory=tmp_path, evaluate_every=1)
    assert same(result, clean("Scaffold"))
    lenient = go(SCAFFOLD, restarts, Policy(wait_for=5.0, min_replies=0.5), evaluate_every=1)
    assert "its memory of the last rounds is lost" in reasons(lenient)


def test_a_client_lives_through_whatever_it_is_sent():
    rng = np.random.default_rng(0)
    rows = PEOPLE.only(0)
    state = clean("FedAvg").state
    worker = Worker(0, ZOO.problem, FEDAVG, rows, state, plan("FedAvg"))
    texts = [b"", b"[", b"[[[[", b"[0,[],[],[[1,99,-1,[]]],[]]", b'[0,[],[],[],[["a",0]]]', b"{}"]
    for i in range(500):
        arrays = {"script": np.frombuffer(texts[i % len(texts)], np.uint8), "value/x/0": np.ones(1)}
        kind = wire.Kind(int(rng.integers(1, 5)))
        data = bytearray(wire.encode(wire.Message(kind, "step", i % 2, 0, i, arrays)))
        if i % 3 == 0:
            data[int(rng.integers(len(data)))] ^= 1
        assert wire.decode(worker.answer(bytes(data))).kind is wire.Kind.FAILURE


def test_a_poisoner_moves_the_mean_and_not_the_median():
    def distance(aggregate):
        result = go(faults=Faults(scale={2: -40.0}), policy=QUICK, aggregate=aggregate)
        return float(np.linalg.norm(result.state.w - clean("FedAvg").state.w))

    assert distance(rk.aggregate.Mean()) > 10 * distance(rk.aggregate.Median())
    assert distance(rk.aggregate.Mean()) > 10 * distance(rk.aggregate.Krum(bad=1))


def test_too_few_for_a_robust_rule_are_too_few_replies():
    policy = Policy(wait_for=20.0, back_off=0.01, min_replies=0.2, retries=0)
    crashes = Faults(crashes={0: 1})
    assert go(faults=crashes, policy=policy, aggregate=rk.aggregate.Median()).status == "finished"
    with pytest.raises(Stopped, match="4 of 5 clients answered, 5 are needed"):
        go(faults=crashes, policy=policy, aggregate=rk.aggregate.Krum(bad=1))


def test_several_jobs_side_by_side_are_refused():
    jobs = [rk.Run(FEDAVG, ZOO.start, seed) for seed in (0, 1)]
    with pytest.raises(ValueError, match="batch=1"):
        rk.sweep(jobs, ZOO.problem, PEOPLE, rounds=1, engine=rk.remote.Remote())


def test_a_memory_comes_back_only_for_those_that_took_part():
    state = clean("Scaffold").state
    assert state.own.n_clients == 5
    compiled = rk.run(SCAFFOLD, ZOO.problem, PEOPLE, ZOO.start, rounds=4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-12, 1e-12), state, compiled.state)
