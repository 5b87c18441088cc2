"""FedBuff against FedAvg, a naive simulation, and where it ends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from naive_single import Naive, gradients_along

import rookery as rk
from rookery.engines.engine import Program
from rookery.program.algorithm import first_state

ZOO = rk.zoo.quadratic_losses(n_clients=4, size=2)
STEPS = (1, 3, 2, 4)
WEIGHTS = (0.1, 0.2, 0.3, 0.4)
CLOCK = rk.delays.Clock(rk.delays.Stragglers(rk.delays.LogNormalDelay(0.1), (3,), 4.0), seed=1)
W = 2 * 8  # bytes of w


def advance(algorithm, clock=None, rounds=3, weights=None, engine=None, state=None):
    population = rk.Population.stacked(ZOO.data, weights=weights)
    program = Program(ZOO.problem, population, clock or rk.delays.Clock(), rk.aggregate.Mean())
    algorithm.check(ZOO.problem, population.n_clients)
    if state is None:
        state = first_state(algorithm, ZOO.problem, population.n_clients, ZOO.start)
    runner = (engine or rk.Eager()).prepare(program, [algorithm])
    return runner.advance([state], [jax.random.key(0)], 0, [rounds])[0]


@pytest.mark.slow
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_without_delays_and_with_room_for_everyone_it_is_fedavg(weights):
    ours = advance(rk.FedBuff(lr=0.1, buffer_size=4, local_steps=STEPS), weights=weights)
    theirs = advance(rk.FedAvg(lr=0.1, local_steps=STEPS), weights=weights)
    np.testing.assert_allclose(ours.state.w, theirs.state.w, rtol=1e-14)
    assert ours.ledgers == theirs.ledgers  # to the byte, and with as many evaluations
    assert ours.ledgers[0].values()[:4] == (1, 8, 4 * W, 4 * W)


@pytest.mark.parametrize(
    ("discount", "bound"),
    [
        pytest.param(0.5, None, marks=pytest.mark.slow),
        pytest.param(0.0, None, marks=pytest.mark.slow),
        (1.5, 2),
    ],
)
def test_a_naive_simulation_gives_the_same_trajectory(discount, bound):
    algorithm = rk.FedBuff(
        lr=0.05, buffer_size=2, local_steps=STEPS, server_lr=0.7, discount=discount, staleness=bound
    )
    rounds = 12
    done = advance(algorithm, CLOCK, rounds, WEIGHTS, rk.Compiled())
    naive, w, stale = Naive(ZOO, CLOCK), np.zeros(2), []
    for ledger in done.ledgers:
        before, total, buffered = naive.now, np.zeros(2), 0.0
        arrived = naive.play(w, 2, bound)
        for i, staleness, copy in arrived:
            move = -0.05 * np.sum(gradients_along(ZOO, i, copy, 0.05, STEPS[i]), axis=0)
            total = total + WEIGHTS[i] * move / (1 + staleness) ** discount
            buffered += WEIGHTS[i]
            stale.append(staleness)
        w = w + 0.7 * total / buffered
        assert ledger.seconds == pytest.approx(naive.now - before, abs=1e-12)
        assert ledger.bytes_up == len(arrived) * W
    np.testing.assert_allclose(done.state.w, w, rtol=1e-12)
    assert len(set(stale)) > 2  # discounts of several sizes were met
    assert bound is None or max(stale) == bound


def test_the_discount_is_the_papers_unless_told_otherwise():
    staleness = jnp.arange(4, dtype=jnp.int32)
    np.testing.assert_allclose(
        rk.FedBuff(lr=0.1, buffer_size=2).factor(staleness), 1 / np.sqrt([1, 2, 3, 4])
    )
    np.testing.assert_allclose(
        rk.FedBuff(lr=0.1, buffer_size=2, discount=0).factor(staleness), np.ones(4)
    )


@pytest.mark.slow
def test_a_discount_takes_weight_off_the_slow_and_moves_the_limit_further():
    """Client 3 delivers every second time, with staleness 1: it counts 1/4 s(1) against 7/12."""
    clock = rk.delays.Clock(rk.delays.Stragglers(rk.delays.ConstantDelay(1.0), (3,), 2.0))
    engine, away = rk.Compiled(rounds_per_call=4000), []
    for discount in (0.0, 0.5):
        algorithm = rk.FedBuff(lr=0.01, buffer_size=3, discount=discount)
        ends = [advance(algorithm, clock, n, engine=engine).state.w for n in (4000, 4001)]
        counts = np.array([7, 7, 7, 3 / 2**discount])
        limit = np.linalg.solve(
            np.tensordot(counts, ZOO.H[:, 0], 1), np.tensordot(counts, ZOO.b[:, 0], 1)
        )
        assert np.abs(np.mean(ends, axis=0) - limit).max() < 0.01  # of the order of lr
        away.append(np.linalg.norm(limit - ZOO.solution()[0]))
    assert away[1] > 1.2 * away[0] > 0.03


def test_a_job_in_flight_does_not_see_what_becomes_of_the_server_model():
    clock = rk.delays.Clock(rk.delays.Stragglers(rk.delays.ConstantDelay(1.0), (3,), 2.0))
    algorithm = rk.FedBuff(lr=0.05, buffer_size=3, local_steps=STEPS)
    state = advance(algorithm, clock, 1).state
    poisoned = state._replace(w=jnp.full(2, 1e6))
    clean, poisoned = (
        advance(algorithm, clock, 1, state=s).state.jobs.results for s in (state, poisoned)
    )
    np.testing.assert_array_equal(poisoned[3], clean[3])
    assert np.abs(clean[3]).min() > 0
    assert np.abs(poisoned[:3]).min() > 1e3


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"buffer_size": 0}, "buffer_size must be at least 1"),
        ({"discount": -0.5}, "discount must be a finite number, 0 or above"),
        ({"server_lr": 0.0}, "server_lr must be a finite number above 0"),
        ({"staleness": -1}, "staleness must be at least 0"),
    ],
)
def test_bad_settings_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        rk.FedBuff(**({"lr": 0.1, "buffer_size": 2} | settings))


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="4 clients cannot fill a buffer_size of 5"):
        rk.FedBuff(lr=0.1, buffer_size=5).check(ZOO.problem, 4)
    with pytest.raises(TypeError, match="FedBuff solves SingleLevel problems, got Bilevel"):
        rk.FedBuff(lr=0.1, buffer_size=1).check(rk.zoo.scalar_bilevel().problem, 2)  # type: ignore
