"""Methods for one pool of data, against plain NumPy and closed forms."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arena import at, context, f_y, federation, means, pooled, round_by_round, solve
from some_slow import some_slow

import rookery as rk
from rookery.program.algorithm import numbers_to_arrays

ZOO = rk.zoo.quadratic_bilevel(n_clients=3, x_size=2, y_size=3)
T, N, L = 2, 3, 5.0


def conjugate_gradients(H, b, iterations):
    v, r, p = np.zeros_like(b), b, b
    for _ in range(iterations):
        step = r @ r / (p @ H @ p)
        v, new = v + step * p, r - step * H @ p
        r, p = new, new + new @ new / (r @ r) * p
    return v


def series(H, b, L, terms):
    """(1/L) times the terms 0 to ``terms``."""
    hop = np.eye(len(H)) - H / L
    return sum(np.linalg.matrix_power(hop, n) @ b for n in range(terms + 1)) / L


def one_product(H, b, L, terms, hops):
    return terms / L * np.linalg.matrix_power(np.eye(len(H)) - H / L, hops) @ b


# the algorithm; its inner steps; v from H, f_y and the hops made; outer and inner size of round k
METHODS = {
    "AID, conjugate gradients": (
        rk.AID(
            outer_lr=0.1, inner_lr=0.2, inner_rounds=T, adjoint=rk.parts.FederatedCG(iterations=2)
        ),
        T,
        lambda H, b, hops: conjugate_gradients(H, b, hops),
        lambda k: (0.1, 0.2),
    ),
    "AID, Neumann series": (
        rk.AID(
            outer_lr=0.1,
            inner_lr=0.2,
            inner_rounds=T,
            adjoint=rk.parts.FedIHGPSum(terms=N, lipschitz=L),
        ),
        T,
        lambda H, b, hops: series(H, b, L, hops),
        lambda k: (0.1, 0.2),
    ),
    "StocBiO": (
        rk.StocBiO(outer_lr=0.1, inner_lr=0.2, inner_rounds=T, terms=N, adjoint_lr=0.25),
        T,
        lambda H, b, hops: series(H, b, 4.0, hops),
        lambda k: (0.1, 0.2),
    ),
    "ALSET": (
        rk.ALSET(outer_lr=0.5, inner_lr=1.0, horizon=25, inner_rounds=T, terms=N, lipschitz=L),
        T,
        lambda H, b, hops: one_product(H, b, L, N, hops),
        lambda k: (0.5 / 5, 1.0 / 5),
    ),
    "TTSA": (
        rk.TTSA(outer_lr=0.1, inner_lr=0.2, terms=N, lipschitz=L),
        1,
        lambda H, b, hops: one_product(H, b, L, N, hops),
        lambda k: (0.1 * (k + 1) ** -0.6, 0.2 * (k + 1) ** -0.4),
    ),
}
HOPS = {
    "AID, conjugate gradients": {2},
    "AID, Neumann series": {N},
    "StocBiO": {N},
    "ALSET": set(range(N)),
    "TTSA": set(range(N)),
}


@pytest.mark.parametrize("name", [*list(METHODS)[1:], *some_slow(list(METHODS)[:1], 0)])
def test_rounds_by_hand_with_one_client_that_holds_everything(name):
    algorithm, inner_rounds, adjoint, sizes = METHODS[name]
    m, made = means(ZOO), set()
    for k, old, new, cost in round_by_round(pooled(ZOO), algorithm, 4, rk.Eager()):
        hops = cost.exchanges - inner_rounds - 2
        made.add(hops)
        outer, inner = sizes(k)
        x, y = np.asarray(old.x), np.asarray(old.y)
        for _ in range(inner_rounds):
            y = y - inner * (m["H"] @ y - m["B"] @ x - m["c"])
        v = adjoint(m["H"], f_y(ZOO, x, y), hops)
        x = x - outer * (m["r"] + ZOO.m0 * x + m["E"] @ y + m["B"].T @ v)
        np.testing.assert_allclose(new.x, x, rtol=1e-11)
        np.testing.assert_allclose(new.y, y, rtol=1e-11)
    assert made <= HOPS[name]
    assert len(made) > 1 or len(HOPS[name]) == 1  # a random length does vary


@pytest.mark.slow
def test_all_clients_in_parallel_compute_what_one_with_everything_does():
    algorithm = rk.StocBiO(outer_lr=0.1, inner_lr=0.2, inner_rounds=T, terms=N, adjoint_lr=0.25)
    together, alone = (solve(zoo, algorithm, 20).solution for zoo in (ZOO, pooled(ZOO)))
    for a, b in zip(together, alone, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11)


@pytest.mark.slow
def test_conjugate_gradients_find_the_solution():
    x, y = solve(
        pooled(ZOO),
        rk.AID(
            outer_lr=0.2, inner_lr=0.3, inner_rounds=5, adjoint=rk.parts.FederatedCG(iterations=3)
        ),
        400,
    ).solution
    np.testing.assert_allclose(x, ZOO.solution()[0], rtol=0, atol=1e-10)
    np.testing.assert_allclose(y, ZOO.solution()[1], rtol=0, atol=1e-10)
    scalar = rk.zoo.scalar_bilevel()
    x, y = solve(
        scalar,
        rk.AID(
            outer_lr=0.2, inner_lr=0.3, inner_rounds=5, adjoint=rk.parts.FederatedCG(iterations=1)
        ),
        400,
    ).solution
    assert (float(x[0]), float(y[0])) == pytest.approx((-0.3, 0.4), abs=1e-10)


def test_a_truncated_series_comes_to_rest_at_its_own_root():
    m = means(ZOO)

    def field(x):
        y = ZOO.inner_solution(x)
        v = series(m["H"], f_y(ZOO, x, y), L, 2)
        return m["r"] + ZOO.m0 * x + m["E"] @ y + m["B"].T @ v

    zero = field(np.zeros(2))
    slope = np.stack([field(e) - zero for e in np.eye(2)], axis=1)
    root = np.linalg.solve(slope, -zero)
    x = solve(
        pooled(ZOO),
        rk.AID(
            outer_lr=0.2,
            inner_lr=0.3,
            inner_rounds=5,
            adjoint=rk.parts.FedIHGPSum(terms=2, lipschitz=L),
        ),
        400,
    ).solution[0]
    np.testing.assert_allclose(x, root, rtol=0, atol=1e-10)
    assert np.linalg.norm(root - ZOO.solution()[0]) > 1e-3


def test_every_product_of_stocbio_has_a_batch_of_its_own():
    """Two rows with Hessians 1 and 3: 1 + a + a b for all four pairs of factors 3/4 and 1/4."""
    one = np.ones((1, 2, 1))
    zoo = rk.zoo.QuadraticBilevel(
        H=np.array([1.0, 3.0]).reshape(1, 2, 1, 1),
        B=one[..., None],
        c=one,
        Q=one[..., None],
        d=-one,
        r=one,
        E=0 * one[..., None],
    )
    step = rk.StocBiO(terms=2, adjoint_lr=0.25).outer
    assert isinstance(step, rk.parts.ServerStep)
    assert isinstance(step.hypergradient, rk.parts.FedIHGPSum)
    estimate = step.hypergradient.estimate
    state = at(np.zeros(1), np.zeros(1))  # there f_y is 1

    @jax.jit
    @jax.vmap
    def v(key):
        return estimate(context(zoo, batch_size=1), state, key)[0]

    found = set((4 * v(jax.random.split(jax.random.key(0), 64))).ravel().tolist())
    assert found == {1 + a + a * b for a in (0.75, 0.25) for b in (0.75, 0.25)}


def test_falling_step_sizes_stay_single_in_single_precision():
    zoo = rk.zoo.saddle(curvature=1.0, n_clients=3, dtype=np.float32)
    algorithm = numbers_to_arrays(rk.TTSA(outer_lr=0.1, inner_lr=0.1, clients=2))
    state = algorithm.init(zoo.problem, *map(jnp.asarray, zoo.start))

    def round(algorithm, state, key):
        return algorithm.round(federation(zoo), zoo.problem, state, key)

    new = eqx.filter_eval_shape(round, algorithm, state, jax.random.key(0))
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(new))


PER_CALL: Any = rk.parts.PerCall(0.1)  # which these do not take


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: rk.AID(outer_lr=0.0), ValueError, "outer_lr must be a finite number above 0"),
        (lambda: rk.AID(inner_rounds=0), ValueError, "inner_rounds must be at least 1"),
        (
            lambda: rk.StocBiO(adjoint_lr=PER_CALL),
            TypeError,
            "adjoint_lr must be a number",
        ),
        (
            lambda: rk.ALSET(outer_lr=0.1, inner_lr=0.1, horizon=0),
            ValueError,
            "horizon must be at least 1",
        ),
        (
            lambda: rk.ALSET(outer_lr=PER_CALL, inner_lr=0.1, horizon=9),
            TypeError,
            "outer_lr must be a number",
        ),
        (
            lambda: rk.TTSA(outer_lr=PER_CALL, inner_lr=0.1),
            TypeError,
            "outer_lr must be a number",
        ),
        (lambda: rk.parts.PowerDecay(0.1, -1.0), ValueError, "PowerDecay.exponent must be"),
    ],
)
def test_bad_settings_are_refused_at_construction(build, error, message):
    with pytest.raises(error, match=message):
        build()
