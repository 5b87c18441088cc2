"""FedEx: rounds by hand, one setting is FedAvg, and θ is an unbiased gradient step in a simplex."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arena import advance, round_by_round, solve, trajectory

import rookery as rk
from rookery.algorithms import FedEx
from rookery.algorithms.parts import LocalSetting
from rookery.program.algorithm import first_state

ZOO = rk.zoo.quadratic_losses(n_clients=4, size=3)
NOISY = rk.zoo.quadratic_losses(n_clients=4, size=3, rows=4, noise=0.3)
TRAIN: dict[str, Any] = {"validation_split": "train"}
THREE = (
    LocalSetting(lr=0.1, local_steps=2),
    LocalSetting(lr=0.05, local_steps=3, momentum=0.5),
    LocalSetting(lr=0.2, local_steps=1, mu=0.7),
)


def losses_and_gradients(zoo, own):
    """f_i and ∇f_i at the clients' points."""
    problem, values, slopes = zoo.problem, [], []
    for i, w in enumerate(own):
        rows = {name: jnp.asarray(a[i]) for name, a in zoo.data.items()}

        def mean(w, rows=rows):
            return jax.vmap(problem.loss, (None, 0))(w, rows).mean()

        value, slope = jax.value_and_grad(mean)(jnp.asarray(w))
        values.append(float(value))
        slopes.append(np.asarray(slope))
    return np.array(values), np.stack(slopes)


def local_models(zoo, w, settings):
    """w_i of every client by its setting."""
    own, u = np.tile(w, (len(settings), 1)), 0.0
    rates, momenta, mus = (
        np.array([[getattr(s, name)] for s in settings]) for name in ("lr", "momentum", "mu")
    )
    for nu in range(max(s.local_steps for s in settings)):
        g = losses_and_gradients(zoo, own)[1] + mus * (own - w)
        u = momenta * u + g
        steps = np.array([[nu < s.local_steps] for s in settings])
        own = np.where(steps, own - rates * u, own)
    return own


@pytest.mark.parametrize(
    "schedule", ["adaptive", pytest.param("aggressive", marks=pytest.mark.slow)]
)
def test_rounds_by_hand(schedule):
    algorithm = FedEx(settings=THREE, schedule=schedule, discount=0.5, **TRAIN)
    theta, squares, past = np.full(3, 1 / 3), 0.0, []
    for round, old, new, ledger in round_by_round(ZOO, algorithm, 4, rk.Compiled()):
        key = jax.random.fold_in(jax.random.key(0), round)
        drawn = np.asarray(
            jax.random.categorical(jax.random.fold_in(key, 2), jnp.log(theta), shape=(4,))
        )
        own = local_models(ZOO, np.asarray(old.w), [THREE[j] for j in drawn])
        errors = losses_and_gradients(ZOO, own)[0]
        if past:
            discounts = 0.5 ** np.arange(len(past))[::-1]
            baseline = discounts @ past / discounts.sum()
            gradient = np.array([np.sum((errors - baseline)[drawn == j]) / 4 for j in range(3)])
            gradient /= theta
            norm = np.abs(gradient).max()
            squares += norm**2
            length = np.sqrt(squares) if schedule == "adaptive" else norm
            theta = theta * np.exp(-np.sqrt(2 * np.log(3)) / length * gradient)
            theta /= theta.sum()
        past.append(errors.mean())
        np.testing.assert_allclose(new.w, own.mean(0), rtol=1e-11)
        np.testing.assert_allclose(algorithm.probabilities(new), theta, rtol=1e-9)
        # w and the index of a setting down; w_i, the error and the index up
        assert (ledger.exchanges, ledger.bytes_down) == (1, 4 * (3 * 8 + 4))
        assert ledger.bytes_up == 4 * (3 * 8 + 8 + 4)
        assert ledger.gradients == sum(THREE[j].local_steps for j in drawn)
        assert algorithm.best(new) == THREE[int(np.argmax(theta))]
    assert np.abs(theta - 1 / 3).max() > 0.05


@pytest.mark.slow
def test_one_setting_is_fedavg():
    how: dict[str, Any] = {"clients": 2, "batch_size": 2}
    one = FedEx(settings=[LocalSetting(lr=0.1, local_steps=3)], server_lr=0.5, **TRAIN, **how)
    want = rk.FedAvg(lr=0.1, local_steps=3, server_lr=0.5, **how)
    np.testing.assert_allclose(trajectory(NOISY, one, 3), trajectory(NOISY, want, 3), rtol=1e-12)
    assert one.probabilities(advance(NOISY, one, 3)[0]).tolist() == [1.0]


def updated(algorithm, theta, drawn, errors, baseline):
    """The state after a step of θ from replies of equal weight, with a known step size."""
    k = len(theta)
    state = first_state(algorithm, ZOO.problem, 4, ZOO.start)._replace(
        log_theta=jnp.log(jnp.asarray(theta)),
        errors=jnp.asarray(baseline),
        rounds=jnp.asarray(1.0),
        squares=jnp.asarray(1e12),  # then η is the same whatever was drawn
    )
    place = np.eye(k)[list(drawn)] / len(drawn)
    return algorithm.update_theta(state, jnp.asarray(place.T @ errors), jnp.asarray(place.sum(0)))


def test_the_step_of_theta_is_unbiased():
    """Over all draws, the mean of the gradient is the clients' mean error by each setting, less λ.

    So equal errors leave θ as it is in the mean, whatever the baseline.
    """
    algorithm, theta = FedEx(settings=THREE, **TRAIN), np.array([0.5, 0.3, 0.2])
    eta = np.sqrt(2 * np.log(3)) / 1e6
    for table in (np.random.default_rng(0).normal(size=(2, 3)), np.full((2, 3), 0.7)):
        mean = np.zeros(3)
        for drawn in itertools.product(range(3), repeat=2):
            errors = np.array([table[i, j] for i, j in enumerate(drawn)])
            new = updated(algorithm, theta, drawn, errors, 0.4).log_theta
            assert np.exp(new).sum() == pytest.approx(1, abs=1e-14)
            gradient = -(np.asarray(new) - np.log(theta)) / eta  # up to a constant in all entries
            mean += theta[list(drawn)].prod() * gradient
        want = table.mean(0)
        np.testing.assert_allclose(mean - mean.mean(), want - want.mean(), atol=1e-5)


@pytest.mark.slow
def test_the_better_setting_wins_and_the_cutoff_stops():
    """Steps that are a hundred times too short lose; θ then stays, the model goes on."""
    settings = (LocalSetting(lr=0.2, local_steps=4), LocalSetting(lr=0.002, local_steps=4))
    how: dict[str, Any] = {"settings": settings, "schedule": "aggressive", **TRAIN}
    state = solve(ZOO, FedEx(**how), 12).state
    assert FedEx(**how).best(state) == settings[0]
    assert FedEx(**how).probabilities(state)[0] > 0.95
    stopped = FedEx(**how, cutoff=0.5)
    states = [new for _, _, new, _ in round_by_round(ZOO, stopped, 12, rk.Compiled())]
    thetas = [stopped.probabilities(state) for state in states]
    first = next(i for i, t in enumerate(thetas) if -np.sum(t * np.log(t)) < 0.5)
    assert first < 11
    np.testing.assert_allclose(thetas[first], thetas[-1], rtol=1e-14)
    assert np.abs(states[first].w - states[-1].w).max() > 1e-3


@pytest.mark.slow
def test_a_run_goes_on_where_it_stopped(tmp_path):
    algorithm = FedEx(settings=THREE, clients=2, batch_size=2, **TRAIN)
    whole = solve(NOISY, algorithm, 5)
    solve(NOISY, algorithm, 2, directory=tmp_path, checkpoint_every=2)
    resumed = solve(NOISY, algorithm, 5, directory=tmp_path, checkpoint_every=2)
    jax.tree.map(np.testing.assert_array_equal, whole.state, resumed.state)
    assert whole.ledger == resumed.ledger


def test_settings_are_checked():
    with pytest.raises(TypeError, match=r"one LocalSetting or more"):
        FedEx(settings=())
    with pytest.raises(TypeError, match=r"one LocalSetting or more"):
        FedEx(settings=(0.1, 0.2))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"unknown schedule 'fast'"):
        FedEx(settings=THREE, schedule="fast")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"momentum"):
        LocalSetting(lr=0.1, momentum=1.0)
    with pytest.raises(ValueError, match=r"'validation'"):
        solve(ZOO, FedEx(settings=THREE), 1)
    with pytest.raises(TypeError, match=r"FedEx solves SingleLevel problems"):
        solve(rk.zoo.scalar_bilevel(), FedEx(settings=THREE), 1)
