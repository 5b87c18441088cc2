"""SCAFFOLD and SCAFFOLD-S against plain NumPy and against their fixed points."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arena import advance, federation, pooled, saddle_fields, solve

import rookery as rk
from rookery.program.algorithm import first_state, numbers_to_arrays

ZOO = rk.zoo.saddle(curvature=1.0, n_clients=4, x_size=2, y_size=3)
LOSSES = rk.zoo.quadratic_losses(n_clients=4, size=2)
NOISY_LOSSES = rk.zoo.quadratic_losses(n_clients=4, size=2, rows=4, noise=0.3)
NOISY = rk.zoo.saddle(curvature=1.0, n_clients=4, x_size=1, y_size=2, rows=4, noise=0.3)


def begin(algorithm, zoo=ZOO):
    return first_state(algorithm, zoo.problem, len(zoo.D), zoo.start)


def after(rounds, algorithm, zoo, weights=None):
    """The state after some rounds."""
    population = rk.Population.stacked(zoo.data, weights=weights)
    return rk.run(algorithm, zoo.problem, population, zoo.start, rounds=rounds).state


def by_hand(zoo, rates, steps, cohort, server_lr, rounds, option):
    """The paper's algorithm 1; the second step size is shared out over the steps."""
    p, q = zoo.A.shape[-1], zoo.A.shape[-2]
    fields, m = saddle_fields(zoo), len(zoo.D)
    w, c, own = np.full(p + q, 10.0), np.zeros(p + q), np.zeros((m, p + q))
    for _ in range(rounds):
        moved, turned = [], []
        for i in cohort:
            (M, k), v = fields[i], w
            eta = np.repeat((rates[0], rates[1] / steps[i]), (p, q))
            for _ in range(steps[i]):
                v = v - eta * (M @ v - k - own[i] + c)
            new = M @ w - k if option == "I" else own[i] - c + (w - v) / (steps[i] * eta)
            moved.append(v - w)
            turned.append(new - own[i])
            own[i] = new
        w = w + server_lr * np.mean(moved, axis=0)
        c = c + len(cohort) / m * np.mean(turned, axis=0)
    return w, c, own


@pytest.mark.parametrize("option", ["I", "II"])
def test_rounds_by_hand(option):
    steps, cohort = (1, 4, 2, 3), (0, 1, 3)
    algorithm = rk.ScaffoldS(
        outer_lr=0.05,
        inner_lr=rk.parts.PerCall(0.08),
        local_steps=steps,
        server_lr=0.9,
        option=option,
        clients=rk.participation.Fixed(cohort),
    )
    state = after(3, algorithm, ZOO)
    w, c, own = by_hand(ZOO, (0.05, 0.08), steps, cohort, 0.9, 3, option)
    np.testing.assert_allclose(np.concatenate(state.blocks), w, rtol=1e-11)
    np.testing.assert_allclose(np.concatenate(state.c), c, rtol=1e-11)
    np.testing.assert_allclose(np.concatenate(state.own.rows, axis=1), own, rtol=1e-11)
    assert not np.any(state.own.rows[0][2])  # who did not take part has written nothing


@pytest.mark.slow
def test_several_unequal_local_steps_end_at_the_saddle_point_where_fedavg_s_does_not():
    steps = (1, 5, 3, 2)
    scaffold = solve(
        ZOO, rk.ScaffoldS(outer_lr=0.03, inner_lr=0.03, local_steps=steps, clients=2), 1200
    )
    plain = solve(ZOO, rk.FedAvgS(outer_lr=0.03, inner_lr=0.03, local_steps=steps), 1200).solution
    for got, stalled, exact in zip(scaffold.solution, plain, ZOO.solution(), strict=True):
        np.testing.assert_allclose(got, exact, rtol=0, atol=1e-12)
        assert np.linalg.norm(stalled - exact) > 1e-2
    # there the variate of each client is its own field, and that of the server is zero
    u = np.concatenate(ZOO.solution())
    own = np.concatenate(scaffold.state.own.rows, axis=1)
    np.testing.assert_allclose(own, [M @ u - k for M, k in saddle_fields(ZOO)], rtol=0, atol=1e-10)
    np.testing.assert_allclose(np.concatenate(scaffold.state.c), 0, rtol=0, atol=1e-10)


@pytest.mark.filterwarnings("ignore:.*with equal probabilities")
@pytest.mark.parametrize(("clients", "weights"), [(None, None), (2, (0.1, 0.2, 0.3, 0.4))])
def test_the_servers_variate_is_the_mean_of_the_clients(clients, weights):
    state = after(
        4,
        rk.ScaffoldS(outer_lr=0.05, inner_lr=0.05, local_steps=3, clients=clients, batch_size=2),
        NOISY,
        weights,
    )
    for c, own in zip(state.c, state.own.rows, strict=True):
        np.testing.assert_allclose(c, np.average(own, axis=0, weights=weights), rtol=1e-11)
        assert np.any(c)


@pytest.mark.parametrize("option", [pytest.param("I", marks=pytest.mark.slow), "II"])
def test_several_local_steps_end_at_the_minimiser_where_fedavg_does_not(option):
    steps = (1, 5, 3, 2)
    algorithm = rk.Scaffold(lr=0.05, local_steps=steps, clients=2, option=option)
    scaffold = solve(LOSSES, algorithm, 600)
    (stalled,), (exact,) = (
        solve(LOSSES, rk.FedAvg(lr=0.05, local_steps=steps), 600).solution,
        LOSSES.solution(),
    )
    np.testing.assert_allclose(scaffold.solution[0], exact, rtol=0, atol=1e-12)
    assert np.linalg.norm(stalled - exact) > 1e-2
    # there the variate of each client is its own gradient, and that of the server is zero
    (own,) = scaffold.state.own.rows
    np.testing.assert_allclose(own, LOSSES.gradients(exact), rtol=0, atol=1e-10)
    np.testing.assert_allclose(scaffold.state.c[0], 0, rtol=0, atol=1e-10)


def test_one_client_takes_plain_gradient_steps():
    one = pooled(LOSSES)
    (w,), rounds = one.start, 3
    for _ in range(rounds * 4):
        w = w - 0.05 * LOSSES.gradient(w)
    got = solve(one, rk.Scaffold(lr=0.05, local_steps=4), rounds, engine=rk.Eager()).solution[0]
    np.testing.assert_allclose(got, w, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("zoo", "algorithm", "size"),
    [
        (
            NOISY,
            rk.ScaffoldS(
                outer_lr=0.05, inner_lr=0.05, local_steps=(1, 2, 3, 1), clients=2, batch_size=2
            ),
            1 + 2,
        ),
        (NOISY_LOSSES, rk.Scaffold(lr=0.05, local_steps=(1, 2, 3, 1), clients=2, batch_size=2), 2),
    ],
)
def test_a_run_that_is_cut_in_the_middle_goes_on_bit_for_bit(tmp_path, zoo, algorithm, size):
    whole = solve(zoo, algorithm, 7)
    solve(zoo, algorithm, 3, directory=tmp_path, checkpoint_every=3)
    resumed = solve(zoo, algorithm, 7, directory=tmp_path, checkpoint_every=3)
    assert eqx.tree_equal(whole.state, resumed.state)
    assert np.any(whole.state.own.rows[0])
    assert whole.ledger == resumed.ledger
    # one exchange a round, of two clients: w and c go down, both changes come up, nothing else
    assert whole.ledger.exchanges == 7
    assert whole.ledger.bytes_down == whole.ledger.bytes_up == 7 * 2 * 2 * size * 8


def test_single_precision_stays_single():
    zoo = rk.zoo.saddle(curvature=1.0, dtype=np.float32)
    algorithm = rk.ScaffoldS(outer_lr=rk.parts.PerCall(0.1), inner_lr=0.1, local_steps=2, clients=3)

    def round(algorithm, state, key):
        return algorithm.round(federation(zoo), zoo.problem, state, key)

    state = begin(algorithm, zoo)
    new = eqx.filter_eval_shape(round, numbers_to_arrays(algorithm), state, jax.random.key(0))
    assert jax.tree.structure(new) == jax.tree.structure(state)
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(new))


def test_option_one_reads_all_rows_once_more():
    """Its variate is the gradient on all rows, also where local steps take batches."""
    algorithm = rk.Scaffold(lr=0.05, local_steps=3, batch_size=2, option="I")
    state, (ledger,) = advance(NOISY_LOSSES, algorithm, 1, rk.Compiled())
    want = NOISY_LOSSES.gradients(NOISY_LOSSES.start[0])
    np.testing.assert_allclose(state.own.rows[0], want, rtol=1e-12)
    assert ledger.gradients == 4 * (3 * 2 + 4)


def test_bad_input():
    with pytest.raises(ValueError, match="unknown option 'III'"):
        rk.Scaffold(lr=0.1, option="III")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="ScaffoldS solves Minimax problems, got Bilevel"):
        solve(rk.zoo.scalar_bilevel(), rk.ScaffoldS(outer_lr=0.1, inner_lr=0.1), 1)
    with pytest.raises(TypeError, match="Scaffold solves SingleLevel problems, got Minimax"):
        solve(ZOO, rk.Scaffold(lr=0.1), 1)
    with pytest.raises(ValueError, match="a cohort must not hold a client twice; got Weighted"):
        rk.ScaffoldS(outer_lr=0.1, inner_lr=0.1, clients=rk.participation.Weighted(2))
    with pytest.raises(TypeError, match="server_lr must be a number, got PerCall"):
        rk.ScaffoldS(outer_lr=0.1, inner_lr=0.1, server_lr=rk.parts.PerCall(1.0))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="local_steps has 2 entries for 4 clients"):
        rk.ScaffoldS(outer_lr=0.1, inner_lr=0.1, local_steps=(1, 2)).check(ZOO.problem, 4)
    state = rk.ScaffoldS(outer_lr=0.1, inner_lr=0.1).init(ZOO.problem, *map(jnp.asarray, ZOO.start))
    with pytest.raises(ValueError, match=r"Make the state with .*first_state"):
        rk.ScaffoldS(outer_lr=0.1, inner_lr=0.1).round(
            federation(ZOO), ZOO.problem, state, jax.random.key(0)
        )
