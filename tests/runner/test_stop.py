"""Rules that end a run, the best iterate, and both after a kill."""

import math
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.engines.compiled import programs_compiled
from rookery.remote import Remote

ZOO = rk.zoo.quadratic_bilevel(n_clients=4, rows=6, noise=0.5)
POPULATION = rk.Population.stacked(ZOO.data)
ALGORITHM = rk.FedNest(
    outer_lr=0.1,
    inner_lr=0.1,
    ihgp=rk.parts.FedIHGP(terms=3, lipschitz=5.0),
    clients=2,
    batch_size=1,
)


SEEDS = (0, 1, 2)
EXACT = rk.FedNest(outer_lr=0.1, inner_lr=0.1, ihgp=rk.parts.FedIHGP(terms=3, lipschitz=5.0))


def distance(x, y):
    return {"distance": jnp.linalg.norm(x - jnp.asarray(ZOO.solution()[0]))}


def go(rounds=40, algorithm=ALGORITHM, **kwargs):
    kwargs = {"evaluate": [rk.metrics.OfSolution(distance)], "evaluate_every": 2, **kwargs}
    return rk.run(algorithm, ZOO.problem, POPULATION, ZOO.start, rounds=rounds, **kwargs)


# ---- the rules alone


@pytest.mark.parametrize(
    ("values", "rule", "ends_at"),
    [
        ([3, 2, 1, 1, 1], {"patience": 2, "goal": "min"}, 4),
        ([3, 2, 1, 1, 0], {"patience": 2, "goal": "min"}, None),
        ([3, 4, 5], {"patience": 2, "goal": "min"}, 2),
        ([3, 4, 5], {"patience": 2, "goal": "max"}, None),
        # better than the best by just 0.5 is not enough, and many small steps add up
        ([3.0, 2.5, 2.0], {"patience": 1, "goal": "min", "least": 0.5}, 1),
        ([3.0, 2.75, 2.25], {"patience": 2, "goal": "min", "least": 0.5}, None),
        ([1.0, math.nan, None], {"patience": 2, "goal": "max"}, 2),
        ([None, 1.0, 2.0], {"patience": 2, "goal": "max"}, None),
    ],
)
def test_a_plateau_counts_the_evaluations_since_the_last_improvement(values, rule, ends_at):
    watch = rk.stop.Plateau("f", **rule).watcher()
    reasons = [watch({"round": 10 * i, "f": value}) for i, value in enumerate(values)]
    assert next((i for i, reason in enumerate(reasons) if reason), None) == ends_at


def test_a_target_is_reached_from_its_own_side():
    rows = [{"round": i, "f": value} for i, value in enumerate([0.0, math.nan, 1.0, 2.0])]
    for rule, hits in (({"at_least": 1.0}, [2, 3]), ({"at_most": 0.5}, [0])):
        watch = rk.stop.Target("f", **rule).watcher()
        assert [row["round"] for row in rows if watch(row)] == hits


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rk.stop.Plateau("f", 0), "patience must be at least 1, got 0"),
        (lambda: rk.stop.Plateau("f", 1, least=-1.0), "least"),
        (lambda: rk.stop.Plateau("f", 1, goal=cast(Any, "up")), "unknown goal 'up'"),
        (lambda: rk.stop.Target("f"), "at_least or at_most"),
        (lambda: rk.stop.Target("f", 1.0, 2.0), "at_least=1.0, at_most=2.0"),
        (lambda: rk.stop.Budget(), "bytes, exchanges or both"),
        (lambda: rk.stop.Budget(bytes=0), "bytes must be"),
        (lambda: go(stop=rk.stop.Target("distnace", at_most=1)), "Did you mean 'distance'"),
        (lambda: go(stop=rk.stop.Plateau("distance", 3)), 'Write goal="max", or min'),
        (lambda: go(keep="best:distance"), 'Write keep="best:distance:max"'),
        (lambda: go(keep="last"), 'keep must be "best:METRIC:max"'),
        (lambda: go(keep="best:loss:min"), "unknown metric in keep 'loss'"),
        (lambda: go(keep="best:f:min", evaluate=[]), "measures nothing"),
        (lambda: go(growth_limit=0.0), "growth_limit must be"),
    ],
)
def test_bad_settings_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.usefixtures("wrong_types")
def test_a_rule_that_is_none_is_named():
    with pytest.raises(TypeError, match=r"stop must be a rule.*'plateau'"):
        go(stop="plateau")


def test_scores_and_losses_of_clients_know_which_way_is_better():
    def size(x, y, row):
        return jnp.sum(x**2)

    evaluation = rk.metrics.OnClients(losses={"f": size}, scores={"g": size}, split="train")
    numbers = evaluation(ZOO.start, POPULATION, jax.random.key(0))
    assert {n: evaluation.goals().get(n) for n in numbers} == {
        **{f"f/{s}": "min" for s in ("mean", "worst", "worst10")},
        **{f"g/{s}": "max" for s in ("mean", "worst", "worst10")},
        "f/variance": None,
        "g/variance": None,
    }
    result = go(evaluate=[evaluation], keep="best:f/mean", rounds=6)
    assert result.best.value == min(result.history["f/mean"])


# ---- a run under rules


def test_the_run_ends_at_the_first_evaluation_that_reaches_the_target(tmp_path):
    whole = go()
    reached = np.flatnonzero(whole.history["distance"] <= 1.0)[0]
    target = rk.stop.Target("distance", at_most=1.0)
    never = rk.stop.Target("distance", at_most=-1.0)
    stopped = go(stop=[never, target], directory=tmp_path)
    assert stopped.status == "stopped" and stopped.message.startswith("Target: distance is ")
    assert stopped.rounds == whole.history["round"][reached] < 40
    assert stopped.history.rows == whole.history.rows[: reached + 1]
    # the same call does no work; without the rule the run goes on as if it had never stopped
    again = go(stop=target, directory=tmp_path, callback=lambda s: 1 / 0, callback_every=1)
    assert (again.status, again.message) == ("stopped", stopped.message)
    assert again.history.rows == stopped.history.rows
    np.testing.assert_array_equal(again.solution[0], stopped.solution[0])
    longer = go(directory=tmp_path)
    assert longer.status == "finished" and longer.history.rows == whole.history.rows
    with pytest.raises(ValueError, match=f"stop ends the run after {stopped.rounds}"):
        go(stop=target, directory=tmp_path)


def test_a_target_that_the_start_meets_costs_no_round(tmp_path):
    result = go(stop=rk.stop.Target("distance", at_least=0.0), directory=tmp_path)
    assert (result.status, result.rounds, len(result.history)) == ("stopped", 0, 1)
    again = go(stop=rk.stop.Target("distance", at_least=0.0), directory=tmp_path)
    assert (again.status, again.rounds, len(again.history)) == ("stopped", 0, 1)


def test_a_budget_ends_at_the_last_evaluation_within_it(tmp_path):
    costs = go(rounds=8, evaluate_every=1).history
    nbytes, exchanges = costs["bytes_up"] + costs["bytes_down"], costs["exchanges"]
    budget = rk.stop.Budget(bytes=nbytes[7], exchanges=2 * exchanges[8])
    result = go(stop=budget, directory=tmp_path, checkpoint_every=1)
    assert (result.status, result.rounds) == ("stopped", 6)  # evaluated after even rounds
    assert result.ledger.bytes_up + result.ledger.bytes_down == nbytes[6]
    assert "bytes" in result.message
    again = go(stop=budget, directory=tmp_path, checkpoint_every=1)
    assert (again.rounds, again.history.rows) == (6, result.history.rows)
    np.testing.assert_array_equal(again.solution[0], go(rounds=6).solution[0])
    assert go(stop=rk.stop.Budget(exchanges=exchanges[4])).rounds == 4


@pytest.mark.parametrize("after", [5, 7])
def test_a_run_killed_near_the_end_of_its_budget_is_the_same(tmp_path, after):
    exchanges = go(rounds=6, evaluate_every=1).history["exchanges"]
    settings = {"stop": rk.stop.Budget(exchanges=exchanges[6]), "evaluate_every": 4}
    killed(tmp_path, **settings, checkpoint_every=1, after=after)
    result = go(**settings, checkpoint_every=1, directory=tmp_path)
    assert (result.status, result.rounds) == ("stopped", 4)
    assert result.history.rows == go(**settings).history.rows
    np.testing.assert_array_equal(result.solution[0], go(rounds=4).solution[0])


@pytest.mark.slow
def test_each_run_of_a_sweep_stops_for_itself():
    runs = [rk.Run(ALGORITHM, ZOO.start, seed) for seed in SEEDS]
    target = rk.stop.Target("distance", at_most=0.5)
    settings = {"evaluate": [rk.metrics.OfSolution(distance)], "evaluate_every": 2, "stop": target}
    results = rk.sweep(
        runs, ZOO.problem, POPULATION, rounds=40, keep="best:distance:min", **settings
    )
    assert len({r.rounds for r in results}) > 1
    for seed, result in zip(SEEDS, results, strict=True):
        alone = go(seed=seed, stop=target)
        assert (result.rounds, result.status) == (alone.rounds, alone.status)
        assert result.history["round"][-1] == result.rounds
        np.testing.assert_allclose(result.solution[0], alone.solution[0], rtol=1e-12)
        np.testing.assert_array_equal(result.best.solution[0], result.solution[0])


@pytest.mark.slow
def test_a_sweep_killed_when_some_runs_have_stopped_is_the_same_bit_for_bit(tmp_path):
    def sweep(folder, callback=None):
        runs = [rk.Run(ALGORITHM, ZOO.start, seed, tmp_path / folder / str(seed)) for seed in SEEDS]
        return rk.sweep(
            runs, ZOO.problem, POPULATION, rounds=40, evaluate=[rk.metrics.OfSolution(distance)],
            evaluate_every=2, stop=rk.stop.Target("distance", at_most=0.5), callback=callback,
        )  # fmt: skip

    ends = [result.rounds for result in sweep("whole")]
    assert len(set(ends)) == 3  # one of them is alone in the end

    def kill(snapshot):
        if snapshot.round > sorted(ends)[1]:
            raise Killed

    with pytest.raises(Killed):
        sweep("killed", kill)
    before = programs_compiled()
    assert [result.rounds for result in sweep("killed")] == ends
    assert programs_compiled() == before  # a program of another width could round differently
    for seed in SEEDS:
        for name in ("history.jsonl", "solution.safetensors", "summary.json"):
            read = [(tmp_path / f / str(seed) / name).read_bytes() for f in ("whole", "killed")]
            assert read[0] == read[1], (seed, name)


# ---- the best iterate


class Killed(Exception):
    pass


def killed(directory, after, **kwargs):
    """A run that ends without a word after some rounds."""

    def callback(snapshot):
        if snapshot.round == after:
            raise Killed

    with pytest.raises(Killed):
        go(rounds=40, directory=directory, callback=callback, callback_every=1, **kwargs)


def test_the_best_iterate_is_the_state_of_a_run_that_ends_there():
    result = go(keep="best:distance:min")
    values = result.history["distance"]
    assert result.best.value == values.min() and result.best.round == 2 * values.argmin()
    assert 0 < result.best.round < 40
    for best, short in zip(
        result.best.solution, go(rounds=result.best.round).solution, strict=True
    ):
        np.testing.assert_array_equal(best, short)
    assert go(rounds=2, keep="best:distance:max").best.round == 0
    with pytest.raises(ValueError, match="kept no best solution"):
        _ = go(rounds=2).best


def test_an_evaluation_at_the_end_counts_for_this_run_only(tmp_path):
    after_three = go(rounds=3, algorithm=EXACT).history.last("distance")

    def nearness(x, y):  # without noise the distance falls in every round: round 3 is the best
        return {"nearness": -jnp.abs(distance(x, y)["distance"] - after_three)}

    evaluate = [rk.metrics.OfSolution(nearness)]
    settings = {"algorithm": EXACT, "evaluate": evaluate, "keep": "best:nearness:max"}
    for _ in range(2):  # the second time it is read back
        assert go(rounds=3, directory=tmp_path, **settings).best.round == 3
    longer, whole = go(rounds=4, directory=tmp_path, **settings), go(rounds=4, **settings)
    assert longer.best.round == whole.best.round != 3
    for a, b in zip(longer.best.solution, whole.best.solution, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("engine", "after"),
    [
        (rk.Compiled(), 3),
        (rk.Compiled(), 15),
        pytest.param(Remote(), 15, marks=pytest.mark.slow),
        pytest.param(rk.Eager(), 5, marks=pytest.mark.slow),
    ],
    ids=["compiled 3", "compiled 15", "remote", "eager"],
)
def test_killed_and_resumed_with_plateau_and_best_is_the_same_bit_for_bit(tmp_path, engine, after):
    settings = {
        "engine": engine,
        "stop": rk.stop.Plateau("distance", patience=2, goal="min"),
        "keep": "best:distance:min",
        "checkpoint_every": 3,
    }
    whole = go(directory=tmp_path / "whole", **settings)
    assert whole.status == "stopped" and after < whole.rounds < 40
    assert 0 < whole.best.round == whole.rounds - 4
    killed(tmp_path / "killed", after=after, **settings)
    resumed = go(directory=tmp_path / "killed", **settings)
    again = go(directory=tmp_path / "killed", **settings)
    for other in (resumed, again):
        assert (other.status, other.rounds, other.message) == (
            whole.status,
            whole.rounds,
            whole.message,
        )
        assert (other.best.round, other.best.value) == (whole.best.round, whole.best.value)
    names = ["history.jsonl", "summary.json", "solution.safetensors", "best.safetensors"]
    names.append(f"checkpoints/round-{whole.rounds:09d}.safetensors")
    for name in names:
        assert (tmp_path / "killed" / name).read_bytes() == (
            tmp_path / "whole" / name
        ).read_bytes(), name


def test_another_keep_is_another_run(tmp_path):
    go(rounds=2, directory=tmp_path, keep="best:distance:min")
    with pytest.raises(ValueError, match="another keep"):
        go(rounds=2, directory=tmp_path)
