"""Prometheus against NumPy step by step, and where it ends."""

import numpy as np
import pytest
from arena import advance, clients_of

import rookery as rk
from rookery.experiment.registry import ALGORITHMS, make_object

ZOO = rk.zoo.quadratic_bilevel(n_clients=4, x_size=1, y_size=2, cross=0.3)
SAME = rk.zoo.quadratic_bilevel(n_clients=4, x_size=1, y_size=2, cross=0.3, heterogeneity=0.0)
ROWS = rk.zoo.quadratic_bilevel(n_clients=4, x_size=1, y_size=2, cross=0.3, rows=3)
NOISY = rk.zoo.quadratic_bilevel(n_clients=3, x_size=1, y_size=2, rows=6, noise=0.3)
LONG = rk.parts.LocalNeumannSum(terms=120, lipschitz=4.0)
# not symmetric: who listens to whom is not who is listened to
SHIFT = [[0.5, 0.3, 0.2, 0], [0, 0.5, 0.3, 0.2], [0.2, 0, 0.5, 0.3], [0.3, 0.2, 0, 0.5]]


def estimates(zoo, i, x, y, terms, L):
    """g_y and the local hypergradient of client i, by a truncated Neumann series."""
    H, B, c, Q, d, r, E = (zoo.data[name][i].mean(0) for name in "HBcQdrE")
    t = v = (Q @ (y - d) + E.T @ x) / L
    for _ in range(terms):
        t = t - H @ t / L
        v = v + t
    return H @ y - B @ x - c, r + zoo.m0 * x + E @ y + B.T @ v


@pytest.mark.parametrize(
    ("zoo", "batch_size"), [(ZOO, None), pytest.param(ROWS, 2, marks=pytest.mark.slow)]
)
def test_every_agent_follows_the_recursion_by_hand(zoo, batch_size):
    """With equal rows a mini-batch is exact, and the corrections must add up to full gradients."""
    every = None if batch_size is None else 3
    algorithm = rk.Prometheus(
        outer_lr=0.05,
        inner_lr=0.1,
        mixing=rk.parts.MixingMatrix(SHIFT),
        adjoint=rk.parts.LocalNeumannSum(terms=3, lipschitz=5.0),
        renew_every=every,
        batch_size=batch_size,
    )
    rounds, m, W = 5, 4, np.array(SHIFT)
    x, y, d, p, u = np.zeros((m, 1)), np.zeros((m, 2)), np.zeros((m, 2)), *np.zeros((2, m, 1))
    for _ in range(rounds):
        x, y = W @ x - 0.05 * u, y - 0.1 * d
        found = [estimates(zoo, i, x[i], y[i], 3, 5.0) for i in range(m)]
        d, new = (np.stack(part) for part in zip(*found, strict=True))
        u, p = W @ u + new - p, new
    state, _ = advance(zoo, algorithm, rounds, rk.Compiled())
    for got, want in zip(state.agents.rows, (x, y, d, p, u), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(state.mixed.rows[0], W @ x, rtol=1e-12, atol=1e-12)
    assert np.ptp(x) > 1e-3  # agents are not of one mind yet


def test_identical_agents_are_the_centralised_method():
    algorithm = rk.Prometheus(
        outer_lr=0.05,
        inner_lr=0.1,
        mixing=rk.parts.CompleteGraph(),
        adjoint=rk.parts.LocalNeumannSum(terms=3, lipschitz=5.0),
    )
    x, y, d, p = np.zeros(1), np.zeros(2), np.zeros(2), np.zeros(1)
    for _ in range(6):
        x, y = x - 0.05 * p, y - 0.1 * d
        d, p = estimates(SAME, 0, x, y, 3, 5.0)
    state, ledgers = advance(SAME, algorithm, 6, rk.Compiled())
    for got, want in zip(algorithm.solution(state), (x, y), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)
    m, exchanged = 4, 2 * 8  # x and u
    for ledger in ledgers:
        assert (ledger.exchanges, ledger.messages) == (1, 2 * m)
        assert (ledger.bytes_down, ledger.bytes_up) == (m * exchanged, m * exchanged)
        assert (ledger.gradients, ledger.hessian_vectors) == (3 * m, 4 * m)


def own_limit(zoo):
    """The x at which the mean of the local hypergradients A_i x + b_i at y_i*(x) is zero."""
    slopes, zeros = zip(*(client.affine_hypergradient() for client in clients_of(zoo)), strict=True)
    return -np.linalg.solve(np.sum(slopes, axis=0), np.sum(zeros, axis=0))


def assert_at_rest(zoo, state):
    x, y, _, p, u = state.agents.rows
    limit = own_limit(zoo)
    own_y = [client.inner_solution(limit) for client in clients_of(zoo)]
    np.testing.assert_allclose(x, np.tile(limit, (len(x), 1)), rtol=1e-8)  # all agree
    np.testing.assert_allclose(y, own_y, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(u, np.zeros_like(u), atol=1e-8)
    assert np.abs(p).max() > 1e-2  # though none of them is at rest on its own
    assert np.abs(limit - zoo.solution()[0]).max() > 1e-2  # nor at the solution of the means


@pytest.mark.slow
def test_a_ring_agrees_on_where_the_mean_of_local_hypergradients_is_zero():
    algorithm = rk.Prometheus(
        outer_lr=0.05, inner_lr=0.1, mixing=rk.parts.RingGraph(), adjoint=LONG
    )
    engine = rk.Compiled(rounds_per_call=2000)
    early, _ = advance(ZOO, algorithm, 20, engine)
    spread = np.ptp(early.agents.rows.x, axis=0).max()
    assert spread > 1e-4
    # what is tracked is the mean, whatever the agents think
    np.testing.assert_allclose(
        np.sum(early.agents.rows.u, axis=0), np.sum(early.agents.rows.p, axis=0), rtol=1e-12
    )
    state, _ = advance(ZOO, algorithm, 2000, engine)
    assert_at_rest(ZOO, state)
    x, y = algorithm.solution(state)
    np.testing.assert_allclose(x, own_limit(ZOO), rtol=1e-8)
    np.testing.assert_allclose(y, np.mean(state.agents.rows.y, axis=0), rtol=1e-12)


@pytest.mark.slow
def test_corrected_mini_batches_end_where_full_gradients_do_and_are_billed():
    """Corrections vanish as the iterates converge, and their noise with them."""
    algorithm = rk.Prometheus(
        outer_lr=0.05, inner_lr=0.1, adjoint=LONG, renew_every=4, batch_size=2
    )
    state, ledgers = advance(NOISY, algorithm, 3000, rk.Compiled(rounds_per_call=3000))
    assert_at_rest(NOISY, state)
    m, rows, twice = 3, 6, 2 * 2
    evaluated = [m * rows, *[m * twice] * 3] * 2
    assert [ledger.gradients for ledger in ledgers[:8]] == [3 * n for n in evaluated]
    assert [ledger.hessian_vectors for ledger in ledgers[:8]] == [121 * n for n in evaluated]


# ---- who listens to whom


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_rings_and_complete_graphs_are_doubly_stochastic_and_mix(n):
    for mixing in (rk.parts.RingGraph(), rk.parts.CompleteGraph()):
        W = np.asarray(mixing.matrix(n))
        rk.parts.MixingMatrix(W.tolist()).check(n)  # which looks at rows, columns and connections
        np.testing.assert_array_equal(W, W.T)
    if n == 5:
        np.testing.assert_array_equal(rk.parts.RingGraph().matrix(n)[0], [0.5, 0.25, 0, 0, 0.25])


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([[0.5, 0.5], [0.4, 0.5]], "doubly stochastic: row 1 sums to 0.9, not 1"),
        ([[0.5, 0.5], [1.0, 0.0]], "doubly stochastic: column 0 sums to 1.5, not 1"),
        ([[float("nan"), 1.0], [1.0, 0.0]], "doubly stochastic: row 0 sums to nan"),
        ([[1.5, -0.5], [-0.5, 1.5]], "W must not be negative, got -0.5 in row 0"),
        ([[0.5, 0.5]], "W must be square: it has 1 rows, and row 0 2"),
        ([[1, 0], [0, 1]], "W does not mix"),
        ([[0, 1, 0], [0, 0, 1], [1, 0, 0]], "W does not mix"),
    ],
)
def test_a_matrix_that_does_not_mix_is_refused(rows, words):
    with pytest.raises(ValueError, match=words):
        rk.parts.MixingMatrix(rows)


def test_what_does_not_fit_is_refused():
    halves = rk.parts.MixingMatrix([[0.5, 0.5], [0.5, 0.5]])
    with pytest.raises(ValueError, match="W has 2 rows for 4 clients"):
        rk.Prometheus(outer_lr=0.05, inner_lr=0.1, mixing=halves).check(ZOO.problem, 4)
    with pytest.raises(TypeError, match="Prometheus solves Bilevel problems, got Minimax"):
        saddle = rk.zoo.saddle(n_clients=3, x_size=1, y_size=1).problem
        rk.Prometheus(outer_lr=0.05, inner_lr=0.1).check(saddle, 3)  # type: ignore
    with pytest.raises(ValueError, match="renew_every must be at least 1"):
        rk.Prometheus(outer_lr=0.05, inner_lr=0.1, renew_every=0)
    with pytest.raises(ValueError, match=r"renew_every .* batch_size"):
        rk.Prometheus(outer_lr=0.05, inner_lr=0.1, renew_every=3)


def test_a_configuration_names_it_and_its_parts():
    table = {"name": "Prometheus", "outer_lr": 0.05, "inner_lr": 0.1}
    table["mixing"] = {"name": "MixingMatrix", "rows": SHIFT}
    made = make_object(ALGORITHMS, table, "algorithm")
    assert made.mixing.rows[0] == (0.5, 0.3, 0.2, 0.0)
    for name in ("AFACD", "AFACS", "FedBuff"):
        assert ALGORITHMS[name] is getattr(rk, name)
