"""Calls of the compiled engine: whose memory they overwrite, and which divergence they find."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.engines.engine import Program
from rookery.program.algorithm import first_state

PROBLEM = rk.SingleLevel(lambda w, row: jnp.sum(w * row))
POPULATION = rk.Population.stacked(np.zeros((4, 1, 2)))
PROGRAM = Program(PROBLEM, POPULATION, rk.delays.Clock(), rk.aggregate.Mean())
KEY = jax.random.key(0)


class State(NamedTuple):
    w: jax.Array
    own: rk.program.Memory


class Toy(rk.AbstractAlgorithm):
    """Clients 1 and 2 add one to their rows in every round; client 1's breaks in round ``breaks``.

    What they keep never reaches w, so that only the memory can tell. Client 3 is asked too, and its
    row, which is never finite, is not kept.
    """

    breaks: float
    start: float = 0.0

    def check(self, problem, n_clients): ...

    def init(self, problem, w):
        return State(w, rk.program.Memory.of(jnp.asarray(self.start)))

    def round(self, fed, problem, state, key):
        cohort = fed.sample(rk.participation.Fixed((1, 2, 3)), key)
        cohort = cohort.where(jnp.array([True, True, False]))

        def once(_, own):
            settings = {"bad": jnp.asarray(fed.round).astype(float) == self.breaks}
            return fed.keep(own, fed.map(add_one, fed.recall(cohort, own), **settings))

        own = fed.repeat(1, once, state.own)
        fed.mean(fed.broadcast(cohort, state.w))
        return State(state.w + 1.0, own)

    def solution(self, state):
        return (state.w,)


def add_one(client, row, *, bad):
    is_bad = (bad & (client.id == 1)) | (client.id == 3)
    return row + jnp.where(is_bad, jnp.nan, 1.0)


def begin(algorithm):
    return first_state(algorithm, PROBLEM, 4, (jnp.zeros(()),))


@pytest.mark.parametrize("engine", [rk.Eager(), rk.Compiled()])
def test_a_value_in_a_memory_that_is_not_finite_ends_a_run_in_its_round(engine):
    runner = engine.prepare(PROGRAM, [Toy(2.0)])
    (progress,) = runner.advance([begin(Toy(2.0))], [KEY], 0, [9])
    assert not progress.is_finite and len(progress.ledgers) == 3
    np.testing.assert_array_equal(progress.state.own.rows, [0, np.nan, 3, 0])


@pytest.mark.parametrize("engine", [rk.Eager(), rk.Compiled()])
def test_a_memory_that_was_not_finite_before_ends_a_run_after_a_round(engine):
    start = begin(Toy(99.0, start=np.inf))
    (progress,) = engine.prepare(PROGRAM, [Toy(99.0)]).advance([start], [KEY], 0, [9])
    assert not progress.is_finite and len(progress.ledgers) == 1


def test_a_call_overwrites_rows_only_if_it_may():
    start, runner = begin(Toy(99.0)), rk.Compiled(rounds_per_call=2).prepare(PROGRAM, [Toy(99.0)])
    (kept,) = runner.advance([start], [KEY], 0, [3])
    assert start.own.rows.tolist() == [0, 0, 0, 0]
    (taken,) = runner.advance([kept.state], [KEY], 3, [3], may_reuse=True)
    assert kept.state.own.rows.is_deleted() and not kept.state.w.is_deleted()
    assert taken.state.own.rows.tolist() == [0, 6, 6, 0] and taken.state.w == 6


def test_lanes_end_one_by_one_and_the_others_go_on():
    algorithms = [Toy(1.0), Toy(99.0), Toy(4.0), Toy(99.0)]
    runner = rk.Compiled(rounds_per_call=5).prepare(PROGRAM, algorithms)
    states, keys = [begin(one) for one in algorithms], [KEY] * 4
    first = runner.advance(states, keys, 0, [3, 3, 3, 2])
    second = runner.advance([one.state for one in first], keys, 3, [0, 7, 7, 0])
    assert [len(one.ledgers) for one in first] == [2, 3, 3, 2]
    assert [one.is_finite for one in first] == [False, True, True, True]
    assert [len(one.ledgers) for one in second] == [0, 7, 2, 0]
    assert [float(one.state.w) for one in second] == [2, 10, 5, 2]
    rows = [one.state.own.rows[2].item() for one in second]
    assert rows == [2, 10, 5, 2] and all(one.own.rows.sum() == 0 for one in states)
    assert np.isnan(second[0].state.own.rows[1]) and np.isnan(second[2].state.own.rows[1])


def test_a_lane_that_paused_continues_from_its_own_state():
    algorithms, keys = [Toy(99.0), Toy(98.0)], [KEY] * 2
    runner = rk.Compiled().prepare(PROGRAM, algorithms)
    one = runner.advance([begin(a) for a in algorithms], keys, 0, [2, 0])
    two = runner.advance([progress.state for progress in one], keys, 2, [1, 1])
    assert [float(progress.state.w) for progress in two] == [3, 1]


@pytest.mark.parametrize("n_runs", [1, 2])
def test_states_that_a_callback_has_kept_stay_as_they_were(n_runs):
    seen = []
    rk.sweep(
        [rk.Run(Toy(99.0), (np.zeros(()),), seed) for seed in range(n_runs)],
        PROBLEM,
        POPULATION,
        rounds=6,
        callback=seen.append,
        callback_every=2,
    )
    assert [(one.run.seed, one.round) for one in seen] == [
        (seed, round) for round in (2, 4, 6) for seed in range(n_runs)
    ]
    for one in seen:
        assert one.state.own.rows.tolist() == [0, one.round, one.round, 0]


def test_a_run_returns_to_the_rows_of_its_last_evaluation_within_a_budget():
    result = rk.run(
        Toy(99.0),
        PROBLEM,
        POPULATION,
        (np.zeros(()),),
        rounds=9,
        evaluate=[rk.metrics.OfSolution(lambda w: {"w": w})],
        evaluate_every=2,
        keep="best:w:min",
        stop=[rk.stop.Budget(exchanges=5)],
    )
    assert result.status == "stopped" and result.rounds == 4
    assert result.state.own.rows.tolist() == [0, 4, 4, 0]
    assert result.best.round == 0 and result.best.solution[0] == 0
