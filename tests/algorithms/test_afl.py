"""AFA-CD and AFA-CS against NumPy: by hand, by a naive simulation, and by where they end."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from naive_single import Naive, gradients_along
from some_slow import some_slow

import rookery as rk
from rookery.engines.engine import Program
from rookery.program.algorithm import first_state

ZOO = rk.zoo.quadratic_losses(n_clients=4, size=2)
STEPS = (1, 3, 2, 4)
WEIGHTS = (0.1, 0.2, 0.3, 0.4)
SLOW = rk.delays.Stragglers(rk.delays.LogNormalDelay(0.1), (3,), 4.0)
HALF = rk.delays.Stragglers(
    rk.delays.ConstantDelay(1.0), (3,), 2.0
)  # client 3 delivers half as often
W = 2 * 8  # bytes of w


def advance(algorithm, clock=None, rounds=6, weights=None, engine=None, state=None, zoo=ZOO):
    population = rk.Population.stacked(zoo.data, weights=weights)
    program = Program(zoo.problem, population, clock or rk.delays.Clock(), rk.aggregate.Mean())
    algorithm.check(zoo.problem, population.n_clients)
    if state is None:
        state = first_state(algorithm, zoo.problem, population.n_clients, zoo.start)
    runner = (engine or rk.Eager()).prepare(program, [algorithm])
    return runner.advance([state], [jax.random.key(0)], 0, [rounds])[0]


def result(i, w, lr=0.05, steps=STEPS):
    """G_i."""
    return np.mean(gradients_along(ZOO, i, w, lr, steps[i]), axis=0)


@pytest.mark.parametrize("weights", [pytest.param(WEIGHTS), *some_slow([None], 0)])
@pytest.mark.parametrize("method", [rk.AFACD, rk.AFACS])
def test_without_delays_it_is_the_synchronous_step_by_hand(method, weights):
    algorithm = method(lr=0.05, server_lr=0.2, local_steps=STEPS)
    w = np.zeros(2)
    for _ in range(3):
        w = w - 0.2 * np.average([result(i, w) for i in range(4)], axis=0, weights=weights)
    done = advance(algorithm, rounds=3, weights=weights)
    np.testing.assert_allclose(done.state.w, w, rtol=1e-12)
    for ledger in done.ledgers:
        assert (ledger.exchanges, ledger.messages) == (1, 8)
        assert (ledger.bytes_down, ledger.bytes_up) == (4 * W, 4 * W)
        assert ledger.gradients == sum(STEPS)


@pytest.mark.parametrize("method", [rk.AFACD, rk.AFACS])
def test_one_local_step_of_everyone_is_fedavg(method):
    ours = advance(method(lr=0.1, server_lr=0.1), rounds=3).state.w
    np.testing.assert_allclose(ours, advance(rk.FedAvg(lr=0.1), rounds=3).state.w, rtol=1e-12)


@pytest.mark.parametrize(
    ("method", "bound"), [pytest.param(rk.AFACD, None, marks=pytest.mark.slow), (rk.AFACS, 2)]
)
def test_a_naive_simulation_gives_the_same_trajectory_and_staleness(method, bound):
    clock, rounds = rk.delays.Clock(SLOW, seed=1), 12
    algorithm = method(lr=0.05, server_lr=0.2, local_steps=STEPS, wait_for=2, staleness=bound)
    done = advance(algorithm, clock, rounds, WEIGHTS, rk.Compiled())
    naive, w, latest, stale = Naive(ZOO, clock), np.zeros(2), np.zeros((4, 2)), []
    for t in range(rounds):
        before = naive.now
        wait_for = 4 if method is rk.AFACS and t == 0 else 2
        arrived = naive.play(w, wait_for, bound)
        for i, staleness, copy in arrived:
            latest[i] = result(i, copy)
            stale.append(staleness)
        who = [i for i, _, _ in arrived] if method is rk.AFACD else range(4)
        w = w - 0.2 * np.average(latest[who], axis=0, weights=np.array(WEIGHTS)[who])
        ledger = done.ledgers[t]
        assert ledger.seconds == pytest.approx(naive.now - before, abs=1e-12)
        assert ledger.bytes_up == len(arrived) * W
    np.testing.assert_allclose(done.state.w, w, rtol=1e-12)
    assert done.state.jobs.begun.tolist() == naive.numbers
    assert max(stale) == 2 if bound else max(stale) > 2


def fixed_point(lr, steps, counts):
    """Where the mean of G_i by ``counts`` is zero:  G_i = (I - (I - lr H)^K) (w - H^-1 b) / (K lr).

    With K = 1 that is H w - b.
    """
    left, right = np.zeros((2, 2)), np.zeros(2)
    for H, b, K, count in zip(ZOO.H[:, 0], ZOO.b[:, 0], steps, counts, strict=True):
        P = (np.eye(2) - np.linalg.matrix_power(np.eye(2) - lr * H, K)) / (K * lr)
        left, right = left + count * P, right + count * P @ np.linalg.solve(H, b)
    return np.linalg.solve(left, right)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [(1, 1, 1, 1), STEPS])
def test_afa_cs_ends_where_its_mean_is_zero_however_unequal_the_delays(steps):
    algorithm = rk.AFACS(lr=0.05, server_lr=0.05, local_steps=steps, wait_for=1, staleness=5)
    engine = rk.Compiled(rounds_per_call=3000)
    state = advance(algorithm, rk.delays.Clock(SLOW), 3000, engine=engine).state
    np.testing.assert_allclose(state.w, fixed_point(0.05, steps, [1] * 4), rtol=1e-9)
    distance = np.abs(state.w - ZOO.solution()[0]).max()
    if steps == (1, 1, 1, 1):
        assert distance < 1e-9  # the minimiser itself
    else:
        assert distance > 1e-2  # unequal local steps weigh the clients unequally


@pytest.mark.slow
def test_afa_cd_ends_beside_the_minimiser_towards_the_fast_clients():
    # at 1, 3, 5, ... clients 0 to 2 deliver, at 2, 4, 6, ... all: 1/3 + 1/4 against 1/4
    biased = fixed_point(0.05, (1, 1, 1, 1), [7, 7, 7, 3])
    engine, distances = rk.Compiled(rounds_per_call=4000), []
    for server_lr in (0.02, 0.01):
        algorithm = rk.AFACD(lr=0.05, server_lr=server_lr, wait_for=3)
        w = [
            advance(algorithm, rk.delays.Clock(HALF), n, engine=engine).state.w
            for n in (4000, 4001)
        ]
        distances.append(np.abs(np.mean(w, axis=0) - biased).max())  # the mean over a period
    assert distances[1] < 0.6 * distances[0] < 0.6e-2  # nearer in proportion to the step size
    assert np.abs(biased - ZOO.solution()[0]).max() > 0.03


def test_a_job_in_flight_does_not_see_what_becomes_of_the_server_model():
    algorithm = rk.AFACS(lr=0.05, server_lr=0.2, local_steps=STEPS, wait_for=3, first_wait_for=3)
    clock = rk.delays.Clock(HALF)
    state = advance(algorithm, clock, 1).state
    assert state.jobs.is_idle.tolist() == [True, True, True, False]  # 3 is at work on the start
    poisoned = state._replace(w=jnp.full(2, 1e6))
    wrong_copy = replace(state.jobs, values=(jnp.full((4, 2), 1e6),))
    clean, poisoned, wrong = (
        advance(algorithm, clock, 1, state=s).state.jobs.results
        for s in (state, poisoned, state._replace(jobs=wrong_copy))
    )
    np.testing.assert_array_equal(poisoned[3], clean[3])
    np.testing.assert_allclose(clean[3], result(3, np.zeros(2)), rtol=1e-12)
    assert np.abs(poisoned[:3]).min() > 1e4  # those begin with the server's model of now
    assert np.abs(wrong[3]).min() > 1e4  # the stored copy is what it works on
    np.testing.assert_array_equal(wrong[:3], clean[:3])


@pytest.mark.slow
@pytest.mark.parametrize("method", [rk.AFACD, rk.AFACS])
def test_numbers_of_steps_that_are_drawn_are_billed_as_they_fell(method):
    algorithm = method(lr=0.05, server_lr=0.2, local_steps=rk.parts.RandomSteps(2, 5))
    made = [ledger.gradients for ledger in advance(algorithm, rounds=4).ledgers]
    assert all(4 * 2 <= g <= 4 * 5 for g in made)
    assert len(set(made)) > 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"server_lr": 0.0}, "server_lr must be a finite number above 0"),
        ({"lr": -1.0}, "lr must be a finite number above 0"),
        ({"wait_for": 0}, "wait_for must be at least 1"),
        ({"staleness": -1}, "staleness must be at least 0"),
        ({"local_steps": (1, 0)}, "local_steps must be at least 1"),
    ],
)
@pytest.mark.parametrize("method", [rk.AFACD, rk.AFACS])
def test_bad_settings_are_refused(method, settings, words):
    with pytest.raises(ValueError, match=words):
        method(**({"lr": 0.1, "server_lr": 0.1} | settings))


def test_what_does_not_fit_is_refused():
    for algorithm in (
        rk.AFACD(lr=0.1, server_lr=0.1, wait_for=5),
        rk.AFACS(lr=0.1, server_lr=0.1, wait_for=5),
    ):
        with pytest.raises(ValueError, match="wait_for=5 results cannot come from 4 clients"):
            algorithm.check(ZOO.problem, 4)
    with pytest.raises(ValueError, match="first_wait_for=5 results cannot come from 4"):
        rk.AFACS(lr=0.1, server_lr=0.1, first_wait_for=5).check(ZOO.problem, 4)
    with pytest.raises(TypeError, match="AFACD solves SingleLevel problems, got Bilevel"):
        rk.AFACD(lr=0.1, server_lr=0.1).check(rk.zoo.scalar_bilevel().problem, 2)  # type: ignore
