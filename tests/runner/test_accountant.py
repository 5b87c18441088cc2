"""What private runs spend: epsilon as dp-accounting has it, and when a run stops."""

import json
from typing import Any

import jax
import numpy as np
import pytest

import rookery as rk
from rookery.algorithms import SimFBO
from rookery.engines.engine import Program
from rookery.program.algorithm import first_state
from rookery.program.participation import Poisson
from rookery.program.privacy import Private, QuantileClip
from rookery.runner.accountant import spending
from rookery.runner.run_state import Run

LOSSES = rk.zoo.quadratic_losses(n_clients=10, size=2, rows=3, noise=0.3)
TINY = rk.zoo.quadratic_bilevel(n_clients=10, x_size=1, y_size=2, rows=3, noise=0.3)


def fedavg(clients: Any = 2, clip: Any = 0.5, noise: Any = 1.5, **settings) -> Private:
    return Private(rk.FedAvg(lr=0.1, clients=clients), clip=clip, noise=noise, **settings)


def fednest(clients, ihgp) -> Private:
    plain = rk.FedNest(outer_lr=0.05, inner_lr=0.1, inner_rounds=2, ihgp=ihgp, clients=clients)
    return Private(plain, clip=0.5, noise=1.5)


def simfbo(clients) -> Private:
    plain = SimFBO(
        outer_lr=0.05, inner_lr=0.1, server_lr=0.1, clients=clients, weighting="normalised"
    )
    return Private(plain, clip=0.5, noise=1.5)


def spent(zoo, algorithm, rounds, seed=0):
    population = rk.Population.stacked(zoo.data)
    program = Program(zoo.problem, population, rk.delays.Clock(), rk.aggregate.Mean())
    algorithm.check(zoo.problem, population.n_clients)
    state = first_state(algorithm, zoo.problem, population.n_clients, zoo.start)
    found = spending(program, algorithm, state, Run(algorithm, zoo.start, seed).keys()[0], rounds)
    assert found is not None
    return found


def finished(zoo, algorithm, rounds, **settings):
    population = rk.Population.stacked(zoo.data)
    return rk.run(algorithm, zoo.problem, population, zoo.start, rounds=rounds, **settings)


def by_hand(dp, events, relation, delta=1e-5):
    accountant = dp.rdp.RdpAccountant(neighboring_relation=relation)
    for event, count in events:
        accountant.compose(event, count)
    return accountant.get_epsilon(delta)


@pytest.fixture
def dp():
    pytest.importorskip("dp_accounting.rdp")
    return pytest.importorskip("dp_accounting")


def test_fedavg_with_a_cohort_of_fixed_size(dp):
    event = dp.SampledWithoutReplacementDpEvent(10, 2, dp.GaussianDpEvent(1.5))
    expected = by_hand(dp, [(event, 20)], dp.NeighboringRelation.REPLACE_ONE)
    found = spent(LOSSES, fedavg(), 20)
    assert found.epsilon(20) == pytest.approx(expected, rel=1e-12)
    assert found.epsilon(0) == 0 and found.releases(20) == 20


def test_fedavg_with_a_poisson_cohort(dp):
    event = dp.PoissonSampledDpEvent(0.2, dp.GaussianDpEvent(1.5))
    expected = by_hand(dp, [(event, 20)], dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    found = spent(LOSSES, fedavg(Poisson(0.2)), 20)
    assert found.epsilon(20) == pytest.approx(expected, rel=1e-12)


def test_fedavg_with_everyone_is_not_amplified(dp):
    expected = by_hand(dp, [(dp.GaussianDpEvent(1.5), 7)], dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    assert spent(LOSSES, fedavg(None), 7).epsilon(7) == pytest.approx(expected, rel=1e-12)


def test_a_moving_bound_is_a_release_of_its_own(dp):
    both = dp.ComposedDpEvent([dp.GaussianDpEvent(1.5), dp.GaussianDpEvent(4.0)])
    event = dp.PoissonSampledDpEvent(0.2, both)
    expected = by_hand(dp, [(event, 20)], dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    moving = fedavg(Poisson(0.2), clip=QuantileClip(0.5, noise=4.0))
    assert spent(LOSSES, moving, 20).epsilon(20) == pytest.approx(expected, rel=1e-12)


def test_fednest_composes_the_exchanges_of_a_cohort_before_it_amplifies(dp):
    # two inner rounds of two exchanges, three hops and f_y of one, h and x of two
    ihgp = rk.parts.FedIHGPSum(terms=3, lipschitz=5.0)
    one = dp.GaussianDpEvent(1.5)
    two = dp.PoissonSampledDpEvent(0.2, dp.SelfComposedDpEvent(one, 2))
    events = [(two, 3 * 5), (dp.PoissonSampledDpEvent(0.2, one), 4 * 5)]
    expected = by_hand(dp, events, dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    found = spent(TINY, fednest(Poisson(0.2), ihgp), 5)
    assert found.epsilon(5) == pytest.approx(expected, rel=1e-12)


def test_random_lengths_are_counted_as_they_fall(dp):
    algorithm = fednest(2, rk.parts.FedIHGP(terms=4, lipschitz=5.0))
    result = finished(TINY, algorithm, 6, evaluate_every=1, seed=3)
    found = spent(TINY, algorithm, 6, seed=3)
    exchanges = result.history["exchanges"].tolist()
    assert [found.releases(r) for r in range(7)] == exchanges
    assert len(set(np.diff(exchanges))) > 1
    assert result.history["epsilon"].tolist() == [found.epsilon(r) for r in range(7)]


def test_simfbo(dp):
    event = dp.SampledWithoutReplacementDpEvent(10, 3, dp.GaussianDpEvent(1.5))
    expected = by_hand(dp, [(event, 12)], dp.NeighboringRelation.REPLACE_ONE)
    assert spent(TINY, simfbo(3), 12).epsilon(12) == pytest.approx(expected, rel=1e-12)


def test_a_target_stops_the_run_before_the_round_that_would_exceed_it(dp, tmp_path):
    free = spent(LOSSES, fedavg(), 40)
    target = (free.epsilon(17) + free.epsilon(18)) / 2
    algorithm = fedavg(epsilon=target)
    how = {"evaluate_every": 5, "directory": tmp_path / "run"}
    result = finished(LOSSES, algorithm, 40, **how)
    assert (result.status, result.rounds) == ("stopped", 17)
    assert "round 18 would exceed" in result.message
    assert result.history["round"].tolist() == [0, 5, 10, 15, 17]
    assert result.history.last("epsilon") == free.epsilon(17) <= target
    assert "epsilon" not in result.metrics
    again = finished(LOSSES, algorithm, 40, **how)
    assert (again.status, again.rounds, again.message) == ("stopped", 17, result.message)
    assert again.history.rows == result.history.rows
    note = json.loads((tmp_path / "run" / "summary.json").read_text())["privacy"]
    assert note["releases"] == 17 and "not covered" in note["not_covered"]


def test_a_target_below_one_round_stops_at_once(dp):
    result = finished(LOSSES, fedavg(epsilon=1e-3), 4)
    assert (result.status, result.rounds, result.ledger.exchanges) == ("stopped", 0, 0)


def test_runs_of_a_sweep_stop_each_by_itself(dp):
    free = {noise: spent(LOSSES, fedavg(noise=noise), 12).epsilon for noise in (1.5, 3.0)}
    target = free[1.5](4)
    runs = [rk.Run(fedavg(noise=noise, epsilon=target), LOSSES.start) for noise in (1.5, 3.0)]
    population = rk.Population.stacked(LOSSES.data)
    first, second = rk.sweep(runs, LOSSES.problem, population, rounds=12)
    assert (first.status, first.rounds) == ("stopped", 4)
    assert second.status == "finished" and second.history.last("epsilon") <= target


def test_without_noise_epsilon_is_infinite():
    assert finished(LOSSES, fedavg(noise=0), 2).history["epsilon"].tolist() == [0, np.inf]


def test_without_delta_nothing_is_accounted():
    assert "epsilon" not in finished(LOSSES, fedavg(delta=None), 2).history.names


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "dp_accounting", None)
    with pytest.raises(ImportError, match="dp-accounting"):
        finished(LOSSES, fedavg(), 2)


class Chatty(rk.AbstractAlgorithm):
    """Asks again if the mean is large."""

    def check(self, problem, n_clients):
        pass

    def init(self, problem, w):
        return w

    def round(self, fed, problem, state, key):
        def ask(w):
            cohort = fed.sample(rk.participation.Everyone(), key)
            return fed.mean(fed.map(same, fed.broadcast(cohort, w)))

        return fed.when(jax.numpy.sum(ask(state)) > 1, ask, state)

    def solution(self, state):
        return (state,)


def same(client, w):
    return w


def test_a_number_of_exchanges_that_depends_on_replies_is_refused():
    with pytest.raises(ValueError, match="depends on what clients reply"):
        finished(LOSSES, Private(Chatty(), clip=1.0, noise=0), 2)
