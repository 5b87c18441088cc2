"""Secure aggregation: exact sums, drop-outs, what a message shows, and what is refused."""

import functools
import math
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.algorithms import FedPAQ, SimFBO
from rookery.engines.engine import Program, Stopped
from rookery.program.algorithm import numbers_to_arrays
from rookery.program.participation import Everyone, WithReplacement
from rookery.program.privacy import Distributed, Private, QuantileClip
from rookery.remote import (
    Enforcer,
    Faults,
    InProcess,
    Policy,
    Remote,
    SecureAggregation,
    SitePolicy,
    Worker,
)
from rookery.remote.protocol import masks, shamir, wire
from rookery.remote.protocol.handshake import HandshakeError
from rookery.remote.protocol.tracing import trace_round
from rookery.remote.server.federation import RemoteFederation

pytest.importorskip("cryptography", reason="an environment of its own: make test-secure")

from rookery.remote.client.masking import KeysLost, Masking

CLIENTS = 6
ZOO = rk.zoo.quadratic_losses(n_clients=CLIENTS, size=2, rows=3, noise=0.3)
TINY = rk.zoo.quadratic_bilevel(n_clients=4, x_size=1, y_size=2, rows=3, noise=0.3)
WEIGHTS = np.array([1.0, 2.0, 3.0, 1.0, 5.0, 4.0])
POPULATION = rk.Population.stacked(ZOO.data, weights=WEIGHTS)
SECURE = SecureAggregation()  # 4 of 6
FEDAVG = rk.FedAvg(lr=0.1, local_steps=2, batch_size=2)
ALL = Policy(wait_for=60.0, back_off=0.01)
SOME = Policy(wait_for=60.0, back_off=0.01, min_replies=0.5)
KEYS, MASKED, UNMASKED = 1, 2, 3
"""After how many requests a client crashes, to be missing from that exchange on."""


# ---- the sum, against integers of Python


class State(NamedTuple):
    """Replies, and what has become of them."""

    rows: Any
    out: Any


class Reduced(rk.AbstractAlgorithm):
    """One exchange: every client replies with its row."""

    is_sum: bool = False

    def check(self, problem, n_clients):
        pass

    def init(self, problem, *variables):
        rng = np.random.default_rng(1)
        rows = (rng.normal(size=(CLIENTS, 3)), rng.normal(size=(CLIENTS,)).astype(np.float32) * 9)
        if self.is_sum:
            rows = (*rows, rng.integers(-9, 9, (CLIENTS, 2)))
        rows = jax.tree.map(jnp.asarray, rows)
        return State(rows, jax.tree.map(lambda a: jnp.zeros(a.shape[1:], a.dtype), rows))

    def round(self, fed, problem, state, key):
        cohort = fed.sample(Everyone(), key)
        replies = fed.map(same, fed.scatter(cohort, state.rows))
        return State(state.rows, fed.sum(replies) if self.is_sum else fed.mean(replies))

    def solution(self, state):
        return (state.rows[0],)


def same(client, value):
    """The argument."""
    return value


@functools.cache
def reduced(is_sum, secure):
    """The algorithm, its state and its plan: steps are compiled once for all tests."""
    algorithm = numbers_to_arrays(Reduced(is_sum=is_sum))
    state = algorithm.init(ZOO.problem)
    return algorithm, state, trace_round(algorithm, ZOO.problem, POPULATION, state, secure=secure)


def one_exchange(
    faults=None, policy=SOME, is_sum=False, secure: Any = SECURE, rows=None, enforcer=None
):
    """The state after an exchange, and its events."""
    algorithm, state, plan = reduced(is_sum, secure)
    state = state if rows is None else state._replace(rows=rows)

    def make(client, program, _, __, ___):
        own = POPULATION.only(client)
        return Worker(client, ZOO.problem, algorithm, own, state, plan, enforcer=enforcer)

    program = Program(ZOO.problem, POPULATION, rk.delays.Clock(), rk.aggregate.Mean())
    engine = Remote(InProcess(faults or Faults(), make), policy, secure=secure)
    runner = engine.prepare(program, [algorithm])
    events = []
    runner.follow(lambda _, event: events.append(event))
    try:
        (progress,) = runner.advance([state], [jax.random.key(0)], 0, [1])
    finally:
        runner.close()
    first, *rest = events
    assert first.reason.startswith("secure aggregation hides single replies")
    return progress.state, rest


def plain_mean(state, alive, secure):
    """The same fixed-point mean without masks: sums of Python's integers."""
    weights = np.asarray(jnp.asarray(POPULATION.weights) / jnp.sum(POPULATION.weights))
    share = jnp.sum(jnp.where(jnp.asarray([c in alive for c in range(CLIENTS)]), weights, 0.0))

    def one(rows):
        rows, scale = np.asarray(rows), int(secure.scale)
        flat = rows.reshape(CLIENTS, -1).astype(np.float64)
        total = [
            sum(round(x * float(weights[c]) * scale) for c, x in enumerate(column) if c in alive)
            for column in flat.T.tolist()
        ]
        leaf = np.array([float(t) / scale for t in total]).reshape(rows.shape[1:])
        return jnp.asarray(leaf.astype(rows.dtype)) / share.astype(rows.dtype)

    return jax.tree.map(one, state.rows)


DROPPED = {
    "none": ({}, set()),
    "one before keys": ({2: KEYS}, {2}),
    "one before its reply": ({2: MASKED}, {2}),
    "one after its reply": ({2: UNMASKED}, set()),
    "two, each elsewhere": ({2: MASKED, 5: KEYS}, {2, 5}),
    "two before their replies": ({0: MASKED, 5: MASKED}, {0, 5}),
    "two, one of them after": ({0: MASKED, 5: UNMASKED}, {0}),
    "two after their replies": ({0: UNMASKED, 5: UNMASKED}, set()),
}


@pytest.mark.parametrize("crashes", DROPPED)
@pytest.mark.parametrize("bits", [32, 64])
def test_means_equal_the_plain_fixed_point_mean_bit_for_bit(crashes, bits):
    faults, missing = DROPPED[crashes]
    secure = SecureAggregation(bits=bits)
    state, events = one_exchange(Faults(crashes=faults), secure=secure)
    want = plain_mean(state, set(range(CLIENTS)) - missing, secure)
    jax.tree.map(np.testing.assert_array_equal, state.out, want)
    assert {event.client for event in events} == set(faults)
    assert [leaf.dtype for leaf in state.out] == [np.float64, np.float32]


@pytest.mark.parametrize("crashes", [{}, {3: UNMASKED}], ids=["all", "one after its reply"])
def test_sums_are_exact_for_integers(crashes):
    state, _ = one_exchange(Faults(crashes=crashes), is_sum=True)
    assert state.out[2].tolist() == np.asarray(state.rows[2]).sum(0).tolist()
    np.testing.assert_allclose(state.out[0], np.asarray(state.rows[0]).sum(0), atol=1e-9)


@pytest.mark.parametrize("when", [KEYS, MASKED, UNMASKED])
def test_beyond_the_threshold_the_run_stops(when):
    with pytest.raises(Stopped, match=r"3 of \d clients replied.*needs 4 of 6 clients"):
        one_exchange(Faults(crashes=dict.fromkeys((0, 2, 4), when)))


def test_a_sum_needs_every_client_and_a_mean_as_many_as_the_policy_says():
    crashed = Faults(crashes={1: MASKED})
    with pytest.raises(Stopped, match="5 of 6"):
        one_exchange(crashed, is_sum=True)
    with pytest.raises(Stopped, match="5 of 6"):
        one_exchange(crashed, ALL)


@pytest.mark.parametrize("when", [2, 3])
def test_a_client_that_was_restarted_takes_part_with_new_keys(when):
    state, events = one_exchange(Faults(restarts={4: when}), ALL)
    jax.tree.map(
        np.testing.assert_array_equal, state.out, plain_mean(state, set(range(CLIENTS)), SECURE)
    )
    assert "not have a handshake" in events[0].reason


@pytest.mark.parametrize("seed", [1, 2])
def test_lost_damaged_and_doubled_messages_change_no_bit(seed):
    policy = Policy(wait_for=0.5, back_off=0.0, retries=60)
    faults = Faults(drop=0.08, corrupt=0.08, duplicate=0.2, reorder=0.1, seed=seed)
    state, events = one_exchange(faults, policy)
    jax.tree.map(
        np.testing.assert_array_equal, state.out, plain_mean(state, set(range(CLIENTS)), SECURE)
    )
    assert events


@pytest.mark.parametrize("value", [1e10, np.nan])
def test_a_reply_that_does_not_fit_is_refused_at_the_client(value):
    _, state, _ = reduced(False, SECURE)
    rows = (state.rows[0].at[3, 1].set(value), state.rows[1])
    state, events = one_exchange(rows=rows)
    alive = set(range(CLIENTS)) - {3}
    jax.tree.map(np.testing.assert_array_equal, state.out, plain_mean(state, alive, SECURE))
    assert {(e.client, "OverflowError" in e.reason) for e in events} == {(3, True)}


def test_a_site_clips_before_it_masks_and_logs_all_three_messages(tmp_path):
    enforcer = Enforcer(replace(SitePolicy.without_limits(), clip=0.5), tmp_path)
    state, _ = one_exchange(enforcer=enforcer)
    rows = [np.asarray(leaf).reshape(CLIENTS, -1) for leaf in state.rows]
    norms = np.sqrt(sum((leaf.astype(float) ** 2).sum(1) for leaf in rows))
    factors = np.minimum(0.5 / norms, 1) * WEIGHTS / WEIGHTS.sum()
    assert (norms > 0.5).any()
    for leaf, out in zip(rows, state.out, strict=True):
        np.testing.assert_allclose(np.ravel(out), factors @ leaf, atol=1e-6)
    said = "".join(file.read_text() for file in tmp_path.glob("*.jsonl"))
    for step in ("secure keys", "same", "secure unmasking"):
        assert said.count(step) >= CLIENTS


# ---- whole runs


def finished(algorithm, zoo: Any = ZOO, faults=None, policy=ALL, secure: Any = SECURE, **settings):
    engine = Remote(InProcess(faults or Faults()), policy, secure=secure)
    population = rk.Population.stacked(zoo.data)
    settings = {"rounds": 3, **settings}
    return rk.run(algorithm, zoo.problem, population, zoo.start, engine=engine, **settings)


def assert_near(a, b):
    jax.tree.map(lambda p, q: np.testing.assert_allclose(p, q, atol=1e-8), a.solution, b.solution)


def test_a_stopped_run_resumes_exactly(tmp_path):
    whole = finished(FEDAVG)
    crashes = Faults(crashes=dict.fromkeys((0, 1, 2), 4 + MASKED - KEYS))
    with pytest.raises(Stopped, match="needs 4 of 6"):
        finished(FEDAVG, faults=crashes, policy=SOME, directory=tmp_path, checkpoint_every=1)
    assert len([*(tmp_path / "checkpoints").iterdir()]) > 0
    result = finished(FEDAVG, policy=SOME, directory=tmp_path, checkpoint_every=1)
    assert result.status == "finished"
    np.testing.assert_array_equal(result.state.w, whole.state.w)


CASES = {
    "FedNest": rk.FedNest(
        outer_lr=0.05, inner_lr=0.1, ihgp=rk.parts.FedIHGP(terms=3, lipschitz=5.0), clients=3
    ),
    "SimFBO": SimFBO(outer_lr=0.05, inner_lr=0.1, server_lr=(0.05, 0.2, 0.1), local_steps=2),
    "FedMSA": rk.FedMSA(
        outer_lr=0.05, inner_lr=0.1, local_steps=2, renewal=0.5, first_batch=1, clients=3
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_nested_methods_run_and_only_rounding_differs(name):
    plain = finished(CASES[name], TINY, secure=None)
    hidden = finished(CASES[name], TINY)
    assert_near(plain, hidden)
    assert hidden.ledger == plain.ledger
    assert [event.client for event in hidden.events] == [None]  # what it cannot protect from


@pytest.mark.parametrize("noise", [1.0, Distributed(1.0)], ids=["central", "distributed"])
@pytest.mark.parametrize("clip", [0.1, QuantileClip(0.1, noise=4.0)], ids=["fixed", "quantile"])
def test_private_runs_clip_at_the_clients_and_have_the_same_noise(noise, clip):
    sampled = rk.FedAvg(lr=0.1, local_steps=2, batch_size=2, clients=4)
    private = Private(sampled, clip=clip, noise=noise, delta=None)
    plain = finished(private, secure=None)
    assert_near(plain, finished(private))
    assert float(jnp.linalg.norm(plain.solution[0] - finished(sampled).solution[0])) > 0.01


REFUSED: dict[str, tuple[Any, dict, str]] = {
    "a robust rule": (FEDAVG, {"aggregate": rk.aggregate.Median()}, "Median"),
    "a norm": (FEDAVG, {"policy": Policy(largest_norm=9.0)}, "largest_norm=9"),
    "stack": (rk.AgnosticFL(lr=0.1, ascent_lr=0.1), {}, "fed.stack"),
    "memory": (rk.Scaffold(lr=0.1, clients=4), {}, "fed.keep"),
    "a codec": (FedPAQ(lr=0.1, codec=rk.parts.StochasticRounding(8)), {}, "compressed"),
    "poll": (rk.FedBuff(lr=0.1, buffer_size=2), {}, "fed.poll"),
    "replacement": (rk.FedAvg(lr=0.1, clients=WithReplacement(4)), {}, "replacement"),
    "two clients": (rk.FedAvg(lr=0.1, clients=2), {}, "a cohort of 2"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_single_replies_is_refused_by_name_before_the_first_message(name):
    algorithm, settings, said = REFUSED[name]
    nobody = Faults(crashes=dict.fromkeys(range(CLIENTS), 0))  # a message would fail otherwise
    with pytest.raises(ValueError, match=rf"secure aggregation.*{said}"):
        finished(algorithm, faults=nobody, **settings)


def test_the_handshake_compares_the_settings():
    def make(client, program, algorithm, state, _):
        _, _, plan = reduced(False, SecureAggregation(threshold=0.9) if client == 1 else SECURE)
        return Worker(client, ZOO.problem, algorithm, POPULATION.only(client), state, plan)

    algorithm, state, _ = reduced(False, SECURE)
    program = Program(ZOO.problem, POPULATION, rk.delays.Clock(), rk.aggregate.Mean())
    runner = Remote(InProcess(Faults(), make), ALL, secure=SECURE).prepare(program, [algorithm])
    with pytest.raises(HandshakeError, match=r"client 1.*secure aggregation.*0\.66.*0\.9"):
        runner.advance([state], [jax.random.key(0)], 0, [1])


# ---- what a message shows


class Clients:
    """Clients without a network, and a server that may ask for anything."""

    def __init__(self, n=4, secure=SECURE):
        self.clients = [Masking(i, secure) for i in range(n)]
        self.keys = np.stack([client.renew() for client in self.clients])
        self.number = np.array(7, np.uint64)
        self.prepared = [client.prepare(self.asked(keys=self.keys)) for client in self.clients]
        self.public = np.stack([keys[0] for keys, _ in self.prepared])

    def asked(self, clients=None, **arrays):
        ids = range(len(self.clients)) if clients is None else clients
        named = {f"secure/{name}": array for name, array in arrays.items()}
        ids = np.array([*ids], np.uint32)
        return {"secure/number": self.number, "secure/clients": ids, **named}

    def masked(self, i, content, members=None):
        members = [*range(len(self.clients))] if members is None else members
        shares = np.stack([self.prepared[m][1][i] for m in members])
        arrays = self.asked(members, keys=self.public[members], shares=shares)
        return self.clients[i].mask(arrays, [np.asarray(content)])


def uniformity(contents):
    """Chi-square of the bytes of one client's message, in standard deviations; 255 degrees."""
    messages = [Clients(3).masked(0, content) for content in contents]
    counts = np.bincount(np.concatenate(messages).view(np.uint8), minlength=256)
    chi_square = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
    return (chi_square - 255) / math.sqrt(2 * 255)


CONTENTS = {"zeros": np.zeros(100), "a pattern": np.tile([-1.0, 1e6, 0.1, 3.0], 25)}


@pytest.mark.parametrize("content", CONTENTS)
def test_a_masked_message_is_uniform_whatever_it_contains(content):
    assert abs(uniformity([CONTENTS[content]] * 60)) < 6


@pytest.mark.parametrize("left_out", ["self_mask", "pair_mask"])
def test_either_kind_of_mask_hides_and_without_both_it_shows(monkeypatch, left_out):
    def nothing(*arguments):
        return np.zeros(arguments[-2], arguments[-1])

    monkeypatch.setattr(masks, left_out, nothing)
    assert abs(uniformity([CONTENTS["a pattern"]] * 60)) < 6
    for name in ("self_mask", "pair_mask"):
        monkeypatch.setattr(masks, name, nothing)
    assert uniformity([CONTENTS["a pattern"]] * 60) > 1000


def test_two_contents_with_the_same_keys_differ_by_nothing_but_themselves():
    """The sum of all messages, without the self-masks, is the sum of the contents."""
    world, contents = Clients(4), np.arange(8.0).reshape(4, 2)
    total = np.zeros(2, np.uint64)
    for i, row in enumerate(contents):
        total += world.masked(i, row)
    question = world.asked()
    revealed = [client.reveal(question) for client in world.clients]
    for i in range(4):
        shares = {shamir.point(j): revealed[j][i].tobytes() for j in range(3)}
        secret = shamir.combine(shares)
        assert masks.public_of(secret) == world.prepared[i][0][1].tobytes()
        total = total - masks.self_mask(secret, 2, np.dtype(np.uint64))
    assert SECURE.decode(total, [contents[0]])[0].tolist() == contents.sum(0).tolist()


def test_all_that_goes_up_in_a_run_is_masked_or_sealed():
    """No reply has the numbers of the client, and none has floating-point numbers at all."""
    seen: list[wire.Message] = []

    class Heard(Worker):
        def answer_in_parts(self, data):
            reply = super().answer_in_parts(data)
            seen.append(wire.decode(wire.joined(reply)))
            return reply

    algorithm, state, plan = reduced(False, SECURE)

    def make(client, *_):
        return Heard(client, ZOO.problem, algorithm, POPULATION.only(client), state, plan)

    program = Program(ZOO.problem, POPULATION, rk.delays.Clock(), rk.aggregate.Mean())
    runner = Remote(InProcess(Faults(), make), ALL, secure=SECURE).prepare(program, [algorithm])
    runner.advance([state], [jax.random.key(0)], 0, [1])
    runner.close()
    arrays = [(path, a) for message in seen for path, a in message.arrays.items()]
    assert {str(a.dtype) for _, a in arrays} == {"uint8", "uint64"}
    weights = np.asarray(jnp.asarray(POPULATION.weights))
    for message in seen:
        masked = message.arrays.get("reply/0")
        if isinstance(masked, np.ndarray) and masked.dtype == np.uint64:
            rows = [np.asarray(leaf[message.client]) for leaf in state.rows]
            plain = SECURE.encode(rows, float(weights[message.client]), CLIENTS)
            assert not (masked == plain).any()
    assert sum(path == "reply/1" for path, _ in arrays) == CLIENTS  # sealed shares, once each


# ---- a server that asks for too much


def test_a_client_sends_no_reply_unmasked():
    algorithm, state, plan = reduced(False, SECURE)
    program = Program(ZOO.problem, POPULATION, rk.delays.Clock(), rk.aggregate.Mean())
    runner: Any = Remote(InProcess(), Policy(5.0, retries=0), secure=SECURE).prepare(
        program, [algorithm]
    )
    runner.advance([state], [jax.random.key(0)], 0, [1])
    events = []
    runner.follow(lambda _, event: events.append(event))
    runner.session.begin_round(1)
    fed = RemoteFederation(program, runner.session, plan, in_real_time=False)
    cohort = fed.sample(Everyone(), jax.random.key(0))
    with pytest.raises(RuntimeError, match="0 of 6"):
        fed.stack(fed.map(same, fed.scatter(cohort, state.rows)))
    runner.close()
    assert len(events) == 6 and all("lacks the number of a secure" in e.reason for e in events)


def test_one_mask_hides_one_reply():
    world = Clients()
    first = world.masked(0, [1.0, 2.0]).copy()
    np.testing.assert_array_equal(world.masked(0, [5.0, 5.0]), first)


def test_shares_are_revealed_for_one_set_of_survivors():
    world = Clients()
    for i in range(4):
        world.masked(i, [1.0])
    first = world.clients[0].reveal(world.asked([0, 1, 2]))
    np.testing.assert_array_equal(world.clients[0].reveal(world.asked([0, 1, 2])), first)
    with pytest.raises(wire.WireError, match="other survivors"):
        world.clients[0].reveal(world.asked([0, 1, 3]))


def test_fewer_survivors_than_the_threshold_get_no_shares():
    world = Clients()
    world.masked(0, [1.0])
    with pytest.raises(wire.WireError, match="fewer than the threshold"):
        world.clients[0].reveal(world.asked([0, 1]))
    with pytest.raises(wire.WireError, match="not among"):
        world.clients[1].reveal(world.asked())  # it has sent nothing yet


def test_a_client_masks_only_among_those_who_were_asked_for_keys():
    world = Clients()
    with pytest.raises(wire.WireError, match="too few"):
        world.masked(0, [1.0], members=[0, 1])
    with pytest.raises(wire.WireError, match="not this one"):
        world.masked(0, [1.0], members=[1, 2, 3])
    with pytest.raises(KeysLost, match="keys for this exchange"):
        world.number = np.array(8, np.uint64)
        world.masked(0, [1.0])


def test_keys_are_refused_for_small_cohorts_and_old_keys():
    world = Clients()
    with pytest.raises(wire.WireError, match="too few to hide"):
        world.clients[0].prepare(world.asked([0, 1], keys=world.keys[:2]))
    with pytest.raises(KeysLost, match="key that the server has"):
        world.clients[0].prepare(world.asked(keys=world.keys[::-1].copy()))
    with pytest.raises(wire.WireError, match="twice"):
        world.clients[0].prepare(world.asked([0, 1, 1, 2], keys=world.keys))


def test_sealed_shares_are_for_one_client_and_one_exchange():
    world = Clients()
    world.prepared[1][1] = world.prepared[1][1][[3, 1, 2, 0]]
    with pytest.raises(ValueError, match="not for this client"):
        world.masked(0, [1.0])


def test_a_wrong_share_is_noticed(monkeypatch):
    reveal = Masking.reveal

    def lie(self, arrays):
        shares = reveal(self, arrays)
        return shares if self._id != 0 else shares ^ np.uint8(1)

    monkeypatch.setattr(Masking, "reveal", lie)
    with pytest.raises(Stopped, match="wrong share"):
        one_exchange()


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"rookery\[secure\]"):
        finished(FEDAVG)
