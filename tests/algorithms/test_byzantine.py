"""BR-FedBi: its limits without an attack, under attack, and what robustness costs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arena import advance, assert_close, bilevel_maps, federation, solve, trajectory

import rookery as rk
from rookery.algorithms import BRFedBi, BRFedBiM, BRFedBiP
from rookery.program.aggregate import Attacked, CentredClipping, GeometricMedian, Krum, Mean, Median
from rookery.program.values import Placed

ALIKE = rk.zoo.quadratic_bilevel(n_clients=5, x_size=2, y_size=2, heterogeneity=0.0)
DIFFERENT = rk.zoo.quadratic_bilevel(n_clients=5, x_size=2, y_size=2)
NOISY = rk.zoo.quadratic_bilevel(n_clients=3, x_size=2, y_size=2, rows=4, noise=0.3)
RATES: dict[str, Any] = {"outer_lr": 0.05, "inner_lr": 0.1}


def end(zoo, algorithm, rule, rounds=1500):
    x = solve(zoo, algorithm, rounds, aggregate=rule).solution[0]
    return np.linalg.norm(x - zoo.solution()[0])


@pytest.mark.parametrize(
    "algorithm",
    [
        BRFedBi(**RATES, batch_size=2),
        BRFedBiM(**RATES, batch_size=2, momentum=0.0),
        BRFedBi(**RATES, batch_size=2, cached=True),
    ],
    ids=["plain", "no momentum", "cached, everyone"],
)
@pytest.mark.slow
def test_without_a_robust_rule_it_is_soba(algorithm):
    want, got = (trajectory(NOISY, one, 4) for one in (rk.SOBA(**RATES, batch_size=2), algorithm))
    np.testing.assert_allclose(got, want, rtol=1e-12)
    if not algorithm.is_kept and not algorithm.cached:
        np.testing.assert_array_equal(got, want)


@pytest.mark.slow
def test_page_that_always_refreshes_is_plain():
    page = BRFedBiP(**RATES, page=rk.parts.PAGE(1.0))
    want = trajectory(NOISY, rk.SOBA(**RATES), 4)
    np.testing.assert_allclose(trajectory(NOISY, page, 4), want, rtol=1e-12)
    # on all rows differences are exact, whoever refreshes
    page = BRFedBiP(**RATES, page=rk.parts.PAGE(0.4))
    np.testing.assert_allclose(trajectory(NOISY, page, 4), want, rtol=1e-12)


def test_momenta_by_hand():
    u, m, beta = [np.zeros(2)] * 3, None, 0.8
    for _ in range(3):
        each = [maps(*u) for maps in bilevel_maps(NOISY)]
        new = [np.mean(b, 0) for b in zip(*each, strict=True)]
        m = new if m is None else [beta * a + (1 - beta) * b for a, b in zip(m, new, strict=True)]
        u = [b - lr * d for b, lr, d in zip(u, (0.05, 0.1, 0.1), m, strict=True)]
    state, (ledger, *_) = advance(NOISY, BRFedBiM(**RATES, momentum=beta), 3, rk.Compiled())
    assert_close(state[:3], tuple(u), rtol=1e-12)
    assert (ledger.exchanges, ledger.bytes_up, ledger.bytes_down) == (1, 3 * 6 * 8, 3 * 6 * 8)


@pytest.mark.parametrize(
    ("rule", "error"), [(Median(), 1e-14), (Krum(bad=1), 1e-14), (GeometricMedian(), 1e-8)]
)
@pytest.mark.slow
def test_alike_clients_reach_the_solution_under_attack(rule, error):
    """Exactly; a geometric median is found by iteration, and is as near as that comes."""
    assert end(ALIKE, BRFedBi(**RATES), Attacked(rule, bad=1)) < error


@pytest.mark.slow
def test_clipping_ends_within_its_radius():
    """An attack within the radius counts in full: the error is of the radius' size."""
    errors = [
        end(ALIKE, BRFedBi(**RATES), Attacked(CentredClipping(radius=r), bad=1))
        for r in (0.1, 0.01)
    ]
    assert errors[1] < 0.1 and errors[1] < errors[0] / 3


@pytest.mark.slow
def test_the_mean_does_not_survive_and_robustness_costs_bias():
    assert end(ALIKE, BRFedBi(**RATES), Mean()) < 1e-12
    with pytest.warns(rk.stop.DivergenceWarning):
        result = solve(ALIKE, BRFedBi(**RATES), 300, aggregate=Attacked(Mean(), bad=1), guard=None)
    assert result.status == "diverged"
    free = end(DIFFERENT, BRFedBi(**RATES), Median())
    assert free > 0.3  # nobody attacks, and the median is biased
    assert end(DIFFERENT, BRFedBi(**RATES), Attacked(Median(), bad=1)) > free
    assert end(DIFFERENT, BRFedBi(**RATES), Mean()) < 1e-14


@pytest.mark.slow
def test_momenta_of_all_outvote_a_byzantine_majority_of_a_cohort():
    """Two of five are Byzantine: a cohort of two or three may have a majority of them."""
    settings: dict[str, Any] = {**RATES, "momentum": 0.5, "clients": 3}
    cached = BRFedBi(**settings, cached=True)
    assert end(ALIKE, cached, Attacked(Median(), bad=2)) < 1e-6


def test_variables_are_aggregated_each_by_itself():
    """Krum takes the second variable from another client than the first."""
    replies = (jnp.array([0.0, 0.1, 0.2, 9.0, 8.0]), jnp.array([9.0, 7.0, 0.2, 0.1, 0.0]))
    fed = federation(DIFFERENT, is_eager=True)
    fed.aggregate = Krum(bad=1)
    cohort = fed.sample(rk.participation.Everyone(), jax.random.key(0))
    first, second = fed.mean(Placed(cohort, replies, is_stacked=True), apart=True)
    assert float(first) == pytest.approx(0.1) and float(second) == pytest.approx(0.1)


def test_settings_are_checked():
    with pytest.raises(ValueError, match=r"momentum=0.9 and page"):
        BRFedBi(**RATES, momentum=0.9, page=rk.parts.PAGE(0.1))
    with pytest.raises(ValueError, match=r"BRFedBiM"):
        BRFedBiM(**RATES, clients=rk.participation.WithReplacement(2))
