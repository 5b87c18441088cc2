"""FedDyn, Scaffnew, Scafflix, FedExP, MIME: exact limits, invariants, and rounds by hand."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arena import advance, assert_close, round_by_round, solve, trajectory

import rookery as rk
from rookery.algorithms import FedDyn, FedExP, Mime, MimeLite, Scafflix, Scaffnew
from rookery.algorithms.scaffnew import geometric

ZOO = rk.zoo.quadratic_losses(n_clients=4, size=3)
NOISY = rk.zoo.quadratic_losses(n_clients=4, size=3, rows=4, noise=0.3)


def gradients(zoo, w):
    """∇f_i(w) of every client."""

    def one(rows):
        losses = jax.vmap(zoo.problem.loss, (None, 0))
        return jax.grad(lambda w: losses(w, rows).mean())(jnp.asarray(w))

    return np.asarray(jax.vmap(one)({k: jnp.asarray(a) for k, a in zoo.data.items()}))


def minimum(zoo):
    return zoo.solution()[0]


@pytest.mark.parametrize("clients", [None, 2])
@pytest.mark.slow
def test_feddyn_ends_at_the_minimum_for_any_number_of_local_steps(clients):
    algorithm = FedDyn(lr=0.1, alpha=0.5, local_steps=(1, 2, 5, 3), clients=clients)
    result = solve(ZOO, algorithm, 2500)
    assert_close(result.solution[0], minimum(ZOO), atol=1e-10)
    assert_close(result.state.own.rows, gradients(ZOO, minimum(ZOO)), atol=1e-10)
    assert_close(result.state.h, np.zeros(3), atol=1e-10)


@pytest.mark.slow
def test_h_is_the_mean_of_the_clients_gradients_always():
    algorithm = FedDyn(lr=0.1, alpha=0.5, local_steps=3, clients=2, batch_size=2)
    for rounds in (1, 4):
        state = solve(NOISY, algorithm, rounds).state
        assert_close(state.h, np.asarray(state.own.rows).mean(0), rtol=1e-10, atol=1e-13)
    assert np.abs(state.h).max() > 1e-3


def test_a_round_of_feddyn_by_hand():
    w, h, g, alpha = np.zeros(3), np.zeros(3), np.zeros((4, 3)), 0.5
    for _ in range(2):
        own = np.tile(w, (4, 1))
        for _ in range(2):
            own = own - 0.1 * (
                np.stack([gradients(ZOO, own[i])[i] for i in range(4)]) - g + alpha * (own - w)
            )
        g = g - alpha * (own - w)
        h = h - alpha * np.mean(own - w, axis=0)
        w = own.mean(0) - h / alpha
    state, (ledger, _) = advance(ZOO, FedDyn(lr=0.1, alpha=alpha, local_steps=2), 2, rk.Compiled())
    assert_close((state.w, state.h, state.own.rows), (w, h, g), rtol=1e-11)
    assert (ledger.bytes_down, ledger.bytes_up) == (4 * 3 * 8, 4 * 3 * 8)


def variates(state, p, lr):
    """The variates after the last mean, which clients compute when they learn of it."""
    (c,), (before,) = state.own.rows
    return np.asarray(c) + p / lr * (np.asarray(state.blocks[0]) - np.asarray(before))


def test_scaffnews_variates_sum_to_zero_after_every_round():
    """Whatever the batches and the drawn numbers of steps; the means are of exact sums."""
    p, lr, largest = 0.3, 0.1, 0.0
    algorithm = Scaffnew(lr=lr, probability=p, batch_size=2)
    for *_, new, _ in round_by_round(NOISY, algorithm, 12, rk.Compiled()):
        own = variates(new, p, lr)
        assert np.abs(own.sum(0)).max() < 1e-12
        largest = max(largest, np.abs(own).max())
    assert largest > 0.1


@pytest.mark.slow
def test_scaffnew_ends_at_the_minimum_at_a_linear_rate():
    p, lr = 0.2, 0.2
    errors = []
    for rounds in (15, 30, 45, 400):
        state = solve(ZOO, Scaffnew(lr=lr, probability=p), rounds).state
        errors.append(np.linalg.norm(state.blocks[0] - minimum(ZOO)))
        assert np.abs(variates(state, p, lr).sum(0)).max() < 1e-11
    assert_close(state.blocks[0], minimum(ZOO), atol=1e-10)
    assert_close(variates(state, p, lr), gradients(ZOO, minimum(ZOO)), atol=1e-9)
    first, second, third = np.log10(errors[:3])
    assert first - second > 1
    assert second - third == pytest.approx(first - second, rel=0.5)


@pytest.mark.slow
def test_scaffnew_that_always_communicates_is_gradient_descent():
    got = trajectory(ZOO, Scaffnew(lr=0.1, probability=1.0), 4)
    want = trajectory(ZOO, rk.FedAvg(lr=0.1), 4)
    np.testing.assert_allclose(got, want, rtol=1e-11)


@pytest.mark.slow
def test_scafflix_of_the_common_model_alone_is_scaffnew():
    how: dict[str, Any] = {"lr": 0.1, "probability": 0.5, "batch_size": 2}
    alone: dict[str, Any] = {"own_steps": 2, "own_lr": 0.1}
    got = solve(NOISY, Scafflix(**how, alpha=1.0, **alone), 3)
    want = solve(NOISY, Scaffnew(**how), 3)
    assert_close(got.solution, want.solution, rtol=1e-12)
    still = solve(NOISY, Scafflix(**how, alpha=0.0, **alone), 3)
    assert_close(still.solution[0], NOISY.start[0], rtol=1e-15)
    assert np.abs(np.asarray(still.state.own.rows[2]) - NOISY.start[0]).max() > 1e-3
    assert got.ledger.gradients == want.ledger.gradients + 4 * 2 * 2  # round 0: two steps alone


@pytest.mark.slow
def test_scafflix_ends_at_the_minimum_of_the_mixtures():
    """On quadratics it is a linear system: Σ α_i ∇f_i(α_i w + (1 - α_i) alone_i) = 0."""
    alpha = np.array([0.2, 1.0, 0.7, 0.0])
    algorithm = Scafflix(lr=0.2, probability=0.3, alpha=tuple(alpha), own_steps=3, own_lr=0.1)
    result = solve(ZOO, algorithm, 400)
    alone = np.tile(ZOO.start[0], (4, 1))
    for _ in range(3):
        alone = alone - 0.1 * np.stack([gradients(ZOO, alone[i])[i] for i in range(4)])
    assert_close(result.state.own.rows[2], alone, rtol=1e-12)
    w = np.asarray(result.solution[0])
    mixed = alpha[:, None] * w + (1 - alpha[:, None]) * alone
    here = np.stack([gradients(ZOO, mixed[i])[i] for i in range(4)])
    assert np.abs((alpha[:, None] * here).mean(0)).max() < 1e-10
    assert np.linalg.norm(w - minimum(ZOO)) > 1e-2  # it is another problem
    assert_close(algorithm.own_leaves(result.state)[0], mixed, rtol=1e-12)
    assert result.ledger.bytes_up == result.ledger.bytes_down == 400 * 4 * 3 * 8


def test_numbers_of_steps_are_geometric():
    draws = np.asarray(
        jax.vmap(lambda k: geometric(k, 0.25))(jax.random.split(jax.random.key(0), 8000))
    )
    assert draws.min() == 1
    assert draws.mean() == pytest.approx(4, rel=0.05)
    assert (draws == 1).mean() == pytest.approx(0.25, abs=0.02)


def test_a_round_of_fedexp_by_hand():
    w, step = np.zeros(3), 0.0
    last = w
    for _ in range(3):
        own = np.stack([w] * 4)
        for _ in range(2):
            own = own - 0.1 * np.stack([gradients(ZOO, own[i])[i] for i in range(4)])
        change = own - w
        mean = change.mean(0)
        step = max(1.0, np.mean(np.sum(change**2, axis=1)) / (2 * (mean @ mean + 1e-2)))
        last, w = w, w + step * mean
    result = solve(ZOO, FedExP(lr=0.1, epsilon=1e-2, local_steps=2), 3)
    assert_close(result.solution[0], (w + last) / 2, rtol=1e-11)
    assert step > 1
    alike = rk.zoo.quadratic_losses(n_clients=3, size=2, heterogeneity=0.0)
    got = trajectory(alike, FedExP(lr=0.1, epsilon=1e-2, local_steps=2), 3)
    want = trajectory(alike, rk.FedAvg(lr=0.1, local_steps=2), 3)
    np.testing.assert_allclose(got[1:], (want[1:] + want[:-1]) / 2, rtol=1e-12)


@pytest.mark.slow
def test_fedexp_without_epsilon_never_settles_where_clients_differ():
    """The step is |Δ_i|² over a mean that goes to zero at the minimum, and explodes there.

    Zero itself is refused; this is below all rounding.
    """

    def late(algorithm):
        return np.linalg.norm(trajectory(ZOO, algorithm, 600)[-300:] - minimum(ZOO), axis=1)

    drift = late(rk.FedAvg(lr=0.05, local_steps=5))
    assert_close(late(FedExP(lr=0.05, epsilon=1.0, local_steps=5)), drift, rtol=1e-6)
    restless = late(FedExP(lr=0.05, epsilon=1e-30, local_steps=5))
    assert np.median(restless) > 5 * drift[-1]
    assert restless.max() > 1 > np.linalg.norm(minimum(ZOO))


@pytest.mark.slow
def test_mime_without_momentum_is_fedinn():
    """FedInn is FedLin on the inner variable: here of a problem whose inner loss is this one."""
    loss = NOISY.problem.loss
    bilevel = rk.Bilevel(
        outer=lambda x, y, row: x @ x,
        inner=lambda x, y, row: loss(y, row),
        outer_split=NOISY.problem.split,
        inner_split=NOISY.problem.split,
    )
    how: dict[str, Any] = {"lr": 0.1, "local_steps": 3}
    inner = rk.FedNest(
        outer_lr=0.1,
        inner_lr=0.1,
        inner_steps=3,
        ihgp=rk.parts.FedIHGPSum(terms=1, lipschitz=5.0),
    )
    population = rk.Population.stacked(NOISY.data)
    start = (np.zeros(1), NOISY.start[0])
    got = rk.run(inner, bilevel, population, start, rounds=3).solution[1]
    want = solve(NOISY, Mime(beta=0.0, **how), 3).solution[0]
    assert_close(got, want, rtol=1e-12)


@pytest.mark.slow
def test_mime_without_momentum_has_an_exact_limit_and_lite_is_fedavg():
    x = solve(ZOO, Mime(lr=0.1, beta=0.0, local_steps=4), 300).solution[0]
    assert_close(x, minimum(ZOO), atol=1e-10)
    lite = trajectory(NOISY, MimeLite(lr=0.1, beta=0.0, local_steps=3, batch_size=2), 3)
    fedavg = trajectory(NOISY, rk.FedAvg(lr=0.1, local_steps=3, batch_size=2), 3)
    np.testing.assert_allclose(lite, fedavg, rtol=1e-12)


def test_a_round_of_mime_by_hand():
    w, m = np.zeros(3), np.zeros(3)
    for _ in range(2):
        own, at, c = np.stack([w] * 4), gradients(ZOO, w), gradients(ZOO, w).mean(0)
        for _ in range(3):
            here = np.stack([gradients(ZOO, own[i])[i] for i in range(4)])
            own = own - 0.1 * (0.3 * (here - at + c) + 0.7 * m)
        w, m = own.mean(0), 0.3 * c + 0.7 * m
    state, (ledger, _) = advance(ZOO, Mime(lr=0.1, beta=0.7, local_steps=3), 2, rk.Compiled())
    assert_close(tuple(state), (w, m), rtol=1e-11)
    size = 4 * 3 * 8
    assert (ledger.exchanges, ledger.bytes_down, ledger.bytes_up) == (2, 3 * size, 2 * size)
    _, (lite,) = advance(ZOO, MimeLite(lr=0.1, local_steps=3), 1, rk.Compiled())
    assert (lite.exchanges, lite.bytes_down, lite.bytes_up) == (1, 2 * size, 2 * size)


def test_settings_are_checked():
    with pytest.raises(ValueError, match=r"epsilon"):
        FedExP(lr=0.1, epsilon=0.0)
    with pytest.raises(ValueError, match=r"FedExP computes the server's step"):
        FedExP(lr=0.1, epsilon=1.0, server_lr=1.0)
    with pytest.raises(ValueError, match=r"probability"):
        Scaffnew(lr=0.1, probability=0.0)
    with pytest.raises(ValueError, match=r"one minus alpha"):
        Scafflix(lr=0.1, probability=0.5, alpha=1.5, own_steps=1, own_lr=0.1)
    with pytest.raises(ValueError, match=r"alpha has 2 entries for 4 clients"):
        Scafflix(lr=0.1, probability=0.5, alpha=(0.5, 1.0), own_steps=1, own_lr=0.1).check(
            ZOO.problem, 4
        )
    with pytest.raises(ValueError, match=r"FedDyn"):
        FedDyn(lr=0.1, alpha=0.1, clients=rk.participation.WithReplacement(2))
