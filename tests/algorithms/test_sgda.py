"""FedAvg-S against plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arena import federation, solve

import rookery as rk

ZOO = rk.zoo.curved_saddle(n_clients=3)


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


@pytest.mark.parametrize("order", [rk.Simultaneous(), rk.Alternating()])
@pytest.mark.parametrize("steps", [1, 3, (1, 4, 2)])
@pytest.mark.parametrize("is_shared_out", [False, True])
def test_one_round_by_hand(order, steps, is_shared_out):
    rates = [rk.PerCall(a) if is_shared_out else a for a in (0.05, 0.1)]
    algorithm = rk.FedAvgS(*rates, local_steps=steps, order=order)
    state = algorithm.init(ZOO.problem, *map(jnp.asarray, ZOO.start))
    new = algorithm.round(federation(ZOO), ZOO.problem, state, jax.random.key(0))
    each = steps if isinstance(steps, tuple) else (steps,) * 3
    want = by_hand(ZOO, each, isinstance(order, rk.Alternating), is_shared_out)
    np.testing.assert_allclose(new.x, want[0], rtol=1e-12)
    np.testing.assert_allclose(new.y, want[1], rtol=1e-12)


def test_one_local_step_finds_the_saddle_point_and_several_stall_beside_it():
    x_star = ZOO.solution()[0]
    one, several = (
        solve(ZOO, rk.FedAvgS(0.05, 0.1, local_steps=n), 800).solution[0] for n in (1, 5)
    )
    np.testing.assert_allclose(one, x_star, rtol=0, atol=1e-12)
    assert np.linalg.norm(several - x_star) > 1e-3


def test_bad_input():
    with pytest.raises(TypeError, match="FedAvgS solves Minimax problems, got Bilevel"):
        solve(rk.zoo.scalar_bilevel(), rk.FedAvgS(0.1, 0.1), 1)
    with pytest.raises(ValueError, match="inner_lr must be a finite number above 0"):
        rk.FedAvgS(0.1, -0.1)
    with pytest.raises(ValueError, match="local_steps has 2 entries for 3 clients"):
        rk.FedAvgS(0.1, 0.1, local_steps=(1, 2)).check(ZOO.problem, 3)
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        rk.FedAvgS(0.1, 0.1, batch_size=0)
