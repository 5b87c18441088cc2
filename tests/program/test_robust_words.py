"""Robust rules see every upload: words that would bypass them are refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.algorithms import EFSOBA, F2SA, BRFedBi, FedDyn, Scaffnew
from rookery.engines.engine import Program
from rookery.engines.rounds import one_round
from rookery.engines.traced import TracedFederation
from rookery.program.aggregate import Attacked, Krum, Mean, Median, TrimmedMean
from rookery.program.algorithm import first_state, numbers_to_arrays
from rookery.program.participation import Cohort
from rookery.program.values import Placed

RATES: dict[str, Any] = {"outer_lr": 0.05, "inner_lr": 0.1}
BILEVEL = rk.zoo.quadratic_bilevel(n_clients=7, x_size=2, y_size=2)
LOSSES = rk.zoo.quadratic_losses(n_clients=7, size=2)
EVERYONE = Cohort(jnp.arange(7), jnp.ones(7, bool))


def program(zoo, rule):
    population = jax.tree.map(jnp.asarray, rk.Population.stacked(zoo.data))
    return Program(zoo.problem, population, rk.delays.Clock(), rule)


def traced(zoo, algorithm, rule):
    """Trace a round, as every engine does before the first."""
    state = first_state(algorithm, zoo.problem, 7, zoo.start)

    def one(state, key):
        return one_round(program(zoo, rule), numbers_to_arrays(algorithm), None, state, key, 0)

    return jax.eval_shape(one, state, jax.random.key(0))


@pytest.mark.parametrize(
    ("zoo", "algorithm", "word"),
    [
        (LOSSES, rk.DRFA(lr=0.1, ascent_lr=0.1), "fed.stack"),
        (LOSSES, rk.AgnosticFL(lr=0.1, ascent_lr=0.1), "fed.stack"),
        (BILEVEL, rk.Prometheus(**RATES), "fed.stack"),
        (BILEVEL, rk.FedMBO(**RATES), "fed.stack"),
        (BILEVEL, rk.FedMSA(**RATES, clients=3, output=rk.parts.RandomIterate()), "fed.sum"),
        (BILEVEL, rk.AFBO(**RATES), "asynchronous"),
        (LOSSES, rk.FedAvg(lr=0.1, clients=rk.participation.Poisson(0.9)), "Poisson"),
        (BILEVEL, F2SA(**RATES), "PenaltyView"),
        (BILEVEL, EFSOBA(**RATES, codec=rk.parts.TopK(1)), "error_feedback=True"),
        (LOSSES, Scaffnew(lr=0.1, probability=0.5), "variates of Scaffnew"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_would_bypass_the_rule_is_refused_before_the_first_round(zoo, algorithm, word):
    with pytest.raises(ValueError, match=word):
        traced(zoo, algorithm, Median())


@pytest.mark.parametrize(
    ("zoo", "algorithm"),
    [
        (LOSSES, rk.ComFedL(lr=0.1, gamma=0.5)),
        (BILEVEL, rk.FedNest(**RATES, ihgp=rk.parts.FedIHGP(terms=2))),
        (BILEVEL, rk.SOBA()),
        (BILEVEL, BRFedBi(**RATES, cached=True)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_levels_and_measured_curvatures_go_through_the_rule(zoo, algorithm):
    traced(zoo, algorithm, Krum(bad=1))


def test_the_largest_of_all_leaves_out_as_many_as_may_lie():
    values = jnp.array([3.0, 1.0, jnp.nan, 2.0, 7.0, 5.0, 4.0])
    for rule, want in [(Krum(bad=1), 7.0), (TrimmedMean(2 / 7), 5.0), (Median(), 4.0)]:
        fed = TracedFederation(program(LOSSES, rule), 0, None)
        assert float(fed.largest(values, EVERYONE)) == want
    fed = TracedFederation(program(LOSSES, Mean()), 0, None)
    assert float(fed.largest(jnp.arange(7.0), EVERYONE.where(jnp.arange(7) < 4))) == 3.0
    attacked = TracedFederation(program(LOSSES, Attacked(Krum(bad=1), 1, 1e9)), 0, None)
    assert float(attacked.largest(jnp.ones(7), EVERYONE)) == 1.0


@pytest.mark.parametrize("lie", [1e9, -1e9, np.nan])
def test_a_client_that_outweighs_its_cohort_does_not_decide(lie):
    """Of all clients it has a tenth of the weight, of the cohort nine tenths."""
    replies = jnp.array([lie, 1.0, 2.0, 3.0])
    heavy = jnp.array([0.9, 0.03, 0.03, 0.04])
    for rule in (Median(), TrimmedMean(0.3), rk.aggregate.GeometricMedian()):
        assert 1 - 1e-6 <= float(rule(replies, heavy)) <= 3 + 1e-6
    equal = jnp.full(4, 0.25)
    assert float(TrimmedMean(0.25)(replies, equal)) == (1.5 if lie < 0 else 2.5)
    with pytest.raises(ValueError, match=r"heaviest of 3 clients has 0\.6"):
        Median().check(jnp.array([0.6, 0.2, 0.2]))


@pytest.mark.parametrize(
    "engine",
    [rk.Compiled(), pytest.param(rk.Eager(), marks=pytest.mark.slow)],
    ids=["compiled", "eager"],
)
def test_what_one_client_keeps_may_be_not_finite(engine):
    """SCAFFOLD's control variate of a client whose rows are absurd."""
    data = {name: array.copy() for name, array in LOSSES.data.items()}
    for array in data.values():
        array[0] = 1e200
    population = rk.Population.stacked(data)

    def end(rule):
        algorithm = rk.Scaffold(lr=0.1, local_steps=2)
        return rk.run(
            algorithm, LOSSES.problem, population, LOSSES.start, rounds=3, engine=engine,
            aggregate=rule, guard=None,
        )  # fmt: skip

    result = end(Krum(bad=1))
    assert result.status == "finished"
    assert np.isfinite(result.solution[0]).all()
    assert not np.isfinite(result.state.own.rows[0][0]).all()
    with pytest.warns(rk.stop.DivergenceWarning):
        assert end(Mean()).status == "diverged"


@pytest.mark.parametrize("rule", [Krum(bad=1), Attacked(Krum(bad=1), bad=1)])
def test_replies_of_a_stack_can_be_aggregated(rule):
    fed = TracedFederation(program(LOSSES, rule), 0, None)
    rows = Placed(EVERYONE, jnp.arange(7.0), is_stacked=True)
    with pytest.raises(ValueError, match=r"fed\.stack.*Krum"):
        fed.stack(rows)
    assert fed.stack(rows, is_aggregated=True).shape == (7,)


@pytest.mark.parametrize(
    "algorithm", [rk.Scaffold(lr=0.1), FedDyn(lr=0.1, alpha=0.5)], ids=["SCAFFOLD", "FedDyn"]
)
def test_a_variate_is_the_rules_value_and_no_sum_of_changes(algorithm):
    """Medians of changes do not add up to the median of what has changed."""
    population = rk.Population.stacked(LOSSES.data)
    on = LOSSES.problem, population, LOSSES.start
    state: Any = rk.run(algorithm, *on, rounds=3, aggregate=Median(), guard=None).state
    server = state.c if isinstance(algorithm, rk.Scaffold) else state.h
    middle = jax.tree.map(lambda rows: np.median(rows, axis=0), state.own.rows)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), server, middle)
