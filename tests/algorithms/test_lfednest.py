"""The light family: what it shares with FedNest, and where it converges instead."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arena import at, clients_of, context, federation, means, solve, trajectory

import rookery as rk

ZOO = rk.zoo.quadratic_bilevel(n_clients=4)
LONG = rk.parts.LocalNeumannSum(terms=150, lipschitz=4.0)


def own_gradient(client, x, y):
    """f_x + B' H^-1 f_y of a problem with one client, at any y."""
    m = means(client)
    return m["r"] + client.m0 * x + m["E"] @ y + m["B"].T @ client.adjoint(x, y)


# ---- minimax


@pytest.mark.parametrize("clients", [2, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_with_a_shared_curvature_fednest_and_lfednest_take_the_same_steps(clients):
    zoo = rk.zoo.saddle(n_clients=4, x_size=3, y_size=3)
    settings = {
        "outer_lr": 0.05,
        "inner_lr": 0.1,
        "inner_rounds": 2,
        "inner_steps": 3,
        "outer_steps": 3,
        "clients": clients,
    }
    nested = trajectory(zoo, rk.FedNest(**settings), 12)
    light = trajectory(zoo, rk.LFedNest(**settings), 12)
    np.testing.assert_allclose(nested, light, rtol=1e-12, atol=1e-13)
    assert np.abs(nested[-1] - nested[0]).max() > 1


def test_with_different_curvatures_only_fednest_finds_the_saddle_point():
    zoo = rk.zoo.saddle(curvature=1.0, n_clients=4)
    settings: dict[str, Any] = {"inner_rounds": 2, "inner_steps": 3, "outer_steps": 2}
    x_star, y_star = zoo.solution()
    x, y = solve(zoo, rk.FedNest(outer_lr=0.05, inner_lr=0.1, **settings), 600).solution
    np.testing.assert_allclose(x, x_star, rtol=0, atol=1e-12)
    np.testing.assert_allclose(y, y_star, rtol=0, atol=1e-12)
    beside = solve(zoo, rk.LFedNest(outer_lr=0.05, inner_lr=0.1, **settings), 600).solution[0]
    assert np.linalg.norm(beside - x_star) > 1e-3


# ---- bilevel


def test_it_rests_where_the_mean_of_local_hypergradients_is_zero():
    def mean_gradient(x):
        y = ZOO.inner_solution(x)
        return np.mean([own_gradient(client, x, y) for client in clients_of(ZOO)], axis=0)

    at_zero = mean_gradient(np.zeros(3))
    slope = np.stack([mean_gradient(e) - at_zero for e in np.eye(3)], axis=1)
    rest = np.linalg.solve(slope, -at_zero)
    x, y = solve(
        ZOO, rk.LFedNest(outer_lr=0.1, inner_lr=0.2, inner_rounds=2, adjoint=LONG), 500
    ).solution
    np.testing.assert_allclose(x, rest, rtol=0, atol=1e-11)
    np.testing.assert_allclose(y, ZOO.inner_solution(rest), rtol=0, atol=1e-11)
    assert np.linalg.norm(rest - ZOO.solution()[0]) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize(("cross", "outer_steps", "agree"), [(0.2, 1, 1), (0.0, 3, 1), (0.2, 3, 0)])
def test_identical_clients_make_it_fednest(cross, outer_steps, agree):
    """With several outer steps only if f_y does not depend on x: FedNest keeps v, LFedNest not."""
    zoo = rk.zoo.quadratic_bilevel(n_clients=3, heterogeneity=0.0, cross=cross)
    settings: dict[str, Any] = {"inner_rounds": 2, "inner_steps": 3, "outer_steps": outer_steps}
    nested = rk.FedNest(
        outer_lr=0.1, inner_lr=0.1, ihgp=rk.parts.FedIHGPSum(terms=3, lipschitz=5.0), **settings
    )
    light = rk.LFedNest(
        outer_lr=0.1,
        inner_lr=0.1,
        adjoint=rk.parts.LocalNeumannSum(terms=3, lipschitz=5.0),
        **settings,
    )
    a, b = solve(zoo, nested, 6).solution[0], solve(zoo, light, 6).solution[0]
    difference = np.abs(a - b).max()
    assert difference < 1e-13 if agree else difference > 1e-3


def test_one_round_of_nonalt_by_hand():
    algorithm = rk.LFedNestNonAlt(
        outer_lr=0.1, inner_lr=0.2, inner_steps=(1, 2, 3, 1), outer_steps=(2, 1, 1, 2), adjoint=LONG
    )
    ends = []
    for client, inner, outer in zip(clients_of(ZOO), (1, 2, 3, 1), (2, 1, 1, 2), strict=True):
        x, y, m = np.ones(3), np.ones(4), means(client)
        for _ in range(inner):
            y = y - 0.2 * (m["H"] @ y - m["B"] @ x - m["c"])
        for _ in range(outer):
            x = x - 0.1 * own_gradient(client, x, y)
        ends.append((x, y))
    state = algorithm.init(ZOO.problem, jnp.ones(3), jnp.ones(4))
    new = algorithm.round(federation(ZOO), ZOO.problem, state, jax.random.key(0))
    np.testing.assert_allclose(new.x, np.mean([x for x, _ in ends], axis=0), rtol=1e-12)
    np.testing.assert_allclose(new.y, np.mean([y for _, y in ends], axis=0), rtol=1e-12)


@pytest.mark.slow
def test_the_drift_free_inner_rounds_of_svrg_find_the_inner_solution():
    settings = {"inner_rounds": 2, "inner_steps": 4, "adjoint": LONG}
    errors = []
    for kind in (rk.LFedNestSVRG, rk.LFedNest):
        x, y = solve(ZOO, kind(outer_lr=0.1, inner_lr=0.1, **settings), 300).solution
        errors.append(np.linalg.norm(y - ZOO.inner_solution(np.asarray(x))))
    assert errors[0] < 1e-11
    assert errors[1] > 1e-3


# ---- the local series


def outer_call(zoo, adjoint, key, outer_steps=1):
    lfedout = rk.parts.LFedOut(lr=0.1, local_steps=outer_steps, adjoint=adjoint)
    return lfedout(context(zoo), at(jnp.ones(3), jnp.ones(4)), key).x


@pytest.mark.slow
def test_a_random_length_is_drawn_once_a_call_and_each_equally_often():
    N, L = 4, 5.0
    alone = next(clients_of(ZOO))
    keys = jax.random.split(jax.random.key(0), 2000)
    call = jax.jit(
        jax.vmap(
            lambda k: outer_call(
                alone, rk.parts.LocalNeumann(terms=N, lipschitz=L), k, outer_steps=2
            )
        )
    )
    values, counts = np.unique(np.asarray(call(keys)).round(9), axis=0, return_counts=True)
    assert len(values) == N  # a fresh draw in the second step would give N^2
    assert np.abs(counts / 2000 - 1 / N).max() < 0.05


@pytest.mark.slow
def test_a_client_that_estimates_its_own_lipschitz_constant_comes_to_the_same():
    power = rk.parts.PowerIteration(iterations=50)
    given = outer_call(ZOO, rk.parts.LocalNeumannSum(terms=60, lipschitz=4.0), jax.random.key(0))
    own = outer_call(ZOO, rk.parts.LocalNeumannSum(terms=60, lipschitz=power), jax.random.key(0))
    np.testing.assert_allclose(own, given, rtol=1e-6)


# ---- bad input


@pytest.mark.parametrize("kind", [rk.LFedNest, rk.LFedNestSVRG, rk.LFedNestNonAlt])
def test_bad_settings_are_refused(kind):
    with pytest.raises(ValueError, match="outer_lr must be a finite number above 0"):
        kind(outer_lr=0, inner_lr=0.1)
    with pytest.raises(ValueError, match="inner_steps must be at least 1, got 0"):
        kind(outer_lr=0.1, inner_lr=0.1, inner_steps=0)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        kind(outer_lr=0.1, inner_lr=0.1, batch_size=0)
    with pytest.raises(ValueError, match="_steps has 2 entries for 4 clients"):
        kind(outer_lr=0.1, inner_lr=0.1, outer_steps=(1, 2)).check(ZOO.problem, 4)
    with pytest.raises(TypeError, match=rf"{kind.__name__} solves Bilevel, .* got MultiSequence"):
        kind(outer_lr=0.1, inner_lr=0.1).check(rk.zoo.linear_sequences().problem, 4)
    with pytest.raises(ValueError, match="5 different clients"):
        kind(outer_lr=0.1, inner_lr=0.1, clients=5).check(ZOO.problem, 4)
    with pytest.raises(ValueError, match=r"LocalNeumann.terms must be at least 1, got 0"):
        kind(outer_lr=0.1, inner_lr=0.1, adjoint=rk.parts.LocalNeumann(terms=0))
    with pytest.raises(ValueError, match=r"LocalNeumannSum.lipschitz must be a finite number"):
        kind(outer_lr=0.1, inner_lr=0.1, adjoint=rk.parts.LocalNeumannSum(lipschitz=0.0))
