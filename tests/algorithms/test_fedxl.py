"""FeDXL: X-risks with pools of scores."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arena import advance, end_of, solve

import rookery as rk
from rookery.algorithms import FeDXL
from rookery.problem import XRisk

ZOO = rk.zoo.pair_risk(n_clients=2, rows=3, noise=0.3)
LAM = ZOO.temperature


def pair(s, t):
    """The loss of all pairs of scores and its derivative in the second, minus that in the first."""
    short = 1 - np.subtract.outer(s, t)
    value = np.exp(short**2 / (2 * LAM))
    return value, value * short / LAM


def by_hand(rounds, steps, gamma, beta, lr, refresh, weights):
    """Whole batches, everyone; pools as lists of one entry per step and client."""
    a, b = ZOO.a, ZOO.b
    n, w, m = len(a), np.zeros(2), np.zeros(2)
    u: list[Any] = [None] * n  # until a client has taken its first step
    H1 = H2 = U = []
    for t in range(rounds):
        if t == 0 or (refresh and t % refresh == 0):
            H1 = [[a[i] @ w] * steps for i in range(n)]
            H2 = [[b[i] @ w] * steps for i in range(n)]
            means = np.concatenate([np.full(3, weights[j] / 3) for j in range(n)])
            flat = np.concatenate([b[j] @ w for j in range(n)])
            U = [[pair(h, flat)[0] @ means for h in H1[i]] for i in range(n)]
        share = np.concatenate([np.full(3 * steps, weights[j] / (3 * steps)) for j in range(n)])
        h1, h2, u1 = (np.concatenate([np.concatenate(own) for own in pool]) for pool in (H1, H2, U))
        ends, momenta, made1, made2, made_u = [], [], [], [], []
        for i in range(n):
            own_w, own_m, row = w, m, ([], [], [])
            for _ in range(steps):
                h, g = a[i] @ own_w, b[i] @ own_w
                value, slope = pair(h, h2)
                fresh = value @ share
                u[i] = fresh if u[i] is None else (1 - gamma) * u[i] + gamma * fresh
                first = (LAM / u[i]) * (-slope @ share)  # φ'(u) = λ / u
                second = (share * LAM / u1) @ pair(h1, g)[1]
                G = first @ a[i] / 3 + second @ b[i] / 3
                own_m = (1 - beta) * own_m + beta * G
                own_w = own_w - lr * own_m
                for pool, new in zip(row, (h, g, u[i]), strict=True):
                    pool.append(new)
            ends.append(own_w)
            momenta.append(own_m)
            for pools, own in zip((made1, made2, made_u), row, strict=True):
                pools.append(own)
        w, m = np.average(ends, axis=0, weights=weights), np.average(momenta, 0, weights)
        H1, H2, U = made1, made2, made_u
    return w, u


@pytest.mark.parametrize(
    ("steps", "gamma", "beta", "refresh", "weights"),
    [
        (2, 0.6, 0.5, None, (0.25, 0.75)),
        pytest.param(1, 0.8, 1.0, 2, (0.5, 0.5), marks=pytest.mark.slow),
    ],
)
def test_three_rounds_by_hand(steps, gamma, beta, refresh, weights):
    algorithm = FeDXL(lr=0.2, gamma=gamma, beta=beta, local_steps=steps, refresh=refresh)
    state, ledgers = advance(ZOO, algorithm, 3, rk.Compiled(), weights=np.array(weights))
    w, u = by_hand(3, steps, gamma, beta, 0.2, refresh, np.array(weights))
    np.testing.assert_allclose(state.w, w, rtol=1e-10)
    np.testing.assert_allclose(state.own.rows.u, u, rtol=1e-10)
    n, p, B = 2, 2, 3
    scores = steps * 3 * B + 2  # of P twice, of N once, and two counts
    last = ledgers[1]
    assert last.exchanges == 1
    assert last.bytes_up == 8 * n * (2 * p + scores)
    assert last.bytes_down == 8 * n * (2 * p + n * (scores + 1))
    assert last.gradients == n * steps * 2 * B
    assert ledgers[0].exchanges == 2
    assert ledgers[0].bytes_up == last.bytes_up + 8 * n * (steps * 2 * B + 2)


@pytest.mark.slow
@pytest.mark.parametrize("n_clients", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_fresh_pools_and_whole_batches_give_exact_gradient_steps(n_clients):
    zoo = rk.zoo.pair_risk(n_clients=n_clients, rows=3, noise=0.3)
    state, _ = advance(zoo, FeDXL(lr=0.3, refresh=1), 3, rk.Compiled())
    w = np.zeros(2)
    for _ in range(3):
        w = w - 0.3 * zoo.gradient(w)
    np.testing.assert_allclose(state.w, w, rtol=1e-11)


def square(s, t):
    return (1 - s + t) ** 2 / 2


def identity(u):
    return u


@pytest.mark.slow
def test_without_an_outer_function_it_is_descent_on_all_pairs():
    """Whatever gamma is, as φ' is one: against gradients of all pairs of all clients."""
    zoo = rk.zoo.pair_risk(n_clients=3, rows=2, noise=0.3)
    problem = replace(zoo.problem, loss=square, outer=identity)
    population = rk.Population.stacked(zoo.data)
    algorithm = FeDXL(lr=0.3, gamma=0.5, refresh=1)
    got = rk.run(algorithm, problem, population, zoo.start, rounds=3).solution[0]
    a, b = (v.reshape(-1, 2) for v in (zoo.a, zoo.b))
    w = np.zeros(2)
    for _ in range(3):
        d = (a[:, None] - b[None]).reshape(-1, 2)
        w = w - 0.3 * np.mean(-(1 - d @ w)[:, None] * d, axis=0)
    np.testing.assert_allclose(got, w, rtol=1e-11)


@pytest.mark.slow
def test_stale_pools_have_the_same_limit_and_local_steps_drift():
    (want,) = ZOO.solution()

    def gap(rounds, **settings):
        algorithm = FeDXL(gamma=0.9, beta=0.9, **settings)
        return np.linalg.norm(solve(ZOO, algorithm, rounds).solution[0] - want)

    assert gap(1000, lr=1.0) < 1e-10
    drift = [gap(3000, lr=lr, local_steps=4) for lr in (0.2, 0.05)]
    assert 1e-4 < drift[1] < drift[0] / 2


@pytest.mark.slow
def test_batches_and_drawn_entries_are_right_in_the_mean():
    """One step from the start over many seeds, against the exact gradient."""
    zoo = rk.zoo.pair_risk(n_clients=2, rows=4, noise=0.5, temperature=4.0)
    algorithm = FeDXL(lr=1.0, batch_size=2, pool_batch=3)
    ends = jax.jit(jax.vmap(lambda seed: end_of(zoo, algorithm, 1, seed).w))(jnp.arange(300))
    moves = -np.asarray(ends)
    exact = zoo.gradient(np.zeros(2))
    error = np.std(moves, axis=0) / np.sqrt(len(moves))
    # the plug-in φ'(u) of a few entries is biased; at w = 0 all scores are zero and it is not
    np.testing.assert_array_less(abs(np.mean(moves, axis=0) - exact), 4 * error + 1e-12)


def test_settings_are_checked():
    with pytest.raises(ValueError, match="gamma"):
        FeDXL(lr=0.1, gamma=0.0)
    with pytest.raises(ValueError, match="refresh must be at least 1, got 0"):
        FeDXL(lr=0.1, refresh=0)
    with pytest.raises(ValueError, match="FeDXL keeps a value on every client"):
        FeDXL(lr=0.1, clients=rk.participation.WithReplacement(2))
    with pytest.raises(TypeError, match="FeDXL solves XRisk"):
        other: Any = rk.zoo.quadratic_losses().problem
        FeDXL(lr=0.1).check(other, 2)
    small = replace(ZOO.problem, most_positives=2)
    with pytest.raises(ValueError, match=r"XRisk\(most_positives=2\).* client has 3"):
        rk.run(FeDXL(lr=0.1), small, rk.Population.stacked(ZOO.data), ZOO.start, rounds=1)
    with pytest.raises(ValueError, match="most_negatives must be at least 1, got 0"):
        XRisk(ZOO.problem.score, square, identity, most_positives=1, most_negatives=0)
    with pytest.raises(ValueError, match="score must return one floating-point number"):
        vector: Any = replace(ZOO.problem, score=lambda w, row: w)
        vector.check(ZOO.start, lambda _: jax.tree.map(lambda v: jnp.asarray(v[0, 0]), ZOO.data))
