"""pFedMe and Ditto: closed forms of their limits, and that own models never travel."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arena import advance, assert_close, solve

import rookery as rk
from rookery.algorithms import Ditto, PFedMe

ZOO = rk.zoo.quadratic_losses(n_clients=4, size=3)


def quadratics():
    """A_i and b_i with gradient A_i w - b_i, from two gradients of each client."""

    def gradient(i, w):
        rows = {k: jnp.asarray(a[i]) for k, a in ZOO.data.items()}
        losses = jax.vmap(ZOO.problem.loss, (None, 0))
        return np.asarray(jax.grad(lambda w: losses(w, rows).mean())(jnp.asarray(w)))

    for i in range(4):
        b = -gradient(i, np.zeros(3))
        yield np.stack([gradient(i, e) + b for e in np.eye(3)], axis=1), b


A, B = (np.array(some) for some in zip(*quadratics(), strict=True))


@pytest.mark.slow
def test_pfedme_ends_at_the_minimum_of_the_envelopes():
    """Exact for R = 1; more local rounds leave a drift that falls with their step."""
    lam, eye = 2.0, np.eye(3)
    inverse = np.linalg.inv(A + lam * eye)
    w = np.linalg.solve(
        np.mean(lam * inverse @ A, axis=0),
        np.mean(lam * np.einsum("cij,cj->ci", inverse, B), axis=0),
    )
    settings = {"mu": lam, "inner_lr": 0.2, "inner_steps": 60}
    result = solve(ZOO, PFedMe(lr=0.3, **settings), 400)
    assert_close(result.solution[0], w, atol=1e-9)
    theta = np.einsum("cij,cj->ci", inverse, B + lam * w)
    assert_close(result.state.own.rows, theta, atol=1e-9)
    fedavg = np.linalg.solve(A.mean(0), B.mean(0))
    assert np.linalg.norm(w - fedavg) == pytest.approx(0.1227, rel=1e-3)  # another problem
    half = solve(ZOO, PFedMe(lr=0.3, server_lr=0.5, **settings), 400).solution[0]
    assert_close(half, w, atol=1e-9)


@pytest.mark.slow
def test_ditto_ends_near_fedavg_and_its_own_models_between():
    lam = 0.7
    result = solve(ZOO, Ditto(lr=0.2, own_lr=0.2, mu=lam, own_steps=3), 300)
    w = np.linalg.solve(A.mean(0), B.mean(0))
    assert_close(result.solution[0], w, atol=1e-9)
    own = [np.linalg.solve(A[i] + lam * np.eye(3), B[i] + lam * w) for i in range(4)]
    assert_close(result.state.own.rows, np.array(own), atol=1e-9)


def test_a_round_of_ditto_by_hand():
    """The own model is pulled to the model that was sent, not to the client's copy."""
    w, v = np.zeros(3), np.zeros((4, 3))
    for _ in range(2):
        copies = []
        for i in range(4):
            copy = w
            for _ in range(2):
                copy = copy - 0.1 * (A[i] @ copy - B[i])
            copies.append(copy)
            for _ in range(3):
                v[i] = v[i] - 0.05 * (A[i] @ v[i] - B[i] + 0.7 * (v[i] - w))
        w = np.mean(copies, axis=0)
    algorithm = Ditto(lr=0.1, own_lr=0.05, mu=0.7, local_steps=2, own_steps=3)
    state, (ledger, _) = advance(ZOO, algorithm, 2, rk.Compiled())
    assert_close((state.w, state.own.rows), (w, v), rtol=1e-11)
    assert (ledger.exchanges, ledger.bytes_up, ledger.bytes_down) == (1, 4 * 3 * 8, 4 * 3 * 8)


def test_a_round_of_pfedme_by_hand():
    w, theta, lam = np.zeros(3), np.zeros((4, 3)), 2.0
    for _ in range(2):
        copies = []
        for i in range(4):
            copy = w
            for _ in range(2):
                for _ in range(3):
                    g = A[i] @ theta[i] - B[i] + lam * (theta[i] - copy)
                    theta[i] = theta[i] - 0.1 * g
                copy = copy - 0.05 * lam * (copy - theta[i])
            copies.append(copy)
        w = 0.25 * w + 0.75 * np.mean(copies, axis=0)
    algorithm = PFedMe(lr=0.05, mu=lam, inner_lr=0.1, inner_steps=3, local_steps=2, server_lr=0.75)
    state, (ledger, _) = advance(ZOO, algorithm, 2, rk.Compiled())
    assert_close((state.w, state.own.rows), (w, theta), rtol=1e-11)
    assert (ledger.exchanges, ledger.bytes_up) == (1, 4 * 3 * 8)


def test_settings_are_checked():
    with pytest.raises(ValueError, match=r"Ditto"):
        Ditto(lr=0.1, own_lr=0.1, mu=0.1, clients=rk.participation.WithReplacement(2))
    with pytest.raises(ValueError, match=r"mu"):
        PFedMe(lr=0.1, mu=0.0, inner_lr=0.1)
