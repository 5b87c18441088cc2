"""Codecs: what they send, what arrives on average; and where compressed methods end."""

from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arena import advance, assert_close, bilevel_maps, solve, trajectory
from some_slow import some_slow

import rookery as rk
from rookery.algorithms import CMSOBA, CSOBA, EFSOBA, FedBiO, FedPAQ, ShroFBO, SimFBO
from rookery.algorithms.parts import BFloat16, RandK, StochasticRounding, TopK
from rookery.program.codec import message_bytes
from rookery.remote import InProcess, Remote
from rookery.remote.protocol import wire

ZOO = rk.zoo.quadratic_bilevel(n_clients=3, x_size=2, y_size=2)
LOSSES = rk.zoo.quadratic_losses(n_clients=3, size=4)
TREE = {"a": jnp.array([[3.0, -1.0, 0.2], [0.0, 0.7, -2.9]]), "b": jnp.array([1e-3, -4e-3])}


def through(codec, keys=64):
    """TREE after the way up, once per key."""

    def once(key):
        return codec.decode(codec.encode(TREE, key), TREE)

    return jax.vmap(once)(jax.random.split(jax.random.key(3), keys))


@pytest.mark.parametrize(
    "codec", some_slow([StochasticRounding(2), RandK(0.5), StochasticRounding(5), RandK(1)], 2)
)
def test_unbiased_codecs_keep_the_mean(codec):
    many = through(codec, 4096)
    for name, leaf in TREE.items():
        got = np.asarray(many[name])
        error = got.mean(0) - np.asarray(leaf)
        bound = 5 * got.std(0) / 64 + 1e-12
        assert np.all(np.abs(error) < bound)
    assert np.asarray(many["a"]).std(0).max() > 0


@pytest.mark.parametrize("bits", some_slow([3, 2, 8]))
def test_rounding_stays_on_its_grid(bits):
    got, steps = through(StochasticRounding(bits)), 2 ** (bits - 1) - 1
    for name, leaf in TREE.items():
        scale = float(jnp.abs(leaf).max()) / steps
        on = np.asarray(got[name]) / scale
        np.testing.assert_allclose(on, np.round(on), atol=1e-9)
        assert np.abs(np.asarray(got[name]) - np.asarray(leaf)).max() <= scale * (1 + 1e-12)
    zero = StochasticRounding(bits)
    sent = zero.encode(jnp.zeros(3), jax.random.key(0))
    assert zero.decode(sent, jnp.zeros(3)).tolist() == [0.0, 0.0, 0.0]


def test_top_k_and_bfloat16():
    got = through(TopK(2), 1)
    assert got["a"][0].tolist() == [[3.0, 0.0, 0.0], [0.0, 0.0, -2.9]]
    assert got["b"][0].tolist() == [1e-3, -4e-3]
    half = through(BFloat16(), 1)["a"][0]
    np.testing.assert_allclose(half, TREE["a"], rtol=2**-8)


@pytest.mark.parametrize(
    ("codec", "nbytes"),
    [
        (StochasticRounding(3), (3 + 8) + (1 + 8)),  # 6 and 2 entries of 3 bits, two scales
        (TopK(2), 2 * 2 * (8 + 1)),  # values, and places of one byte
        (RandK(2), 2 * (2 * 8 + 8)),  # values and a seed
        (BFloat16(), 8 * 2),
    ],
)
def test_messages_have_the_size_that_is_billed(codec, nbytes):
    assert message_bytes(codec, TREE) == nbytes


def test_the_ledger_bills_the_message():
    _, (ledger,) = advance(ZOO, EFSOBA(outer_lr=0.1, inner_lr=0.1, codec=TopK(1)), 1)
    assert ledger.bytes_up == 3 * 3 * (8 + 1) and ledger.bytes_down == 3 * 6 * 8


class Recorded(eqx.Module):
    """Clients in this process, whose replies are kept as the bytes that arrived."""

    replies: list = eqx.field(static=True, default_factory=list)

    def open(self, program, algorithm, state, plan):
        port = InProcess().open(program, algorithm, state, plan)
        exchange = port.exchange

        def recorded(step, messages, wait_for):
            for client, arrival in exchange(step, messages, wait_for):
                self.replies.append(
                    wire.joined(cast(wire.Parts, arrival if type(arrival) is tuple else [arrival]))
                )
                yield client, arrival

        port.exchange = recorded  # pyright: ignore[reportAttributeAccessIssue]
        return port


CARRIED = [  # bytes of a reply of 300 numbers
    (StochasticRounding(3), 113 + 8),
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in ((None, 2400), (RandK(0.1), 240 + 8), (TopK(20), 160 + 40), (BFloat16(), 600))
    ),
]


@pytest.mark.parametrize(("codec", "nbytes"), CARRIED)
def test_the_ledger_bills_what_the_transport_carried(codec, nbytes):
    zoo, transport = rk.zoo.quadratic_losses(n_clients=2, size=300), Recorded()
    algorithm = rk.FedAvg(lr=0.1) if codec is None else FedPAQ(lr=0.1, codec=codec)
    want, got = (solve(zoo, algorithm, 2, engine=one) for one in (rk.Eager(), Remote(transport)))
    assert_close(got.state.w, want.state.w, rtol=1e-12)
    assert got.ledger.bytes_up == want.ledger.bytes_up == 4 * nbytes
    messages = [(reply, wire.decode(reply)) for reply in transport.replies]
    replies = [(reply, said) for reply, said in messages if said.kind is wire.Kind.REPLY]
    assert len(replies) == 4
    for reply, said in replies:
        arrays = [np.asarray(a) for path, a in said.arrays.items() if path.startswith("reply/")]
        assert sum(a.nbytes for a in arrays) == nbytes
        # besides there are a header, the name of the step and what describes the arrays
        assert nbytes < len(reply) < nbytes + 400


def end(algorithm, rounds):
    x = solve(ZOO, algorithm, rounds).solution[0]
    return np.linalg.norm(x - ZOO.solution()[0])


@pytest.mark.slow
def test_error_feedback_ends_at_the_solution_and_plain_top_k_does_not():
    rates = {"outer_lr": 0.05, "inner_lr": 0.1, "codec": TopK(1)}
    assert end(EFSOBA(**rates), 3000) < 1e-12
    assert end(CSOBA(**rates), 3000) > 0.05


@pytest.mark.slow
def test_unbiased_compression_leaves_a_floor_that_falls_with_the_step():
    def floor(make, lr):
        track = rk.metrics.OfSolution(lambda x, y: {"gap": jnp.sum((x - ZOO.solution()[0]) ** 2)})
        algorithm = make(outer_lr=lr, inner_lr=2 * lr, codec=RandK(0.5))
        history = solve(
            ZOO, algorithm, round(200 / lr), evaluate=[track], evaluate_every=50
        ).history
        return np.sqrt(np.mean(history["gap"][-40:]))

    far, near = floor(CSOBA, 0.05), floor(CSOBA, 0.005)
    assert near < far / 2 and near > 1e-3


@pytest.mark.slow
def test_without_loss_compressed_methods_are_the_plain_ones():
    """All entries are sent: top-k with k as large as a leaf."""
    want = trajectory(ZOO, rk.SOBA(outer_lr=0.05, inner_lr=0.1), 4)
    for make in (CSOBA, EFSOBA):
        got = trajectory(ZOO, make(outer_lr=0.05, inner_lr=0.1, codec=TopK(100)), 4)
        np.testing.assert_allclose(got, want, rtol=1e-12)
    settings = {"lr": 0.1, "local_steps": (1, 2, 3)}
    want = trajectory(LOSSES, rk.FedAvg(**settings), 3)
    got = trajectory(LOSSES, FedPAQ(**settings, codec=TopK(100), error_feedback=True), 3)
    np.testing.assert_allclose(got, want, rtol=1e-12)


# ---- the frame of the single-loop methods

STEPS: dict[str, Any] = {"outer_lr": 0.05, "inner_lr": 0.1}
FRAME = {
    "SimFBO": lambda **how: SimFBO(**STEPS, server_lr=(0.05, 0.1, 0.1), **how),
    "ShroFBO": lambda **how: ShroFBO(**STEPS, server_lr=(0.05, 0.1, 0.1), **how),
    "FedBiO": lambda **how: FedBiO(**STEPS, **how),
}


def test_one_compressed_local_step_is_ef_soba():
    want, ledgers = advance(ZOO, EFSOBA(**STEPS, codec=TopK(1)), 4, rk.Compiled())
    ours = FRAME["SimFBO"](codec=TopK(1), error_feedback=True)
    got, spent = advance(ZOO, ours, 4, rk.Compiled())
    assert_close((*got.variables, *got.added), want[:3], rtol=1e-12)
    assert_close((got.feedback.mean, got.feedback.own.rows), (want.d, want.own.rows), rtol=1e-12)
    assert spent == ledgers


@pytest.mark.slow
@pytest.mark.parametrize("name", FRAME)
def test_the_frame_without_loss_is_the_plain_one(name):
    make, tau = FRAME[name], (1, 2, 3)
    want = trajectory(ZOO, make(local_steps=tau), 3)
    for feedback in (False, True):
        how = {"local_steps": tau, "codec": TopK(100), "error_feedback": feedback}
        np.testing.assert_allclose(trajectory(ZOO, make(**how), 3), want, rtol=1e-12)
    _, (ledger,) = advance(ZOO, make(local_steps=tau, codec=TopK(1)), 1)
    entries = 3 + (name == "ShroFBO")  # one of each block, and the number of steps
    assert ledger.bytes_up == 3 * entries * (8 + 1) and ledger.bytes_down == 3 * 6 * 8


@pytest.mark.slow
def test_error_feedback_of_the_frame_ends_where_the_plain_method_does():
    for make in FRAME.values():
        plain = solve(ZOO, make(local_steps=2), 3000).solution
        how = {"local_steps": 2, "codec": TopK(1)}
        assert_close(solve(ZOO, make(**how, error_feedback=True), 3000).solution, plain, atol=1e-9)
        biased = solve(ZOO, make(**how), 3000).solution[0]
        assert np.linalg.norm(biased - plain[0]) > 0.02


def test_codecs_of_the_frame_are_checked():
    with pytest.raises(ValueError, match=r"sends an estimate beside"):
        FedBiO(**STEPS, codec=TopK(1), estimator=rk.parts.STORM())
    with pytest.raises(ValueError, match=r"needs a codec"):
        FedBiO(**STEPS, error_feedback=True)
    with pytest.raises(ValueError, match=r"error_feedback"):
        twice = rk.participation.WithReplacement(2)
        FedBiO(**STEPS, codec=TopK(1), error_feedback=True, clients=twice)


def test_the_moving_average_of_the_server():
    algorithm = CMSOBA(outer_lr=0.05, inner_lr=0.1, codec=TopK(100), momentum=0.7)
    u, d = [np.zeros(2)] * 3, None
    for _ in range(3):
        each = zip(*(maps(*u) for maps in bilevel_maps(ZOO)), strict=True)
        new = [np.mean(b, 0) for b in each]
        d = new if d is None else [0.7 * a + 0.3 * b for a, b in zip(d, new, strict=True)]
        u = [b - lr * a for b, lr, a in zip(u, (0.05, 0.1, 0.1), d, strict=True)]
    state, _ = advance(ZOO, algorithm, 3, rk.Compiled())
    assert_close(state[:3], tuple(u), rtol=1e-12)


def test_fedpaq_by_hand():
    """Top-1 of the change and what was left out, on one client."""
    one = rk.zoo.quadratic_losses(n_clients=1, size=3)
    got = trajectory(one, FedPAQ(lr=0.1, codec=TopK(1), error_feedback=True), 4)
    steps = np.diff(got, axis=0)
    w, left = got[0], np.zeros(3)
    for step in steps:
        change = left - 0.1 * gradient(one, w)
        i = np.argmax(np.abs(change))
        sent = np.where(np.arange(3) == i, change, 0.0)
        np.testing.assert_allclose(step, sent, rtol=1e-10, atol=1e-14)
        w, left = w + step, change - sent


def gradient(zoo, w):
    """The mean gradient of a population of one client."""
    rows = {k: jnp.asarray(a[0]) for k, a in zoo.data.items()}
    losses = jax.vmap(zoo.problem.loss, (None, 0))
    return np.asarray(jax.grad(lambda w: losses(w, rows).mean())(jnp.asarray(w)))


def test_settings_are_checked():
    for bits in (1, 9):
        with pytest.raises(ValueError, match=r"StochasticRounding.bits"):
            StochasticRounding(bits)
    with pytest.raises(ValueError, match=r"momentum=0.5 and error_feedback=True"):
        CSOBA(outer_lr=0.1, inner_lr=0.1, codec=TopK(1), momentum=0.5, error_feedback=True)
    with pytest.raises(ValueError, match=r"TopK.k"):
        TopK(0)
    with pytest.raises(ValueError, match=r"error_feedback=True"):
        EFSOBA(outer_lr=0.1, inner_lr=0.1, codec=TopK(1),
               clients=rk.participation.WithReplacement(2))  # fmt: skip
