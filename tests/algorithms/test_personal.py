"""Inner variables of the clients' own: closed forms, rounds by hand, and that they never travel."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from arena import advance, assert_close, bilevel_maps, solve, trajectory
from some_slow import some_slow

import rookery as rk
from rookery.algorithms import IMAML, FedBiOAccLocal, FedBiOLocal, FedRep, PFedMe, SimFBO
from rookery.problem import PersonalBilevel
from rookery.program.privacy import Private

ZOO = rk.zoo.personal_quadratic(n_clients=3, x_size=2, y_size=2)
SIZES: dict[str, Any] = {"outer_lr": 0.05, "inner_lr": (0.1, 0.08)}
X = 2 * 8  # bytes of x
METHODS = {
    "IMAML": IMAML(outer_lr=0.05),
    "FedRep": FedRep(outer_lr=0.05, inner_lr=0.1),
    "FedBiOLocal": FedBiOLocal(**SIZES, local_steps=2),
    "FedBiOAccLocal": FedBiOAccLocal(**SIZES, local_steps=2),
}


def test_exact_solves_are_gradient_descent():
    xs, (A, b) = [np.zeros(2)], ZOO.affine_hypergradient()
    for r in range(3):
        xs.append(xs[r] - 0.1 * (A @ xs[r] + b))
    algorithm = IMAML(
        outer_lr=0.1,
        inner=rk.parts.NewtonSteps(iterations=2),
        adjoint=rk.parts.LocalCG(iterations=2),
    )
    state, ledgers = advance(ZOO, algorithm, 3, rk.Compiled())
    assert_close(state.x, xs[3], rtol=1e-12)
    assert_close(state.own.rows[0], ZOO.inner_solutions(xs[2]), rtol=1e-11)
    # per client g_y, f_y and f_x; products of Newton's step and of the adjoint, and g_xy v
    assert {(one.gradients, one.hessian_vectors) for one in ledgers} == {(3 * 3, 3 * 5)}


@pytest.mark.slow
def test_where_implicit_gradients_end():
    """Steps instead of exact solves lead there too; local steps drift with their size."""
    x, _ = ZOO.solution()
    inexact = IMAML(
        outer_lr=0.2,
        inner=rk.parts.GradientSteps(0.2, steps=2),
        adjoint=rk.parts.LocalNeumannSum(terms=150, lipschitz=4.5),
    )
    result = solve(ZOO, inexact, 400)
    assert_close(result.solution[0], x, atol=1e-9)
    assert_close(result.state.own.rows[0], ZOO.inner_solutions(x), atol=1e-9)
    assert_close(result.solution[1], ZOO.solution()[1], atol=1e-9)
    errors = [drift(IMAML(outer_lr=lr, local_steps=5), round(60 / lr)) for lr in (0.04, 0.01)]
    assert errors[0] == pytest.approx(4 * errors[1], rel=0.25) and errors[1] > 1e-4


def drift(algorithm, rounds):
    """The distance from the solution after some rounds."""
    return np.linalg.norm(solve(ZOO, algorithm, rounds).solution[0] - ZOO.solution()[0])


def clients():
    """The mean arrays of every client."""
    for one in ZOO.clients():
        yield {name: a.mean((0, 1)) for name, a in one.data.items()}


def joint(x, y, row):
    """One loss for both levels, convex in both variables together."""
    return y @ row["H"] @ y / 2 - y @ (row["B"] @ x + row["c"]) + row["r"] @ x + 10 * (x @ x)


@pytest.mark.slow
def test_fedrep_solves_one_loss_and_leaves_out_the_indirect_part_of_two():
    problem = PersonalBilevel(joint, joint, outer_split="train", inner_split="train")
    A, b = np.zeros((2, 2)), np.zeros(2)
    for m in clients():
        indirect = m["B"].T @ np.linalg.inv(m["H"])
        A, b = A + 20 * np.eye(2) - indirect @ m["B"], b + indirect @ m["c"] - m["r"]
    algorithm = FedRep(outer_lr=0.02, inner_lr=0.2, inner_steps=4)
    population = rk.Population.stacked(ZOO.data)
    result = rk.run(algorithm, problem, population, start=ZOO.start, rounds=600)
    assert_close(result.solution[0], np.linalg.solve(A, b), atol=1e-9)

    A, b = np.zeros((2, 2)), np.zeros(2)  # f_x = r + m0 x + E y*(x)
    for m in clients():
        inverse = m["E"] @ np.linalg.inv(m["H"])
        A, b = A + ZOO.losses.m0 * np.eye(2) + inverse @ m["B"], b - m["r"] - inverse @ m["c"]
    result = solve(ZOO, FedRep(outer_lr=0.1, inner_lr=0.2, inner_steps=4), 600)
    assert_close(result.solution[0], np.linalg.solve(A, b), atol=1e-9)
    assert np.linalg.norm(result.solution[0] - ZOO.solution()[0]) > 0.1


def test_two_rounds_of_fedrep_by_hand():
    x, ys = np.zeros(2), np.zeros((3, 2))
    for _ in range(2):
        copies = []
        for i, m in enumerate(clients()):
            for _ in range(3):
                ys[i] = ys[i] - 0.1 * (m["H"] @ ys[i] - m["B"] @ x - m["c"])
            copy = x
            for _ in range(2):
                copy = copy - 0.05 * (m["r"] + ZOO.losses.m0 * copy + m["E"] @ ys[i])
            copies.append(copy)
        x = x + 0.5 * (np.mean(copies, axis=0) - x)
    algorithm = FedRep(outer_lr=0.05, inner_lr=0.1, inner_steps=3, local_steps=2, server_lr=0.5)
    state, _ = advance(ZOO, algorithm, 2, rk.Compiled())
    assert_close((state.x, state.own.rows[0]), (x, ys), rtol=1e-12)


# ---- FedBiO and FedBiOAcc with lower levels of the clients' own


def test_two_rounds_of_fedbio_local_by_hand():
    sizes, every = (0.05, 0.1, 0.08), bilevel_maps(ZOO.losses)
    x, own = np.zeros(2), [[np.zeros(2), np.zeros(2)]] * 3
    for _ in range(2):
        xs = []
        for i, maps in enumerate(every):
            w = [x, *own[i]]
            for _ in range(3):
                w = [b - size * d for b, size, d in zip(w, sizes, maps(*w), strict=True)]
            xs.append(w[0])
            own[i] = w[1:]
        x = np.mean(xs, axis=0)
    state, (ledger, _) = advance(ZOO, FedBiOLocal(**SIZES, local_steps=3), 2, rk.Compiled())
    rows = tuple(np.array(a) for a in zip(*own, strict=True))
    assert_close((state.x, state.own.rows), (x, rows), rtol=1e-12)
    assert ledger.exchanges == 1 and ledger.gradients == 3 * 3 * 3


def test_two_rounds_of_fedbioacc_local_by_hand():
    """The first difference of a round starts where the client's estimate was made."""
    sizes, c, every = (0.05, 0.1, 0.08), (0.3, 0.5, 0.7), bilevel_maps(ZOO.losses)
    zero = np.zeros(2)
    x, nu, own, old = zero, zero, [[zero, zero]] * 3, [[zero] * 3] * 3
    kept = [maps(zero, zero, zero)[1:] for maps in every]
    for r in range(2):
        xs, nus = [], []
        for i, maps in enumerate(every):
            w, before = [x, *own[i]], old[i]
            d = [nu if r else maps(*w)[0], *kept[i]]
            for k in range(3):
                a = 0.9 / (r * 3 + k + 1) ** (1 / 3)
                each = zip(maps(*w), maps(*before), d, c, strict=True)
                d = [new + (1 - c_j * a**2) * (g - last) for new, last, g, c_j in each]
                before, w = w, [b - s * a * g for b, s, g in zip(w, sizes, d, strict=True)]
            xs.append(w[0])
            nus.append(d[0])
            own[i], kept[i], old[i] = w[1:], d[1:], before
        x, nu = np.mean(xs, axis=0), np.mean(nus, axis=0)
    storm = rk.parts.STORM(c, rk.parts.PowerDecay(0.9, 1 / 3))
    algorithm = FedBiOAccLocal(**SIZES, local_steps=3, estimator=storm)
    state, (first, later) = advance(ZOO, algorithm, 2, rk.Compiled())
    assert_close((state.x, state.beside), (x, nu), rtol=1e-11)
    y, v, _, last = state.own.rows
    assert_close((y, v), tuple(np.array(a) for a in zip(*own, strict=True)), rtol=1e-11)
    assert_close(last, tuple(np.array(a) for a in zip(*old, strict=True)), rtol=1e-11)
    assert (first.gradients, later.gradients) == (3 * 3 * 7, 3 * 3 * 6)


@pytest.mark.slow
def test_one_local_step_is_exact():
    x, _ = ZOO.solution()
    for algorithm in (
        FedBiOLocal(outer_lr=0.1, inner_lr=0.1),
        FedBiOAccLocal(outer_lr=0.1, inner_lr=0.1, estimator=rk.parts.STORM(0.3)),
    ):
        result = solve(ZOO, algorithm, 1500)
        y, v, *_ = result.state.own.rows
        want = x, ZOO.inner_solutions(x), ZOO.adjoints(x)
        assert_close((result.solution[0], y, v), want, atol=1e-13)


@pytest.mark.slow
def test_without_a_past_fedbioacc_local_is_fedbio_local():
    plain, momentum = FedBiOLocal(**SIZES, local_steps=3), FedBiOAccLocal(**SIZES, local_steps=3)
    a, b = (trajectory(ZOO, one, 4) for one in (plain, momentum))
    np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.slow
def test_the_drift_of_local_steps():
    """Linear in the step; with recursive momentum it falls with the renewal as well."""
    rates = 0.04, 0.01
    settings: dict[str, Any] = {"local_steps": 5}
    plain = [
        drift(FedBiOLocal(outer_lr=lr, inner_lr=lr, **settings), round(60 / lr)) for lr in rates
    ]
    assert plain[0] == pytest.approx(4 * plain[1], rel=0.25) and plain[1] > 1e-3
    falling = [
        drift(
            FedBiOAccLocal(outer_lr=0.04, inner_lr=0.04, estimator=rk.parts.STORM(c), **settings),
            6000,
        )
        for c in (1.0, 0.1, 0.01)
    ]
    assert falling[0] == pytest.approx(plain[0], rel=0.1)
    assert falling[1] < falling[0] / 2 and falling[2] < falling[1] / 5


# ---- what travels, and what stays


@pytest.mark.parametrize("name", some_slow(METHODS, 2))
def test_inner_variables_never_travel(name):
    """All bytes are those of x, or of x and the estimate of its direction."""
    zoo = rk.zoo.personal_quadratic(n_clients=3, x_size=2, y_size=7)
    _, ledgers = advance(zoo, METHODS[name], 2, rk.Compiled())
    each = (2 if name == "FedBiOAccLocal" else 1) * X
    want = (1, 3 * each, 3 * each)
    assert {(a.exchanges, a.bytes_down, a.bytes_up) for a in ledgers} == {want}


def test_who_is_away_keeps_its_own():
    algorithm = FedRep(outer_lr=0.05, inner_lr=0.1, clients=rk.participation.Fixed((0, 2)))
    state, _ = advance(ZOO, algorithm, 2)
    (rows,) = state.own.rows
    assert np.abs(rows[jnp.array([0, 2])]).min() > 0 and not rows[1].any()
    assert_close(algorithm.solution(state), (state.x, rows.mean(0)))
    assert_close(algorithm.client_solution(state, 2), (state.x, rows[2]))


def test_evaluations_on_clients_use_their_own():
    size = rk.metrics.OnClients(
        losses={"y0": lambda x, y, row: y[0]}, split="train", per_client=True
    )
    result = solve(ZOO, METHODS["FedBiOLocal"], 2, evaluate=[size])
    each = [*result.per_client.last("y0/each").values()]
    assert_close(np.array(each), result.state.own.rows[0][:, 0])


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_run_goes_on_where_it_stopped(name, tmp_path):
    settings: dict[str, Any] = {"directory": tmp_path / "run", "checkpoint_every": 1}
    solve(ZOO, METHODS[name], 2, **settings)
    resumed, whole = solve(ZOO, METHODS[name], 4, **settings), solve(ZOO, METHODS[name], 4)
    assert_close(resumed.state, whole.state, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["FedRep", "FedBiOAccLocal"])
def test_private_runs_clip_the_way_of_x(name):
    """x is released as a change from what was sent, so that a small bound keeps it near."""
    plain = solve(ZOO, METHODS[name], 3)
    wide, tight = (
        solve(ZOO, Private(METHODS[name], clip=clip, noise=0, delta=None), 3)
        for clip in (1e6, 1e-3)
    )
    assert_close(wide.solution, plain.solution, rtol=1e-9)
    assert 1e-4 < np.linalg.norm(tight.solution[0]) <= 3.001e-3


# ---- relatives


def test_pfedme_is_the_implicit_gradient_of_the_envelope():
    """f = g = loss(y) + mu/2 |y - x|^2: the hypergradient is mu (x - y*)."""
    zoo, mu = rk.zoo.quadratic_losses(n_clients=3, size=2), 2.0

    def envelope(x, y, row):
        return zoo.problem.loss(y, row) + mu / 2 * jnp.sum((y - x) ** 2)

    problem = PersonalBilevel(envelope, envelope, outer_split="train", inner_split="train")
    start = (*zoo.start, *zoo.start)
    population = rk.Population.stacked(zoo.data)
    ours = rk.run(IMAML(outer_lr=0.1), problem, population, start=start, rounds=5)
    pfedme = PFedMe(lr=0.1, mu=mu, inner_lr=0.2, inner_steps=100)
    theirs = solve(zoo, pfedme, 5)
    assert_close(ours.solution[0], theirs.solution[0], atol=1e-10)
    assert_close(ours.state.own.rows[0], theirs.state.own.rows, atol=1e-10)


@pytest.mark.slow
def test_prometheus_solves_this_problem():
    algorithm = rk.Prometheus(
        outer_lr=0.1,
        inner_lr=0.2,
        mixing=rk.parts.CompleteGraph(),
        adjoint=rk.parts.LocalCG(iterations=2),
    )
    assert_close(solve(ZOO, algorithm, 400).solution[0], ZOO.solution()[0], atol=1e-10)


@pytest.mark.slow
def test_x_stays_in_its_set():
    inside = PersonalBilevel(
        ZOO.problem.outer,
        ZOO.problem.inner,
        outer_split="train",
        inner_split="train",
        project={"x": lambda x: jnp.clip(x, -0.05, 0.05)},
    )
    population = rk.Population.stacked(ZOO.data)
    for algorithm in METHODS.values():
        result = rk.run(algorithm, inside, population, start=ZOO.start, rounds=40)
        assert np.abs(result.solution[0]).max() <= 0.05
        assert np.abs(result.solution[0]).max() == pytest.approx(0.05)


def test_settings_and_problems_are_checked():
    twice = rk.participation.WithReplacement(2)
    with pytest.raises(ValueError, match=r"FedRep"):
        FedRep(outer_lr=0.1, inner_lr=0.1, clients=twice)
    with pytest.raises(ValueError, match=r"outer_lr of IMAML got keep=True"):
        IMAML(outer_lr=rk.parts.Optimiser(optax.adam, learning_rate=0.1, keep=True))
    with pytest.raises(ValueError, match=r"inner_lr of FedBiOLocal got keep=True"):
        rule = rk.parts.Optimiser(optax.adam, learning_rate=0.1, keep=True)
        FedBiOLocal(outer_lr=0.1, inner_lr=(0.1, rule))
    with pytest.raises(ValueError, match=r"needs all clients"):
        FedBiOAccLocal(**SIZES, clients=2)
    with pytest.raises(ValueError, match=r"inner_lr has 3 entries"):
        FedBiOLocal(outer_lr=0.1, inner_lr=(0.1, 0.1, 0.1))
    for algorithm in METHODS.values():
        with pytest.raises(TypeError, match=r"solves PersonalBilevel problems, got Bilevel"):
            algorithm.check(ZOO.losses.problem, 3)
    others: tuple[Any, ...] = (
        rk.FedNest(outer_lr=0.1, inner_lr=0.1),
        rk.SOBA(outer_lr=0.1, inner_lr=0.1),
        SimFBO(outer_lr=0.1, inner_lr=0.1, server_lr=0.1),
        rk.FedMSA(outer_lr=0.1, inner_lr=0.1),
        rk.AFBO(outer_lr=0.1, inner_lr=0.1),
        rk.LFedNest(outer_lr=0.1, inner_lr=0.1),
    )
    for other in others:
        with pytest.raises(TypeError, match=r"got PersonalBilevel"):
            other.check(ZOO.problem, 3)
