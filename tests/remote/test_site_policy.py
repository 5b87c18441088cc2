"""A site's policy at work: attacks that rebuild rows, every limit, and the site's log."""

import functools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from world import QUICK, ZOO, go, plan, reasons, same

import rookery as rk
from rookery.algorithms import FedPAQ, FeDXL
from rookery.cli.main import main
from rookery.program.algorithm import first_state, numbers_to_arrays
from rookery.program.memory import Memory
from rookery.program.row_privacy import RowPrivate
from rookery.remote import Enforcer, Policy, SitePolicy, Worker
from rookery.remote.client import site_log
from rookery.remote.client.site_policy import Refused, add_study, content_hash
from rookery.remote.protocol import handshake, instructions, wire
from rookery.remote.protocol.plan import BoundedLoop, spec
from rookery.remote.protocol.tracing import trace_round
from rookery.remote.protocol.wire import Kind, Message

OPEN = SitePolicy.without_limits()
ROWS = np.arange(24.0).reshape(12, 2) / 10


def but(**settings) -> SitePolicy:
    """A policy with these limits alone."""
    return SitePolicy(**{**vars(OPEN), **settings})


# ---- a server that asks one client what it likes


class OneClient:
    """A server with one client, which has these rows and this site policy."""

    def __init__(
        self, problem, rows, start, *, batch_size=None, lr=1.0, policy=None, folder="",
        algorithm=None,
    ):  # fmt: skip
        population = rk.Population.stacked(jax.tree.map(lambda a: np.asarray(a)[None], rows))
        if algorithm is None:
            algorithm = rk.FedAvg(lr=lr, local_steps=1, batch_size=batch_size)
        state = first_state(algorithm, problem, 1, (start,))
        enforcer = None if policy is None else Enforcer(policy, folder)
        self.plan = trace_round(numbers_to_arrays(algorithm), problem, population, state)
        self.worker = Worker(0, problem, algorithm, population, state, self.plan, enforcer=enforcer)
        self.number = 0
        reply = self.send(Kind.HELLO, handshake.write({}), "handshake")
        if reply.kind is Kind.HELLO:
            self.send(Kind.HELLO, reply.arrays, "handshake")

    def send(self, kind, arrays, name) -> Message:
        self.number += 1
        message = Message(kind, name, 0, exchange=self.number, arrays=arrays)
        return wire.decode(self.worker.answer(wire.encode(message)))

    def ask(self, *leaves, seed=0, steps=1) -> Message:
        """The reply of the client to one local step from these leaves, with this key."""
        refs = [(1, i) for i in range(len(leaves))]
        todo = [instructions.Instruction(2 + i, 0, -1, refs) for i in range(steps)]
        reply = [(1 + steps, i) for i in range(len(leaves))]
        return self.request(*leaves, seed=seed, steps=todo, reply=reply)

    def request(self, *leaves, seed=0, steps, **what) -> Message:
        """The reply to any request; the leaves are the value with the token 1."""
        wanted = instructions.Instructions(0, tokens=[1], steps=steps, **what)
        words = wire.Keys("threefry2x32", np.array([0, seed], np.uint32))
        arrays: dict[str, wire.Leaf] = {}
        for i, step in enumerate(steps):
            call = self.plan.calls[step.call]
            arrays |= {f"key/{i}": words} if call.has_key else {}
            for j, setting in enumerate(call.traced_settings):  # the number of the round
                arrays[f"setting/{i}/{j}"] = np.zeros(setting.shape, setting.dtype)
        arrays |= {f"value/0/{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
        name = self.plan.calls[steps[-1].call].name if steps else "memory"
        return self.send(Kind.RUN, {**instructions.write(wanted), **arrays}, name)

    def gradient(self, *leaves, seed=0) -> list[np.ndarray]:
        """What the server takes for the client's gradient at these leaves."""
        reply = self.ask(*leaves, seed=seed)
        assert reply.kind is Kind.REPLY, wire.decode_text(reply.arrays["reason"])
        return [x - np.asarray(reply.arrays[f"reply/{i}"]) for i, x in enumerate(leaves)]


def recovered(rows, guesses, tolerance=0.1) -> int:
    """How many rows have a guess within a tenth of their length."""
    if not len(guesses):
        return 0
    distance = np.linalg.norm(rows[:, None] - guesses[None], axis=-1).min(axis=1)
    return int((distance < tolerance * np.linalg.norm(rows, axis=1)).sum())


# ---- attack (a): the server chooses keys, so it knows the batches, and solves for the rows


def squared_distance(w, row):
    return 0.5 * jnp.sum((w - row) ** 2)


def rows_from_known_batches(policy, folder) -> int:
    rows = np.random.default_rng(0).normal(size=(60, 5)) / 10
    problem = rk.SingleLevel(squared_distance)
    client = OneClient(problem, rows, np.zeros(5), batch_size=10, policy=policy, folder=folder)
    means = np.stack([client.gradient(np.zeros(5), seed=seed)[0] for seed in range(240)])
    return recovered(rows, np.linalg.lstsq(known_batches(), means, rcond=None)[0])


@functools.cache
def known_batches():
    """The server's own copy of the program, on rows that tell who is in a batch."""
    problem = rk.SingleLevel(squared_distance)
    copy = OneClient(problem, np.eye(60), np.zeros(60), batch_size=10)
    return np.stack([copy.gradient(np.zeros(60), seed=seed)[0] for seed in range(240)])


def test_a_server_that_knows_the_batches_gets_all_rows(tmp_path):
    assert rows_from_known_batches(OPEN, tmp_path) == 60


@pytest.mark.parametrize("policy", [SitePolicy(), but(mix_keys=True)], ids=["default", "keys"])
def test_with_keys_of_the_site_it_gets_none(policy, tmp_path):
    assert rows_from_known_batches(policy, tmp_path) == 0


# ---- attack (b): weights whose units are active for ever fewer rows; differences are single rows


def sum_of_units(w, row):
    return w["out"] @ jax.nn.relu(w["in"] @ row + w["bias"])


def rows_from_crafted_weights(policy, folder, scale=1.0) -> int:
    rng = np.random.default_rng(1)
    rows, units = rng.normal(size=(64, 20)), 600
    direction = rng.normal(size=20) / np.sqrt(20)
    weights = {
        "bias": -np.linspace(-3, 3, units) * scale,
        "in": np.tile(direction * scale, (units, 1)),
        "out": np.full(units, scale),
    }
    leaves = jax.tree.leaves(weights)  # bias, in, out
    client = OneClient(rk.SingleLevel(sum_of_units), rows, weights, policy=policy, folder=folder)
    bias, inner, _ = client.gradient(*leaves)
    by_row = np.diff(inner, axis=0), np.diff(bias)[:, None]
    is_some = np.abs(by_row[1][:, 0]) > 1e-9 * np.abs(bias).max()
    return recovered(rows, by_row[0][is_some] / by_row[1][is_some])


def test_crafted_weights_give_most_rows_in_one_request():
    assert rows_from_crafted_weights(None, "") > 50


@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])
def test_with_the_default_policy_they_give_none(scale, tmp_path):
    assert rows_from_crafted_weights(SitePolicy(), tmp_path, scale) == 0


# ---- attack (c): one bit without noise, whether a reply is finite, tells how far rows reach


def exponential(w, row):
    return jnp.exp(row @ w)


def bits_of_a_server_that_overflows(policy, folder) -> set[Kind]:
    rows = np.random.default_rng(0).normal(size=(40, 3))
    client = OneClient(rk.SingleLevel(exponential), rows, np.zeros(3), policy=policy, folder=folder)
    reach = np.linspace(0.2, 5, 9)  # the exponential overflows if a row reaches as far
    asked = [client.ask(np.array([800.0, 0, 0]) / one) for one in reach]
    return {reply.kind for reply in asked}


def test_whether_a_reply_is_finite_does_not_show(tmp_path):
    loud = bits_of_a_server_that_overflows(but(clip=1.0), tmp_path / "loud")
    assert loud == {Kind.REPLY, Kind.FAILURE}  # without noise nothing is promised
    assert bits_of_a_server_that_overflows(SitePolicy(), tmp_path / "quiet") == {Kind.REPLY}
    summary = site_log.summarise(tmp_path / "quiet" / site_log.NAME)
    assert 0 < summary.not_finite[0] < 9 and not summary.refused
    (replies,) = [t.replies for (_, step), t in summary.traffic.items() if "gradient" in step]
    assert replies == 9


def test_a_reply_that_is_not_finite_leaves_as_noise_around_what_was_sent(tmp_path):
    enforcer = Enforcer(but(clip=2.0, noise=0.5), tmp_path)
    sent, got = np.full(20_000, 7.0), np.full(20_000, np.nan)
    (out,), rho = enforcer.released(0, "step", [got], [sent])
    assert rho == enforcer.policy.rho
    assert np.mean(np.asarray(out)) == pytest.approx(7.0, abs=0.05)
    assert np.std(np.asarray(out)) == pytest.approx(1.0, rel=0.03)


# ---- attack (d): weights at which a single row has a gradient; the noise is averaged out


def row_that_is_alone(policy, folder, algorithm=None) -> int:
    """How many rows a server has after 300 requests at weights where one row has a gradient."""
    rng = np.random.default_rng(1)
    rows, direction = rng.normal(size=(64, 20)), rng.normal(size=20)
    second, farthest = np.sort(rows @ direction)[-2:]  # bisection finds them, for a server
    bias = np.full(1, -(second + farthest) / 2)
    weights = {"bias": bias, "in": direction[None], "out": np.full(1, 1e4)}
    client = OneClient(
        rk.SingleLevel(sum_of_units), rows, weights, policy=policy, folder=folder,
        algorithm=algorithm,
    )  # fmt: skip
    replies = [client.gradient(*jax.tree.leaves(weights), seed=seed) for seed in range(300)]
    bias, inner, _ = (np.mean(leaf, axis=0) for leaf in zip(*replies, strict=True))
    return recovered(rows, inner / bias)


def test_the_default_noise_does_not_hide_a_row_that_is_alone(tmp_path):
    assert row_that_is_alone(SitePolicy(), tmp_path) == 1  # docs/guide/threat-model.md says so
    assert row_that_is_alone(SitePolicy(noise=1.0), tmp_path / "more noise") == 0


def test_a_private_study_hides_it(tmp_path):
    local = rk.FedAvg(lr=1.0, local_steps=1)
    algorithm = RowPrivate(local, clip=1.0, noise=1.0, delta=None)
    assert row_that_is_alone(but(mix_keys=True), tmp_path, algorithm) == 0


# ---- attack (e): a private study whose noise comes from a key that the server sends twice


def product(w, row):
    return w @ row


def test_noise_of_a_private_study_cannot_be_subtracted(tmp_path):
    private = RowPrivate(rk.FedAvg(lr=1.0, local_steps=1), clip=5.0, noise=1.0, delta=None)

    def gradients(policy, folder):
        rows = np.random.default_rng(2).normal(size=(20, 3))
        problem = rk.SingleLevel(product)
        client = OneClient(
            problem, rows, np.zeros(3), policy=policy, folder=folder, algorithm=private
        )
        return [client.gradient(np.full(3, at))[0] for at in (1.0, 2.0, 1.0)]

    known = gradients(but(), tmp_path / "known")
    np.testing.assert_allclose(known[0], known[1])  # the same rows, clip and noise: it cancels
    own = gradients(but(mix_keys=True), tmp_path / "own")
    assert np.abs(own[0] - own[1]).min() > 1e-3
    np.testing.assert_array_equal(own[0], own[2])  # asking again tells nothing new


# ---- attack (f): results that the algorithm does not upload


def two_gradients(client, w, *, problem):
    sample = client.draw("train", None, jax.random.key(0))
    gradient = problem.gradient(w, sample)
    return gradient, 2 * gradient


def shifted(client, w, gradient):
    return w - gradient


class Careful(rk.AbstractAlgorithm):
    """Uploads what the second step makes of the first leaf of the first, and nothing else."""

    def check(self, problem, n_clients): ...

    def init(self, problem, w):
        return w, Memory.of(jnp.zeros_like(w))

    def round(self, fed, problem, state, key):
        w, memory = state
        cohort = fed.sample(rk.participation.Everyone(), key)
        there = fed.broadcast(cohort, w)
        one, _ = fed.map(two_gradients, there, problem=problem)
        new = fed.map(shifted, there, one)
        return fed.mean(new), fed.keep(memory, new)

    def solution(self, state):
        return (state[0],)


SENT, FIRST, SECOND = (1, 0), (2, 0), (2, 1)
RUN_FIRST = instructions.Instruction(2, 0, -1, [SENT])


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ({"steps": [RUN_FIRST], "reply": [FIRST]}, "does not upload leaf 0 of"),
        ({"steps": [RUN_FIRST], "reply": [SECOND]}, "does not upload leaf 1 of"),
        (
            {
                "steps": [RUN_FIRST, instructions.Instruction(3, 1, -1, [SENT, SECOND])],
                "reply": [(3, 0)],
            },
            "is not given leaf 1 of",
        ),
        (
            {
                "steps": [RUN_FIRST, instructions.Instruction(3, 1, -1, [FIRST, FIRST])],
                "reply": [(3, 0)],
            },
            "is not given leaf 0 of",
        ),
    ],
)
def test_only_what_the_algorithm_uploads_can_be_asked_for(wanted, reason):
    client = OneClient(rk.SingleLevel(squared_distance), ROWS, np.zeros(2), algorithm=Careful())
    told = client.request(np.ones(2), **wanted).arrays["reason"]
    assert reason in wire.decode_text(told)
    allowed = [RUN_FIRST, instructions.Instruction(3, 1, -1, [SENT, FIRST])]
    reply = client.request(np.ones(2), steps=allowed, reply=[(3, 0), SENT])
    np.testing.assert_allclose(np.asarray(reply.arrays["reply/0"]), ROWS.mean(axis=0), rtol=1e-6)


def test_memories_take_only_what_the_algorithm_keeps():
    client = OneClient(rk.SingleLevel(squared_distance), ROWS, np.zeros(2), algorithm=Careful())
    steps = [RUN_FIRST, instructions.Instruction(3, 1, -1, [SENT, FIRST])]
    client.request(np.ones(2), steps=steps)
    told = client.request(np.ones(2), steps=[], commit=[(0, 1, [FIRST])]).arrays["reason"]
    assert "does not keep leaf 0 of" in wire.decode_text(told)
    reply = client.request(np.ones(2), steps=[], commit=[(0, 1, [(3, 0)])], reply=[(-1, 0)])
    np.testing.assert_allclose(np.asarray(reply.arrays["reply/0"]), ROWS.mean(axis=0), rtol=1e-6)


# ---- studies that the default policy refuses: what leaves would not be a noised average


def refusal(policy, folder, zoo, algorithm) -> str | None:
    population = rk.Population.stacked(zoo.data)
    state = first_state(algorithm, zoo.problem, population.n_clients, zoo.start)
    own = trace_round(numbers_to_arrays(algorithm), zoo.problem, population, state)
    return Enforcer(policy, folder).objection(algorithm, own, population, 0)


def test_whole_numbers_leave_only_if_the_site_says_so(tmp_path):
    zoo = rk.zoo.quadratic_losses(n_clients=2, size=2, rows=12)
    packed = FedPAQ(lr=0.1, codec=rk.parts.StochasticRounding(5))
    told = refusal(SitePolicy(), tmp_path, zoo, packed)
    assert told is not None and "uploads whole numbers, and whole_numbers = false" in told
    assert refusal(SitePolicy(whole_numbers=True), tmp_path, zoo, packed) is None
    assert refusal(SitePolicy(), tmp_path, zoo, rk.FedAvg(lr=0.1)) is None


def test_scores_of_single_rows_do_not_leave(tmp_path):
    zoo = rk.zoo.pair_risk(n_clients=2, rows=12)
    told = refusal(SitePolicy(), tmp_path, zoo, FeDXL(lr=0.1))
    assert told == "algorithm FeDXL uploads numbers of single rows, and min_rows = 10"
    assert refusal(SitePolicy(min_rows=1), tmp_path, zoo, FeDXL(lr=0.1)) is None


# ---- every limit refuses, with a reason that has no data


def one_client(folder, policy, **settings):
    problem = rk.SingleLevel(squared_distance)
    return OneClient(problem, ROWS, np.zeros(2), policy=policy, folder=folder, **settings)


@pytest.mark.parametrize(
    ("settings", "batch_size", "reason"),
    [
        ({"algorithms": ("FedNest",)}, None, "algorithm FedAvg is not among those allowed"),
        ({"min_rows": 5}, 4, "fewer rows of split train than min_rows = 5"),
        ({"min_rows": 13}, None, "than min_rows = 13"),
        ({"largest_incoming_norm": 1.0}, None, "largest_incoming_norm = 1"),
        ({"largest_outgoing_norm": 0.1}, None, "largest_outgoing_norm = 0.1"),
        ({"requests_per_hour": 2}, None, "requests_per_hour = 2"),
        ({"most_local_iterations": 1}, None, "2 steps, above most_local_iterations = 1"),
        ({"memory": 20}, None, "exceed memory = 20 bytes"),
    ],
)
def test_a_limit_refuses_and_both_sides_know_why(tmp_path, settings, batch_size, reason):
    client = one_client(tmp_path, but(**settings), batch_size=batch_size)
    reply = client.ask(np.array([3.0, 4.0]), steps=2)
    assert reply.kind is Kind.FAILURE and "refused" in reply.arrays
    told = wire.decode_text(reply.arrays["reason"])
    assert told.startswith("refused by the site's policy: ") and reason in told
    last = [*site_log.read(tmp_path / site_log.NAME)][-1]
    assert last["event"] == "refused" and reason in last["reason"]
    assert one_client(tmp_path / "open", OPEN).ask(np.array([3.0, 4.0]), steps=2).kind is Kind.REPLY


def test_a_message_beyond_the_limit_is_not_read(tmp_path):
    client = one_client(tmp_path, but(largest_message=100))
    reply = client.ask(np.zeros(2))
    assert "largest_message = 100" in wire.decode_text(reply.arrays["reason"])


def test_values_that_are_not_finite_are_refused(tmp_path):
    reply = one_client(tmp_path, but(largest_incoming_norm=1e9)).ask(np.array([np.nan, 0.0]))
    assert "largest_incoming_norm" in wire.decode_text(reply.arrays["reason"])


def test_a_loop_is_cut_short_within_loops_too():
    def nested(n, m):
        loop = BoundedLoop(4)
        total = loop(n, lambda i, a: loop(m, lambda j, b: b + 1, a), 0)
        return total, loop.is_beyond

    for pair, want in {(3, 4): (12, 0), (3, 5): (12, 1), (9, 0): (0, 1)}.items():
        assert tuple(map(int, jax.jit(nested)(*pair))) == want
        assert tuple(map(int, nested(*pair))) == want


def test_a_loop_of_known_length_can_be_differentiated():
    def power(x):
        return BoundedLoop(4)(3, lambda i, a: a * x, x)

    assert jax.jit(jax.grad(power))(2.0) == 32.0


def test_requests_of_an_earlier_process_count(tmp_path):
    policy = but(requests_per_hour=4)
    assert one_client(tmp_path, policy).ask(np.zeros(2)).kind is Kind.REPLY  # after two handshakes
    reply = one_client(tmp_path, policy).ask(np.zeros(2))
    assert "requests_per_hour = 4" in wire.decode_text(reply.arrays["reason"])


# ---- what leaves: clipped around what was sent, noised, and counted


def test_the_way_from_what_was_sent_is_clipped(tmp_path):
    far = np.array([30.0, 40.0])
    (plain,) = one_client(tmp_path / "a", OPEN).gradient(far)
    (short,) = one_client(tmp_path / "b", but(clip=2.0)).gradient(far)
    np.testing.assert_allclose(plain, far - ROWS.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(short, 2 * plain / np.linalg.norm(plain), rtol=1e-5)


def test_noise_has_the_size_that_the_policy_says_and_epsilon_is_that_of_zcdp(tmp_path):
    enforcer = Enforcer(but(clip=2.0, noise=3.0, delta=1e-6), tmp_path)
    zero = np.zeros(20_000)
    (reply,), rho = enforcer.released(7, "step", [zero], [None])
    noised = np.asarray(reply)
    assert rho is not None and abs(noised.mean()) < 0.2
    assert np.std(noised) == pytest.approx(6.0, rel=0.03)
    assert rho == pytest.approx((2 * 2.0) ** 2 / (2 * 6.0**2))
    for _ in range(5):
        enforcer.sent(7, "step", [noised], 10, rho)
    last = [*site_log.read(tmp_path / site_log.NAME)][-1]
    total = 5 * rho
    assert last["epsilon"] == pytest.approx(total + 2 * math.sqrt(total * math.log(1e6)))
    again = Enforcer(enforcer.policy, tmp_path)  # another process goes on counting
    again.sent(7, "step", [noised], 10, rho)
    later = [*site_log.read(tmp_path / site_log.NAME)][-1]["epsilon"]
    assert later == pytest.approx(enforcer.policy.epsilon(6 * rho))
    again.sent(7, "step", [np.arange(2)], 10, None)
    assert [*site_log.read(tmp_path / site_log.NAME)][-1]["epsilon"] is None


def test_no_reply_leaves_beyond_the_largest_epsilon(tmp_path):
    policy = but(clip=1.0, noise=2.0, largest_epsilon=20.0)
    rho = policy.rho
    assert rho is not None
    most = max(n for n in range(1, 100) if policy.epsilon(n * rho) <= 20.0)
    for first, last in ((0, 2), (2, most)):  # the second time in another process
        client = one_client(tmp_path, policy)
        for _ in range(first, last):
            assert client.ask(np.zeros(2)).kind is Kind.REPLY
    told = wire.decode_text(client.ask(np.zeros(2)).arrays["reason"])
    assert told.endswith("one more reply would exceed largest_epsilon = 20")
    records = [r for r in site_log.read(tmp_path / site_log.NAME) if r.get("shapes")]
    assert len(records) == most > 2 and records[-1]["epsilon"] <= 20.0


def test_numbers_keep_their_type_and_whole_numbers_leave_as_they_are(tmp_path):
    enforcer = Enforcer(SitePolicy(), tmp_path)
    reply = [np.zeros(2, jnp.bfloat16), np.arange(3), jnp.ones((2, 2), jnp.float32)]
    out, rho = enforcer.released(0, "step", reply, [None] * 3)
    assert list(map(spec, out)) == list(map(spec, reply)) and rho is None
    assert np.array_equal(np.asarray(out[1]), [0, 1, 2])


def test_equal_keys_stay_equal_and_differ_between_clients_and_sites(tmp_path):
    words = wire.keys_to_words(jax.random.key(3))
    one, other = (Enforcer(SitePolicy(), tmp_path / site) for site in "ab")
    again = Enforcer(SitePolicy(), tmp_path / "a")
    drawn = [one.mixed(0, words), one.mixed(1, words), other.mixed(0, words), words]
    assert len({np.asarray(key.words).tobytes() for key in drawn}) == 4
    np.testing.assert_array_equal(again.mixed(0, words).words, drawn[0].words)
    assert (tmp_path / "a" / "site.key").stat().st_mode & 0o777 == 0o600


# ---- whole runs


def enforcing(policy, folder):
    def make(client, program, algorithm, state, _):
        rows = program.population.only(client)
        enforcer = Enforcer(policy, folder / str(client))
        own = plan(type(algorithm).__name__)
        return Worker(client, ZOO.problem, algorithm, rows, state, own, enforcer=enforcer)

    return make


def test_a_policy_without_limits_changes_no_number(tmp_path):
    assert same(go(make=enforcing(OPEN, tmp_path)), go())


def test_a_site_that_refuses_is_an_event_and_the_others_go_on(tmp_path):
    strict = {client: enforcing(OPEN, tmp_path) for client in range(4)}
    strict[4] = enforcing(but(algorithms=("FedNest",)), tmp_path)
    result = go(
        make=lambda client, *rest: strict[client](client, *rest),
        policy=Policy(wait_for=60.0, min_replies=0.5, back_off=0.01),
    )
    assert result.rounds == 4
    assert "client 4: refused by the site's policy: algorithm FedAvg" in reasons(result)
    log = [*site_log.read(tmp_path / "4" / site_log.NAME)]
    assert {record["event"] for record in log} == {"refused"}
    assert len(log) == 1 + 4  # one handshake and four rounds: it is not asked again


def test_the_text_of_an_error_stays_at_the_site(tmp_path):
    enforcer = Enforcer(OPEN, tmp_path)
    told = enforcer.error(3, "step", ValueError("patient 4711 weighs 80.5 kg"))
    assert told.startswith("ValueError at the site") and "4711" not in told
    (record,) = site_log.read(tmp_path / site_log.NAME)
    assert record["reference"] in told and "patient 4711 weighs" in record["text"]


def test_an_error_of_a_step_tells_the_server_its_kind_alone(tmp_path, monkeypatch):
    client = one_client(tmp_path, OPEN)

    def broken(*_):
        raise ValueError("patient 4711")

    monkeypatch.setattr(type(client.plan.calls[0]), "run", broken)
    told = wire.decode_text(client.ask(np.zeros(2)).arrays["reason"])
    assert "ValueError at the site" in told and "4711" not in told


@pytest.mark.slow
def test_training_with_the_default_policy_still_learns(tmp_path):
    zoo = rk.zoo.quadratic_losses(n_clients=4, size=2, rows=12, noise=0.3)
    population = rk.Population.stacked(zoo.data)

    def make(client, program, algorithm, state, own):
        rows = program.population.only(client)
        enforcer = Enforcer(SitePolicy(), tmp_path / str(client))
        return Worker(client, zoo.problem, algorithm, rows, state, own, enforcer=enforcer)

    engine = rk.remote.Remote(rk.remote.InProcess(make_worker=make), QUICK)
    start = (np.full(2, 3.0),)
    result = rk.run(
        rk.FedAvg(lr=0.2, local_steps=2), zoo.problem, population, start, rounds=25, engine=engine
    )
    plain = rk.run(
        rk.FedAvg(lr=0.2, local_steps=2), zoo.problem, population, start, rounds=25,
        engine=rk.Eager(),
    )  # fmt: skip
    away = np.linalg.norm(result.solution[0] - plain.solution[0])
    assert 1e-4 < away < 0.3  # noise of 0.05, averaged over four clients
    records = [*site_log.read(tmp_path / "0" / site_log.NAME)]
    sent = [record for record in records if record.get("shapes")]
    assert len(sent) == 25 and sent[-1]["epsilon"] > sent[0]["epsilon"] > 0


# ---- anchors: found by the client's own trace


def test_iterates_are_told_from_directions_by_the_trace():
    own = plan("FedAvg")
    assert own.anchors == {(0, 0): (0,)}  # the model that was sent
    assert {call.draws for call in own.calls} == {frozenset({("train", 2, 1)})}
    assert plan("FedAvg").bounded(5) is own.bounded(5)
    assert own.bounded(5).fingerprint == own.fingerprint


# ---- the file


def test_the_default_policy_is_the_default_file(tmp_path):
    file = tmp_path / "policy.toml"
    file.write_text(SitePolicy().to_toml())
    assert SitePolicy.read(file) == SitePolicy()
    file.write_text(OPEN.to_toml())
    assert SitePolicy.read(file) == OPEN


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("min_row = 3", "min_rows"),
        ("min_rows = 0", "min_rows must be at least 1"),
        ("noise = 1.0\nclip = inf", "clip must be finite"),
        ("mix_keys = 1", "true or false"),
        ('algorithms = "FedAvg"', "list of names"),
        ("delta = 1.0", "below 1"),
        ("whole_numbers = 1", "whole_numbers must be true or false"),
        ("largest_epsilon = 3.0\nnoise = 0.0", "needs noise above 0"),
        ("largest_outgoing_norm = 0.5", "at most largest_outgoing_norm = 0.5"),
        ('[studies]\nclinics = "abc"', "64 hexadecimal"),
        ("min_rows = ", "not a TOML file"),
    ],
)
def test_what_is_wrong_with_a_policy_is_said_with_its_file(tmp_path, text, match):
    file = tmp_path / "policy.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=match) as error:
        SitePolicy.read(file)
    assert str(file) in str(error.value)


def test_joining_writes_a_hash_and_leaves_the_rest(tmp_path):
    file = tmp_path / "policy.toml"
    file.write_text("min_rows = 50  # our own\n")
    add_study(file, "clinics", content_hash(b"one"))
    add_study(file, "other", content_hash(b"other"))
    add_study(file, "clinics", content_hash(b"two"))
    policy = SitePolicy.read(file)
    assert dict(policy.studies) == {
        "clinics": content_hash(b"two"),
        "other": content_hash(b"other"),
    }
    assert policy.min_rows == 50 and "# our own" in file.read_text()
    (tmp_path / "clinics.py").write_bytes(b"two")
    assert policy.source_of("clinics", tmp_path) == b"two"
    (tmp_path / "clinics.py").write_bytes(b"changed")
    with pytest.raises(Refused, match="changed since"):
        policy.source_of("clinics", tmp_path)
    with pytest.raises(Refused, match="not joined"):
        policy.source_of("os", tmp_path)


# ---- rookery audit


def test_audit_prints_what_left_and_what_was_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    client = one_client(tmp_path, SitePolicy())
    for _ in range(3):
        client.ask(np.zeros(2))
    client.ask(np.full(2, 1e9))
    with (tmp_path / site_log.NAME).open("a") as file:
        file.write('{"time": 1, "ev')  # a write that was interrupted
    main(["audit", str(tmp_path)])
    text = capsys.readouterr().out
    assert "gradient_steps" in text and "float" in text and "largest_incoming_norm" in text
    assert "5 replies" in text  # two handshakes and three steps
    total = sum(r["bytes"] for r in site_log.read(tmp_path / site_log.NAME) if "bytes" in r)
    assert f"{total:,} bytes" in text


def test_audit_of_what_is_no_log_says_so(tmp_path, capsys):
    (tmp_path / "log.jsonl").write_text(json.dumps({"event": "sent", "time": "late"}) + "\n")
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(SystemExit) as end:
            main(["audit", str(path)])
        assert end.value.code == 2
    assert "Traceback" not in capsys.readouterr().err
