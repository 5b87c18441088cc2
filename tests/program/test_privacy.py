"""Private means: what they compute, that engines agree on them, and what is refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.algorithms import FedPAQ, SimFBO
from rookery.engines.eager import EagerFederation
from rookery.engines.engine import Program
from rookery.program.participation import Poisson, Weighted
from rookery.program.privacy import Clip, Distributed, Private, PrivateFederation, QuantileClip
from rookery.remote import Remote
from rookery.runner.run_state import Result

LOSSES = rk.zoo.quadratic_losses(n_clients=4, size=2, rows=3, noise=0.3)
TINY = rk.zoo.quadratic_bilevel(n_clients=4, x_size=1, y_size=2, rows=3, noise=0.3)
FEDAVG = rk.FedAvg(lr=0.1, local_steps=2, clients=2, batch_size=2)
FEDNEST = rk.FedNest(
    outer_lr=0.05,
    inner_lr=0.1,
    ihgp=rk.parts.FedIHGP(terms=4, lipschitz=5.0),
    clients=2,
    batch_size=2,
)
SIMFBO = SimFBO(outer_lr=0.05, inner_lr=0.1, server_lr=(0.05, 0.2, 0.1), local_steps=2, clients=2)
FEDMSA = rk.FedMSA(
    outer_lr=0.05, inner_lr=0.1, local_steps=2, renewal=0.5, first_batch=1, clients=2, batch_size=2
)
CASES = {
    "FedAvg": (LOSSES, FEDAVG),
    "FedNest": (TINY, FEDNEST),
    "SimFBO": (TINY, SIMFBO),
    "FedMSA": (TINY, FEDMSA),
    "Scaffold": (LOSSES, rk.Scaffold(lr=0.1, local_steps=2, clients=2)),
}


def finished(zoo, algorithm, rounds=3, **settings) -> Result:
    population = rk.Population.stacked(zoo.data)
    return rk.run(algorithm, zoo.problem, population, zoo.start, rounds=rounds, **settings)


def private(algorithm, clip: Any = 0.5, noise: Any = 0.7, delta=None, **settings) -> Private:
    return Private(algorithm, clip=clip, noise=noise, delta=delta, **settings)


def assert_equal(a: Result, b: Result, rtol=0.0):
    jax.tree.map(
        lambda p, q: np.testing.assert_allclose(p, q, rtol=rtol, atol=rtol), a.solution, b.solution
    )


@pytest.mark.parametrize("engine", [rk.Compiled(), rk.Eager()], ids=["compiled", "eager"])
@pytest.mark.parametrize("name", ["FedAvg", pytest.param("FedNest", marks=pytest.mark.slow)])
def test_without_clip_and_noise_it_is_the_plain_run_bit_for_bit(name, engine):
    zoo, algorithm = CASES[name]
    plain = finished(zoo, algorithm, engine=engine)
    same = finished(zoo, private(algorithm, clip=np.inf, noise=0), engine=engine)
    assert_equal(plain, same)
    assert plain.ledger == same.ledger


@pytest.mark.parametrize(
    ("name", "noise"),
    [
        ("FedAvg", Distributed(0.7)),
        *[
            pytest.param(name, noise, marks=pytest.mark.slow)
            for name in CASES
            for noise in (0.7, Distributed(0.7))
        ],
    ],
)
def test_engines_agree_on_the_noise_and_the_ledger(name, noise):
    zoo, algorithm = CASES[name]
    algorithm = private(algorithm, noise=noise, clip=QuantileClip(0.3, noise=2.0))
    engines = [rk.Eager(), rk.Compiled(), Remote()]
    eager, compiled, remote = [finished(zoo, algorithm, engine=e) for e in engines]
    assert_equal(eager, compiled, rtol=1e-10)
    assert_equal(eager, remote, rtol=1e-10)
    np.testing.assert_allclose(eager.state.bounds, compiled.state.bounds, rtol=1e-10)
    assert eager.ledger == compiled.ledger == remote.ledger


def test_the_server_s_noise_costs_nothing_and_shares_two_numbers_down():
    plain, central, shares = [
        finished(LOSSES, algorithm).ledger
        for algorithm in (FEDAVG, private(FEDAVG), private(FEDAVG, noise=Distributed(0.7)))
    ]
    assert plain == central
    assert shares.exchanges == plain.exchanges and shares.bytes_up == plain.bytes_up
    assert shares.bytes_down == plain.bytes_down + 3 * 2 * 2 * 8  # rounds, clients, numbers


def own_row(client, value):
    return value + jnp.array([3.0, 4.0]) * (1 + jnp.asarray(client.id).astype(float))


def own_pair(client, value):
    return own_row(client, value), 10.0 * own_row(client, value)


def words(rule: Private, body, key=0, weights=None):
    """What a body of words gives within a private federation of four clients."""
    population = rk.Population.stacked(np.zeros((4, 1, 2)), weights=weights)
    program = Program(None, population, rk.delays.Clock(), rk.aggregate.Mean())
    bounds = rule.clip.first() if rule.clip is not None else ()
    fed = PrivateFederation(EagerFederation(program, 0), rule, bounds, jax.random.key(key))
    return body(fed)


def mean_of(rule=None, step=own_row, around=True):
    def body(fed):
        cohort = fed.sample(rule or rk.participation.Everyone(), jax.random.key(3))
        at = fed.broadcast(cohort, jnp.array([10.0, 20.0]))
        return fed.mean(fed.map(step, at), around=at if around else None)

    return body


def test_iterates_are_clipped_around_what_was_sent():
    noiseless = private(rk.FedAvg(lr=0.1), clip=7.5, noise=0)
    # the ways have lengths 5, 10, 15, 20: three of them are shortened to 7.5
    way = (1 + 3 * 1.5) / 4 * np.array([3.0, 4.0])
    np.testing.assert_allclose(words(noiseless, mean_of()), np.array([10, 20]) + way)
    # without a centre the uploads themselves are shortened, here all of them
    assert np.linalg.norm(words(noiseless, mean_of(around=False))) < 7.5


def test_blocks_are_clipped_each_by_itself():
    def body(fed):
        cohort = fed.sample(rk.participation.Everyone(), jax.random.key(3))
        at = fed.broadcast(cohort, jnp.zeros(2))
        return fed.mean(fed.map(own_pair, at), around=(at, None))

    apart = words(private(rk.FedAvg(lr=0.1), clip=Clip(5.0, by_block=True), noise=0), body)
    np.testing.assert_allclose(apart, [[3, 4], [3, 4]])
    jointly = words(private(rk.FedAvg(lr=0.1), clip=5.0, noise=0), body)
    np.testing.assert_allclose(np.linalg.norm(np.concatenate(jointly)), 5.0)


def zeros(client, value):
    return jnp.zeros(4000) * value[0]


def spread(how: Private, rule, weights=None):
    """The standard deviation of the mean of zeros."""
    return float(np.std(words(how, mean_of(rule, zeros, around=False), weights=weights)))


@pytest.mark.parametrize(
    ("rule", "weights", "clients", "reach"),
    [
        (rk.participation.Everyone(), None, None, 1 / 4),
        (rk.participation.Everyone(), [4, 2, 1, 1], None, 1 / 2),
        (rk.participation.Uniform(2), None, 2, 2 / 2),
        (rk.participation.Uniform(2), [4, 2, 1, 1], 2, 2 * 4 / 5),
        (Poisson(0.5), None, Poisson(0.5), 1 / 2),
    ],
)
def test_the_noise_fits_the_sensitivity_of_the_draw(rule, weights, clients, reach):
    how = private(rk.FedAvg(lr=0.1, clients=clients), clip=0.5, noise=0.7)
    assert spread(how, rule, weights) == pytest.approx(0.7 * 0.5 * reach, rel=0.05)


def test_shares_add_up_to_the_noise_of_the_server():
    for noise in (0.7, Distributed(0.7)):
        how = private(rk.FedAvg(lr=0.1), clip=0.5, noise=noise)
        assert spread(how, rk.participation.Everyone()) == pytest.approx(0.7 * 0.5 / 4, rel=0.05)


def test_a_poisson_mean_divides_by_the_expected_weight():
    rule = Poisson(0.5)
    noiseless = private(rk.FedAvg(lr=0.1, clients=rule), clip=7.5, noise=0)
    active = np.asarray(rule.draw(jax.random.key(3), 4, jnp.ones(4)).active)
    ways = np.minimum(np.arange(1, 5), 1.5) * active / 4 / 0.5
    np.testing.assert_allclose(
        words(noiseless, mean_of(rule)), np.array([10, 20]) + ways.sum() * np.array([3.0, 4.0])
    )


def test_an_upload_that_is_not_finite_does_not_show():
    noiseless = private(rk.FedAvg(lr=0.1), clip=7.5, noise=0)

    def body(fed):
        cohort = fed.sample(rk.participation.Everyone(), jax.random.key(3))
        at = fed.broadcast(cohort, jnp.array([10.0, 20.0]))
        placed = fed.map(own_row, at)
        rows = placed.value.at[0].set(jnp.nan)
        return fed.mean(rk.program.Placed(cohort, rows, is_stacked=True), around=at)

    assert np.isfinite(words(noiseless, body)).all()


def test_bounds_follow_the_quantile():
    start = QuantileClip(20.0, quantile=0.5, lr=0.5, noise=50.0)
    rule = private(rk.FedAvg(lr=0.1), clip=start, noise=1e-3)

    def body(fed):
        for _ in range(60):
            mean_of()(fed)
        return fed.bounds

    quiet = private(rk.FedAvg(lr=0.1), clip=start, noise=0)
    bounds = words(quiet, body)
    assert 10 <= bounds[2] <= 15.01  # between the second and the third of 5, 10, 15, 20
    np.testing.assert_allclose(bounds[jnp.array([0, 1, 3])], 20.0)
    assert not np.allclose(words(rule, body), bounds)


@pytest.mark.parametrize(
    ("zoo", "algorithm", "match"),
    [
        (TINY, rk.FedNest(outer_lr=0.05, inner_lr=0.1, clients=2), "every single client"),
        (TINY, rk.FedMBO(outer_lr=0.05, inner_lr=0.1), "every single client"),
        (LOSSES, rk.FedAvg(lr=0.1, clients=Weighted(2)), "by Weighted"),
        (LOSSES, rk.FedBuff(lr=0.1, buffer_size=2), "fed.poll cannot be private"),
    ],
)
def test_programs_that_cannot_be_private_are_refused(zoo, algorithm, match):
    with pytest.raises(ValueError, match=match):
        finished(zoo, private(algorithm))


def test_robust_rules_are_refused():
    with pytest.raises(ValueError, match="plain mean, got aggregate=Median"):
        finished(LOSSES, private(rk.FedAvg(lr=0.1)), aggregate=rk.aggregate.Median())


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="clip=inf would be infinite"):
        private(FEDAVG, clip=np.inf)
    with pytest.raises(ValueError, match="needs noise above 0 and a delta"):
        private(FEDAVG, noise=0, delta=1e-5, epsilon=1.0)
    with pytest.raises(ValueError, match="delta must be between"):
        private(FEDAVG, delta=2.0)
    with pytest.raises(TypeError, match="got a private one"):
        private(private(FEDAVG))
    with pytest.raises(TypeError, match="takes an algorithm first"):
        private(3)
    with pytest.raises(ValueError, match="Distributed noise needs a cohort of known size"):
        finished(LOSSES, private(rk.FedAvg(lr=0.1, clients=Poisson(0.5)), noise=Distributed(1.0)))
    with pytest.raises(ValueError, match="compressed uploads"):
        finished(LOSSES, private(FedPAQ(lr=0.1, codec=rk.parts.TopK(1)), noise=Distributed(1.0)))
    with pytest.raises(ValueError, match=r"rate must be above 0 and at most 1, got 1\.5"):
        Poisson(1.5)


def test_compressed_uploads_are_clipped_after_decoding():
    assert finished(LOSSES, private(FedPAQ(lr=0.1, codec=rk.parts.TopK(1)))).status == "finished"
