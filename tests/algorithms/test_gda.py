"""Descent-ascent of the server against plain NumPy, and its known fate on a bilinear payoff."""

import equinox as eqx
import jax
import numpy as np
import pytest
from arena import federation, pooled, round_by_round, saddle_fields, solve
from some_slow import some_slow

import rookery as rk
from rookery.program.algorithm import numbers_to_arrays

ZOO = rk.zoo.saddle(curvature=1.0, n_clients=3, x_size=1, y_size=2)
ALL = (rk.GDA, rk.AlternatingGDA, rk.Extragradient)
EXCHANGES = {rk.GDA: 1, rk.AlternatingGDA: 2, rk.Extragradient: 2}


def by_hand(kind, u, lr):
    """One round on u = (x, y), with x of one number, along the mean field."""
    M, k = (np.mean(part, axis=0) for part in zip(*saddle_fields(ZOO), strict=True))
    if kind is rk.GDA:
        return u - lr * (M @ u - k)
    if kind is rk.Extragradient:
        return u - lr * (M @ (u - lr * (M @ u - k)) - k)
    half = np.concatenate([u[:1], (u - lr * (M @ u - k))[1:]])
    return np.concatenate([(half - lr * (M @ half - k))[:1], half[1:]])


@pytest.mark.parametrize("kind", some_slow(ALL))
def test_rounds_by_hand_with_all_clients_and_with_one_that_holds_everything(kind):
    lr = np.array([0.05, 0.1, 0.1])
    for zoo in (ZOO, pooled(ZOO)):
        for _, old, new, cost in round_by_round(
            zoo, kind(outer_lr=0.05, inner_lr=0.1), 2, rk.Eager()
        ):
            want = by_hand(kind, np.concatenate(old[:2]), lr)
            np.testing.assert_allclose(np.concatenate(new[:2]), want, rtol=1e-12)
            n = len(zoo.D)
            assert cost.exchanges == EXCHANGES[kind]
            assert cost.bytes_down == n * EXCHANGES[kind] * 3 * 8
            # AlternatingGDA asks for one variable's gradient at a time
            sent_up = 3 if kind is rk.AlternatingGDA else 3 * EXCHANGES[kind]
            assert cost.bytes_up == n * sent_up * 8
            assert cost.gradients == 3 * (4 if kind is rk.Extragradient else 2)


def bilinear():
    """f(x, y) = b y - A x y, where A is 1 in the mean: no curvature at all, saddle at (2, 0)."""
    flat = np.zeros((2, 1, 1, 1))
    A = np.array([0.5, 1.5]).reshape(2, 1, 1, 1)
    return rk.zoo.QuadraticSaddle(D=flat, A=A, b=np.full((2, 1, 1), 2.0), R=flat)


@pytest.mark.parametrize("kind", ALL)
def test_on_a_bilinear_payoff_gda_leaves_extragradient_arrives_and_alternating_goes_round(kind):
    rounds, lr = 400, 0.3
    guard = None if kind is rk.GDA else rk.stop.Guard()  # what goes round does not break down
    x, y = solve(bilinear(), kind(outer_lr=lr, inner_lr=lr), rounds, guard=guard).solution
    distance = float(np.hypot(x[0] - 2, y[0]) / np.hypot(8, 10))
    if kind is rk.GDA:  # a step is the matrix of eigenvalues 1 +- i lr
        assert distance == pytest.approx((1 + lr**2) ** (rounds / 2), rel=1e-9)
    elif kind is rk.Extragradient:  # of eigenvalues 1 - lr^2 +- i lr
        assert distance == pytest.approx((1 - lr**2 + lr**4) ** (rounds / 2), rel=1e-6)
    else:  # it keeps |u|^2 - lr u_x u_y, whose level sets are ellipses
        kept, begun = (a**2 + b**2 - lr * a * b for a, b in ((x[0] - 2, y[0]), (8, 10)))
        assert float(kept) == pytest.approx(begun, rel=1e-10)


def test_single_precision_stays_single():
    zoo = rk.zoo.saddle(curvature=1.0, n_clients=3, dtype=np.float32)
    algorithm = numbers_to_arrays(rk.Extragradient(outer_lr=0.1, inner_lr=0.1, clients=2))
    state = algorithm.init(zoo.problem, *zoo.start)

    def round(algorithm, state, key):
        return algorithm.round(federation(zoo), zoo.problem, state, key)

    new = eqx.filter_eval_shape(round, algorithm, state, jax.random.key(0))
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(new))


def test_bad_input():
    with pytest.raises(TypeError, match="GDA solves Minimax problems, got Bilevel"):
        solve(rk.zoo.scalar_bilevel(), rk.GDA(outer_lr=0.1, inner_lr=0.1), 1)
    with pytest.raises(TypeError, match="outer_lr must be a number, got PerCall"):
        rk.GDA(outer_lr=rk.parts.PerCall(0.1), inner_lr=0.1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="inner_lr must be a finite number above 0"):
        rk.AlternatingGDA(outer_lr=0.1, inner_lr=0.0)
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        rk.Extragradient(outer_lr=0.1, inner_lr=0.1, batch_size=0)
    with pytest.raises(ValueError, match="4 different clients"):
        rk.GDA(outer_lr=0.1, inner_lr=0.1, clients=4).check(ZOO.problem, 3)
