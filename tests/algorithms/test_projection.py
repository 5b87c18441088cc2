"""Constrained problems: the limit satisfies the KKT conditions of the exact gradient, to 1e-8."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from some_slow import some_slow

import rookery as rk
from rookery.algorithms import FedNova
from rookery.problem.sample import Rows

SIMPLEX = optax.projections.projection_simplex
BILEVEL = rk.zoo.quadratic_bilevel(n_clients=3, x_size=3, y_size=4)
EXACT = rk.parts.FederatedCG(iterations=4)  # as many products as y has numbers


def box(w):
    return jnp.clip(w, -0.1, 0.1)


def ball(w):
    return w * jnp.minimum(1.0, 0.2 / jnp.maximum(jnp.linalg.norm(w), 1e-30))


def solve(algorithm, zoo, project, start=None, rounds=400):
    problem = dataclasses.replace(zoo.problem, project=project)
    population = rk.Population.stacked(zoo.data)
    result = rk.run(algorithm, problem, population, start or zoo.start, rounds=rounds)
    assert result.status == "finished"
    return [np.asarray(value) for value in result.solution]


def check_kkt(kind, x, gradient):
    """No direction that stays in the set descends."""
    if kind == "box":
        inside = np.abs(x) < 0.1 - 1e-9
        np.testing.assert_allclose(gradient[inside], 0.0, atol=1e-8)
        assert np.all(-gradient[~inside] * np.sign(x[~inside]) > 0)
        assert 0 < np.sum(~inside)
    elif kind == "ball":
        np.testing.assert_allclose(np.linalg.norm(x), 0.2, atol=1e-12)
        multiplier = -np.dot(gradient, x) / np.dot(x, x)
        assert multiplier > 0
        np.testing.assert_allclose(gradient, -multiplier * x, atol=1e-8)
    else:
        np.testing.assert_allclose(np.sum(x), 1.0, atol=1e-12)
        inside = x > 1e-9
        level = np.mean(gradient[inside])
        np.testing.assert_allclose(gradient[inside], level, atol=1e-8)
        assert np.all(x >= 0) and np.all(gradient[~inside] > level)
        assert 0 < np.sum(inside) < x.size


@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [
        ("box", rk.FedNest(outer_lr=0.2, inner_lr=0.3, inner_rounds=3, ihgp=EXACT)),
        ("simplex", rk.SOBA(outer_lr=0.1, inner_lr=0.3)),
        *some_slow(
            [
                ("ball", rk.SOBA(outer_lr=0.1, inner_lr=0.3)),
                ("box", rk.FedMSA(outer_lr=0.1, inner_lr=0.3)),
            ],
            0,
        ),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_the_outer_variable_of_a_bilevel_problem(kind, algorithm):
    project = {"box": box, "ball": ball, "simplex": SIMPLEX}[kind]
    start = (np.full(3, 1 / 3), np.zeros(4)) if kind == "simplex" else None
    x, y = solve(algorithm, BILEVEL, {"x": project}, start)
    check_kkt(kind, x, BILEVEL.hypergradient(x))
    np.testing.assert_allclose(y, BILEVEL.inner_solution(x), atol=1e-8)


def test_a_loss_with_momentum_at_the_server():
    zoo = rk.zoo.quadratic_losses(n_clients=3, size=4)
    step = rk.parts.Optimiser(optax.sgd, learning_rate=0.5, momentum=0.5)
    algorithm = rk.FedAvg(lr=0.1, server_lr=step)
    for kind, project in (("box", box), ("ball", ball)):
        (w,) = solve(algorithm, zoo, project)
        check_kkt(kind, w, zoo.gradient(w))


def test_both_variables_of_a_saddle_point():
    zoo = rk.zoo.saddle(n_clients=3, x_size=2, y_size=3)
    start, sets = (np.zeros(2), np.zeros(3)), {"x": box, "y": ball}
    x, y = solve(rk.GDA(outer_lr=0.1, inner_lr=0.1), zoo, sets, start, rounds=1500)
    rows = {name: values.reshape(-1, *values.shape[2:]) for name, values in zoo.data.items()}
    problem, sample = zoo.problem, Rows(jax.tree.map(jnp.asarray, rows))
    x, y = jnp.asarray(x), jnp.asarray(y)
    check_kkt("box", np.asarray(x), np.asarray(problem.grad_x(x, y, sample)))
    check_kkt("ball", np.asarray(y), -np.asarray(problem.grad_y(x, y, sample)))


def test_a_composition():
    zoo = rk.zoo.linear_chain(n_clients=3, sizes=(3, 3))
    for algorithm in (rk.ComposedSGD(outer_lr=0.05), rk.NASA(lr=0.3, proximity=4.0)):
        (x,) = solve(algorithm, zoo, box, rounds=1500)
        check_kkt("box", x, zoo.gradient(x))


def limit(algorithm, problem, start, rounds=300, targets=(0.0, 0.0)):
    """Where two clients end, equal ones unless their targets differ."""
    population = rk.Population.stacked({"target": np.array(targets)[:, None]})
    result = rk.run(algorithm, problem, population, start, rounds=rounds)
    assert result.status == "finished"
    return [np.asarray(value) for value in result.solution]


def tilted(w, row):
    """A quadratic whose free solution (2, -1) is outside the square; within it (1, -0.1) is."""
    away = w - jnp.array([2.0, -1.0])
    return jnp.vdot(away, jnp.array([[1.0, 0.9], [0.9, 1.0]]) @ away) / 2


def square(w):
    return jnp.clip(w, -1.0, 1.0)


@pytest.mark.parametrize(
    "algorithm",
    [
        rk.FedAvg(lr=0.1, local_steps=10),
        FedNova(lr=0.1, local_steps=(5, 10), momentum=0.5),
        rk.AFACS(lr=0.1, server_lr=0.5, local_steps=5),
    ],
    ids=lambda algorithm: algorithm.name,
)
def test_several_local_steps_of_equal_clients_reach_the_constrained_solution(algorithm):
    (w,) = limit(algorithm, rk.SingleLevel(tilted, project=square), (np.zeros(2),))
    np.testing.assert_allclose(w, [1.0, -0.1], atol=1e-8)


@pytest.mark.parametrize(
    "algorithm",
    [
        rk.FedAvgS(outer_lr=0.1, inner_lr=0.1, local_steps=3),
        rk.FedAvgS(outer_lr=0.1, inner_lr=0.1, local_steps=3, order=rk.parts.Alternating()),
        rk.LFedNestNonAlt(outer_lr=0.1, inner_lr=0.1, inner_steps=3, outer_steps=3),
    ],
    ids=lambda algorithm: algorithm.name,
)
def test_several_local_steps_reach_the_constrained_saddle_point(algorithm):
    def value(x, y, row):
        return x * y - 0.05 * y**2 + (x - 2) ** 2 / 2

    problem = rk.Minimax(value, project={"y": square})
    x, y = limit(algorithm, problem, (np.array(0.0), np.array(0.0)))
    np.testing.assert_allclose([x, y], [1.0, 1.0], atol=1e-8)


@pytest.mark.parametrize(
    "algorithm",
    [
        rk.FedNest(outer_lr=0.1, inner_lr=0.1, inner_steps=10),
        rk.FedMSA(outer_lr=0.1, inner_lr=0.1, local_steps=10, clients=2),
    ],
    ids=lambda algorithm: algorithm.name,
)
def test_corrected_local_steps_do_so_though_clients_differ(algorithm):
    def value(x, y, row):
        return x**2 / 2 - tilted(y, row) + row["target"] * jnp.sum(y)

    problem = rk.Minimax(value, project={"y": square})
    x, y = limit(algorithm, problem, (np.array(1.0), np.zeros(2)), targets=(1.0, -1.0))
    np.testing.assert_allclose([x, *y], [0.0, 1.0, -0.1], atol=1e-8)


def test_clients_that_differ_are_projected_after_their_mean():
    problem = rk.SingleLevel(lambda w, row: (w - row["target"]) ** 2 / 2, project=square)
    (w,) = limit(rk.FedAvg(lr=0.1), problem, (np.array(0.0),), targets=(4.0, -1.0))
    np.testing.assert_allclose(w, 1.0, atol=1e-12)  # the mean of projections ends at 0.5


@pytest.mark.slow
def test_losses_of_drfa_are_taken_within_the_set():
    problem = rk.SingleLevel(
        lambda w, row: w * row["target"] - 0.01 * jnp.log(w), project=lambda w: jnp.clip(w, 0.1, 1)
    )
    algorithm = rk.DRFA(lr=0.1, ascent_lr=0.1, local_steps=3)
    (w,) = limit(algorithm, problem, (np.array(0.5),), rounds=20, targets=(3.0, 5.0))
    np.testing.assert_allclose(w, 0.1, atol=1e-12)


def shrink(x, a):
    """The proximal operator of 0.1 |x|_1."""
    return jnp.sign(x) * jnp.maximum(jnp.abs(x) - 0.1 * a, 0.0)


def test_a_penalty_without_a_gradient():
    step = rk.parts.Optimiser(rk.parts.proximal_sgd, learning_rate=0.1, prox=shrink)
    x, _ = solve(rk.SOBA(outer_lr=step, inner_lr=0.3), BILEVEL, None)
    gradient, is_zero = BILEVEL.hypergradient(x), x == 0
    np.testing.assert_allclose(gradient[~is_zero], -0.1 * np.sign(x[~is_zero]), atol=1e-8)
    assert np.all(np.abs(gradient[is_zero]) < 0.1) and 0 < np.sum(is_zero) < x.size


def test_algorithms_that_would_leave_the_set_refuse():
    zoo = rk.zoo.quadratic_losses(n_clients=3, size=4)
    with pytest.raises(ValueError, match=r"Scaffold does not project.*set of w"):
        solve(rk.Scaffold(lr=0.1), zoo, box)
