"""Penalty methods: the order of their bias, and their rounds by hand."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arena import advance, assert_close, means, solve
from some_slow import some_slow

import rookery as rk
from rookery.algorithms import BOME, F2SA, MemFBO, SimFBO
from rookery.algorithms.parts import Growing, PenaltyView
from rookery.algorithms.shared.blocks import draw_samples
from rookery.clients.local_client import LocalClient
from rookery.program.step import python_loop

ZOO = rk.zoo.quadratic_bilevel(n_clients=3, x_size=2, y_size=2)
NOISY = rk.zoo.quadratic_bilevel(n_clients=3, x_size=2, y_size=2, rows=4, noise=0.3)


def perturbed(zoo, x, s):
    """argmin of g + s f in y."""
    m = means(zoo)
    Qd = np.einsum("crij,crj->i", zoo.Q, zoo.d) / (zoo.d.shape[0] * zoo.d.shape[1])
    right = m["B"] @ x + m["c"] + s * (Qd - m["E"].T @ x)
    return np.linalg.solve(m["H"] + s * m["Q"], right)


def mean_maps(zoo, view, blocks):
    """The clients' mean maps."""
    population = rk.Population.stacked(zoo.data)
    own = []
    for i in range(population.n_clients):
        client = LocalClient(population, i, jax.random.key(0), python_loop)
        samples = tuple(client.draw("train", None, client.key) for _ in range(2))
        own.append(view.maps(zoo.problem, tuple(map(jnp.asarray, blocks)), samples))
    return [np.mean([np.asarray(s[j]) for s in own], 0) for j in range(3)]


@pytest.mark.parametrize(("symmetric", "slope"), some_slow([(True, -2), (False, -1)]))
def test_the_bias_falls_with_the_penalty(symmetric, slope):
    x, errors, sigmas = np.array([0.7, -0.4]), [], (10.0, 100.0, 1000.0)
    for sigma in sigmas:
        view = PenaltyView(sigma, symmetric=symmetric)
        above, below = (perturbed(ZOO, x, s) for s in (1 / sigma, -symmetric / sigma))
        h, *inner = mean_maps(ZOO, view, (x, above, below))
        assert_close(inner, [np.zeros(2)] * 2, atol=1e-12)
        errors.append(np.linalg.norm(h - ZOO.hypergradient(x)))
    slopes = np.diff(np.log10(errors))
    np.testing.assert_allclose(slopes, slope, atol=0.06)
    assert errors[0] < 0.5


@pytest.mark.slow
@pytest.mark.parametrize(("symmetric", "slope"), [(True, -2), (False, -1)])
def test_the_fixed_point_approaches_the_solution(symmetric, slope):
    """All maps are affine, so that seven values give their common zero."""
    errors = []
    for sigma in (10.0, 100.0, 1000.0):
        view = PenaltyView(sigma, symmetric=symmetric)
        at = [
            np.concatenate(mean_maps(ZOO, view, np.split(u, 3))) for u in (np.zeros(6), *np.eye(6))
        ]
        u = np.linalg.solve(np.stack(at[1:], axis=1) - at[0][:, None], -at[0])
        x, above, below = np.split(u, 3)
        off = np.subtract(view.solution((x, above), (below,)), ZOO.solution())
        errors.append(np.linalg.norm(off))
    np.testing.assert_allclose(np.diff(np.log10(errors)), slope, atol=0.06)


def test_the_lower_problem_needs_a_penalty_above_smoothness_over_convexity():
    """g - f / σ in y has the curvature μ - L_f / σ."""
    zoo = rk.zoo.scalar_bilevel()
    mu, smoothness = zoo.H.mean(), zoo.Q.mean()
    for sigma in (0.9 * smoothness / mu, 1.1 * smoothness / mu):
        low, high = (
            mean_maps(zoo, PenaltyView(sigma), (np.zeros(1), np.zeros(1), np.full(1, y)))[2]
            for y in (0.0, 1.0)
        )
        assert (high - low).item() == pytest.approx(mu - smoothness / sigma, abs=1e-12)


@pytest.mark.parametrize("one_sample", [False, True])
def test_both_points_of_a_difference_share_their_rows(one_sample):
    """Where both are equal the estimate is f_x of the rows, however large the penalty is."""
    view = PenaltyView(1e9, one_sample=one_sample)
    client: Any = LocalClient(rk.Population.stacked(NOISY.data), 0, jax.random.key(1), python_loop)
    rows = draw_samples(client, NOISY.problem, view, 1, client.key)
    assert len(rows) == 2 - one_sample
    x, y = np.array([0.7, -0.4]), np.array([0.2, 0.5])
    h, above, below = view.maps(NOISY.problem, (x, y, y), rows)
    assert_close(h, NOISY.problem.outer_grad_x(x, y, rows[0]), rtol=1e-12)
    assert_close(above, below, rtol=1e-7)


@pytest.mark.slow
def test_without_an_outer_loss_there_is_no_direction():
    problem = rk.Bilevel(lambda x, y, row: 0.0 * jnp.sum(x), ZOO.problem.inner,
                         outer_split="train", inner_split="train")  # fmt: skip
    y = rk.run(
        F2SA(outer_lr=0.1, inner_lr=0.3, penalty=PenaltyView(50.0)),
        problem, rk.Population.stacked(ZOO.data), (np.array([0.3, 0.2]), np.zeros(2)), rounds=30,
    )  # fmt: skip
    assert_close(y.solution[0], np.array([0.3, 0.2]), atol=1e-14)
    assert_close(y.solution[1], ZOO.inner_solution(np.array([0.3, 0.2])), atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("symmetric", [True, False])
def test_a_round_of_f2sa_by_hand(symmetric):
    algorithm = F2SA(
        outer_lr=0.1, inner_lr=(0.2, 0.3), inner_rounds=3, penalty=PenaltyView(5.0, symmetric)
    )
    x, above, below = np.zeros(2), np.zeros(2), np.zeros(2)
    for _ in range(2):
        for _ in range(3):
            _, up, down = mean_maps(ZOO, algorithm.penalty, (x, above, below))
            above, below = above - 0.2 * up, below - 0.3 * down
        x = x - 0.1 * mean_maps(ZOO, algorithm.penalty, (x, above, below))[0]
    state, (ledger, _) = advance(ZOO, algorithm, 2, rk.Compiled())
    assert_close(state[:3], (x, above, below), rtol=1e-12)
    assert (ledger.exchanges, ledger.hessian_vectors) == (4, 0)
    assert ledger.bytes_down == 3 * 8 * (2 + 4 * 4) and ledger.bytes_up == 3 * 8 * (3 * 4 + 2)


def end(algorithm, rounds):
    result = solve(ZOO, algorithm, rounds)
    return np.linalg.norm(result.solution[0] - ZOO.solution()[0]), result


@pytest.mark.slow
def test_f2sa_ends_at_the_solution_of_the_penalty():
    """The limit has the bias of the estimate; more penalty, less bias."""
    errors = [
        end(F2SA(outer_lr=0.2, inner_lr=0.3, inner_rounds=30, penalty=PenaltyView(s)), 150)[0]
        for s in (10.0, 40.0)
    ]
    assert errors[0] == pytest.approx(16 * errors[1], rel=0.2)


@pytest.mark.slow
def test_the_single_loop_ends_where_the_double_loop_does():
    """With one step, and with FedMSA's corrected steps; plain local steps add their drift."""
    view = PenaltyView(10.0)
    rates: dict[str, Any] = {"outer_lr": 0.02, "inner_lr": 0.2}
    want = end(F2SA(outer_lr=0.2, inner_lr=0.3, inner_rounds=30, penalty=view), 400)[1].solution
    one, result = end(MemFBO(**rates, server_lr=(0.02, 0.2, 0.2), view=view), 4000)
    assert_close(result.solution, want, atol=1e-9)
    assert result.ledger.hessian_vectors == 0
    msa = rk.FedMSA(**rates, local_steps=3, clients=rk.participation.Everyone(), view=view)
    assert_close(solve(ZOO, msa, 4000).solution, want, atol=1e-8)
    drifting = MemFBO(**rates, server_lr=(0.02, 0.2, 0.2), local_steps=3, view=view)
    assert end(drifting, 4000)[0] > one + 1e-3


@pytest.mark.slow
def test_a_growing_penalty_leaves_less_bias():
    rates: dict[str, Any] = {"outer_lr": 0.005, "inner_lr": 0.2, "server_lr": (0.005, 0.2, 0.2)}
    fixed, _ = end(MemFBO(**rates, view=PenaltyView(10.0)), 8000)
    growing, _ = end(MemFBO(**rates, view=PenaltyView(Growing(10.0, 0.01, most=40.0))), 8000)
    assert growing < fixed / 8


@pytest.mark.slow
def test_a_schedule_is_read_at_the_round():
    view = PenaltyView(Growing(2.0, 3.0, most=6.0))
    assert [np.asarray(view.at(r).sigma).item() for r in (0, 1, 2)] == [2.0, 5.0, 6.0]
    algorithm = MemFBO(outer_lr=0.1, inner_lr=0.1, server_lr=0.1, view=view)
    state, _ = advance(ZOO, algorithm, 2, rk.Compiled())
    u = [np.zeros(2)] * 3
    for sigma in (2.0, 5.0):
        u = [b - 0.1 * d for b, d in zip(u, mean_maps(ZOO, PenaltyView(sigma), u), strict=True)]
    assert_close([*state.variables, *state.added], u, rtol=1e-12)


def test_a_round_of_bome_by_hand():
    m = means(ZOO)
    Qd = np.einsum("crij,crj->i", ZOO.Q, ZOO.d) / 3
    x, y = np.zeros(2), np.zeros(2)
    for _ in range(3):
        y_T = y
        for _ in range(2):
            y_T = y_T - 0.2 * (m["H"] @ y_T - m["B"] @ x - m["c"])
        f = np.concatenate([m["r"] + x + m["E"] @ y, m["Q"] @ y - Qd + m["E"].T @ x])
        q = np.concatenate([-m["B"].T @ (y - y_T), m["H"] @ y - m["B"] @ x - m["c"]])
        lam = max(0.5 * q @ q - f @ q, 0) / (q @ q)
        u = np.concatenate([x, y]) - 0.1 * (f + lam * q)
        x, y = u[:2], u[2:]
    state, ledgers = advance(ZOO, BOME(lr=0.1, inner_lr=0.2, inner_rounds=2), 3, rk.Compiled())
    assert_close(state[:2], (x, y), rtol=1e-12)
    assert (ledgers[0].exchanges, ledgers[0].hessian_vectors) == (3, 0)


@pytest.mark.slow
def test_bome_approaches_the_solution():
    errors = [end(BOME(lr=lr, inner_lr=0.3, inner_rounds=20), round(100 / lr))[0]
              for lr in (0.05, 0.005)]  # fmt: skip
    assert errors[1] < errors[0] / 3 and errors[1] < 0.05


def test_settings_are_checked():
    with pytest.raises(TypeError, match=r"view of MemFBO must be a PenaltyView"):
        MemFBO(outer_lr=0.1, inner_lr=0.1, server_lr=0.1, view=rk.parts.BilevelView())
    with pytest.raises(ValueError, match=r"PenaltyView.sigma"):
        PenaltyView(0.0)
    apart = rk.Bilevel(ZOO.problem.outer, ZOO.problem.inner)
    for algorithm in (
        F2SA(outer_lr=0.1, inner_lr=0.1, penalty=PenaltyView(one_sample=True)),
        rk.FedMSA(outer_lr=0.1, inner_lr=0.1, view=rk.parts.BilevelView(one_sample=True)),
    ):
        with pytest.raises(ValueError, match=r"one_sample=True needs one split for both levels"):
            algorithm.check(apart, 2)
    saddle: Any = rk.zoo.saddle(n_clients=2)
    with pytest.raises(TypeError, match=r"F2SA solves Bilevel problems"):
        F2SA(outer_lr=0.1, inner_lr=0.1).check(saddle.problem, 2)
    with pytest.raises(TypeError, match=r"PenaltyView is a view of Bilevel"):
        SimFBO(outer_lr=0.1, inner_lr=0.1, server_lr=0.1, view=PenaltyView()).check(
            saddle.problem, 2
        )
