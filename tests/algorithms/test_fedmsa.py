"""FedMSA against closed forms and against a plain NumPy implementation."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arena import advance, assert_close, end_of, solve

import rookery as rk
from rookery.algorithms.shared.blocks import descend

SEQUENCES = rk.zoo.linear_sequences(n_clients=3, sizes=(2, 1))


# ---- convergence


@pytest.mark.parametrize(
    ("zoo", "algorithm", "rounds"),
    [
        (
            rk.zoo.quadratic_bilevel(n_clients=4, x_size=2, y_size=2),
            rk.FedMSA(outer_lr=0.05, inner_lr=(0.2, 0.1), local_steps=5),
            800,
        ),
        pytest.param(
            rk.zoo.quadratic_bilevel(n_clients=4, x_size=2, y_size=2),
            rk.FedMSA(outer_lr=0.1, inner_lr=0.2, local_steps=1, clients=3),
            1500,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            rk.zoo.saddle(curvature=1.0, n_clients=3),
            rk.FedMSA(outer_lr=0.05, inner_lr=0.1, local_steps=5, clients=2),
            500,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            rk.zoo.linear_chain(n_clients=3, sizes=(2, 2)),
            rk.FedMSA(outer_lr=0.2, inner_lr=0.5),
            1000,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            rk.zoo.linear_chain(n_clients=3, sizes=(2, 3, 3)),
            rk.FedMSA(outer_lr=0.02, inner_lr=0.3, local_steps=5),
            1500,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            rk.zoo.linear_chain(n_clients=3, sizes=(2, 2, 3, 3)),
            rk.FedMSA(outer_lr=0.05, inner_lr=0.3, local_steps=5, clients=2),
            1500,
            marks=pytest.mark.slow,
        ),
    ],
    ids=["bilevel", "bilevel, K=1", "minimax", "N=1", "N=2", "N=3"],
)
def test_it_reaches_the_exact_solution_though_clients_differ(zoo, algorithm, rounds):
    result = solve(zoo, algorithm, rounds)
    assert len(result.solution) == len(zoo.start)  # the problem's own variables
    assert_close(result.solution, zoo.solution(), atol=1e-11)


@pytest.mark.slow
def test_the_papers_product_of_jacobians_ends_elsewhere():
    zoo = rk.zoo.scalar_composition()  # the mean of the clients' own gradients is zero at 8/5
    algorithm = rk.FedMSA(outer_lr=0.1, inner_lr=0.5, view=rk.parts.ProductView())
    (x,) = solve(zoo, algorithm, 400).solution
    # z follows 2 x, and x the mean of k_i (z - t_i) = 2 z - 8
    assert float(x[0]) == pytest.approx(2.0, abs=1e-12)
    assert zoo.solution()[0][0] == pytest.approx(1.5)


# ---- step by step


def reference(zoo, alpha, beta, K, rounds, factor=1.0):
    """The rounds' blocks and directions, and all local iterates, with exact maps in NumPy.

    Local directions are those of FedLin on the joint system,  h + s_i(w) - s_i(u):  the recursion
    of FedMSA must come to the same.
    """
    M, c = zoo.M[:, 0], zoo.c[:, 0]
    size = np.concatenate([np.full(n, a) for n, a in zip(zoo.sizes, (alpha, beta), strict=True)])
    u, rows, iterates = np.zeros(M.shape[1]), [], []
    for r in range(rounds):
        h = M.mean(0) @ u + c.mean(0)
        rows.append((u, h))
        ends = []
        for i in range(len(M)):
            w, own = u, []
            for _ in range(1 if r == 0 else K):
                own.append(w)
                w = w - size * factor**r * (h + M[i] @ w - M[i] @ u)
            ends.append(w)
            iterates.append((r, i, own))
        u = np.mean(ends, 0)
    return u, rows, iterates


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rho", "fresh"), [(0.3, True), (1.0, True), (0.3, False), pytest.param(None, False)]
)
def test_directions_telescope_whatever_rho(rho, fresh):
    K, rounds, rate = 4, 4, 0.9
    algorithm = rk.FedMSA(
        outer_lr=rk.parts.Decay(0.1, rate),
        inner_lr=(rk.parts.Decay(0.2, rate),),
        local_steps=K,
        renewal=rho,
        fresh=fresh,
        clients=None,
    )
    u, rows, _ = reference(SEQUENCES, 0.1, 0.2, K, rounds, factor=rate)
    state, _ = advance(SEQUENCES, algorithm, rounds)
    np.testing.assert_allclose(np.concatenate(state.variables), u, rtol=1e-12)
    np.testing.assert_allclose(np.concatenate(state.previous), rows[-1][0], rtol=1e-12)
    np.testing.assert_allclose(np.concatenate(state.h), rows[-1][1], rtol=1e-11, atol=1e-14)
    assert_close(state.h, SEQUENCES.residual(state.previous), atol=1e-13)


@pytest.mark.slow
def test_differences_are_taken_on_one_sample():
    """Noise in the offsets alone drops out of them, and hardly any enters h if ρ is tiny."""
    noisy = rk.zoo.linear_sequences(n_clients=3, sizes=(2, 1), rows=4, noise=1.0)
    same_M = np.broadcast_to(noisy.M.mean(1, keepdims=True), noisy.M.shape)
    zoo = rk.zoo.LinearSequences(same_M, noisy.c, noisy.sizes)
    settings: dict[str, Any] = {"local_steps": 3, "renewal": 1e-13, "clients": None}
    whole, _ = advance(zoo, rk.FedMSA(outer_lr=0.1, inner_lr=0.2, **settings), 3)
    drawn, _ = advance(zoo, rk.FedMSA(outer_lr=0.1, inner_lr=0.2, batch_size=1, **settings), 3)
    assert_close(whole.variables, drawn.variables, rtol=1e-11)
    fresh, _ = advance(zoo, rk.FedMSA(outer_lr=0.1, inner_lr=0.2, first_batch=1, **settings), 3)
    assert np.abs(fresh.variables[0] - whole.variables[0]).max() > 1e-2


@pytest.mark.parametrize(
    ("zoo", "rival"),
    [
        (
            rk.zoo.quadratic_bilevel(n_clients=1, x_size=1, y_size=2),
            rk.SOBA(outer_lr=0.1, inner_lr=(0.2, 0.1)),
        ),
        (
            rk.zoo.linear_chain(n_clients=1, sizes=(1, 2)),
            rk.STSA(outer_lr=0.1, inner_lr=(0.2, 0.1)),
        ),
    ],
)
def test_one_client_one_step_and_no_momentum_is_the_centralised_method(zoo, rival):
    algorithm = rk.FedMSA(outer_lr=0.1, inner_lr=(0.2, 0.1), local_steps=1, renewal=1.0)
    for rounds in (1, 2, 5):
        ours, theirs = advance(zoo, algorithm, rounds)[0], advance(zoo, rival, rounds)[0]
        assert_close(
            jax.tree.leaves((ours.variables, ours.added)), jax.tree.leaves(theirs), rtol=1e-12
        )


def test_a_schedule_a_radius_and_a_step():
    assert float(rk.parts.Decay(0.1, 0.5)(3)) == pytest.approx(0.1 / 8)
    assert float(rk.parts.PowerDecay(0.1, 0.5)(3)) == pytest.approx(0.05)
    x, y, v = (jnp.array([3.0, 4.0]) for _ in range(3))
    zero = (jnp.zeros(2),) * 3
    none = ((), (), ())
    new, _ = descend((0.1, 0.1, 0.1), zero, none, (x, y, v), 0, (np.inf, 1.0))
    assert_close(new, (x, y, v / 5), rtol=1e-14)
    new, _ = descend((0.1, 0.2, 0.3), (x, y, v), none, (x, y, v), 0)
    assert_close(new, (0.9 * x, 0.8 * y, 0.7 * v))


@pytest.mark.slow
def test_a_size_per_call_is_shared_out_over_the_local_steps():
    zoo = rk.zoo.scalar_bilevel()
    population = rk.Population.stacked(zoo.data)
    for output in (rk.parts.LastIterate(), rk.parts.RandomIterate()):  # which takes fewer steps

        def solve(lr, output=output):
            how = {"local_steps": 4, "output": output}
            algorithm = rk.FedMSA(outer_lr=lr, inner_lr=lr, **how)
            return rk.run(algorithm, zoo.problem, population, zoo.start, rounds=4, seed=1).solution

        assert_close(solve(rk.parts.PerCall(0.2)), solve(0.05))


@pytest.mark.slow
def test_a_bound_on_v_holds_and_a_warm_up_starts_near_the_adjoint():
    zoo = rk.zoo.quadratic_bilevel(n_clients=3, x_size=1, y_size=2)
    warm = rk.parts.BilevelWarmUp(
        inner=rk.parts.FedInnSGD(lr=0.3),
        inner_rounds=15,
        adjoint=rk.parts.FedIHGPSum(terms=10, lipschitz=4.0),
    )
    algorithm = rk.FedMSA(outer_lr=1e-9, inner_lr=1e-9, warm_up=warm)
    state, (ledger,) = advance(zoo, algorithm, 1)
    x, y = (np.asarray(a) for a in state.variables)
    np.testing.assert_allclose(y, zoo.inner_solution(x), atol=0.01)
    np.testing.assert_allclose(state.added[0], zoo.adjoint(x, y), atol=0.05)
    assert ledger.exchanges == 15 + 11 + 2
    bound = 0.01
    algorithm = rk.FedMSA(outer_lr=0.1, inner_lr=0.2, local_steps=3, inner_radius=(np.inf, bound))
    state, _ = advance(zoo, algorithm, 3)
    assert float(jnp.linalg.norm(state.added[0])) == pytest.approx(bound)


def test_a_composition_warmed_up_starts_with_exact_values_and_adjoints():
    zoo = rk.zoo.linear_chain(n_clients=3, sizes=(1, 2, 2))
    algorithm = rk.FedMSA(outer_lr=1e-12, inner_lr=1e-12, warm_up=rk.parts.CompositionWarmUp())
    state, (first, later) = advance(zoo, algorithm, 2)
    z1, z2, a1, a2 = state.previous[1:]
    assert_close((z1, z2), zoo.levels(np.zeros(1)), atol=1e-10)
    np.testing.assert_allclose(a2, np.asarray(z2) - zoo.target.mean((0, 1)), atol=1e-10)
    np.testing.assert_allclose(a1, zoo.matrices[1].mean((0, 1)).T @ a2, atol=1e-10)
    np.testing.assert_allclose(state.h[0], zoo.gradient(np.zeros(1)), atol=1e-10)
    assert (first.exchanges, later.exchanges) == (5 + 2, 2)


# ---- partial participation in exchange A


@pytest.mark.slow
def test_with_fewer_clients_in_exchange_a_rho_averages_their_noise():
    """At a standstill the variance of h is ρ / (2 - ρ) times that of one round's answers."""
    zoo, asked, draws = rk.zoo.linear_sequences(n_clients=6, sizes=(1, 1)), 2, 4000

    def direction(rho, seed):
        algorithm = rk.FedMSA(outer_lr=1e-12, inner_lr=1e-12, renewal=rho, momentum_clients=asked)
        return jnp.concatenate(end_of(zoo, algorithm, 20, seed).h)

    seeds, rhos = jnp.arange(draws), jnp.array([0.4, 1.0])
    h = jax.jit(jax.vmap(jax.vmap(direction, (None, 0)), (0, None)))(rhos, seeds)
    exact = zoo.c.mean((0, 1))  # the maps at the start, where all blocks are zero
    # the mean of two out of six, drawn without replacement
    variance = zoo.c[:, 0].var(0, ddof=1) * (1 / asked - 1 / 6)
    want = np.array([0.4 / 1.6, 1.0])[:, None] * variance
    np.testing.assert_allclose(np.var(h, axis=1), want, rtol=0.1)
    np.testing.assert_allclose(np.mean(h[0], 0), exact, atol=5 * np.sqrt(want[0] / draws).max())


# ---- the random output


@pytest.mark.slow
def test_the_random_output_is_uniform_over_the_iterates_that_exist():
    zoo = rk.zoo.linear_sequences(n_clients=2, sizes=(2, 1))
    K, rounds, draws = 3, 3, 4000
    algorithm = rk.FedMSA(
        outer_lr=0.1, inner_lr=0.2, local_steps=K, clients=None, output=rk.parts.RandomIterate()
    )

    def run(seed):
        return jnp.concatenate(algorithm.solution(end_of(zoo, algorithm, rounds, seed)))

    drawn = np.asarray(jax.jit(jax.vmap(run))(jnp.arange(draws)))
    _, _, iterates = reference(zoo, 0.1, 0.2, K, rounds)
    total, chance = 1 + 2 * K, {}
    for _, _, own in iterates:
        for w in own:  # clients share the first two iterates of a round
            cell = tuple(w.round(9))
            chance[cell] = chance.get(cell, 0) + 1 / (2 * total)
    counts = {cell: 0 for cell in chance}
    for row in drawn:
        counts[tuple((row + 0.0).round(9))] += 1
    assert len(chance) == 9
    expected = np.array([draws * p for p in chance.values()])
    chi_square = np.sum((np.array(list(counts.values())) - expected) ** 2 / expected)
    assert chi_square < 26.1  # 8 degrees of freedom, one in a thousand


# ---- bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"outer_lr": 0.0}, "outer_lr must be a finite number above 0, got 0.0"),
        ({"inner_lr": (0.1, -1)}, "inner_lr must be a finite number above 0, got -1.0"),
        ({"local_steps": 0}, "local_steps must be at least 1, got 0"),
        ({"renewal": 0.0}, "renewal must be above 0 and at most 1, got 0.0"),
        ({"momentum_batch": 0}, "momentum_batch must be at least 1, got 0"),
        ({"momentum_batch": "all"}, "momentum_batch"),
        ({"first_batch": 0}, "first_batch must be at least 1, got 0"),
        ({"inner_radius": (np.inf, 0.0)}, "inner_radius must be a finite number above 0"),
    ],
)
def test_bad_settings_are_refused_at_construction(arguments, message):
    with pytest.raises(ValueError, match=message):
        rk.FedMSA(**{"outer_lr": 0.1, "inner_lr": 0.1, **arguments})


def test_settings_that_do_not_fit_the_problem():
    check = rk.FedMSA(outer_lr=0.1, inner_lr=(0.1, 0.1, 0.1)).check
    with pytest.raises(ValueError, match="inner_lr has 3 entries for 1 blocks"):
        check(SEQUENCES.problem, 3)
    with pytest.raises(TypeError, match="BilevelWarmUp is for Bilevel problems"):
        rk.FedMSA(outer_lr=0.1, inner_lr=0.1, warm_up=rk.parts.BilevelWarmUp()).check(
            SEQUENCES.problem, 3
        )
    with pytest.raises(ValueError, match="4 different clients"):
        rk.FedMSA(outer_lr=0.1, inner_lr=0.1, momentum_clients=4).check(SEQUENCES.problem, 3)
