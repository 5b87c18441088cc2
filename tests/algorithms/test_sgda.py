"""FedAvg-S against plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arena import federation, saddle_fields, solve
from some_slow import some_slow

import rookery as rk

ZOO = rk.zoo.saddle(curvature=1.0, n_clients=3)


def by_hand(zoo, steps, is_alternating, is_shared_out):
    x0, y0 = zoo.start
    ends = []
    for D, A, b, R, n in zip(*(a[:, 0] for a in zoo.data.values()), steps, strict=True):
        x, y, lr = x0, y0, 0.05 / n if is_shared_out else 0.05
        for _ in range(n):
            y_new = y + 2 * lr * (b - D @ y - A @ x)
            x, y = x - lr * (R @ x - A.T @ (y_new if is_alternating else y)), y_new
        ends.append((x, y))
    return [np.mean(part, axis=0) for part in zip(*ends, strict=True)]


@pytest.mark.parametrize("order", [rk.parts.Simultaneous(), rk.parts.Alternating()])
@pytest.mark.parametrize("steps", [pytest.param((1, 4, 2)), *some_slow([1, 3], 0)])
@pytest.mark.parametrize("is_shared_out", [False, True])
def test_one_round_by_hand(order, steps, is_shared_out):
    rates = [rk.parts.PerCall(a) if is_shared_out else a for a in (0.05, 0.1)]
    algorithm = rk.FedAvgS(outer_lr=rates[0], inner_lr=rates[1], local_steps=steps, order=order)
    state = algorithm.init(ZOO.problem, *map(jnp.asarray, ZOO.start))
    new = algorithm.round(federation(ZOO), ZOO.problem, state, jax.random.key(0))
    each = steps if isinstance(steps, tuple) else (steps,) * 3
    want = by_hand(ZOO, each, isinstance(order, rk.parts.Alternating), is_shared_out)
    np.testing.assert_allclose(new.x, want[0], rtol=1e-12)
    np.testing.assert_allclose(new.y, want[1], rtol=1e-12)


def test_one_local_step_finds_the_saddle_point_and_several_stall_beside_it():
    x_star = ZOO.solution()[0]
    one, several = (
        solve(ZOO, rk.FedAvgS(outer_lr=0.05, inner_lr=0.1, local_steps=n), 800).solution[0]
        for n in (1, 5)
    )
    np.testing.assert_allclose(one, x_star, rtol=0, atol=1e-12)
    assert np.linalg.norm(several - x_star) > 1e-3


def resting_point(zoo, lr, steps, is_shared_out):
    """Where mean (I - P_i)(u - u_i) = 0, P_i = (I - lr_i M_i)^steps_i and u_i client i's saddle."""
    left, right = 0, 0
    for (M, k), n in zip(saddle_fields(zoo), steps, strict=True):
        step = np.eye(len(k)) - (lr / n if is_shared_out else lr) * M
        pull = np.eye(len(k)) - np.linalg.matrix_power(step, n)
        left, right = left + pull, right + pull @ np.linalg.solve(M, k)
    return np.linalg.solve(left, right)


@pytest.mark.slow
def test_unequal_local_steps_come_to_rest_where_the_closed_form_says():
    steps, exact = (1, 6, 2), np.concatenate(ZOO.solution())
    distance = {}
    for is_shared_out in (False, True):
        lr = rk.parts.PerCall(0.05) if is_shared_out else 0.05
        found = np.concatenate(
            solve(ZOO, rk.FedAvgS(outer_lr=lr, inner_lr=lr, local_steps=steps), 1500).solution
        )
        np.testing.assert_allclose(
            found, resting_point(ZOO, 0.05, steps, is_shared_out), rtol=0, atol=1e-10
        )
        distance[is_shared_out] = [
            np.linalg.norm(resting_point(ZOO, lr, steps, is_shared_out) - exact)
            for lr in (0.05, 1e-4, 5e-5)
        ]
    # shared out, the distance falls in proportion to the step size; else clients weigh as many
    # times as they step, and no step size mends that
    assert distance[True][0] < distance[False][0] / 5
    assert distance[True][1] / distance[True][2] == pytest.approx(2, rel=1e-3)
    tilted = np.linalg.solve(
        *(sum(n * f[j] for n, f in zip(steps, saddle_fields(ZOO), strict=True)) for j in (0, 1))
    )
    assert distance[False][2] == pytest.approx(np.linalg.norm(tilted - exact), rel=1e-3)


def test_bad_input():
    with pytest.raises(TypeError, match="FedAvgS solves Minimax problems, got Bilevel"):
        solve(rk.zoo.scalar_bilevel(), rk.FedAvgS(outer_lr=0.1, inner_lr=0.1), 1)
    with pytest.raises(ValueError, match="inner_lr must be a finite number above 0"):
        rk.FedAvgS(outer_lr=0.1, inner_lr=-0.1)
    with pytest.raises(ValueError, match="local_steps has 2 entries for 3 clients"):
        rk.FedAvgS(outer_lr=0.1, inner_lr=0.1, local_steps=(1, 2)).check(ZOO.problem, 3)
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        rk.FedAvgS(outer_lr=0.1, inner_lr=0.1, batch_size=0)
