"""FedOpt and FedNova against their formulas in NumPy, step by step."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from arena import solve

import rookery as rk
from rookery.algorithms import FedNova
from rookery.algorithms.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi, adaptive
from rookery.algorithms.shared.step_rule import first_opt, move

LOSSES = rk.zoo.quadratic_losses(n_clients=3, size=2, rows=2, noise=0.3)
STEPS = (1, 2, 6)


def formula(kind, deltas, b1, b2, tau, bias_correction):
    """The server's moves, over the step size, of the paper's algorithm 2."""
    is_mean = kind != "adagrad"
    m, v, moves = 0.0, 0.0 if bias_correction and is_mean else tau**2, []
    for t, delta in enumerate(deltas, 1):
        m = b1 * m + (1 - b1) * delta
        if kind == "adagrad":
            v = v + delta**2
        elif kind == "adam":
            v = b2 * v + (1 - b2) * delta**2
        else:
            v = v - (1 - b2) * delta**2 * np.sign(v - delta**2)
        up = m / (1 - b1**t) if bias_correction else m
        down = v / (1 - b2**t) if bias_correction and is_mean else v
        moves.append(up / (np.sqrt(down) + tau))
    return np.array(moves)


@pytest.mark.parametrize("bias_correction", [False, True])
@pytest.mark.parametrize("kind", ["adagrad", "adam", "yogi"])
def test_the_servers_moves_are_those_of_the_paper(kind, bias_correction):
    deltas = np.random.default_rng(0).normal(size=(6, 3)) * [1.0, 1e-2, 10.0]
    rule = adaptive(0.5, 0.8, 0.95, 1e-2, kind, bias_correction)
    state, moves = rule.init(jnp.zeros(3)), []
    for delta in deltas:
        update, state = rule.update(jnp.asarray(-delta), state)
        moves.append(update)
    want = 0.5 * formula(kind, deltas, 0.8, 0.95, 1e-2, bias_correction)
    np.testing.assert_allclose(moves, want, rtol=1e-12)


def test_fedadam_with_bias_correction_is_optax_adam():
    ours = FedAdam(lr=0.1, server_lr=0.1, b2=0.99, tau=1e-3, bias_correction=True).server_lr
    theirs = rk.parts.Optimiser(optax.adam, learning_rate=0.1, b2=0.99, eps=1e-3)
    points = []
    for rule in (ours, theirs):
        assert isinstance(rule, rk.parts.Optimiser)
        w = jnp.ones(2)
        opt = first_opt(rule, w)
        for scale in (1.0, -0.3, 5.0):
            w, opt = move(rule, scale * jnp.array([1.0, 2.0]), opt, w, 0)
        points.append(w)
    np.testing.assert_allclose(*points, rtol=1e-13)


def local_mean(w, lr, steps=STEPS):
    """The mean of the clients' models after plain local steps."""
    models = []
    for i, n in enumerate(steps):
        w_i = w
        for _ in range(n):
            w_i = w_i - lr * LOSSES.gradients(w_i)[i]
        models.append(w_i)
    return np.mean(models, axis=0)


@pytest.mark.parametrize(
    ("algorithm", "kind"),
    [
        (FedAdam(lr=0.05, local_steps=STEPS, server_lr=0.1, b1=0.8, tau=1e-2), "adam"),
        (FedYogi(lr=0.05, local_steps=STEPS, server_lr=0.1, b1=0.8, tau=1e-2), "yogi"),
        (FedAdagrad(lr=0.05, local_steps=STEPS, server_lr=0.1, b1=0.8, tau=1e-2), "adagrad"),
        (FedAvgM(lr=0.05, local_steps=STEPS, server_lr=0.5, b1=0.8), "momentum"),
    ],
)
def test_whole_rounds_are_those_of_numpy(algorithm, kind):
    (w,), deltas, m = LOSSES.start, [], 0.0
    for _ in range(4):
        deltas.append(local_mean(w, 0.05) - w)
        if kind == "momentum":
            m = 0.8 * m + deltas[-1]
            w = w + 0.5 * m
        else:
            w = w + 0.1 * formula(kind, deltas, 0.8, 0.99, 1e-2, False)[-1]
    np.testing.assert_allclose(solve(LOSSES, algorithm, 4).solution[0], w, rtol=1e-12)


def test_a_server_step_of_one_is_fedavg_and_one_local_step_is_gradient_descent():
    one = rk.parts.Optimiser(optax.sgd, learning_rate=1.0)
    plain, by_rule = (
        solve(LOSSES, rk.FedAvg(lr=0.05, local_steps=STEPS, server_lr=server_lr), 5).solution[0]
        for server_lr in (None, one)
    )
    np.testing.assert_allclose(by_rule, plain, rtol=1e-13)
    (w,) = LOSSES.start
    for _ in range(4):
        w = w - 0.5 * 0.2 * LOSSES.gradient(w)
    rule = rk.parts.Optimiser(optax.sgd, learning_rate=0.5)
    got = solve(LOSSES, rk.FedAvg(lr=0.2, server_lr=rule), 4).solution[0]
    np.testing.assert_allclose(got, w, rtol=1e-12)


def nova_lengths(lr, rho, mu):
    """The |a_i|_1 by their definition: how much each gradient counts in a client's move."""
    lengths = []
    for steps in STEPS:
        total = 0.0
        for k in range(steps):  # a gradient of one in step k alone, and what it moves
            move, u = 0.0, 0.0
            for nu in range(steps):
                u = rho * u + (nu == k) - mu * move
                move = move + lr * u
            total += move / lr
        lengths.append(total)
    return np.array(lengths)


@pytest.mark.parametrize(("rho", "mu"), [(0.0, 0.0), (0.6, 0.0), (0.0, 2.0), (0.6, 2.0)])
def test_fednova_is_that_of_numpy(rho, mu):
    lr = 0.05
    (w,), lengths = LOSSES.start, nova_lengths(lr, rho, mu)
    if not mu:
        closed = [sum((1 - rho**k) / (1 - rho) for k in range(1, n + 1)) for n in STEPS]
        np.testing.assert_allclose(lengths, closed, rtol=1e-12)
    if mu and not rho:
        closed = [sum((1 - lr * mu) ** k for k in range(n)) for n in STEPS]
        np.testing.assert_allclose(lengths, closed, rtol=1e-12)
    for _ in range(3):
        moves = []
        for i, steps in enumerate(STEPS):
            w_i, u = w, 0.0
            for _ in range(steps):
                u = rho * u + LOSSES.gradients(w_i)[i] + mu * (w_i - w)
                w_i = w_i - lr * u
            moves.append((w - w_i) / lengths[i])
        w = w - lengths.mean() * np.mean(moves, axis=0)
    algorithm = FedNova(lr=lr, local_steps=STEPS, momentum=rho, mu=mu)
    np.testing.assert_allclose(solve(LOSSES, algorithm, 3).solution[0], w, rtol=1e-12)


@pytest.mark.slow
def test_fednova_with_equal_steps_is_fedavg_and_with_unequal_ones_keeps_the_objective():
    nova, avg = (
        solve(LOSSES, make(lr=0.05, local_steps=3), 4).solution[0] for make in (FedNova, rk.FedAvg)
    )
    np.testing.assert_allclose(nova, avg, rtol=1e-12)
    exact, errors = LOSSES.solution()[0], []
    for make, lr in (
        (rk.FedAvg, 0.02),
        (FedNova, 0.02),
        (FedNova, 0.002),
    ):
        w = solve(LOSSES, make(lr=lr, local_steps=STEPS), round(10 / lr)).solution[0]
        errors.append(np.linalg.norm(w - exact))
    assert errors[1] < errors[0] / 5
    # what is left is the drift of local steps, which falls with their size
    assert errors[2] == pytest.approx(errors[1] / 10, rel=0.2)


@pytest.mark.slow
def test_fedavg_with_unequal_steps_minimises_the_sum_weighted_by_them():
    n = len(LOSSES.start[0])
    zero = LOSSES.gradients(np.zeros(n))  # affine on quadratics: two points give the matrix
    columns = [LOSSES.gradients(e) - zero for e in np.eye(n)]
    matrix = np.einsum("c,jci->ij", np.array(STEPS, float), np.array(columns))
    weighted = np.linalg.solve(matrix, -np.array(STEPS, float) @ zero)
    exact = LOSSES.solution()[0]
    errors = []
    for lr in (0.02, 0.002):
        w = solve(LOSSES, rk.FedAvg(lr=lr, local_steps=STEPS), round(10 / lr)).solution[0]
        errors.append((np.linalg.norm(w - weighted), np.linalg.norm(w - exact)))
    (near, far), (nearer, still_far) = errors
    assert near < far / 5
    assert nearer == pytest.approx(near / 10, rel=0.2)
    assert still_far == pytest.approx(np.linalg.norm(weighted - exact), rel=0.1)


def test_fednova_refuses_a_proximal_term_beyond_its_range_and_a_size_per_call():
    for lr in (0.5, rk.parts.Decay(0.5, 0.9)):
        assert FedNova(lr=lr, mu=1.9).mu == 1.9
        with pytest.raises(ValueError, match=r"lr times mu must be .* below 1, got 1\.0"):
            FedNova(lr=lr, mu=2.0)
    with pytest.raises(TypeError, match=r"lr of FedNova cannot be PerCall.*number of steps"):
        FedNova(lr=rk.parts.PerCall(0.1))
