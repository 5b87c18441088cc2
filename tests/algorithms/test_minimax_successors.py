"""Fed-Norm-SGDA and its "+" form, FedSGDA-M, optimistic GDA, FedGDA-GT, FESS-GDA, ProxSkip-VIP."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from arena import advance, assert_close, saddle_fields, solve, trajectory

import rookery as rk
from rookery.algorithms import (
    FESSGDA,
    FedGDAGT,
    FedNormSGDA,
    FedNormSGDAPlus,
    FedSGDAM,
    OptimisticGDA,
    ProxSkipVIP,
    SimFBO,
)

ZOO = rk.zoo.saddle(curvature=1.0, n_clients=3, x_size=1, y_size=2)
BILINEAR = rk.Minimax(lambda x, y, row: x * y * row, project={"y": lambda y: jnp.clip(y, -1, 1)})
ROWS = rk.Population.stacked(np.ones((2, 1)))
RATES: dict[str, Any] = {"outer_lr": 0.05, "inner_lr": 0.1}


def bilinear(algorithm, rounds):
    return rk.run(algorithm, BILINEAR, ROWS, (np.array(0.5), np.array(0.5)), rounds=rounds)


def gap(algorithm, rounds):
    x, y = solve(ZOO, algorithm, rounds).solution
    want = ZOO.solution()
    return np.linalg.norm(np.concatenate([x - want[0], y - want[1]]))


@pytest.mark.slow
def test_one_local_step_is_gda():
    want = trajectory(ZOO, rk.GDA(**RATES), 4)
    for algorithm in (
        FedNormSGDA(**RATES, server_lr=(0.05, 0.1)),
        FedNormSGDAPlus(**RATES, server_lr=(0.05, 0.1), snapshot_rounds=1),
        rk.FedAvgS(outer_lr=rk.parts.PerCall(0.05), inner_lr=rk.parts.PerCall(0.1)),
        FedSGDAM(**RATES, estimator=rk.parts.STORM(1.0)),
        FedGDAGT(**RATES),
        FESSGDA(**RATES, smoothing=0.0, beta=0.5),
        FESSGDA(**RATES, smoothing=3.0, beta=1.0),
    ):
        np.testing.assert_allclose(trajectory(ZOO, algorithm, 4), want, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("smoothing", "beta"), [(0.0, 0.1), (3.0, 1.0)])
def test_without_smoothing_it_is_local_descent_ascent_with_server_steps(smoothing, beta):
    steps: dict[str, Any] = {"local_steps": 3}
    how: dict[str, Any] = {**RATES, **steps, "smoothing": smoothing, "beta": beta}
    got = trajectory(ZOO, FESSGDA(**how), 3)
    np.testing.assert_allclose(got, trajectory(ZOO, rk.FedAvgS(**RATES, **steps), 3), rtol=1e-12)
    got = trajectory(ZOO, FESSGDA(**how, outer_server_lr=0.9, inner_server_lr=1.2), 3)
    sums = SimFBO(**RATES, **steps, server_lr=(0.05 * 0.9, 0.1 * 1.2))
    np.testing.assert_allclose(got, trajectory(ZOO, sums, 3), rtol=1e-12)


def test_two_rounds_of_fessgda_by_hand():
    fields = saddle_fields(ZOO)
    u = np.full(3, 10.0)
    z = u[:1]
    for _ in range(2):
        own = []
        for M, k in fields:
            w = u
            for _ in range(2):
                w = w - np.array([0.05, 0.1, 0.1]) * (M @ w - k)
            own.append(w)
        mean = np.mean(own, axis=0)
        x = u[:1] + 0.9 * (mean[:1] - u[:1]) - 0.05 * 0.9 * 2 * 1.5 * (u[:1] - z)
        u = np.concatenate([x, u[1:] + 0.8 * (mean[1:] - u[1:])])
        z = z + 0.3 * (x - z)
    algorithm = FESSGDA(
        **RATES, local_steps=2, smoothing=1.5, beta=0.3, outer_server_lr=0.9, inner_server_lr=0.8
    )
    state, (ledger, _) = advance(ZOO, algorithm, 2, rk.Compiled())
    assert_close((*state.variables, *state.opts), (u[:1], u[1:], z), rtol=1e-11)
    assert (ledger.exchanges, ledger.bytes_up, ledger.bytes_down) == (1, 3 * 3 * 8, 3 * 3 * 8)


def test_rounds_of_the_plus_form_by_hand():
    """y climbs at an old x for two rounds; the means of unequal numbers of steps count alike."""
    u, z, steps, rates = np.full(3, 10.0), np.zeros(1), (1, 2, 3), np.array([0.05, 0.1, 0.1])
    for t in range(4):
        z = u[:1] if t % 2 == 0 else z
        means = []
        for (M, k), n in zip(saddle_fields(ZOO), steps, strict=True):
            w, total = u, 0.0
            for _ in range(n):
                old = np.concatenate([z, w[1:]])
                s = np.concatenate([M[:1] @ w - k[:1], M[1:] @ old - k[1:]])
                w, total = w - rates * s, total + s
            means.append(total / n)
        u = u - np.array([0.04, 0.07, 0.07]) * 2 * np.mean(means, axis=0)
    algorithm = FedNormSGDAPlus(
        **RATES, server_lr=(0.04, 0.07), local_steps=steps, snapshot_rounds=2
    )
    state, ledgers = advance(ZOO, algorithm, 4)
    assert_close((*state.variables, *state.added), (u[:1], u[1:], z), rtol=1e-11)
    assert ledgers[1].exchanges == 1
    assert (ledgers[1].bytes_down, ledgers[1].bytes_up) == (3 * 4 * 8, 3 * 4 * 8)
    assert ledgers[1].gradients == 2 * sum(steps)


def test_rounds_of_gradient_tracking_by_hand():
    """w = w - η (s_i(w) - s_i(u) + h);  the first round has one local step."""
    fields, rates = saddle_fields(ZOO), np.array([0.05, 0.1, 0.1])
    u = np.full(3, 10.0)
    for steps in (1, 3, 3):
        at = [M @ u - k for M, k in fields]
        ends = []
        for (M, k), s in zip(fields, at, strict=True):
            w = u
            for _ in range(steps):
                w = w - rates * (M @ w - k - s + np.mean(at, axis=0))
            ends.append(w)
        u = np.mean(ends, axis=0)
    state, ledgers = advance(ZOO, FedGDAGT(**RATES, local_steps=3), 3)
    assert_close(FedGDAGT(**RATES).solution(state), (u[:1], u[1:]), rtol=1e-11)
    assert ledgers[2].exchanges == 2


@pytest.mark.slow
def test_descent_ascent_cycles_where_smoothing_and_optimism_end():
    lr: dict[str, Any] = {"outer_lr": 0.05, "inner_lr": 0.05}
    x, y = bilinear(rk.GDA(**lr), 3000).solution
    assert np.hypot(x, y) == pytest.approx(1.04, abs=0.04)  # on the rim of |y| <= 1
    x, y = bilinear(FESSGDA(**lr, smoothing=2.0, beta=0.02), 6000).solution
    assert np.hypot(x, y) < 1e-20
    x, y = bilinear(OptimisticGDA(outer_lr=0.2, inner_lr=0.2), 3000).solution
    assert np.hypot(x, y) < 1e-8


def test_descent_ascent_on_the_dirac_gan_grows_as_its_closed_form_says():
    """(|x - x*|² / α + |y|² / β) is multiplied by 1 + α β in every round."""
    alpha, beta = 0.3, 0.2
    zoo = rk.zoo.dirac_gan(n_clients=2)
    state, _ = advance(zoo, rk.GDA(outer_lr=alpha, inner_lr=beta), 3)
    far = [
        np.sum((x - zoo.solution()[0]) ** 2) / alpha + np.sum(np.square(y)) / beta
        for x, y in (zoo.start, (state.x, state.y))
    ]
    assert far[1] == pytest.approx(far[0] * (1 + alpha * beta) ** 3, rel=1e-12)


@pytest.mark.slow
def test_optimism_and_extragradient_train_the_dirac_gan():
    zoo = rk.zoo.dirac_gan(n_clients=3)
    for algorithm in (
        OptimisticGDA(outer_lr=0.3, inner_lr=0.3),
        rk.Extragradient(outer_lr=0.3, inner_lr=0.3),
    ):
        got = solve(zoo, algorithm, 1000).solution
        assert_close(got, zoo.solution(), atol=1e-9)


@pytest.mark.slow
def test_gradient_tracking_and_proxskip_end_at_the_saddle_point():
    assert gap(FedGDAGT(**RATES, local_steps=4), 400) < 1e-10
    assert gap(ProxSkipVIP(lr=0.1, probability=0.25), 500) < 1e-10
    assert gap(rk.FedAvgS(**RATES, local_steps=4), 400) > 1e-2


@pytest.mark.slow
def test_unequal_numbers_of_steps_need_normalisation():
    """Plain sums end at another point, whatever the step; normalised ones drift with the step."""

    def errors(make):
        sizes = ((0.02, 3000), (0.005, 12000))
        return [
            gap(make(outer_lr=lr, inner_lr=lr, server_lr=lr, local_steps=(1, 2, 6)), rounds)
            for lr, rounds in sizes
        ]

    plain, normalised = errors(SimFBO), errors(FedNormSGDA)
    assert plain[1] > plain[0] / 1.5
    assert normalised[1] == pytest.approx(normalised[0] / 4, rel=0.3)


def test_settings_are_checked():
    with pytest.raises(TypeError, match=r"FESSGDA solves Minimax"):
        FESSGDA(**RATES, smoothing=1.0, beta=0.1).check(rk.zoo.scalar_bilevel().problem, 2)
    plus: dict[str, Any] = {**RATES, "server_lr": 0.1, "snapshot_rounds": 2}
    with pytest.raises(TypeError, match=r"FedNormSGDAPlus solves Minimax"):
        FedNormSGDAPlus(**plus).check(rk.zoo.scalar_bilevel().problem, 2)
    with pytest.raises(TypeError, match=r"FedNormSGDAPlus has a view of its own"):
        FedNormSGDAPlus(**plus, view=rk.parts.MinimaxView())
    with pytest.raises(ValueError, match=r"server_lr has 3 entries for 2 blocks"):
        FedNormSGDAPlus(**{**plus, "server_lr": (0.1, 0.1, 0.1)})
    with pytest.raises(ValueError, match=r"FESSGDA averages no estimate"):
        FESSGDA(**RATES, smoothing=1.0, beta=0.1, estimator=rk.parts.STORM())
    with pytest.raises(TypeError, match=r"ProxSkipVIP solves SingleLevel and Minimax"):
        ProxSkipVIP(lr=0.1, probability=0.5).check(rk.zoo.scalar_bilevel().problem, 2)
