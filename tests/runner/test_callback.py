"""What a callback sees, and how it ends a run."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from some_slow import some_slow

import rookery as rk
from rookery.remote import Remote

ZOO = rk.zoo.quadratic_bilevel(n_clients=4)
POPULATION = rk.Population.stacked(ZOO.data)
ALGORITHM = rk.FedNest(
    outer_lr=0.05, inner_lr=0.1, ihgp=rk.parts.FedIHGP(terms=3, lipschitz=5.0), clients=2
)


def size(x, y):
    return {"size": (x @ x) ** 0.5}


def go(rounds=6, **kwargs):
    settings = {"evaluate": [rk.metrics.OfSolution(size)], "evaluate_every": 3, **kwargs}
    return rk.run(ALGORITHM, ZOO.problem, POPULATION, ZOO.start, rounds=rounds, **settings)


def test_the_state_and_the_costs_of_every_round():
    seen = []
    result = go(callback=seen.append, callback_every=1)
    assert [s.round for s in seen] == [1, 2, 3, 4, 5, 6]
    exchanges = [s.ledger.exchanges for s in seen]
    assert exchanges == sorted(set(exchanges)) and exchanges[-1] == result.ledger.exchanges
    assert all(s.run.algorithm is ALGORITHM for s in seen)
    for s in seen:  # each is the state of a run of that length
        short = go(rounds=s.round)
        for a, b in zip(*map(jax.tree.leaves, (s.state, short.state)), strict=True):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(s.solution[0], short.solution[0])


def test_without_a_period_it_is_called_at_the_evaluations():
    seen = []
    go(rounds=7, callback=lambda s: seen.append((s.round, len(s.history))))
    assert seen == [(3, 2), (6, 3), (7, 4)]


def test_true_stops_the_run_and_the_same_call_resumes_it_bit_for_bit(tmp_path):
    whole = go(rounds=9)
    stopped = go(rounds=9, directory=tmp_path, callback=lambda s: s.round == 4, callback_every=2)
    assert (stopped.status, stopped.rounds) == ("stopped", 4)
    assert stopped.history["round"].tolist() == [0, 3, 4]
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "stopped"
    resumed = go(rounds=9, directory=tmp_path)
    assert resumed.status == "finished"
    assert resumed.history.rows == whole.history.rows
    np.testing.assert_array_equal(resumed.solution[0], whole.solution[0])


@pytest.mark.parametrize("answer", [np.bool_, np.asarray, jnp.asarray], ids=lambda f: f.__name__)
def test_booleans_of_numpy_and_jax_stop_the_run_like_true(answer):
    stopped = go(callback=lambda s: answer(s.round == 3))
    assert (stopped.status, stopped.rounds) == ("stopped", 3)
    assert go(callback=lambda s: answer(False)).status == "finished"


def test_other_answers_and_things_that_are_no_function_are_errors():
    answers: list[Any] = [1, "yes", np.array([True]), jnp.float32(0)]
    for answer in answers:
        with pytest.raises(TypeError, match="callback must return True to end the run"):
            go(callback=lambda s, answer=answer: answer)
    three: Any = 3
    with pytest.raises(TypeError, match="callback must be a function"):
        go(callback=three)


@pytest.mark.slow
def test_one_run_of_a_sweep_is_stopped_alone():
    runs = [rk.Run(ALGORITHM, ZOO.start, seed) for seed in (0, 1)]
    results = rk.sweep(
        runs, ZOO.problem, POPULATION, rounds=6, callback=lambda s: s.run.seed == 1,
        callback_every=2,
    )  # fmt: skip
    assert [(r.status, r.rounds) for r in results] == [("finished", 6), ("stopped", 2)]


@pytest.mark.slow
def test_every_engine_tells_the_cohort_of_every_exchange():
    of_engine = {}
    for engine in (rk.Eager(), rk.Compiled(), Remote()):
        seen = []
        # the first call comes after a chunk of two rounds
        go(rounds=3, engine=engine, callback=seen.append, callback_every=2)
        assert [s.round for s in seen] == [2, 3]
        for s in seen:
            assert all(len(set(c)) == 2 and set(c) <= {0, 1, 2, 3} for c in s.cohorts)
        assert len(seen[1].cohorts) == seen[1].ledger.exchanges - seen[0].ledger.exchanges
        of_engine[type(engine).__name__] = [s.cohorts for s in seen]
    assert of_engine["Eager"] == of_engine["Compiled"] == of_engine["Remote"]
    assert of_engine["Eager"][0] != of_engine["Eager"][1]


@pytest.mark.slow
def test_cohorts_of_a_sweep_and_of_polls_are_those_of_each_run():
    """The clients whose results an asynchronous server took, for each run of a batch."""
    clock = rk.delays.Clock(rk.delays.UniformDelay(1.0, 2.0))
    problem = rk.SingleLevel(lambda w, row: (w - row) ** 2, split="train")
    population = rk.Population.stacked(np.arange(5.0)[:, None])
    algorithm = rk.FedBuff(lr=0.1, buffer_size=2)

    def cohorts(engine):
        seen = {}
        rk.sweep(
            [rk.Run(algorithm, (np.zeros(()),), seed) for seed in (0, 1)], problem, population,
            rounds=3, clock=clock, engine=engine, callback_every=1,
            callback=lambda s: seen.update({(s.run.seed, s.round): s.cohorts}),
        )  # fmt: skip
        return seen

    of_compiled = cohorts(rk.Compiled())
    assert of_compiled == cohorts(rk.Eager())
    assert len(of_compiled) == 6 and len(set(of_compiled.values())) > 1


@pytest.mark.parametrize(
    "engine", some_slow([rk.Compiled(), Remote(), rk.Eager()], 2), ids=lambda e: str(e)[:6]
)
def test_a_callback_sees_the_round_s_metrics_and_stops_with_a_reason(engine):
    seen = []

    def callback(snapshot):
        seen.append((snapshot.round, snapshot.metrics))
        if snapshot.round == 4:
            raise rk.stop.StopRun("four is enough")

    result = go(engine=engine, callback=callback, callback_every=1)
    assert (result.status, result.rounds, result.message) == ("stopped", 4, "four is enough")
    measured = {"size": result.history["size"][1]}
    assert seen == [(1, {}), (2, {}), (3, measured), (4, {})]


@pytest.mark.parametrize("name", ["run", "sweep", "tune"])
def test_a_misspelt_keyword_names_the_function_that_was_called(name):
    with pytest.raises(TypeError, match=rf"^{name}\(\) .*'evalute'"):
        getattr(rk, name)(ALGORITHM, ZOO.problem, POPULATION, ZOO.start, rounds=1, evalute=[])
