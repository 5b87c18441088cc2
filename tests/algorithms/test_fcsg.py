"""FCSG, FCSG-M, Acc-FCSG-M."""

from typing import Any

import numpy as np
import pytest
from arena import advance, solve, trajectory

import rookery as rk
from rookery.algorithms import FCSG, FCSGM, AccFCSGM

ZOO = rk.zoo.conditional_quadratic(n_clients=3, size=2, draws=4, rows=2, noise=0.3)
FEW = rk.zoo.conditional_quadratic(n_clients=3, size=2, draws=4, rows=2, noise=0.3, m_in=2)
LOCAL: dict[str, Any] = {"outer_lr": 0.1, "local_steps": 3}
PARTIAL: dict[str, Any] = {**LOCAL, "clients": 2, "batch_size": 1}


def own_gradients(zoo):
    """Every client's exact gradient as (H, k): H w - k."""
    return [
        (np.einsum("rki,rkj->ij", A, A) / len(A), np.einsum("rki,rk->i", A, b) / len(A))
        for A, b in zip(zoo.A, zoo.b, strict=True)
    ]


def by_hand(rounds, first, step):
    """Averages of w and d over the clients after three local steps; the old point too is averaged.

    ``step(gradient, w, d)`` gives the new w and d.
    """
    clients, w = own_gradients(ZOO), np.zeros(2)
    d = np.mean([H @ w - k for H, k in clients], axis=0) if first else np.zeros(2)
    for _ in range(rounds):
        ends = []
        for H, k in clients:
            own_w, own_d = w, d
            for _ in range(3):
                own_w, own_d = step(lambda w, H=H, k=k: H @ w - k, own_w, own_d)
            ends.append((own_w, own_d))
        w, d = (np.mean(part, axis=0) for part in zip(*ends, strict=True))
    return w


def momentum(gradient, w, d):
    d = 0.7 * d + 0.3 * gradient(w)
    return w - 0.1 * d, d


def storm(gradient, w, d):
    new = w - 0.1 * d
    return new, gradient(new) + (1 - 0.4) * (d - gradient(w))


def plain(gradient, w, d):
    return w - 0.1 * gradient(w), d


@pytest.mark.parametrize(
    ("algorithm", "first", "step"),
    [
        pytest.param(FCSG(**LOCAL), False, plain, marks=pytest.mark.slow),
        pytest.param(
            FCSGM(**LOCAL, estimator=rk.parts.MomentumEstimator(0.7)),
            True,
            momentum,
            marks=pytest.mark.slow,
        ),
        (AccFCSGM(**LOCAL, estimator=rk.parts.STORM(0.4)), True, storm),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_two_rounds_by_hand(algorithm, first, step):
    state, ledgers = advance(ZOO, algorithm, 2, rk.Eager())
    np.testing.assert_allclose(state.variables[0], by_hand(2, first, step), rtol=1e-11)
    twice = 2 if algorithm.name == "AccFCSGM" else 1
    vectors = 1 if algorithm.name == "FCSG" else 2
    ledger = ledgers[1]
    assert (ledger.exchanges, ledger.bytes_up, ledger.bytes_down) == (
        1, 3 * 16 * vectors, 3 * 16 * vectors
    )  # fmt: skip
    assert ledger.gradients == twice * 3 * 3 * 2 * (1 + 4)  # clients, steps, rows, levels
    assert ledgers[0].exchanges == vectors


@pytest.mark.slow
def test_momentum_without_a_past_is_fcsg():
    want, _ = advance(FEW, FCSG(**PARTIAL), 2, rk.Eager())
    without = FCSGM(**PARTIAL, estimator=rk.parts.MomentumEstimator(0.0))
    got, _ = advance(FEW, without, 2, rk.Eager())
    np.testing.assert_array_equal(got.variables[0], want.variables[0])


@pytest.mark.slow
def test_it_ends_at_the_solution_of_the_plug_in():
    """The mean of late iterates, so that noise averages out."""
    zoo = rk.zoo.conditional_quadratic(n_clients=3, size=2, draws=8, m_in=2, heterogeneity=0.5)
    late = trajectory(zoo, FCSG(outer_lr=0.02), 6000)[2000:]
    (biased,), (exact,) = zoo.plug_in_solution(), zoo.solution()
    assert np.linalg.norm(late.mean(0) - biased) < 0.1 * np.linalg.norm(biased - exact)


@pytest.mark.slow
def test_all_draws_and_one_local_step_give_the_exact_solution():
    for algorithm in (FCSG(outer_lr=0.3), AccFCSGM(outer_lr=0.3)):
        (w,) = solve(ZOO, algorithm, 400).solution
        np.testing.assert_allclose(w, ZOO.solution()[0], rtol=1e-10)


def test_settings_are_checked():
    with pytest.raises(TypeError, match=r"estimator of FCSGM must be rk\.parts\.MomentumEstimator"):
        FCSGM(outer_lr=0.1, estimator=rk.parts.STORM())
    with pytest.raises(TypeError, match="ConditionalView is a view of Conditional problems"):
        FCSG(outer_lr=0.1).check(rk.zoo.quadratic_losses().problem, 2)
    with pytest.raises(TypeError, match="FCSG: got an unexpected keyword argument 'inner_lr'"):
        FCSG(outer_lr=0.1, inner_lr=0.1)
