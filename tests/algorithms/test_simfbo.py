"""SimFBO, ShroFBO, FedBiO and FedBiOAcc: identities, rounds by hand, and where each one ends."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arena import (
    advance,
    assert_close,
    bilevel_maps,
    federation,
    pooled,
    solve,
    trajectory,
)

import rookery as rk
from rookery.algorithms import FedBiO, FedBiOAcc, ShroFBO, SimFBO
from rookery.algorithms.shared.weighting import weighed
from rookery.program.participation import Cohort

ZOO = rk.zoo.quadratic_bilevel(n_clients=3, x_size=2, y_size=2)
NOISY = rk.zoo.quadratic_bilevel(n_clients=3, x_size=2, y_size=2, rows=4, noise=0.3)
SIZES: dict[str, Any] = {"outer_lr": 0.05, "inner_lr": (0.1, 0.08)}
EQUAL: dict[str, Any] = {**SIZES, "server_lr": (0.05, 0.1, 0.08)}
UNEQUAL = (1, 2, 4)


def start(zoo):
    x, y = zoo.start
    return [x, y, np.zeros_like(y)]


def local_sums(maps, u, sizes, tau):
    """The blocks after tau steps, and the sum of the maps along them."""
    w, total = list(u), [np.zeros_like(b) for b in u]
    for _ in range(tau):
        s = maps(*w)
        total = [t + d for t, d in zip(total, s, strict=True)]
        w = [b - size * d for b, size, d in zip(w, sizes, s, strict=True)]
    return w, total


@pytest.mark.parametrize(
    "zoo",
    [ZOO, pooled(NOISY)],
    ids=["several clients", "one client"],
)
@pytest.mark.slow
def test_with_one_local_step_all_single_loop_methods_are_soba(zoo):
    def xs(algorithm):
        return trajectory(zoo, algorithm, 4)

    want = xs(rk.SOBA(**SIZES))
    assert np.ptp(want, axis=0).min() > 1e-2
    for algorithm in (
        SimFBO(**SIZES, server_lr=EQUAL["server_lr"]),
        ShroFBO(**SIZES, server_lr=EQUAL["server_lr"]),
        FedBiO(**SIZES),
        FedBiOAcc(**SIZES, estimator=rk.parts.STORM(1.0)),
        rk.FedMSA(**SIZES, renewal=1.0, clients=rk.participation.Everyone()),
    ):
        np.testing.assert_allclose(xs(algorithm), want, rtol=1e-12, atol=1e-14)


@pytest.mark.slow
def test_the_servers_step_is_not_the_clients():
    """With one local step only the server's size counts."""
    want = trajectory(ZOO, rk.SOBA(outer_lr=0.02, inner_lr=(0.3, 0.2)), 3)
    got = trajectory(ZOO, SimFBO(**SIZES, server_lr=(0.02, 0.3, 0.2)), 3)
    np.testing.assert_allclose(got, want, rtol=1e-12)


@pytest.mark.slow
def test_server_step_equal_to_local_step_is_fedbio():
    settings: dict[str, Any] = {"local_steps": UNEQUAL, "clients": 2, "batch_size": 2}
    a, b = (
        trajectory(NOISY, one, 4, seed=5)
        for one in (SimFBO(**EQUAL, **settings), FedBiO(**SIZES, **settings))
    )
    np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("weighting", ["unbiased", "normalised"])
def test_it_is_so_with_unequal_weights_of_the_clients(weighting):
    settings: dict[str, Any] = {"local_steps": UNEQUAL, "clients": 2, "weighting": weighting}
    (a, _), (b, _) = (
        advance(ZOO, one, 2, weights=np.array([0.7, 0.2, 0.1]))
        for one in (SimFBO(**EQUAL, **settings), FedBiO(**SIZES, **settings))
    )
    assert_close(a.u, b.u, rtol=1e-12)


@pytest.mark.slow
def test_equal_numbers_of_steps_need_no_normalisation():
    a, b = (trajectory(ZOO, make(**EQUAL, local_steps=3), 4) for make in (SimFBO, ShroFBO))
    np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize("make", [SimFBO, ShroFBO])
def test_two_rounds_by_hand(make):
    gamma, radius, u = (0.02, 0.3, 0.2), 0.05, start(ZOO)
    for _ in range(2):
        sums = [
            local_sums(maps, u, (0.05, 0.1, 0.08), tau)[1]
            for maps, tau in zip(bilevel_maps(ZOO), UNEQUAL, strict=True)
        ]
        counts = UNEQUAL if make is ShroFBO else (1, 1, 1)
        along = [
            np.mean([s[j] / c for s, c in zip(sums, counts, strict=True)], 0) * np.mean(counts)
            for j in range(3)
        ]
        u = [b - g * d for b, g, d in zip(u, gamma, along, strict=True)]
        u[2] = u[2] * min(1, radius / np.linalg.norm(u[2]))
    algorithm = make(**SIZES, server_lr=gamma, local_steps=UNEQUAL, inner_radius=(np.inf, radius))
    state, ledgers = advance(ZOO, algorithm, 2, rk.Compiled())
    assert_close([*state.variables, *state.added], u, rtol=1e-12)
    assert np.linalg.norm(u[2]) == pytest.approx(radius)
    up = 3 * (2 + 2 + 2 + (make is ShroFBO)) * 8
    assert [(c.exchanges, c.bytes_up) for c in ledgers] == [(1, up)] * 2
    assert ledgers[0].gradients == 3 * sum(UNEQUAL)
    assert ledgers[0].hessian_vectors == 2 * sum(UNEQUAL)


@pytest.mark.slow
def test_a_bound_that_is_not_reached_changes_nothing():
    a, b = (
        trajectory(ZOO, SimFBO(**EQUAL, local_steps=2, inner_radius=r), 4)
        for r in (None, (1e3, 1e3))
    )
    np.testing.assert_allclose(a, b, rtol=1e-14)


def test_both_weightings_of_a_cohort():
    """The mean over all cohorts: unbiased is exact, normalised is not if weights differ."""
    weights, replies = np.array([0.7, 0.2, 0.1]), np.array([1.0, -2.0, 9.0])
    fed, means = federation(ZOO, is_eager=True, weights=weights), {}
    for weighting in ("unbiased", "normalised"):
        each = []
        for pair in itertools.combinations(range(3), 2):
            cohort = Cohort(jnp.array(pair), jnp.ones(2, bool))
            mean = np.dot(fed.slot_weights(cohort), replies[list(pair)])
            each.append(weighed(fed, weighting, cohort, mean))
            around = weighed(fed, weighting, cohort, 5.0 + mean, around=np.array(5.0))
            assert float(around) == pytest.approx(5.0 + float(each[-1]), rel=1e-12)
        means[weighting] = np.mean(each)
    assert means["unbiased"] == pytest.approx(weights @ replies, rel=1e-12)
    assert abs(means["normalised"] - weights @ replies) > 0.1
    with pytest.raises(ValueError, match=r"clients is Weighted"):
        SimFBO(**EQUAL, clients=rk.participation.Weighted(2))
    assert SimFBO(**EQUAL, clients=rk.participation.Weighted(2), weighting="normalised")


def ends(algorithm, rounds, of=ZOO):
    x = solve(ZOO, algorithm, rounds).solution[0]
    return np.linalg.norm(x - of.solution()[0])


@pytest.mark.slow
def test_where_local_steps_end():
    """Exact for one step; a bias linear in the step; another problem for unequal numbers."""
    far, near = 0.04, 0.01

    def sizes(lr) -> dict[str, Any]:
        return {"outer_lr": lr, "inner_lr": lr}

    assert ends(SimFBO(**sizes(0.1), server_lr=0.1), 1500) < 1e-14
    assert ends(FedBiOAcc(**sizes(0.1), estimator=rk.parts.STORM(0.3)), 1500) < 1e-14
    for make in (
        lambda lr: SimFBO(**sizes(lr), server_lr=lr, local_steps=5),
        lambda lr: ShroFBO(**sizes(lr), server_lr=lr, local_steps=UNEQUAL),
        lambda lr: FedBiOAcc(**sizes(lr), local_steps=5, estimator=rk.parts.STORM(0.1)),
    ):
        errors = [ends(make(lr), round(60 / lr)) for lr in (far, near)]
        assert errors[0] == pytest.approx(4 * errors[1], rel=0.25) and errors[1] > 1e-3
    # a client counts by its number of steps: it is there as often
    rows = {name: np.repeat(a, UNEQUAL, axis=0) for name, a in ZOO.data.items()}
    for zoo, is_solved in ((ZOO, False), (rk.zoo.QuadraticBilevel(**rows, m0=ZOO.m0), True)):
        other = [
            ends(SimFBO(**sizes(lr), server_lr=lr, local_steps=UNEQUAL), round(60 / lr), zoo)
            for lr in (far, near)
        ]
        if is_solved:
            assert other[0] == pytest.approx(4 * other[1], rel=0.25)
        else:
            assert min(other) > 0.05 and other[1] > other[0] / 1.5


@pytest.mark.slow
@pytest.mark.parametrize("steps", [2, 5])
def test_the_drift_of_local_steps_is_that_of_their_second_order(steps):
    """At the limit  mean s_i = lr (τ - 1) / 2 mean(J_i s_i),  J_i the derivative of s_i."""
    lr = 0.002
    u = solve(ZOO, FedBiO(outer_lr=lr, inner_lr=lr, local_steps=steps), round(60 / lr)).state.u
    u, left, right = np.concatenate(u), [], []
    for maps in bilevel_maps(ZOO):

        def s(w, maps=maps):
            return np.concatenate(maps(*np.split(w, 3)))

        jacobian = np.stack([s(e) - s(np.zeros(6)) for e in np.eye(6)], axis=1)
        left.append(s(u))
        right.append(lr * (steps - 1) / 2 * jacobian @ s(u))
    left, right = np.mean(left, 0), np.mean(right, 0)
    assert np.linalg.norm(left - right) < 0.03 * np.linalg.norm(right)


@pytest.mark.slow
def test_the_drift_of_fedbioacc_does_not_depend_on_its_renewal():
    settings: dict[str, Any] = {"outer_lr": 0.04, "inner_lr": 0.04, "local_steps": 5}
    errors = [
        ends(FedBiOAcc(**settings, estimator=rk.parts.STORM(c)), 1500) for c in (1.0, 0.1, 0.01)
    ]
    assert np.ptp(errors) < 0.02 * min(errors)
    assert min(errors) == pytest.approx(ends(FedBiO(**settings), 1500), rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("c", [0.3, 1e-12])
def test_an_error_of_the_first_estimate_fades_with_the_renewal(c):
    """Without renewal it would never be forgotten; c = 0 is refused."""
    storm = FedBiOAcc(**SIZES, estimator=rk.parts.STORM(c), first_batch=1)
    errors = []
    for rounds in (1, 3):
        state, _ = advance(NOISY, storm, rounds)
        each = [maps(*map(np.asarray, state.u)) for maps in bilevel_maps(NOISY)]
        now = [np.mean(block, 0) for block in zip(*each, strict=True)]
        errors.append(np.concatenate(state.d) - np.concatenate(now))
    assert np.linalg.norm(errors[0]) > 0.05
    np.testing.assert_allclose(errors[1], (1 - c) ** 2 * errors[0], rtol=1e-10)


@pytest.mark.slow
def test_falling_rates_of_fedbioacc_bring_it_nearer():
    rate = rk.parts.PowerDecay(1.0, 1 / 3)
    settings: dict[str, Any] = {"outer_lr": 0.1, "inner_lr": 0.1, "local_steps": 3}
    falling = FedBiOAcc(**settings, estimator=rk.parts.STORM(0.5, rate))
    errors = [ends(falling, rounds) for rounds in (500, 4000)]
    assert errors[1] == pytest.approx(errors[0] / 2, rel=0.1)  # like the rate itself


def test_two_rounds_of_fedbioacc_by_hand():
    sizes, c, steps = (0.05, 0.1, 0.08), (0.3, 0.5, 0.7), 3
    u, every = start(ZOO), bilevel_maps(ZOO)
    d = [np.mean(b, 0) for b in zip(*(maps(*u) for maps in every), strict=True)]
    for r in range(2):
        ws, ds = [], []
        for maps in every:
            w, e = u, d
            for k in range(steps):
                a = 0.9 / (r * steps + k + 1) ** (1 / 3)
                new = [b - size * a * g for b, size, g in zip(w, sizes, e, strict=True)]
                each = zip(maps(*new), maps(*w), e, c, strict=True)
                e = [at + (1 - c_j * a**2) * (g - old) for at, old, g, c_j in each]
                w = new
            ws.append(w)
            ds.append(e)
        u, d = ([np.mean(b, 0) for b in zip(*some, strict=True)] for some in (ws, ds))
    storm = rk.parts.STORM(c, rk.parts.PowerDecay(0.9, 1 / 3))
    algorithm = FedBiOAcc(**SIZES, local_steps=steps, estimator=storm)
    state, (first, later) = advance(ZOO, algorithm, 2, rk.Compiled())
    assert_close([*state.variables, *state.added], u, rtol=1e-12)
    assert_close(list(state.d), d, rtol=1e-11)
    assert later.bytes_up == later.bytes_down == 3 * 2 * 6 * 8
    assert (first.gradients, later.gradients) == (3 * 3 * (2 * steps + 1), 3 * 3 * 2 * steps)


@pytest.mark.slow
def test_no_momentum_is_plain():
    got = FedBiO(**SIZES, local_steps=3, estimator=rk.parts.MomentumEstimator(0.0))
    a, b = (trajectory(ZOO, one, 3) for one in (FedBiO(**SIZES, local_steps=3), got))
    np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.slow
def test_page_on_all_rows_follows_the_maps_themselves():
    """Differences of full batches are exact, so coins change what is evaluated and nothing else."""
    alone = pooled(NOISY)
    page = FedBiO(**SIZES, local_steps=3, estimator=rk.parts.PAGE(0.5))
    a, b = (trajectory(alone, one, 3) for one in (FedBiO(**SIZES, local_steps=3), page))
    np.testing.assert_allclose(a, b, rtol=1e-12)
    _, ledgers = advance(alone, page, 6, rk.Compiled())
    counts = {c.gradients // 36 for c in ledgers[1:]}  # three maps of twelve rows
    assert len(counts) > 1 and counts <= {3, 4, 5, 6}


@pytest.mark.slow
def test_single_loop_on_a_saddle_and_in_single_precision():
    saddle = rk.zoo.saddle(curvature=1.0, n_clients=2, x_size=1, y_size=1)
    x, y = solve(saddle, SimFBO(outer_lr=0.1, inner_lr=0.1, server_lr=0.1), 600).solution
    assert_close((x, y), saddle.solution(), atol=1e-10)
    single = rk.zoo.quadratic_bilevel(n_clients=3, x_size=2, y_size=2, dtype=np.float32)
    state, _ = advance(single, ShroFBO(**EQUAL, local_steps=UNEQUAL), 1, rk.Compiled())
    assert {leaf.dtype.name for leaf in jax.tree.leaves(state)} == {"float32"}


def test_settings_are_checked():
    with pytest.raises(ValueError, match=r"server_lr has 2 entries for 3 blocks"):
        SimFBO(**SIZES, server_lr=(0.1, 0.1)).check(ZOO.problem, 3)
    with pytest.raises(ValueError, match=r"square of the first rate"):
        rk.parts.STORM(2.0)
    with pytest.raises(ValueError, match=r"STORM.renewal"):
        rk.parts.STORM(0.0)
    with pytest.raises(TypeError, match=r"estimator of FedBiOAcc must be rk.parts.STORM, got PAGE"):
        FedBiOAcc(**SIZES, estimator=rk.parts.PAGE(0.5))
    with pytest.raises(ValueError, match=r"first_batch=2 of FedBiO would not be used"):
        FedBiO(**SIZES, first_batch=2)
    assert FedBiO(first_batch=2).first_batch == 2  # for the size of the first step
    with pytest.raises(ValueError, match=r"clients is Proportional"):
        FedBiO(**SIZES, clients=rk.participation.Proportional(2), weighting="unbiased")
    with pytest.raises(ValueError, match=r"inner_radius"):
        SimFBO(**EQUAL, inner_radius=(1.0, -1.0))
    with pytest.raises(TypeError, match=r"ShroFBO.*normalised"):
        ShroFBO(**EQUAL, normalised=True)
