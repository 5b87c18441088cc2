import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.problem.zoo.quadratic import scalar_bilevel


def sample(delay, n=20000):
    keys = jax.random.split(jax.random.key(0), n)
    return np.asarray(jax.vmap(lambda k: delay.seconds(k, jnp.int32(0)))(keys))


def test_delays_have_the_stated_medians_and_means():
    log_normal = sample(rk.delays.LogNormalDelay(0.03, 1.0))
    assert np.median(log_normal) == pytest.approx(0.03, rel=0.05)
    assert log_normal.mean() == pytest.approx(0.03 * np.exp(0.5), rel=0.05)
    pareto = sample(rk.delays.ParetoDelay(0.5, 3.0))
    assert pareto.min() >= 0.5
    assert pareto.mean() == pytest.approx(0.75, rel=0.03)
    uniform = sample(rk.delays.UniformDelay(1.0, 3.0))
    assert 1 <= uniform.min() < uniform.max() <= 3
    assert uniform.mean() == pytest.approx(2.0, rel=0.02)
    assert set(sample(rk.delays.ConstantDelay(0.2), 3)) == {0.2}
    assert set(sample(rk.delays.NoDelay(), 3)) == {0.0}


def exchange(clock, clients, round=0, number=0, nbytes=0.0, kind="inner"):
    ids = jnp.array(clients, jnp.int32)
    active, sizes = jnp.ones(len(clients), bool), jnp.full(len(clients), nbytes)
    return float(clock.exchange_seconds(kind, round, number, ids, active, sizes))


def test_a_clients_delay_depends_on_seed_round_exchange_and_client_alone():
    clock = rk.delays.Clock(rk.delays.LogNormalDelay(1.0), seed=4)
    alone = [exchange(clock, [c]) for c in range(4)]
    assert exchange(clock, [0, 1, 2, 3]) == max(alone)
    assert len(set(alone)) == 4
    assert exchange(clock, [1], number=1) != alone[1]
    assert exchange(clock, [1], round=1) != alone[1]
    assert exchange(rk.delays.Clock(rk.delays.LogNormalDelay(1.0), seed=5), [1]) != alone[1]


def test_bandwidth_adds_the_time_of_the_bytes():
    assert exchange(rk.delays.Clock(bandwidth=100.0), [0], nbytes=50.0) == 0.5
    whole = rk.delays.Clock(rk.delays.ConstantDelay(1), bandwidth=1.5)
    assert exchange(whole, [0], nbytes=3.0) == 3.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rk.delays.ConstantDelay(-1.0), "0 or above, got -1.0"),
        (lambda: rk.delays.UniformDelay(2.0, 1.0), "high must be above low"),
        (lambda: rk.delays.LogNormalDelay(0.0), "median must be a finite number above 0"),
        (lambda: rk.delays.ParetoDelay(1.0, 1.0), "the mean would be infinite"),
        (lambda: rk.delays.Stragglers(rk.delays.NoDelay(), (1,), 0.0), "factor must be"),
        (lambda: rk.delays.Clock(bandwidth=0.0), "bandwidth must be"),
        (lambda: rk.delays.Clock(bandwidth=(1.0, 2.0)).check(3), "2 numbers for 3 clients"),
        (
            lambda: rk.delays.Clock(rk.delays.Stragglers(rk.delays.NoDelay(), (7,))).check(3),
            "names client 7",
        ),
    ],
)
def test_bad_clocks(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_outer_exchanges_have_the_outer_delay_and_no_others():
    clock = rk.delays.Clock(rk.delays.ConstantDelay(1.0), outer_delay=rk.delays.ConstantDelay(10.0))
    assert exchange(clock, [0, 1]) == 1.0
    assert exchange(clock, [0, 1], kind="outer") == 10.0
    assert exchange(rk.delays.Clock(rk.delays.ConstantDelay(1.0)), [0], kind="outer") == 1.0
    # FedNest: 2 T + N exchanges at the inner delay, then f_y, h and x; only h and x are outer
    zoo = scalar_bilevel()
    population = rk.Population.stacked(zoo.data)
    nested = rk.FedNest(
        outer_lr=0.1, inner_lr=0.1, inner_rounds=2, ihgp=rk.parts.FedIHGPSum(terms=4, lipschitz=9.0)
    )
    paid = rk.run(nested, zoo.problem, population, zoo.start, rounds=1, clock=clock).ledger
    assert (paid.exchanges, paid.seconds) == (2 * 2 + 4 + 3, 2 * 2 + 4 + 1 + 2 * 10)
