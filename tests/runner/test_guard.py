"""Guards: breakdown is noticed when it begins, and the run goes back with smaller steps."""

import json

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import rookery as rk
from rookery.algorithms.shared.step_rule import first_opt, move
from rookery.program.step_sizes import scale_steps
from rookery.remote import Remote
from rookery.runner.guard import Good, Guard, GuardState

POPULATION = rk.Population.stacked({"target": np.array([[1.0], [3.0]])})
PROBLEM = rk.SingleLevel(lambda w, row: (w - row["target"]) ** 2, split="train")
EVALUATE = [rk.metrics.OfSolution(lambda w: {"w": w})]
START = (jnp.asarray(0.0),)
SETTINGS = {"rounds": 100, "evaluate": EVALUATE, "evaluate_every": 3}
GUARD = Guard()


def fedavg(lr):
    """w - 2 is multiplied by 1 - 2 lr in every round: lr=1 is 2/L."""
    return rk.FedAvg(lr=lr, local_steps=1)


def go(lr, **kwargs):
    algorithm = lr if isinstance(lr, rk.FedAvg) else fedavg(lr)
    return rk.run(algorithm, PROBLEM, POPULATION, START, **{**SETTINGS, **kwargs})


def rolled(result):
    return [(one.round, one.to, one.factor) for one in result.rollbacks]


def test_a_step_beyond_two_over_l_recovers_and_every_number_is_known():
    with pytest.warns(rk.stop.RollBackWarning, match="rolled back 1 times, last in round 9"):
        result = go(1.9, guard=GUARD)
    # the steps of three rounds grow by 2.8^3 = 22: 22 after round 6, 482 after round 9
    assert rolled(result) == [(9, 0, 0.5)]
    assert (result.status, result.rounds, result.step_factor) == ("finished", 100, 0.5)
    # 91 rounds of lr=0.95 from the start
    np.testing.assert_allclose(result.solution[0], 2 - 2 * (-0.9) ** 91, rtol=1e-12)
    # the row of round 9 tells of the state that the run went back to
    assert result.history["w"][:5].tolist()[3] == 0.0
    assert result.ledger == go(0.3, guard=None).ledger  # the lost rounds were paid for
    (event,) = result.events
    assert (event.round, event.step, event.client) == (9, "guard", None)
    assert "back to round 0 with steps times 0.5" in event.reason


def test_a_guard_changes_no_bit_of_a_run_that_does_not_break_down():
    want, got = go(0.3, guard=None), go(0.3, guard=GUARD)
    assert got.history.rows == want.history.rows
    assert np.array_equal(got.solution[0], want.solution[0]) and got.rollbacks == ()


@pytest.mark.parametrize("broken_after", [8, 10])
@pytest.mark.filterwarnings("ignore::rookery.runner.run_state.RollBackWarning")
def test_a_run_killed_around_a_roll_back_resumes_to_the_same_numbers(tmp_path, broken_after):
    def crash(snapshot):
        if snapshot.round == broken_after:
            raise KeyError("a crash")

    settings = {"guard": GUARD, "checkpoint_every": 4, "callback_every": 1}
    want = go(1.9, guard=GUARD)
    with pytest.raises(KeyError):
        go(1.9, directory=tmp_path, callback=crash, **settings)
    got = go(1.9, directory=tmp_path, **settings)
    assert got.history.rows == want.history.rows
    assert got.rollbacks == want.rollbacks and got.ledger == want.ledger
    assert np.array_equal(got.solution[0], want.solution[0])
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [9]
    assert json.loads((tmp_path / "summary.json").read_text())["rollbacks"][0]["to"] == 0


@pytest.mark.filterwarnings("ignore::rookery.runner.run_state.RollBackWarning")
@pytest.mark.filterwarnings("ignore::rookery.runner.run_state.DivergenceWarning")
def test_lanes_are_independent():
    rates = [0.3, 1.9, 1e200, 0.4]
    runs = [rk.Run(fedavg(lr), START) for lr in rates]
    together = rk.sweep(runs, PROBLEM, POPULATION, **SETTINGS, guard=GUARD)
    for lr, got in zip(rates, together, strict=True):
        want = go(lr, guard=GUARD)
        assert got.status == want.status and rolled(got) == rolled(want)
        np.testing.assert_allclose(got.history["w"], want.history["w"], rtol=1e-12)
        assert got.ledger == want.ledger


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::rookery.runner.run_state.RollBackWarning")
@pytest.mark.filterwarnings("ignore::rookery.runner.run_state.DivergenceWarning")
@pytest.mark.parametrize("engine", [rk.Eager(), Remote(), rk.Compiled(rounds_per_call=2)])
@pytest.mark.parametrize("lr", [1.9, 1e200])
def test_every_engine_goes_back_in_the_same_round(engine, lr):
    want, got = (go(lr, rounds=15, guard=GUARD, engine=e) for e in (None, engine))
    assert rolled(got) == rolled(want) and want.rollbacks
    np.testing.assert_allclose(got.history["w"], want.history["w"], rtol=1e-12)
    assert got.ledger == want.ledger


def test_a_value_that_is_not_finite_is_taken_back_in_its_round_and_patience_ends():
    with pytest.warns(rk.stop.DivergenceWarning, match="after 2 roll-backs"):
        result = go(1e200, guard=Guard(times=2, factor=0.5))
    # round 1 leaves 4e200, round 2 overflows; the check after round 3 finds 2e200 out of scale, and
    # for the same state again steps shrink to a quarter
    assert rolled(result) == [(2, 0, 0.5), (3, 0, 0.125)]
    assert (result.status, result.rounds, result.solution[0]) == ("stopped", 5, 0.0)
    assert result.history["round"][-1] == 5 and result.history["w"][-1] == 0.0


@pytest.mark.slow
def test_a_run_that_was_given_up_stays_so_without_work(tmp_path):
    with pytest.warns(rk.stop.DivergenceWarning):
        first = go(1e200, guard=Guard(times=2), directory=tmp_path)
    with pytest.warns(rk.stop.DivergenceWarning):
        second = go(1e200, guard=Guard(times=2), directory=tmp_path)
    assert (second.status, second.rounds, second.message) == ("stopped", 5, first.message)
    assert second.history.rows == first.history.rows and second.rollbacks == first.rollbacks


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::rookery.runner.run_state.RollBackWarning")
@pytest.mark.parametrize(
    "rule",
    [
        rk.parts.ByRound(lambda round: jnp.asarray(1.9)),
        optax.sgd(1.9),
        rk.parts.Optimiser(optax.sgd, learning_rate=1.9),
        rk.parts.Decay(1.9, 1.0),
    ],
    ids=["ByRound", "ready-made", "Optimiser", "Decay"],
)
def test_all_step_rules_shrink_alone_and_in_lanes(rule):
    runs = [rk.Run(rk.FedAvg(lr=rule, local_steps=1), START, seed) for seed in (0, 1)]
    for result in rk.sweep(runs, PROBLEM, POPULATION, **SETTINGS, guard=GUARD):
        assert rolled(result) == [(9, 0, 0.5)]
        np.testing.assert_allclose(result.solution[0], 2 - 2 * (-0.9) ** 91, rtol=1e-12)


def test_all_step_sizes_of_an_algorithm_shrink_and_nothing_else_does():
    algorithm = rk.FedMBO(
        outer_lr=optax.adam(0.1), inner_lr=0.4, hypergradient=rk.parts.PHESum(lipschitz=5.0)
    )
    smaller = scale_steps(scale_steps(algorithm, 0.5), 0.5)
    assert smaller.inner_lr == 0.1
    assert smaller.hypergradient == rk.parts.PHESum(lipschitz=20.0)
    w = jnp.asarray([3.0])
    for rule, want in ((algorithm.outer_lr, 2.9), (smaller.outer_lr, 2.975)):
        moved, _ = move(rule, w, first_opt(rule, w), w, 0)
        np.testing.assert_allclose(moved, [want], rtol=1e-6)


def watch(values, goal, **settings):
    """In which evaluation a guard finds the metric wrong, what it says, and the best one."""
    seen = GuardState(Good(0, None), Good(0, ()))
    for i, value in enumerate(values):
        is_last = i == len(values) - 1
        said = seen.check_losses(Guard(**settings), {"m": value} if goal == "min" else {})
        said = said or seen.check_metric(Guard(**settings), ("m", goal), value, i, i, is_last)
        if said:
            return i, said, seen.good.round
    return None, "", seen.good.round


@pytest.mark.parametrize(
    ("values", "goal", "settings", "at", "said", "best"),
    [
        ([0.1, 0.8, 0.7, 0.6, 0.7], "max", {}, None, "", 1),  # noise
        ([0.1, 0.8, 0.15, 0.7, 0.2, 0.2, 0.8], "max", {}, 5, "86%", 1),  # twice in a row
        ([0.1, 0.8, 0.7, 0.1], "max", {}, 3, "100%", 1),  # at the end at once
        ([0.1, 0.13, 0.1, 0.1, 0.1], "max", {}, None, "", 1),  # no progress to lose
        ([0.1, 0.101, 0.1, np.nan], "max", {}, 3, "no longer finite", 0),  # no headway either
        ([0.1, 0.8, 0.74, 0.74, 0.8], "max", {"drop": 0.05}, 3, "drop=0.05", 1),
        ([0.1, 0.8, 0.74, 0.76, 0.8], "max", {"drop": 0.05}, None, "", 1),
        ([2.3, 1.0, 300.0], "min", {}, 2, "100 times", 1),
        ([2.3, 5.0, 5.0, 1.0], "min", {}, 2, "than at the start", 0),
        ([2.3, 0.3, 0.6, 0.9, 0.9], "min", {}, None, "", 1),  # overfitting is no breakdown
        ([2.3, 0.3, np.nan], "min", {}, 2, "no longer finite", 1),
        ([np.nan, 0.3, 0.2], "min", {}, None, "", 2),
    ],
)
def test_what_counts_as_a_breakdown_of_a_metric(values, goal, settings, at, said, best):
    found, text, good = watch(values, goal, **settings)
    assert (found, good) == (at, best) and said in text


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"factor": 1.0}, "factor of Guard must be below 1"),
        ({"factor": 0.0}, "factor of Guard must be above 0"),
        ({"times": 0}, "times of Guard"),
        ({"growth": 2.0}, "growth of Guard must be above 2, got 2.0"),
        ({"drop": -0.1}, "drop of Guard"),
        ({"patience": 0}, "patience of Guard"),
        ({"every": 0}, "every of Guard"),
    ],
)
def test_settings_are_checked(settings, said):
    with pytest.raises(ValueError, match=said):
        Guard(**settings)


def test_a_metric_must_be_measured_and_have_a_goal():
    with pytest.raises(ValueError, match="metric of Guard"):
        go(0.3, guard=Guard(metric="accuracy:max"))
    with pytest.raises(ValueError, match="is more of 'w' better"):
        go(0.3, guard=Guard(metric="w"))
    with pytest.raises(ValueError, match="needs a metric"):
        go(0.3, guard=Guard(drop=0.1))
    with pytest.raises(TypeError, match="guard must be a"):
        go(0.3, guard=True)


@pytest.mark.filterwarnings("ignore::rookery.runner.run_state.RollBackWarning")
def test_a_run_ends_at_its_best_less_the_drop():
    """w swings around 2 and decays to nothing; its best is the first evaluation."""
    result = go(0.9, rounds=6, guard=Guard(metric="w:max", drop=0.05))
    # |w - 2| = 2 0.8^r: w is 3.02 after round 3, and 1.48 after round 6
    assert rolled(result) == [(6, 3, 0.5)]
    np.testing.assert_allclose(result.solution[0], 2 + 2 * 0.8**3, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::rookery.runner.run_state.RollBackWarning")
def test_what_an_algorithm_does_in_its_first_round_it_does_again():
    """FedNest estimates L in rounds 0 and 10: without an estimate 1/L would be infinite."""
    zoo = rk.zoo.scalar_bilevel()
    result = rk.run(
        rk.FedNest(outer_lr=50.0, inner_lr=0.3),
        zoo.problem,
        rk.Population.stacked(zoo.data),
        zoo.start,
        rounds=400,
        evaluate_every=3,
        guard=GUARD,
    )
    assert result.rollbacks[0].to == 0 and result.rollbacks[0].round % 10
    np.testing.assert_allclose(result.solution[0], zoo.solution()[0], rtol=0.01)


def test_a_variable_that_swings_without_end_does_not_break_down():
    """Steps of a cosine pass through nothing and grow again, but never beyond what they were."""
    seen, guard = GuardState(Good(0, None), Good(0, (np.ones(1),))), Guard()
    for k in range(1, 400):
        w = (np.array([np.cos(0.0507 * k)]),)
        assert seen.check_variables(guard, k, k, w, ("w",)) == ""
    said = [seen.check_variables(guard, k, k, (np.array([2.0**k]),), ("w",)) for k in range(12)]
    assert any(said)
