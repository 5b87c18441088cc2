"""Per-FedAvg against plain NumPy and against ComFedL."""

import itertools

import numpy as np
import pytest
from arena import advance, solve

import rookery as rk
from rookery.problem.sample import Rows

ZOO = rk.zoo.cubic_maml(n_clients=3, size=2, adaptation_lr=0.2)
NOISY = rk.zoo.cubic_maml(n_clients=3, size=2, rows=5, noise=0.3)
EPSILON = 1e-2
WAYS = {
    "exact": rk.parts.ExactHessian(),
    "FO": rk.parts.FirstOrder(),
    "HF": rk.parts.HessianFree(epsilon=EPSILON),
}


def gradient(i, w, way):
    """(I - a Hess f_i(w)) grad f_i(w - a grad f_i(w)), the Hessian taken in one of three ways."""
    A, b, a = ZOO.A[i, 0], ZOO.b[i, 0], ZOO.adaptation_lr

    def slope(w):
        return A @ w + b + w**2 / 2

    g = slope(w - a * slope(w))
    product = {
        "exact": A @ g + w * g,
        "FO": 0,
        "HF": (slope(w + EPSILON * g) - slope(w - EPSILON * g)) / (2 * EPSILON),
    }[way]
    return g - a * product


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_local_steps_by_hand_and_as_comfedl(way):
    steps, w = (1, 3, 2), np.zeros(2)
    for _ in range(2):
        own = []
        for i in range(3):
            v = w
            for _ in range(steps[i]):
                v = v - 0.3 * gradient(i, v, way)
            own.append(v)
        w = np.mean(own, axis=0)
    for algorithm in (rk.PerFedAvg, rk.ComFedL):
        state, _ = advance(ZOO, algorithm(lr=0.3, local_steps=steps, hessian=WAYS[way]), 2)
        np.testing.assert_allclose(state.w, w, rtol=1e-10)


def test_only_the_hessian_leads_to_the_solution():
    (exact,) = ZOO.solution()
    full, first_order = (
        solve(ZOO, rk.PerFedAvg(lr=0.3, hessian=way), 200).solution[0]
        for way in (rk.parts.ExactHessian(), rk.parts.FirstOrder())
    )
    np.testing.assert_allclose(full, exact, rtol=1e-10)
    assert np.linalg.norm(first_order - exact) > 1e-3


@pytest.mark.parametrize(
    ("way", "gradients", "products"), [("exact", 2, 1), ("FO", 2, 0), ("HF", 4, 0)]
)
def test_ledger(way, gradients, products):
    algorithm = rk.PerFedAvg(lr=0.1, local_steps=3, hessian=WAYS[way], clients=2, batch_size=4)
    _, (ledger,) = advance(NOISY, algorithm, 1)
    assert ledger.exchanges == 1
    assert ledger.bytes_down == ledger.bytes_up == 2 * 2 * 8
    assert ledger.gradients == 2 * 3 * 4 * gradients
    assert ledger.hessian_vectors == 2 * 3 * 4 * products


def test_the_three_batches_are_independent():
    """Rows differ in their Hessians too, so that a step tells which row was drawn for what."""
    A = np.stack([np.eye(2) * scale for scale in (0.5, 1.0, 2.0)])[None]
    one = rk.zoo.CubicMAML(A, NOISY.b[:1, :3], adaptation_lr=0.5)
    rows = [Rows({k: a[0, i : i + 1] for k, a in one.data.items()}) for i in range(3)]
    (start,) = one.start
    possible = {
        drawn: -0.1 * np.asarray(one.problem.gradient(start, *(rows[i] for i in drawn)))
        for drawn in itertools.product(range(3), repeat=3)
    }
    found = set()
    for seed in range(8):
        state, _ = advance(one, rk.PerFedAvg(lr=0.1, batch_size=1), 1, seed=seed)
        found |= {drawn for drawn, w in possible.items() if np.allclose(w, state.w, rtol=1e-9)}
    for first, second in itertools.combinations(range(3), 2):
        assert any(drawn[first] != drawn[second] for drawn in found)


def test_bad_input():
    with pytest.raises(TypeError, match="PerFedAvg solves Meta problems, got SingleLevel"):
        solve(rk.zoo.quadratic_losses(), rk.PerFedAvg(lr=0.1), 1)
    with pytest.raises(ValueError, match=r"HessianFree.epsilon must be a finite number above 0"):
        rk.parts.HessianFree(epsilon=0)
