"""AggITD: every round is one of T candidates, whose mean is a Neumann series."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arena import advance, assert_close, f_y, means, pooled, solve

import rookery as rk
from rookery.algorithms import AggITD

ZOO = rk.zoo.quadratic_bilevel(n_clients=3, x_size=2, y_size=2)
LAM, T = 0.2, 4


def candidates(x, y):
    """(h, y^T, r) for every Q, in NumPy."""
    m = means(ZOO)
    f_x = m["r"] + ZOO.m0 * x
    for Q in range(T):
        now, r = y, np.zeros(2)
        for t in range(T):
            if t == Q:
                r = f_y(ZOO, x, now)
            elif t > Q:
                r = r - LAM * m["H"] @ r
            now = now - LAM * (m["H"] @ now - m["B"] @ x - m["c"])
        yield f_x + m["E"] @ now + LAM * T * m["B"].T @ r, now, r


@pytest.mark.slow
def test_rounds_are_those_of_a_start_drawn_uniformly():
    x = np.array([0.3, -0.2])
    zoo = ZOO
    seen = set()
    runs = [rk.Run(AggITD(outer_lr=0.1, inner_lr=LAM, inner_rounds=T), (x, np.zeros(2)), seed)
            for seed in range(24)]  # fmt: skip
    results = rk.sweep(runs, zoo.problem, rk.Population.stacked(zoo.data), rounds=1)
    every = list(candidates(x, np.zeros(2)))
    for result in results:
        (Q,) = (
            Q for Q, (h, y, r) in enumerate(every)
            if np.allclose(result.solution[0], x - 0.1 * h, rtol=1e-10)
        )  # fmt: skip
        np.testing.assert_allclose(result.solution[1], every[Q][1], rtol=1e-12)
        # y in T + 1 exchanges, r in the T - 1 - Q after it began and in the last
        assert result.ledger.exchanges == T + 1
        assert result.ledger.bytes_down == 3 * 8 * (2 + 2 * (T + 1) + 2 * (T - Q))
        assert result.ledger.hessian_vectors == 3 * (T - Q)
        seen.add(Q)
    assert seen == set(range(T))


@pytest.mark.slow
def test_at_the_inner_solution_the_mean_is_a_neumann_series():
    x = np.array([0.3, -0.2])
    y = ZOO.inner_solution(x)
    got = np.mean([h for h, _, _ in candidates(x, y)], axis=0)
    m = means(ZOO)
    v = sum(LAM * np.linalg.matrix_power(np.eye(2) - LAM * m["H"], n) @ f_y(ZOO, x, y)
            for n in range(T))  # fmt: skip
    want = m["r"] + ZOO.m0 * x + m["E"] @ y + m["B"].T @ v
    np.testing.assert_allclose(got, want, rtol=1e-12)
    # and this is FedIHGPSum with L = 1 / λ and N = T - 1
    algorithm = rk.Nested(
        inner=rk.parts.ServerSGD(lr=1e-12),
        outer=rk.parts.ServerStep(
            lr=0.1, hypergradient=rk.parts.FedIHGPSum(terms=T - 1, lipschitz=1 / LAM)
        ),
    )
    program = rk.run(algorithm, ZOO.problem, rk.Population.stacked(ZOO.data), (x, y), rounds=1)
    np.testing.assert_allclose(program.solution[0], x - 0.1 * want, rtol=1e-9)


@pytest.mark.slow
def test_a_start_is_a_term_of_the_derivative_by_iteration():
    """One client, from y*: T times the derivative of f(x, y^T) through step Q alone."""
    zoo, x = pooled(ZOO), jnp.array([0.3, -0.2])
    rows = {name: jnp.asarray(a[0]) for name, a in zoo.data.items()}
    solved = jnp.asarray(zoo.inner_solution(np.asarray(x)))

    def f(x, y):
        return jax.vmap(zoo.problem.outer, (None, None, 0))(x, y, rows).mean()

    def g(x, y):
        return jax.vmap(zoo.problem.inner, (None, None, 0))(x, y, rows).mean()

    def after_steps(*xs):
        y = solved
        for own in xs:
            y = y - LAM * jax.grad(g, 1)(own, y)
        return f(x, y)

    terms = jax.grad(after_steps, tuple(range(T)))(*[x] * T)
    want = [np.asarray(jax.grad(f)(x, solved) + T * term) for term in terms]
    seen = set()
    for seed in range(8):
        start, population = (x, solved), rk.Population.stacked(zoo.data)
        algorithm = AggITD(outer_lr=0.1, inner_lr=LAM, inner_rounds=T)
        result = rk.run(algorithm, zoo.problem, population, start, rounds=1, seed=seed)
        h = np.asarray(x - result.solution[0]) / 0.1
        (Q,) = (Q for Q in range(T) if np.allclose(h, want[Q], rtol=1e-11, atol=0))
        assert result.ledger.hessian_vectors == 3 * (T - Q)  # rows
        seen.add(Q)
    assert len(seen) > 1


@pytest.mark.slow
def test_with_many_inner_steps_it_ends_near_the_solution():
    algorithm = AggITD(outer_lr=0.005, inner_lr=0.4, inner_rounds=15)
    track = rk.metrics.OfSolution(lambda x, y: {"x0": x[0], "x1": x[1]})
    history = solve(ZOO, algorithm, 7000, evaluate=[track], evaluate_every=10).history
    mean = np.array([np.mean(history[name][-500:]) for name in ("x0", "x1")])
    assert np.linalg.norm(mean - ZOO.solution()[0]) < 0.05


def test_settings_are_checked():
    with pytest.raises(TypeError, match=r"inner_lr of AggITD cannot be an optimiser"):
        import optax

        AggITD(outer_lr=0.1, inner_lr=optax.adam(0.1))
    state, _ = advance(ZOO, AggITD(outer_lr=0.1, inner_lr=LAM, inner_rounds=1), 1)
    assert_close(state.y, LAM * means(ZOO)["c"], rtol=1e-12)
