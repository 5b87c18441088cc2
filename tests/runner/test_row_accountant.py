"""What runs with private rows spend: epsilon as dp-accounting has it, and when a run stops."""

import jax
import numpy as np
import pytest

import rookery as rk
from rookery.algorithms import Mime
from rookery.engines.engine import Program
from rookery.program.algorithm import first_state
from rookery.program.row_privacy import RowPrivate
from rookery.runner.row_accountant import RowSpending, row_spending
from rookery.runner.run_state import Run

LOSSES = rk.zoo.quadratic_losses(n_clients=4, size=2, rows=6, noise=0.3)


@pytest.fixture
def dp():
    pytest.importorskip("dp_accounting.rdp")
    return pytest.importorskip("dp_accounting")


def fedavg(
    local_steps: int | tuple[int, ...] = 3, batch_size: int | None = 2, **settings
) -> rk.FedAvg:
    return rk.FedAvg(lr=0.1, local_steps=local_steps, batch_size=batch_size, **settings)


def private(algorithm, clip=0.5, noise=1.5, **settings) -> RowPrivate:
    return RowPrivate(algorithm, clip=clip, noise=noise, **settings)


def spent(algorithm, rounds, population=None) -> RowSpending:
    population = rk.Population.stacked(LOSSES.data) if population is None else population
    program = Program(LOSSES.problem, population, rk.delays.Clock(), rk.aggregate.Mean())
    state = first_state(algorithm, LOSSES.problem, population.n_clients, LOSSES.start)
    run = Run(algorithm, LOSSES.start, 0)
    found = row_spending(program, algorithm, state, run.keys()[0], rounds)
    assert found is not None
    return found


def by_hand(dp, events, delta=1e-5):
    relation = dp.NeighboringRelation.REPLACE_ONE
    accountant = dp.rdp.RdpAccountant(neighboring_relation=relation)
    for event, count in events:
        accountant.compose(event, count)
    return accountant.get_epsilon(delta)


def test_every_local_step_is_a_draw_from_the_rows(dp):
    event = dp.SampledWithoutReplacementDpEvent(6, 2, dp.GaussianDpEvent(1.5))
    found = spent(private(fedavg()), 5)
    assert found.epsilon(5) == pytest.approx(by_hand(dp, [(event, 15)]), rel=1e-12)
    assert found.epsilon(0) == 0 and found.releases(5) == 15


def test_whole_clients_are_not_amplified(dp):
    expected = by_hand(dp, [(dp.GaussianDpEvent(1.5), 15)])
    assert spent(private(fedavg(batch_size=None)), 5).epsilon(5) == pytest.approx(expected)


def test_the_client_that_takes_most_steps_decides(dp):
    event = dp.SampledWithoutReplacementDpEvent(6, 2, dp.GaussianDpEvent(1.5))
    found = spent(private(fedavg(local_steps=(1, 4, 2, 1))), 5)
    assert found.epsilon(5) == pytest.approx(by_hand(dp, [(event, 20)]), rel=1e-12)


def test_a_client_spends_only_when_it_is_drawn(dp):
    event = dp.SampledWithoutReplacementDpEvent(6, 2, dp.GaussianDpEvent(1.5))
    found = spent(private(fedavg(clients=1)), 6)
    most = found.releases(6) // 3
    assert 2 <= most < 6
    assert found.epsilon(6) == pytest.approx(by_hand(dp, [(event, 3 * most)]), rel=1e-12)


def test_the_smallest_client_has_the_least_amplification(dp):
    parts = [np.arange(0, 4), np.arange(4, 24)]
    flat = jax.tree.map(lambda a: np.concatenate(list(np.asarray(a))), LOSSES.data)
    population = rk.Population.from_parts(flat, {"train": parts})
    event = dp.SampledWithoutReplacementDpEvent(4, 2, dp.GaussianDpEvent(1.5))
    found = spent(private(fedavg()), 5, population)
    assert found.epsilon(5) == pytest.approx(by_hand(dp, [(event, 15)]), rel=1e-12)


def test_two_points_on_one_sample_are_composed_before_they_are_amplified(dp):
    one = dp.GaussianDpEvent(1.5)
    mime = private(Mime(lr=0.1, local_steps=3, batch_size=2))
    found = spent(mime, 2)
    drawn = dp.SampledWithoutReplacementDpEvent(6, 2, dp.SelfComposedDpEvent(one, 2))
    # the gradient of all rows, then two points on each of three samples
    assert found.epsilon(2) == pytest.approx(by_hand(dp, [(one, 2), (drawn, 6)]), rel=1e-12)


def test_a_run_stops_before_it_exceeds_its_target(dp):
    found = spent(private(fedavg()), 20)
    target = (found.epsilon(7) + found.epsilon(8)) / 2
    algorithm = private(fedavg(), epsilon=target)
    population = rk.Population.stacked(LOSSES.data)
    result = rk.run(algorithm, LOSSES.problem, population, LOSSES.start, rounds=20)
    assert result.status == "stopped"
    assert result.history["epsilon"].tolist()[-1] == found.epsilon(7)
    assert result.history["round"].tolist()[-1] == 7


def test_without_rows_there_is_no_epsilon(dp):
    row = jax.tree.map(lambda a: np.asarray(a)[0, 0], LOSSES.data)
    population = rk.Population.elsewhere(row, 4)
    with pytest.raises(ValueError, match="number of rows of every client"):
        spent(private(fedavg()), 3, population)
