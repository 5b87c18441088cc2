import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.program.federation import slot_weights

P10 = jnp.full(10, 0.1)


def draws(rule, n_clients, probabilities, times=4000):
    keys = jax.random.split(jax.random.key(0), times)
    return np.asarray(jax.jit(jax.vmap(lambda k: rule.draw(k, n_clients, probabilities).ids))(keys))


@pytest.mark.parametrize("n", [1, 3, 9])
def test_uniform_draws_different_clients_each_equally_often(n):
    ids = draws(rk.participation.Uniform(n), 10, P10)
    assert all(len(set(row)) == n for row in ids.tolist())
    share = np.bincount(ids.ravel(), minlength=10) / ids.shape[0]
    np.testing.assert_allclose(share, n / 10, atol=4 * np.sqrt(n / 10 * (1 - n / 10) / 4000))


def test_uniform_makes_every_pair_equally_likely():
    ids = np.sort(draws(rk.participation.Uniform(2), 5, jnp.full(5, 0.2), 20000), axis=1)
    _, counts = np.unique(ids, axis=0, return_counts=True)
    assert len(counts) == 10
    np.testing.assert_allclose(counts / 20000, 0.1, atol=0.009)


def test_all_of_them_is_everyone():
    assert rk.participation.Uniform(4).draw(
        jax.random.key(0), 4, jnp.full(4, 0.25)
    ).ids.tolist() == [0, 1, 2, 3]


def test_weighted_follows_the_probabilities():
    p = jnp.array([0.5, 0.0, 0.2, 0.3])
    share = np.bincount(draws(rk.participation.Weighted(3), 4, p).ravel(), minlength=4) / 12000
    np.testing.assert_allclose(share, p, atol=0.015)
    assert share[1] == 0


def test_occurrences_number_the_slots_of_one_client():
    cohort = rk.participation.WithReplacement(6).draw(jax.random.key(3), 2, jnp.full(2, 0.5))
    seen: dict[int, int] = {}
    assert cohort.occurrence is not None
    for id, occurrence in zip(cohort.ids.tolist(), cohort.occurrence.tolist(), strict=True):
        assert occurrence == seen.get(id, 0)
        seen[id] = occurrence + 1


def test_distinct_is_the_first_active_slot_of_a_client():
    cohort = rk.participation.WithReplacement(6).draw(jax.random.key(3), 2, jnp.full(2, 0.5))
    first = cohort.ids.tolist().index(int(cohort.ids[0]))
    off = cohort.where(jnp.arange(6) != first)
    slots = [i for i, d in enumerate(off.distinct.tolist()) if d]
    assert first not in slots
    assert sorted(off.ids[jnp.array(slots)].tolist()) == sorted(set(off.ids[1:].tolist()))


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (rk.participation.Uniform(7), "7 different clients.*only 5"),
        (rk.participation.Fixed((0, 5)), r"no such client: \[5\]. Clients are 0 to 4"),
    ],
)
def test_rules_that_do_not_fit(rule, message):
    with pytest.raises(ValueError, match=message):
        rule.check(5)


def test_bad_rules():
    with pytest.raises(ValueError, match="at least 1, got -2"):
        rk.participation.Uniform(-2)
    with pytest.raises(ValueError, match="different clients"):
        rk.participation.Fixed((1, 1))
    with pytest.raises(TypeError, match="must be a whole number"):
        rk.FedNest(outer_lr=0.1, inner_lr=0.1, clients=0.5)  # pyright: ignore[reportArgumentType]


WEIGHTS = jnp.array([0.45, 0.2, 0.15, 0.1, 0.06, 0.04])
REPLIES = jnp.array([1.0, -3.0, 2.0, 5.0, -20.0, 40.0])


def mean_of_means(rule, weights=WEIGHTS, times=40_000):
    """The average of the cohorts' means, its standard error, and what it should be."""
    n = weights.shape[0]

    def one(key):
        cohort = rule.draw(key, n, weights)
        slots = slot_weights(weights, cohort.ids, cohort.active, cohort.counts)
        return slots @ REPLIES[:n][cohort.ids], jnp.sum(slots)

    means, sums = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(1), times))
    np.testing.assert_allclose(sums, 1, rtol=1e-12)
    error = float(means.std() / np.sqrt(times))
    return float(means.mean()), error, float(weights @ REPLIES[:n])


@pytest.mark.parametrize("n", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 5))])
def test_a_mean_by_weights_is_unbiased(n):
    for rule in (rk.participation.Proportional(n), rk.participation.Weighted(n)):
        mean, error, wanted = mean_of_means(rule)
        assert abs(mean - wanted) < 4 * error, rule


def test_a_uniform_cohort_is_biased_where_weights_differ_and_only_there():
    mean, error, wanted = mean_of_means(rk.participation.Uniform(2))
    assert abs(mean - wanted) > 20 * error
    mean, error, wanted = mean_of_means(rk.participation.Uniform(2), jnp.full(6, 1 / 6))
    assert abs(mean - wanted) < 4 * error


@pytest.mark.parametrize("n", [1, 2, 3, 5, 6])
def test_proportional_draws_different_clients_by_their_weights(n):
    ids = draws(rk.participation.Proportional(n), 6, WEIGHTS)
    assert all(len(set(row)) == n for row in ids.tolist())
    often = np.bincount(ids.ravel(), minlength=6) / ids.shape[0]
    if n == 2:  # nobody has more than half of the weight
        np.testing.assert_allclose(often, n * WEIGHTS, atol=0.03)
    if n == 3:  # the first would have 1.35: it is certain, and the others share the rest
        np.testing.assert_allclose(often, [1, *(2 * WEIGHTS[1:] / 0.55)], atol=0.03)


def test_proportional_with_equal_weights_makes_every_pair_equally_likely():
    ids = np.sort(draws(rk.participation.Proportional(2), 5, jnp.full(5, 0.2), 20000), axis=1)
    _, counts = np.unique(ids, axis=0, return_counts=True)
    np.testing.assert_allclose(counts / 20000, 0.1, atol=0.009)


def test_a_client_without_weight_is_never_drawn():
    weights = jnp.array([0.5, 0.0, 0.5, 0.0])
    cohort = rk.participation.Proportional(3).draw(jax.random.key(0), 4, weights)
    assert sorted(cohort.ids[cohort.active].tolist()) == [0, 2]


def test_proportional_in_a_run_of_every_engine():
    population = rk.Population.stacked(
        {"a": np.arange(8.0).reshape(4, 2)}, weights=[0.4, 0.3, 0.2, 0.1]
    )
    problem = rk.SingleLevel(lambda w, row: (w - row["a"]) ** 2)
    algorithm = rk.FedAvg(lr=0.1, clients=rk.participation.Proportional(2))
    runs = [
        rk.run(algorithm, problem, population, (jnp.zeros(()),), rounds=3, engine=engine)
        for engine in (rk.Compiled(), rk.Eager())
    ]
    np.testing.assert_allclose(*(run.solution[0] for run in runs), rtol=1e-12)
    assert runs[0].ledger == runs[1].ledger
