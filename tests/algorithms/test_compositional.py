"""STSA, SOBA, SCGD, NASA and the composed gradient against closed forms, one step at a time."""

import numpy as np
import pytest
from arena import advance, assert_close, solve

import rookery as rk

CHAIN = rk.zoo.linear_chain(n_clients=3, sizes=(2, 2, 3))
TWO = rk.zoo.linear_chain(n_clients=3, sizes=(2, 3))
SCALAR = rk.zoo.scalar_bilevel().problem


def test_the_composed_gradient_of_all_rows_is_exact_however_clients_differ():
    state, _ = advance(CHAIN, rk.ComposedSGD(outer_lr=0.1), 3)
    x = np.zeros(2)
    for _ in range(3):
        x = x - 0.1 * CHAIN.gradient(x)
    np.testing.assert_allclose(state.x, x, rtol=1e-12)


def test_the_composed_gradient_of_a_batch_is_undivided_and_biased():
    """One row of k x - t with k = 1 or 3: the batch's gradient is k (k x - t), not the mean's."""
    slope, target = np.array([1.0, 3.0]), np.array([1.0, 5.0])
    zoo = rk.zoo.LinearChain(
        (slope.reshape(1, 2, 1, 1),), (np.zeros((1, 2, 1)),), target.reshape(1, 2, 1)
    )
    steps = [
        float(advance(zoo, rk.ComposedSGD(outer_lr=1.0, batch_size=1), 1, seed=s)[0].x[0])
        for s in range(8)
    ]
    assert set(steps) == {1.0, 15.0}  # 2 (2 * 0 - 3) = -6 would be right
    (x,) = advance(zoo, rk.ComposedSGD(outer_lr=1.0), 1)[0].x
    assert float(x) == pytest.approx(6.0)


def test_scgd_by_hand():
    A = [m.mean((0, 1)) for m in CHAIN.matrices]
    c = [o.mean((0, 1)) for o in CHAIN.offsets]
    t = CHAIN.target.mean((0, 1))
    algorithm = rk.SCGD(
        outer_lr=rk.parts.PowerDecay(0.2, 0.75), inner_lr=rk.parts.PowerDecay(0.5, 0.5)
    )
    x, z1, z2 = np.zeros(2), np.zeros(2), np.zeros(3)
    for r in range(3):
        b = 0.5 / np.sqrt(r + 1)
        z1 = (1 - b) * z1 + b * (A[0] @ x + c[0])
        z2 = (1 - b) * z2 + b * (A[1] @ z1 + c[1])
        x = x - 0.2 / (r + 1) ** 0.75 * A[0].T @ A[1].T @ (z2 - t)
    state, _ = advance(CHAIN, algorithm, 3)
    assert_close((state.x, state.z), (x, (z1, z2)), rtol=1e-12)


def test_nasa_by_hand():
    A, c, t = TWO.matrices[0].mean((0, 1)), TWO.offsets[0].mean((0, 1)), TWO.target.mean((0, 1))
    step, B, a, b = 0.3, 2.0, 0.5, 0.8
    x, z, d = np.zeros(2), np.zeros(3), np.zeros(2)
    for _ in range(4):
        x = x - step / B * d
        g, value = A.T @ (z - t), A @ x + c
        d = (1 - a * step) * d + a * step * g
        z = (1 - b * step) * z + b * step * value
    state, _ = advance(TWO, rk.NASA(lr=step, proximity=B, gradient_share=a, value_share=b), 4)
    assert_close(tuple(state), (x, z, d), rtol=1e-12)


@pytest.mark.parametrize(
    "algorithm", [rk.SCGD(outer_lr=0.2, inner_lr=0.5), rk.NASA(lr=0.2)], ids=["SCGD", "NASA"]
)
def test_they_reach_the_solution(algorithm):
    assert_close(solve(TWO, algorithm, 3000).solution, TWO.solution(), atol=1e-9)


def test_soba_by_hand():
    zoo = rk.zoo.scalar_bilevel()  # H = 2, B = -1, c = 1/2, f = (y - 1)^2 / 2 + x^2 / 2
    x = y = v = 0.0
    for _ in range(4):
        maps = (x - v, 2 * y + x - 0.5, 2 * v - (y - 1))
        x, y, v = x - 0.1 * maps[0], y - 0.2 * maps[1], v - 0.05 * maps[2]
    state, _ = advance(zoo, rk.SOBA(outer_lr=0.1, inner_lr=(0.2, 0.05)), 4)
    got = [float(a[0]) for a in (state.x, state.y, state.v)]
    np.testing.assert_allclose(got, (x, y, v), rtol=1e-12)
    assert_close(
        solve(zoo, rk.SOBA(outer_lr=0.1, inner_lr=0.2), 600).solution, zoo.solution(), atol=1e-10
    )


def test_costs():
    m, p, s = 3, 2 * 8, (2 + 3) * 8
    for algorithm in (rk.ComposedSGD(outer_lr=0.1), rk.SCGD(outer_lr=0.1, inner_lr=0.1)):
        _, (ledger,) = advance(CHAIN, algorithm, 1)
        assert ledger.exchanges == 5
        assert ledger.bytes_down == ledger.bytes_up == m * (p + 2 * s)
    _, (ledger,) = advance(TWO, rk.NASA(lr=0.1), 1)
    assert ledger.exchanges == 2
    assert ledger.bytes_down == ledger.bytes_up == m * (2 + 2 * 3) * 8
    _, (ledger,) = advance(CHAIN, rk.STSA(outer_lr=0.1, inner_lr=0.1, clients=2), 1)
    assert (ledger.exchanges, ledger.messages) == (1, 4)
    assert ledger.bytes_down == ledger.bytes_up == 2 * (2 + 2 * 5) * 8


def test_problems_that_do_not_fit():
    with pytest.raises(TypeError, match="SOBA solves Bilevel problems, got Composition"):
        rk.SOBA(outer_lr=0.1, inner_lr=0.1).check(TWO.problem, 3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="SCGD solves Composition problems, got Bilevel"):
        rk.SCGD(outer_lr=0.1, inner_lr=0.1).check(SCALAR, 2)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="NASA solves compositions of two layers, got 3 layers"):
        rk.NASA(lr=0.1).check(CHAIN.problem, 3)
    with pytest.raises(ValueError, match="outer_lr must be a finite number above 0"):
        rk.ComposedSGD(outer_lr=-1.0)
