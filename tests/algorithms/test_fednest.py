"""FedNest against closed forms and against a plain NumPy implementation."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arena import Given, at, context, f_y, means, solve

import rookery as rk

ZOO = rk.zoo.quadratic_bilevel(n_clients=5)


# ---- convergence


def test_sum_with_full_batches_reaches_the_exact_solution():
    algorithm = rk.FedNest(
        outer_lr=0.1,
        inner_lr=0.2,
        inner_rounds=2,
        inner_steps=3,
        ihgp=rk.parts.FedIHGPSum(terms=60, lipschitz=4.0),
    )
    x, y = solve(ZOO, algorithm, 600).solution
    x_star, y_star = ZOO.solution()
    np.testing.assert_allclose(x, x_star, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(y, y_star, rtol=1e-12, atol=1e-12)


def test_the_scalar_instance_by_hand():
    algorithm = rk.FedNest(
        outer_lr=0.2, inner_lr=0.3, inner_steps=2, ihgp=rk.parts.FedIHGPSum(terms=50, lipschitz=3.0)
    )
    x, y = solve(rk.zoo.scalar_bilevel(), algorithm, 300).solution
    assert float(x[0]) == pytest.approx(-0.3, abs=1e-12)
    assert float(y[0]) == pytest.approx(0.4, abs=1e-12)


@pytest.mark.slow
def test_a_random_length_leaves_a_noise_floor_around_the_solution():
    algorithm = rk.FedNest(
        outer_lr=0.02,
        inner_lr=0.2,
        inner_rounds=2,
        inner_steps=2,
        ihgp=rk.parts.FedIHGP(terms=20, lipschitz=4.0),
    )
    x_star, _ = ZOO.solution()
    track = rk.metrics.OfSolution(lambda x, y: {f"x{i}": x[i] for i in range(3)})
    result = solve(ZOO, algorithm, 3000, evaluate=[track], evaluate_every=5)
    tail = np.stack([result.history[f"x{i}"] for i in range(3)], axis=1)[200:]
    noise = np.linalg.norm(tail - x_star, axis=1).mean()
    assert noise > 1e-3
    assert np.linalg.norm(tail.mean(0) - x_star) < noise / 3


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_both_precisions(dtype):
    zoo = rk.zoo.quadratic_bilevel(n_clients=3, dtype=dtype)
    algorithm = rk.FedNest(
        outer_lr=0.1, inner_lr=0.2, inner_steps=2, ihgp=rk.parts.FedIHGPSum(terms=40)
    )
    result = solve(zoo, algorithm, 400)
    assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(result.state))
    tolerance = 1e-9 if dtype == np.float64 else 1e-4
    np.testing.assert_allclose(result.solution[0], zoo.solution()[0], atol=tolerance)


@pytest.mark.slow
def test_permuting_the_clients_changes_nothing():
    order = [3, 0, 4, 1, 2]
    shuffled = rk.zoo.QuadraticBilevel(**{k: a[order] for k, a in ZOO.data.items()}, m0=ZOO.m0)
    algorithm = rk.FedNest(
        outer_lr=0.1, inner_lr=0.1, inner_steps=3, ihgp=rk.parts.FedIHGP(terms=5, lipschitz=5.0)
    )
    a, b = solve(ZOO, algorithm, 20), solve(shuffled, algorithm, 20)
    np.testing.assert_allclose(a.solution[0], b.solution[0], rtol=1e-12)
    assert a.ledger == b.ledger


@pytest.mark.slow
def test_client_weights_move_the_solution():
    weights = np.array([0.4, 0.3, 0.1, 0.1, 0.1])
    weighted = rk.zoo.QuadraticBilevel(
        **{k: 5 * np.einsum("c,cr...->cr...", weights, a) for k, a in ZOO.data.items() if k != "d"},
        d=ZOO.d,
    )
    # Q_i d_i is not linear in the pair, so give every client the same d and compare
    same_d = np.broadcast_to(ZOO.d[:1], ZOO.d.shape)
    plain = rk.zoo.QuadraticBilevel(**{**ZOO.data, "d": same_d}, m0=ZOO.m0)
    weighted = rk.zoo.QuadraticBilevel(**{**weighted.data, "d": same_d}, m0=ZOO.m0)
    population = rk.Population.stacked(plain.data, weights=weights)
    algorithm = rk.FedNest(
        outer_lr=0.1, inner_lr=0.1, inner_steps=2, ihgp=rk.parts.FedIHGPSum(terms=60, lipschitz=5.0)
    )
    result = rk.run(algorithm, plain.problem, population, plain.start, rounds=800)
    # a mean with weights w_i is the plain mean of clients scaled by n w_i; m0 is common to all
    np.testing.assert_allclose(result.solution[0], weighted.solution()[0], atol=1e-8)
    assert np.linalg.norm(weighted.solution()[0] - plain.solution()[0]) > 1e-2


# ---- one client, one step: the centralised method


def test_one_client_and_one_step_is_the_centralised_method():
    zoo = rk.zoo.quadratic_bilevel(n_clients=1)
    N, L, alpha, beta = 3, 5.0, 0.1, 0.2
    algorithm = rk.FedNest(
        outer_lr=alpha, inner_lr=beta, ihgp=rk.parts.FedIHGPSum(terms=N, lipschitz=L)
    )
    m = means(zoo)
    x, y = zoo.start
    track = rk.metrics.OfSolution(lambda x, y: {f"x{i}": x[i] for i in range(3)})
    history = solve(zoo, algorithm, 8, evaluate=[track], evaluate_every=1).history
    for k in range(8):
        np.testing.assert_allclose([history[f"x{i}"][k] for i in range(3)], x, rtol=1e-11)
        y = y - beta * (m["H"] @ y - m["B"] @ x - m["c"])
        t = f_y(zoo, x, y) / L
        v = t.copy()
        for _ in range(N):
            t = t - m["H"] @ t / L
            v = v + t
        x = x - alpha * (m["r"] + zoo.m0 * x + m["E"] @ y + m["B"].T @ v)


@pytest.mark.slow
def test_identical_clients_do_not_drift():
    same = rk.zoo.quadratic_bilevel(n_clients=4, heterogeneity=0.0)
    alone = rk.zoo.QuadraticBilevel(**{k: a[:1] for k, a in same.data.items()}, m0=same.m0)
    algorithm = rk.FedNest(
        outer_lr=0.1,
        inner_lr=0.1,
        inner_steps=4,
        outer_steps=3,
        ihgp=rk.parts.FedIHGPSum(terms=3, lipschitz=5.0),
    )
    a, b = solve(same, algorithm, 10), solve(alone, algorithm, 10)
    np.testing.assert_allclose(a.solution[0], b.solution[0], rtol=1e-12)


# ---- FedInn and FedOut


def inner_call(inner, x, y):
    x, y = jnp.asarray(x), jnp.asarray(y)
    return inner(context(ZOO), x, y, inner.first_opt(y), jax.random.key(0))[0]


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 4, (1, 2, 3, 4, 5)])
def test_the_inner_solution_is_a_fixed_point_of_fedinn(steps):
    x = np.array([0.3, -1.0, 2.0])
    y_star = ZOO.inner_solution(x)
    new = inner_call(rk.parts.FedInn(lr=rk.parts.PerCall(0.2), local_steps=steps), x, y_star)
    np.testing.assert_allclose(new, y_star, rtol=1e-13)


def outer_call(outer, zoo, x, y):
    return outer(context(zoo), at(x, y), jax.random.key(0)).x


def test_the_first_local_steps_are_along_the_global_directions():
    x, y, v = jnp.ones(3), jnp.ones(4), jnp.ones(4)
    m = means(ZOO)
    new = outer_call(rk.parts.FedOut(lr=0.1, local_steps=1, adjoint=Given(v)), ZOO, x, y)
    h = m["r"] + ZOO.m0 * x + m["E"] @ y + m["B"].T @ v
    np.testing.assert_allclose(new, x - 0.1 * h, rtol=1e-13)
    np.testing.assert_allclose(
        outer_call(rk.parts.ServerStep(lr=0.1, hypergradient=Given(v)), ZOO, x, y), new
    )


def test_an_outer_loss_without_direct_dependence_makes_every_step_the_same():
    zoo = rk.zoo.QuadraticBilevel(**{**ZOO.data, "r": 0 * ZOO.r, "E": 0 * ZOO.E}, m0=0.0)
    x, y, v = jnp.ones(3), jnp.ones(4), jnp.ones(4)
    h = means(zoo)["B"].T @ v
    for lr, moved in ((0.1, 0.3), (rk.parts.PerCall(0.1), 0.1)):
        new = outer_call(rk.parts.FedOut(lr=lr, local_steps=3, adjoint=Given(v)), zoo, x, y)
        np.testing.assert_allclose(new, x - moved * h, rtol=1e-13)


# ---- the series


def series_error(zoo, N, L, x, y):
    H = means(zoo)["H"]
    return np.linalg.matrix_power(np.eye(4) - H / L, N) @ np.linalg.solve(H, f_y(zoo, x, y))


def estimate(zoo, ihgp, clients, key):
    return ihgp.estimate(context(zoo, clients), at(jnp.ones(3), jnp.ones(4)), key)[0]


@pytest.mark.parametrize("N", [1, 4, 9])
def test_the_error_of_the_sum_is_exactly_the_tail_of_the_series(N):
    L = 5.0
    v = estimate(
        ZOO,
        rk.parts.FedIHGPSum(terms=N, lipschitz=L),
        rk.participation.Everyone(),
        jax.random.key(0),
    )
    x, y = np.ones(3), np.ones(4)
    exact = np.linalg.solve(means(ZOO)["H"], f_y(ZOO, x, y))
    np.testing.assert_allclose(exact - v, series_error(ZOO, N + 1, L, x, y), atol=1e-13)


def test_the_random_estimator_takes_each_length_equally_often_and_has_the_series_as_its_mean():
    N, L = 4, 5.0
    keys = jax.random.split(jax.random.key(1), 4000)
    draw = jax.jit(
        jax.vmap(
            lambda k: estimate(
                ZOO, rk.parts.FedIHGP(terms=N, lipschitz=L), rk.participation.Everyone(), k
            )
        )
    )
    drawn = np.asarray(draw(keys))
    values, counts = np.unique(drawn.round(9), axis=0, return_counts=True)
    assert len(values) == N  # one value per length
    assert np.abs(counts / 4000 - 1 / N).max() < 0.03
    x, y = np.ones(3), np.ones(4)
    exact = np.linalg.solve(means(ZOO)["H"], f_y(ZOO, x, y))
    np.testing.assert_allclose(exact - values.mean(0), series_error(ZOO, N, L, x, y), atol=1e-8)


def test_fresh_cohorts_give_the_series_of_the_mean_hessian_and_one_cohort_would_not():
    N, L, draws = 4, 5.0, 40000
    keys = jax.random.split(jax.random.key(2), draws)
    one = rk.participation.Uniform(1)
    v = jax.jit(
        jax.vmap(lambda k: estimate(ZOO, rk.parts.FedIHGPSum(terms=N, lipschitz=L), one, k))
    )(keys)
    x, y = np.ones(3), np.ones(4)
    H = means(ZOO)["H"]
    want = np.linalg.solve(H, f_y(ZOO, x, y)) - series_error(ZOO, N + 1, L, x, y)
    error = np.asarray(v).std(0) / np.sqrt(draws)
    assert np.all(np.abs(np.asarray(v).mean(0) - want) < 5 * error)
    # the same client at every hop: the mean of the clients' own series
    reused = np.mean(
        [
            sum(
                np.linalg.matrix_power(np.eye(4) - h / L, n) @ f_y(ZOO, x, y) / L
                for n in range(N + 1)
            )
            for h in ZOO.H[:, 0]
        ],
        axis=0,
    )
    assert np.any(np.abs(reused - want) > 10 * error)


@pytest.mark.slow
def test_the_estimated_lipschitz_constant_bounds_the_mean_hessian():
    algorithm = rk.FedNest(
        outer_lr=0.01,
        inner_lr=0.1,
        ihgp=rk.parts.FedIHGPSum(
            terms=2, lipschitz=rk.parts.PowerIteration(iterations=100, safety=1.0)
        ),
    )
    estimated = float(solve(ZOO, algorithm, 1).state.lipschitz)
    largest = np.linalg.eigvalsh(ZOO.H[:, 0]).max()
    assert estimated == pytest.approx(largest, rel=1e-6)
    assert estimated >= np.linalg.eigvalsh(means(ZOO)["H"]).max()


# ---- on the eager engine too, where a mistake is named


def test_a_failing_step_names_client_step_and_round():
    def broken(x, y, row):
        raise RuntimeError("no such thing")

    problem = rk.Bilevel(broken, ZOO.problem.inner, outer_split="train")
    fedout = rk.parts.FedOut(lr=0.1, local_steps=1, adjoint=Given(jnp.ones(4)))
    where = replace(context(ZOO, is_eager=True), problem=problem)
    with pytest.raises(RuntimeError) as caught:
        fedout(where, at(jnp.ones(3), jnp.ones(4)), jax.random.key(0))
    assert "client 0, step hypergradient_piece, round 0" in caught.value.__notes__


# ---- bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"outer_lr": 0.0}, "outer_lr must be a finite number above 0, got 0.0"),
        ({"inner_lr": -1}, "inner_lr must be a finite number above 0, got -1.0"),
        ({"outer_lr": float("nan")}, "outer_lr must be a finite number above 0"),
        ({"inner_rounds": 0}, "inner_rounds must be at least 1, got 0"),
        ({"inner_steps": 0}, "inner_steps must be at least 1, got 0"),
        ({"outer_steps": (1, 0)}, "outer_steps must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"clients": 0}, "clients per exchange must be at least 1, got 0"),
    ],
)
def test_bad_settings_are_refused_at_construction(arguments, message):
    with pytest.raises(ValueError, match=message):
        rk.FedNest(**{"outer_lr": 0.1, "inner_lr": 0.1, **arguments})


def test_bad_settings_of_the_series():
    with pytest.raises(ValueError, match=r"FedIHGP.terms must be at least 1, got 0"):
        rk.parts.FedIHGP(terms=0)
    with pytest.raises(ValueError, match=r"FedIHGPSum.lipschitz must be a finite number above 0"):
        rk.parts.FedIHGPSum(lipschitz=-1.0)
    with pytest.raises(TypeError, match=r"inner_steps must be a whole number, got 2.5"):
        rk.FedNest(outer_lr=0.1, inner_lr=0.1, inner_steps=2.5)  # pyright: ignore[reportArgumentType]


def test_settings_that_do_not_fit_the_clients():
    with pytest.raises(ValueError, match="9 different clients: there are only 5"):
        solve(ZOO, rk.FedNest(outer_lr=0.1, inner_lr=0.1, clients=9), 1)
    with pytest.raises(ValueError, match="inner_steps has 2 entries for 5 clients"):
        solve(ZOO, rk.FedNest(outer_lr=0.1, inner_lr=0.1, inner_steps=(1, 2)), 1)
