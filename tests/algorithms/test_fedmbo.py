"""PHE against its series and its variance, and FedMBO against the closed form."""

from functools import partial

import jax
import numpy as np
import pytest
from arena import at, context, f_y, means, solve, trajectory

import rookery as rk

ZOO = rk.zoo.quadratic_bilevel(n_clients=4)
SAME = rk.zoo.quadratic_bilevel(n_clients=4, heterogeneity=0.0)
N, L = 3, 5.0
X, Y = np.ones(3), np.ones(4)


def draws(estimator, n_draws, zoo=ZOO, clients=None, weights=None, seed=0):
    """[draws, size of x], independent hypergradients at ones."""
    where = context(zoo, clients, weights=weights)

    def one(key):
        return estimator(where, at(X, Y), key)[0]

    keys = jax.random.split(jax.random.key(seed), n_draws)
    return np.asarray(jax.jit(jax.vmap(one))(keys))


def lengths(zoo, weights=None):
    """The hypergradient for every length 0..N-1 of the product, with mean matrices."""
    m = means(zoo, weights)
    p = N / L * f_y(zoo, X, Y, weights)
    out = []
    for _ in range(N):
        out.append(m["r"] + zoo.m0 * X + m["E"] @ Y + m["B"].T @ p)
        p = p - m["H"] @ p / L
    return np.stack(out)


def assert_mean(drawn, want):
    error = drawn.std(0) / np.sqrt(len(drawn))
    assert np.all(np.abs(drawn.mean(0) - want) < 5 * error)


# ---- one estimate


@pytest.mark.slow
@pytest.mark.parametrize(
    "chains",
    [
        2,
        rk.participation.WithReplacement(2),
        rk.participation.Uniform(2),
        rk.participation.Everyone(),
    ],
)
def test_the_mean_is_the_series_of_the_mean_hessian_whoever_is_drawn(chains):
    drawn = draws(rk.parts.PHE(terms=N, lipschitz=L, chains=chains), 30_000)
    assert_mean(drawn, lengths(ZOO).mean(0))
    # chains that kept to their own client would mean something else, and be found out
    alone = [
        rk.zoo.QuadraticBilevel(**{k: a[i : i + 1] for k, a in ZOO.data.items()}, m0=ZOO.m0)
        for i in range(4)
    ]
    own = np.mean([lengths(client).mean(0) for client in alone], axis=0)
    assert np.any(np.abs(drawn.mean(0) - own) > 10 * drawn.std(0) / np.sqrt(len(drawn)))


@pytest.mark.slow
def test_clients_are_drawn_by_their_weights():
    weights = np.array([0.55, 0.25, 0.15, 0.05])
    assert_mean(
        draws(rk.parts.PHE(terms=N, lipschitz=L, chains=2), 30_000, weights=weights),
        lengths(ZOO, weights).mean(0),
    )


@pytest.mark.slow
def test_the_variance_falls_as_one_over_the_number_of_chains():
    scaled = [
        n * draws(rk.parts.PHE(terms=N, lipschitz=L, chains=n), 6000).var(0) for n in (1, 3, 9)
    ]
    np.testing.assert_allclose(scaled[1:], [scaled[0]] * 2, rtol=0.15)  # 5 sigma of 6000 draws


@pytest.mark.slow
def test_with_identical_clients_only_the_random_length_is_left_and_only_phe_averages_it():
    of_length = lengths(SAME).var(0)
    phe = draws(rk.parts.PHE(terms=N, lipschitz=L, chains=8), 4000, SAME).var(0)
    ihgp = draws(
        rk.parts.FedIHGP(terms=N, lipschitz=L), 4000, SAME, rk.participation.WithReplacement(8)
    ).var(0)
    np.testing.assert_allclose(8 * phe, of_length, rtol=0.15)
    np.testing.assert_allclose(ihgp, of_length, rtol=0.15)


def test_the_sum_of_identical_clients_is_the_truncated_series():
    m = means(SAME)
    t = f_y(SAME, X, Y) / L
    v = t.copy()
    for _ in range(N):
        t = t - m["H"] @ t / L
        v = v + t
    h = m["r"] + SAME.m0 * X + m["E"] @ Y + m["B"].T @ v
    np.testing.assert_allclose(
        draws(rk.parts.PHESum(terms=N, lipschitz=L, chains=2), 2, SAME), [h, h], rtol=1e-12
    )


def test_as_many_chains_as_clients_take_part():
    def each(clients, key):
        return rk.parts.PHE(terms=N, lipschitz=L).each(context(ZOO, clients), at(X, Y), key)[0]

    for clients, n in (
        (rk.participation.Everyone(), 4),
        (rk.participation.Uniform(3), 3),
        (rk.participation.Fixed((1, 2)), 2),
    ):
        assert jax.eval_shape(partial(each, clients), jax.random.key(0)).shape == (n, 3)


# ---- the algorithm


def test_identical_clients_and_the_sum_reach_the_exact_solution():
    zoo = rk.zoo.quadratic_bilevel(n_clients=2, heterogeneity=0.0)
    algorithm = rk.FedMBO(
        outer_lr=0.1,
        inner_lr=0.2,
        inner_rounds=3,
        hypergradient=rk.parts.PHESum(terms=100, lipschitz=4.0),
        clients=1,
    )
    x, y = solve(zoo, algorithm, 300).solution
    np.testing.assert_allclose(x, zoo.solution()[0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(y, zoo.solution()[1], rtol=0, atol=1e-12)


def test_a_schedule_has_the_step_sizes_of_its_rounds():
    """Identical clients and whole batches: no number of a round is random."""

    def fedmbo(outer_lr, inner_lr):
        series = rk.parts.PHESum(terms=2, lipschitz=4.0)
        return rk.FedMBO(outer_lr=outer_lr, inner_lr=inner_lr, inner_rounds=2, hypergradient=series)

    population, start = rk.Population.stacked(SAME.data), SAME.start
    for round in range(2):
        algorithm = fedmbo(0.1 * 0.5**round, 0.2 / (round + 1))
        start = rk.run(algorithm, SAME.problem, population, start, rounds=1).solution
    algorithm = fedmbo(rk.parts.Decay(0.1, 0.5), rk.parts.PowerDecay(0.2, 1.0))
    got = rk.run(algorithm, SAME.problem, population, SAME.start, rounds=2).solution
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-12), got, start)
    plain = rk.run(fedmbo(0.1, 0.2), SAME.problem, population, SAME.start, rounds=2).solution
    assert np.abs(got[0] - plain[0]).max() > 1e-3


@pytest.mark.slow
def test_different_clients_and_the_sum_hover_about_the_solution():
    algorithm = rk.FedMBO(
        outer_lr=0.05,
        inner_lr=0.2,
        inner_rounds=2,
        hypergradient=rk.parts.PHESum(terms=12, lipschitz=4.0, chains=8),
    )
    tail = trajectory(ZOO, algorithm, 5000, every=10)[50:]
    noise = np.linalg.norm(tail - ZOO.solution()[0], axis=1).mean()
    assert noise < 0.2
    assert np.linalg.norm(tail.mean(0) - ZOO.solution()[0]) < noise / 4


# ---- bad input


def test_bad_input():
    with pytest.raises(ValueError, match="outer_lr must be a finite number above 0"):
        rk.FedMBO(outer_lr=0.0, inner_lr=0.1)
    with pytest.raises(TypeError, match=r"lr must be a number, got PerCall"):
        rk.FedMBO(outer_lr=rk.parts.PerCall(0.1), inner_lr=0.1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"PHE.terms must be at least 1, got 0"):
        rk.parts.PHE(terms=0)
    with pytest.raises(ValueError, match=r"PHESum.lipschitz must be a finite number above 0"):
        rk.parts.PHESum(lipschitz=-1.0)
    with pytest.raises(ValueError, match="number of chains must be at least 1, got 0"):
        rk.parts.PHE(chains=0)
    with pytest.raises(ValueError, match="5 different clients"):
        rk.FedMBO(
            outer_lr=0.1,
            inner_lr=0.1,
            hypergradient=rk.parts.PHE(chains=rk.participation.Uniform(5)),
        ).check(ZOO.problem, 4)
    with pytest.raises(TypeError, match="PHESum estimates hypergradients of Bilevel problems"):
        rk.FedMBO(outer_lr=0.1, inner_lr=0.1).check(rk.zoo.saddle().problem, 4)
