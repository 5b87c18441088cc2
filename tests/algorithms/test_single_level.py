"""FedAvg, FedProx, q-FedAvg, DRFA and agnostic learning against plain NumPy."""

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arena import advance, pooled, solve
from some_slow import some_slow

import rookery as rk
from rookery.algorithms.shared import simplex

ZOO = rk.zoo.quadratic_losses(n_clients=4, size=2)
NOISY = rk.zoo.quadratic_losses(n_clients=3, size=2, rows=4, noise=0.3)
START = np.zeros(2)
W = 2 * 8  # bytes of w


def eager(zoo, algorithm, rounds=2, weights=None):
    """The model after some rounds, without compiling them."""
    population = rk.Population.stacked(zoo.data, weights=weights)
    settings = {"rounds": rounds, "engine": rk.Eager()}
    return np.asarray(rk.run(algorithm, zoo.problem, population, zoo.start, **settings).solution[0])


def local(zoo, i, w, lr, steps, mu=0.0):
    """Client i's model after local steps from w."""
    centre = w
    for _ in range(steps):
        w = w - lr * (zoo.gradients(w)[i] + mu * (w - centre))
    return w


# ---- FedAvg and FedProx


@pytest.mark.parametrize("weights", [None, (0.1, 0.2, 0.3, 0.4)])
@pytest.mark.parametrize("mu", [0.0, 2.0])
def test_local_steps_and_their_mean_by_hand(weights, mu):
    steps, w = (1, 3, 2, 4), START
    for _ in range(2):
        own = [local(ZOO, i, w, 0.1, steps[i], mu) for i in range(4)]
        w = np.average(own, axis=0, weights=weights)
    np.testing.assert_allclose(
        eager(ZOO, rk.FedProx(lr=0.1, mu=mu, local_steps=steps), 2, weights), w, rtol=1e-12
    )
    if mu == 0:
        np.testing.assert_allclose(
            eager(ZOO, rk.FedAvg(lr=0.1, local_steps=steps), 2, weights), w, rtol=1e-12
        )


def test_a_strong_proximal_term_holds_clients_together():
    """Exact local solutions of f_i + mu/2 |w - c|^2 have their fixed point nearer to w*."""
    exact = ZOO.solution()[0]
    far, near = (
        solve(ZOO, rk.FedProx(lr=0.05, mu=mu, local_steps=20), 200).solution[0]
        for mu in (0.0, 10.0)
    )
    assert np.linalg.norm(near - exact) < 0.3 * np.linalg.norm(far - exact)


RIVALS = {
    "FedAvg": rk.FedAvg(lr=0.1),
    "FedProx": rk.FedProx(lr=0.1, mu=0.5),
    "Scaffold": rk.Scaffold(lr=0.1),
    "QFedAvg": rk.QFedAvg(lr=0.1, q=0.0),
    "AgnosticFL": rk.AgnosticFL(lr=0.1, ascent_lr=0.2),
}


@pytest.mark.parametrize("name", some_slow(RIVALS, 2))
def test_one_local_step_of_everyone_is_gradient_descent(name):
    """Of which identical clients, and one client that holds all rows, are special cases."""
    algorithm, w = RIVALS[name], START
    if name == "AgnosticFL":
        algorithm = rk.AgnosticFL(lr=0.1, ascent_lr=1e-9)  # its weights must stay equal
    for _ in range(2):
        w = w - 0.1 * ZOO.gradient(w)
    np.testing.assert_allclose(eager(ZOO, algorithm), w, rtol=1e-7)
    np.testing.assert_allclose(eager(pooled(ZOO), algorithm), w, rtol=1e-7)


@pytest.mark.parametrize("name", some_slow(["DRFA", *RIVALS], 2))
def test_identical_clients_are_one_client(name):
    algorithm = {**RIVALS, "DRFA": rk.DRFA(lr=0.1, ascent_lr=0.3, local_steps=2)}[name]
    same = dataclasses.replace(ZOO, **{k: np.repeat(a[:1], 3, axis=0) for k, a in ZOO.data.items()})
    one = dataclasses.replace(ZOO, **{k: a[:1] for k, a in ZOO.data.items()})
    np.testing.assert_allclose(eager(same, algorithm), eager(one, algorithm), rtol=1e-12)


@pytest.mark.parametrize("name", some_slow(RIVALS, 2))
def test_the_order_of_the_clients_does_not_matter(name):
    turned = dataclasses.replace(ZOO, **{k: a[::-1] for k, a in ZOO.data.items()})
    algorithm = RIVALS[name]
    np.testing.assert_allclose(eager(turned, algorithm), eager(ZOO, algorithm), rtol=1e-12)


# ---- q-FedAvg


def test_q_of_zero_is_fedavg():
    sampling: Any = {"clients": rk.participation.Proportional(2), "batch_size": 2}
    for lr in (0.1, rk.parts.PerCall(0.2)):
        got = eager(
            NOISY, rk.QFedAvg(lr=lr, q=0, local_steps=(1, 2, 3), **sampling), 3, (0.2, 0.3, 0.5)
        )
        want = eager(NOISY, rk.FedAvg(lr=lr, local_steps=(1, 2, 3), **sampling), 3, (0.2, 0.3, 0.5))
        np.testing.assert_allclose(got, want, rtol=1e-12)


def test_q_fedavg_by_hand():
    q, lr, w = 0.7, 0.1, START
    for _ in range(2):
        losses = ZOO.losses(w) + 1e-10
        D = np.stack([(w - local(ZOO, i, w, lr, 3)) / lr for i in range(4)])
        push = losses[:, None] ** q * D
        h = q * losses ** (q - 1) * np.sum(D**2, axis=1) + losses**q / lr
        w = w - push.sum(0) / h.sum()
    np.testing.assert_allclose(eager(ZOO, rk.QFedAvg(lr=lr, q=q, local_steps=3)), w, rtol=1e-12)


# ---- DRFA and agnostic learning


def test_projection_to_the_simplex():
    rng = np.random.default_rng(0)
    for v in rng.normal(size=(20, 5)) * rng.choice([0.1, 1, 10], size=(20, 1)):
        p = np.asarray(simplex.project(jnp.asarray(v)))
        assert p.min() >= 0
        assert p.sum() == pytest.approx(1, abs=1e-12)
        others = rng.dirichlet(np.ones(5), 200)
        # the nearest point is the one from which no other lies in the direction of v
        assert np.all((others - p) @ (v - p) <= 1e-12)
        far = np.asarray(simplex.project(jnp.asarray(v + 1e8)))
        assert far.sum() == pytest.approx(1, abs=1e-12)
        np.testing.assert_allclose(far, p, atol=1e-6)
    inside = np.array([0.2, 0.3, 0.5])
    np.testing.assert_allclose(simplex.project(jnp.asarray(inside)), inside, rtol=1e-14)
    raised = np.asarray(simplex.raise_to(0.1, jnp.array([0.0, 0.4, 0.6])))
    np.testing.assert_allclose(raised, np.array([0.1, 0.4, 0.6]) / 1.1, rtol=1e-14)


@pytest.mark.slow
def test_drfa_stays_in_the_simplex():
    population = rk.Population.stacked(NOISY.data)
    algorithm = rk.DRFA(lr=0.1, ascent_lr=2.0, local_steps=3, clients=2, batch_size=2)
    found = []
    rk.run(
        algorithm, NOISY.problem, population, NOISY.start, rounds=3, callback_every=1,
        callback=lambda s: found.append(np.asarray(s.state.probabilities.values)),
    )  # fmt: skip
    assert len(found) == 3
    for lam in found:
        assert lam.min() >= 0
        assert lam.sum() == pytest.approx(1, abs=1e-12)


def test_a_round_of_drfa_by_hand():
    """w tells which clients were drawn; λ tells which were asked for losses, and t'.

    E[u_i] = f_i(w') follows if all clients are asked equally often, which is ``Uniform``'s to keep.
    """
    lr, ascent, tau = 0.1, 1e-3, 3
    after = np.array([[local(ZOO, i, START, lr, t) for i in range(4)] for t in range(tau + 1)])
    pairs = list(itertools.combinations_with_replacement(range(4), 2))
    ever_asked, times = set(), set()
    for seed in range(60):
        state, _ = advance(
            ZOO, rk.DRFA(lr=lr, ascent_lr=ascent, local_steps=tau, clients=2), 1, seed=seed
        )
        (drawn,) = (i for i in pairs if np.allclose(after[tau, i].mean(0), state.w, rtol=1e-12))
        u = (np.asarray(state.probabilities.values) - 0.25) / (ascent * tau)
        u = u - u.min()  # the projection takes the same off every entry, and two are zero
        asked = tuple(np.flatnonzero(u > 1e-9))
        wanted = [2 * np.isin(range(4), asked) * ZOO.losses(after[t, drawn].mean(0))
                  for t in range(tau + 1)]  # fmt: skip
        (at,) = (t for t in range(tau + 1) if np.allclose(wanted[t], u, rtol=1e-9, atol=1e-9))
        ever_asked.update(map(int, asked))
        times.add(at)
        if len(ever_asked) == 4 and len(times) == tau:
            break
    assert ever_asked == {0, 1, 2, 3}
    assert times == {1, 2, 3}


def test_agnostic_learning_by_hand():
    w, lam = START, np.full(4, 0.25)
    for _ in range(3):
        losses, gradients = ZOO.losses(w), ZOO.gradients(w)
        w = w - 0.1 * lam @ gradients
        lam = np.asarray(simplex.project(jnp.asarray(lam + 0.2 * losses)))
    state, _ = advance(ZOO, rk.AgnosticFL(lr=0.1, ascent_lr=0.2), 3)
    np.testing.assert_allclose(state.w, w, rtol=1e-12)
    np.testing.assert_allclose(state.probabilities.values, lam, rtol=1e-12)


def test_agnostic_learning_leaves_the_mean_to_the_run():
    result = solve(
        ZOO, rk.AgnosticFL(lr=0.1, ascent_lr=0.2), 1, engine=rk.Eager(), aggregate=first_reply
    )
    np.testing.assert_allclose(result.solution[0], -0.1 * ZOO.gradients(START)[0], rtol=1e-12)


def first_reply(replies, weights):
    """A rule that is not the mean."""
    return jax.tree.map(lambda a: a[0], replies)


@pytest.mark.slow
def test_robust_methods_lower_the_greatest_loss():
    plain, drfa, agnostic = (
        ZOO.losses(np.asarray(solve(ZOO, algorithm, 600).solution[0])).max()
        for algorithm in (
            rk.FedAvg(lr=0.05),
            rk.DRFA(lr=0.05, ascent_lr=0.02),
            rk.AgnosticFL(lr=0.05, ascent_lr=0.02),
        )
    )
    assert agnostic < 0.9 * plain
    assert drfa < 0.9 * plain


# ---- costs


@pytest.mark.parametrize(
    ("algorithm", "exchanges", "down", "up", "gradients"),
    [
        (rk.FedAvg(lr=0.1, local_steps=3, clients=2, batch_size=2), 1, 2 * W, 2 * W, 2 * 3 * 2),
        (rk.FedAvg(lr=0.1, local_steps=(1, 2, 3)), 1, 3 * W, 3 * W, 6 * 4),
        (
            rk.FedProx(lr=0.1, mu=1.0, local_steps=3, clients=2, batch_size=2),
            1,
            2 * W,
            2 * W,
            2 * 3 * 2,
        ),
        (
            rk.Scaffold(lr=0.1, local_steps=3, clients=2, batch_size=2),
            1,
            2 * 2 * W,
            2 * 2 * W,
            2 * 3 * 2,
        ),
        (
            rk.QFedAvg(lr=0.1, q=0.2, local_steps=3, clients=2, batch_size=2),
            1,
            2 * W,
            2 * (W + 8),
            2 * 3 * 2,
        ),
        (rk.AgnosticFL(lr=0.1, ascent_lr=0.2, batch_size=2), 1, 3 * W, 3 * (W + 8), 3 * 2),
        (
            rk.DRFA(lr=0.1, ascent_lr=0.2, local_steps=3, clients=1, batch_size=2),
            2,
            W + 4 + W,
            2 * W + 8,
            3 * 2,
        ),
    ],
)
def test_ledger(algorithm, exchanges, down, up, gradients):
    _, (ledger,) = advance(NOISY, algorithm, 1)
    assert ledger.exchanges == exchanges
    assert (ledger.bytes_down, ledger.bytes_up) == (down, up)
    assert ledger.gradients == gradients
    assert ledger.hessian_vectors == 0


@pytest.mark.slow
def test_a_client_drawn_twice_by_drfa_is_sent_the_model_once():
    m = 3
    costs = set()
    for seed in range(8):
        _, (ledger,) = advance(NOISY, rk.DRFA(lr=0.1, ascent_lr=0.2, clients=m), 1, seed=seed)
        assert ledger.bytes_up == m * (2 * W + 8)
        costs.add((ledger.bytes_down - m * W) / (W + 4))
    assert costs <= {1.0, 2.0, 3.0}
    assert len(costs) > 1


# ---- errors


@pytest.mark.slow
def test_single_precision_stays_single():
    zoo = rk.zoo.quadratic_losses(n_clients=2, size=2, dtype=np.float32)
    for algorithm in (
        *RIVALS.values(),
        rk.DRFA(lr=0.1, ascent_lr=0.1, local_steps=2),
        rk.QFedAvg(lr=rk.parts.PerCall(0.1), q=0.5, local_steps=2),
    ):
        state, _ = advance(zoo, algorithm, 2)
        (w,) = algorithm.solution(state)
        assert w.dtype == np.float32


@pytest.mark.parametrize("name", [*RIVALS, "DRFA"])
def test_other_problems_are_refused(name):
    algorithm = {**RIVALS, "DRFA": rk.DRFA(lr=0.1, ascent_lr=0.1)}[name]
    with pytest.raises(TypeError, match=f"{name} solves SingleLevel problems, got Meta"):
        algorithm.check(rk.zoo.cubic_maml().problem, 3)


def test_bad_input():
    with pytest.raises(ValueError, match="lr must be a finite number above 0, got 0"):
        rk.FedAvg(lr=0)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        rk.FedAvg(lr=0.1, batch_size=0)
    with pytest.raises(ValueError, match="mu must be a finite number, 0 or above, got -1"):
        rk.FedProx(lr=0.1, mu=-1)
    with pytest.raises(ValueError, match="q must be a finite number, 0 or above, got -1"):
        rk.QFedAvg(lr=0.1, q=-1)
    with pytest.raises(TypeError, match="local_steps must be a whole number"):
        rk.DRFA(lr=0.1, ascent_lr=0.1, local_steps=(1, 2))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="9 different clients"):
        rk.DRFA(lr=0.1, ascent_lr=0.1, clients=9).check(ZOO.problem, 4)
    with pytest.raises(ValueError, match="floor must be below one over the number of clients, 1/4"):
        rk.DRFA(lr=0.1, ascent_lr=0.1, floor=0.25).check(ZOO.problem, 4)
    for lr, ascent_lr in ((rk.parts.PerCall(0.1), 0.1), (0.1, rk.parts.PerCall(0.1))):
        with pytest.raises(TypeError, match="lr must be a number, got PerCall"):
            rk.AgnosticFL(lr=lr, ascent_lr=ascent_lr)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="local_steps has 2 entries for 4 clients"):
        rk.FedAvg(lr=0.1, local_steps=(1, 2)).check(ZOO.problem, 4)


def test_numbers_of_steps_that_are_drawn_are_refused_by_who_draws_none():
    drawn = rk.parts.RandomSteps(1, 3)
    for make in (
        lambda: rk.FedAvg(lr=0.1, local_steps=drawn),
        lambda: rk.FedBuff(lr=0.1, buffer_size=2, local_steps=drawn),
        lambda: rk.FedNest(outer_lr=0.1, inner_lr=0.1, inner_steps=drawn),
    ):
        with pytest.raises(
            TypeError, match="_steps must be one number or one per client, got RandomSteps"
        ):
            make()
    rk.AFACS(lr=0.1, server_lr=0.2, local_steps=drawn)
    rk.AFBO(outer_lr=0.1, inner_lr=0.2, inner_steps=drawn)
