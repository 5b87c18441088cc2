from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arena import advance, assert_close, federation
from naive_adbo import NaiveADBO

import rookery as rk
from rookery.algorithms.adbo.cuts import Cuts
from rookery.engines.engine import Program
from rookery.experiment.registry import ALGORITHMS, make_object
from rookery.problem.zoo.quadratic import QuadraticBilevel
from rookery.program.algorithm import first_state

ZOO = rk.zoo.quadratic_bilevel(n_clients=4, x_size=1, y_size=2, cross=0.3)
SLOW = rk.delays.Stragglers(rk.delays.LogNormalDelay(0.1), (3,), 4.0)
BRISK: dict[str, Any] = {
    "outer_lr": 0.1,
    "inner_lr": 0.1,
    "server_outer_lr": 0.02,
    "server_inner_lr": 0.05,
    "consensus_lr": 0.2,
    "cut_lr": 1.0,
    "cut_damping": 1e-4,
}

# ---- the limit


def three_workers():
    """g_i = (y - a_i x)^2 / 2,  f_i = (y - 1)^2 / 2 + 0.05 x^2,  a = 1, 2, 3;  x* = 2 / 4.1."""
    one, a = np.ones((3, 1, 1)), np.array([1.0, 2.0, 3.0])[:, None, None, None]
    matrix = one[..., None]
    return QuadraticBilevel(
        H=matrix, B=a, c=0 * one, Q=matrix, d=one, r=0 * one, E=0 * matrix, m0=0.1
    )


EQUAL = np.full(3, 1 / 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("delay", "weights"),
    [(rk.delays.NoDelay(), EQUAL), (SLOW.delay, EQUAL), (SLOW.delay, np.array([0.5, 0.3, 0.2]))],
)
def test_three_workers_find_the_solution_whatever_their_delays_and_weights(delay, weights):
    zoo, mean = three_workers(), weights @ [1.0, 2.0, 3.0]
    x = mean / (mean**2 + 0.1)
    admm = rk.parts.ADMM(rounds=30, lr=0.3, server_lr=0.3, multiplier_lr=0.3)
    algorithm = rk.ADBO(**BRISK, admm=admm, cut_every=20, max_cuts=30, wait_for=1, staleness=4)
    engine, clock = rk.Compiled(rounds_per_call=5000), rk.delays.Clock(delay)
    state, ledgers = advance(zoo, algorithm, 5000, engine, clock=clock, weights=weights)
    if weights is EQUAL:
        assert x == pytest.approx(zoo.solution()[0][0]) == pytest.approx(0.4878, abs=1e-4)
    assert abs(float(state.v[0]) - x) < 0.003
    assert abs(float(state.z[0]) - mean * x) < 0.015
    if isinstance(delay, rk.delays.NoDelay):
        assert {ledger.messages for ledger in ledgers} == {6, 6 + 60 * 6}
    else:  # about one of three delivers
        assert np.mean([ledger.messages for ledger in ledgers if ledger.exchanges == 1]) < 4


# ---- the cut


class Curved(eqx.Module):
    """An inner loss whose second derivatives change from point to point."""

    data: dict
    problem = rk.Bilevel(
        lambda x, y, row: jnp.sum(x * x) + row["t"] * jnp.sum(y),
        lambda x, y, row: (
            row["t"] * jnp.sum(y * y) / 2
            + jnp.sum(y**4) / 4
            - jnp.sin(x[0] * row["t"]) * y[0] * y[1]
            - x[1] * x[0] * y[1]
        ),
        outer_split="train",
    )


CURVED = Curved({"t": np.array([[0.5, 1.5], [1.2, 0.8], [2.0, 1.0]])})


@pytest.mark.parametrize("batch_size", [None, 1])
def test_a_cut_touches_h_where_it_is_made(batch_size, differences):
    weights = np.array([0.5, 0.2, 0.3])
    algorithm = rk.ADBO(
        outer_lr=0.1,
        inner_lr=0.1,
        admm=rk.parts.ADMM(rounds=5, lr=0.2, server_lr=0.1, multiplier_lr=0.3, penalty=0.7),
        tolerance=0.01,
        batch_size=batch_size,
    )
    y = jnp.array([[0.3, -0.2], [0.9, 0.4], [-0.5, 0.1]])
    z, v = jnp.array([0.2, 0.6]), jnp.array([0.7, -0.4])

    @jax.jit
    def cut(v):
        fed, key = federation(CURVED, weights=weights), jax.random.key(0)
        return algorithm._cut(fed, CURVED.problem, v, y, z, key)

    def h(v):  # b and c are twice the distances
        _, b, c, _ = cut(jnp.asarray(v))
        return 3 * weights @ np.sum((b / 2) ** 2, axis=1) + np.sum((c / 2) ** 2)

    a, b, c, k = cut(v)
    np.testing.assert_allclose(a, differences(h, v), rtol=1e-6)
    plane = a @ v + 3 * weights @ np.sum(b * y, axis=1) + c @ z + k
    np.testing.assert_allclose(plane, h(v) - 0.01, rtol=1e-12)
    assert np.abs(a).min() > 0.01


def test_cuts_without_a_multiplier_go_first_then_the_one_with_the_smallest():
    numbers = iter(range(1, 9))

    def add(cuts):
        n = float(next(numbers))
        return cuts.add(jnp.full(1, n), jnp.full((3, 2), n), jnp.full(2, n), jnp.asarray(n))

    cuts = Cuts.none(3, jnp.zeros(1), jnp.zeros(2))
    cuts = add(cuts._replace(b=cuts.b.for_clients(3)))
    assert cuts.is_used.tolist() == [True, False, False]
    cuts = add(cuts)  # the first has had no multiplier
    assert (cuts.k[cuts.is_used].tolist(), cuts.multipliers.tolist()) == ([2], [0, 0, 0])
    cuts = add(cuts._replace(multipliers=cuts.multipliers.at[0].set(0.3)))
    cuts = add(cuts._replace(multipliers=cuts.multipliers.at[1].set(0.2)))
    assert cuts.k.tolist() == [2, 3, 4]
    cuts = add(cuts._replace(multipliers=jnp.array([0.3, 0.1, 0.2])))
    assert (cuts.k.tolist(), cuts.multipliers.tolist()) == ([2, 5, 4], [0.3, 0, 0.2])
    assert cuts.b.rows[:, :, 0].tolist() == [[2, 5, 4]] * 3
    assert cuts.force_on_clients()[2].tolist() == pytest.approx([1.4, 1.4])
    assert cuts.force_on_v().tolist() == cuts.force_on_z()[:1].tolist() == pytest.approx([1.4])


# ---- against NumPy

QUICK: dict[str, Any] = {
    "admm": rk.parts.ADMM(rounds=3, lr=0.2, server_lr=0.1, multiplier_lr=0.2),
    "cut_every": 3,
    "max_cuts": 2,
}
WORLDS = {
    "nobody is late": (rk.delays.Clock(), rk.ADBO(**BRISK, **QUICK, wait_for=4, tolerance=0.01)),
    "bandwidth, a straggler who may not come, a bound, cuts that end": (
        rk.delays.Clock(
            SLOW, bandwidth=1e3, seed=1, availability=rk.availability.BernoulliOn(0.8, 0.1)
        ),
        rk.ADBO(**BRISK, **QUICK, staleness=2, cuts_until=9),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_a_naive_simulation_gives_the_same_trajectory_and_the_same_clock(name):
    clock, algorithm = WORLDS[name]
    naive = NaiveADBO(ZOO, clock, algorithm)
    population = rk.Population.stacked(ZOO.data)
    runner = rk.Compiled().prepare(
        Program(ZOO.problem, population, clock, rk.aggregate.Mean()), [algorithm]
    )
    state = first_state(algorithm, ZOO.problem, 4, ZOO.start)
    for first in range(0, 12, 4):
        (progress,) = runner.advance([state], [jax.random.key(0)], first, [4])
        state = progress.state
        for ledger in progress.ledgers:
            before = naive.now
            naive.play_round()
            assert ledger.seconds == pytest.approx(naive.now - before, abs=1e-12)
        got = (state.v, state.z, state.theta.rows, *state.jobs.results)
        want = (naive.v, naive.z, naive.theta, naive.xs, naive.ys)
        assert_close(got, want, rtol=1e-12, atol=1e-12)
        multipliers = sorted(cut.multiplier for cut in naive.cuts)
        used = np.sort(state.cuts.multipliers[state.cuts.is_used])
        np.testing.assert_allclose(used, multipliers, rtol=1e-12, atol=1e-12)
        assert state.jobs.begun.tolist() == [w.number for w in naive.workers["outer"]]
    assert len(naive.cuts) == 2
    assert max(naive.staleness) == (0 if algorithm.wait_for == 4 else algorithm.staleness)


@pytest.mark.slow
def test_resuming_in_mid_flight_is_exact(tmp_path):
    algorithm = rk.ADBO(
        **BRISK,
        admm=rk.parts.ADMM(rounds=2, lr=0.3, server_lr=0.3, multiplier_lr=0.3),
        cut_every=3,
        max_cuts=2,
    )
    population, clock = rk.Population.stacked(ZOO.data), rk.delays.Clock(SLOW)

    def go(rounds, directory=None):
        return rk.run(
            algorithm, ZOO.problem, population, ZOO.start, rounds=rounds, clock=clock,
            directory=directory, evaluate_every=4,
        )  # fmt: skip

    go(4, tmp_path)
    resumed, whole = go(8, tmp_path), go(8)
    assert not bool(resumed.state.jobs.is_idle.all())
    jax.tree.map(np.testing.assert_array_equal, resumed.state, whole.state)
    assert (resumed.ledger, resumed.async_traces) == (whole.ledger, whole.async_traces)


@pytest.mark.slow
def test_sdbo_is_adbo_that_waits_for_everyone():
    clock = rk.delays.Clock(SLOW)
    settings = {**BRISK, "admm": rk.parts.ADMM(rounds=1), "cut_every": 2}
    ours, theirs = (
        advance(ZOO, algorithm, 3, clock=clock)
        for algorithm in (rk.SDBO(**settings), rk.ADBO(**settings, wait_for=4))
    )
    jax.tree.map(np.testing.assert_array_equal, ours[0], theirs[0])
    assert ours[1] == theirs[1]
    assert ours[1][0].messages == 8


# ---- costs and errors


@pytest.mark.slow
def test_what_an_iteration_and_a_cut_cost():
    m, K, p, q = 4, 3, 8, 16
    algorithm = rk.SDBO(**BRISK, **{**QUICK, "cut_every": 2}, cuts_until=3)
    _, ledgers = advance(ZOO, algorithm, 5)
    plain = rk.program.Ledger(1, 2 * m, m * (2 * p + 2 * q), m * (p + q), gradients=2 * m)
    refresh = rk.program.Ledger(
        2 * K, 2 * K * 2 * m, m * (p + 3 * K * q), m * K * (p + 2 * q), m * K, 2 * m * K
    )
    assert ledgers == [plain, plain + refresh, plain, plain, plain]  # t = 3 is too late for another


@pytest.mark.slow
def test_only_who_begins_is_sent_its_rows():
    p, q = 8, 16
    clock = rk.delays.Clock(rk.delays.Stragglers(rk.delays.ConstantDelay(1.0), (3,), 10.0))
    _, ledgers = advance(ZOO, rk.ADBO(**BRISK), 2, clock=clock)
    assert [ledger.bytes_down for ledger in ledgers] == [4 * 2 * (p + q), 3 * 2 * (p + q)]
    assert [ledger.bytes_up for ledger in ledgers] == [3 * (p + q)] * 2


@pytest.mark.parametrize("algorithm", [rk.ADBO, rk.SDBO])
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"outer_lr": 0.0}, "outer_lr must be a finite number above 0"),
        ({"cut_lr": -1.0}, "cut_lr must be a finite number above 0"),
        ({"server_inner_lr": 0.0}, "server_inner_lr must be a finite number above 0"),
        ({"tolerance": -0.1}, "tolerance must be a finite number, 0 or above"),
        ({"max_cuts": 0}, "max_cuts must be at least 1"),
        ({"cuts_until": -1}, "cuts_until must be at least 0"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
    ],
)
def test_bad_settings_are_refused(algorithm, settings, words):
    with pytest.raises(ValueError, match=words):
        algorithm(**{"outer_lr": 0.1, "inner_lr": 0.1, **settings})


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"ADMM.rounds must be at least 1"):
        rk.parts.ADMM(rounds=0)
    with pytest.raises(ValueError, match="staleness must be at least 0"):
        rk.ADBO(outer_lr=0.1, inner_lr=0.1, staleness=-1)
    with pytest.raises(ValueError, match="wait_for=5 results cannot come from 4 clients"):
        rk.ADBO(outer_lr=0.1, inner_lr=0.1, wait_for=5).check(ZOO.problem, 4)
    for algorithm in (rk.ADBO(outer_lr=0.1, inner_lr=0.1), rk.SDBO(outer_lr=0.1, inner_lr=0.1)):
        with pytest.raises(TypeError, match="DBO solves Bilevel problems, got Minimax"):
            algorithm.check(rk.zoo.saddle(n_clients=3, x_size=1, y_size=1).problem, 3)  # type: ignore


def test_an_experiment_file_can_name_it():
    table = {"outer_lr": 0.1, "inner_lr": 1, "admm": {"name": "ADMM", "rounds": 5}}
    for name, kind in (("ADBO", rk.ADBO), ("SDBO", rk.SDBO)):
        made = make_object(ALGORITHMS, {"name": name, **table}, "algorithm")
        assert made == kind(outer_lr=0.1, inner_lr=1.0, admm=rk.parts.ADMM(rounds=5))
