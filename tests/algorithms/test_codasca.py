"""CODASCA: SCAFFOLD on a minimax problem in proximal stages."""

from typing import Any

import numpy as np
import pytest
from arena import advance, assert_close, saddle_fields, solve

import rookery as rk
from rookery.algorithms import CODASCA

ZOO = rk.zoo.saddle(curvature=1.0, n_clients=3, x_size=1, y_size=2)
LOCAL: dict[str, Any] = {"outer_lr": 0.05, "inner_lr": 0.1, "local_steps": 3}


def by_hand(rounds, mu, stage_rounds, steps=3):
    """The centre is sent for itself here, and the variates are of the whole proximal field."""
    fields = saddle_fields(ZOO)
    rates = np.array([0.05, 0.1, 0.1])
    u, c, own = np.full(3, 10.0), np.zeros(3), [np.zeros(3) for _ in fields]
    centre = u[:1]
    for t in range(rounds):
        if t % stage_rounds == 0:
            moved = np.concatenate([mu * (u[:1] - centre), np.zeros(2)])
            # the field of every client has changed by this, and so would its mean along the steps
            c, own = c - moved, [c_i - moved for c_i in own]
            centre = u[:1]
        ends, turned = [], []
        for i, (M, k) in enumerate(fields):
            w = u
            for _ in range(steps):
                prox = np.concatenate([mu * (w[:1] - centre), np.zeros(2)])
                w = w - rates * (M @ w - k + prox - own[i] + c)
            new = own[i] - c + (u - w) / (steps * rates)
            turned.append(new - own[i])
            own[i] = new
            ends.append(w)
        u, c = np.mean(ends, axis=0), c + np.mean(turned, axis=0)
    return u


def test_three_rounds_with_a_restart_by_hand():
    state, (_, ledger, _) = advance(ZOO, CODASCA(**LOCAL, mu=0.7, stage_rounds=2), 3)
    assert_close(state.blocks, tuple(np.split(by_hand(3, 0.7, 2), [1])), rtol=1e-11)
    assert (ledger.exchanges, ledger.bytes_down, ledger.bytes_up) == (1, 3 * 48, 3 * 48)


@pytest.mark.slow
def test_without_a_proximal_term_it_is_scaffold_s():
    want, _ = advance(ZOO, rk.ScaffoldS(**LOCAL), 3)
    got, _ = advance(ZOO, CODASCA(**LOCAL, mu=0.0, stage_rounds=2), 3)
    assert_close(got.blocks, want.blocks, rtol=1e-15)
    assert_close(got.own, want.own, rtol=1e-15)


@pytest.mark.slow
def test_it_ends_at_the_saddle_point_whatever_the_proximal_term():
    algorithm = CODASCA(**LOCAL, mu=2.0, stage_rounds=5)
    assert_close(solve(ZOO, algorithm, 1500).solution, ZOO.solution(), atol=1e-10)


def test_settings_are_checked():
    with pytest.raises(ValueError, match="stage_rounds must be at least 1, got 0"):
        CODASCA(**LOCAL, mu=0.1, stage_rounds=0)
    with pytest.raises(ValueError, match="mu"):
        CODASCA(**LOCAL, mu=-1.0, stage_rounds=2)
    with pytest.raises(TypeError, match="CODASCA solves Minimax"):
        CODASCA(**LOCAL, mu=0.1, stage_rounds=2).check(rk.zoo.quadratic_losses().problem, 3)
