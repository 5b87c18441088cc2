"""Robust means against plain NumPy, and against clients that lie."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk

RNG = np.random.default_rng(0)
REPLIES = {"a": RNG.normal(size=(7, 3, 2)), "b": RNG.normal(size=7)}
EQUAL = jnp.full(7, 1 / 7)


def join(rule, replies, weights=EQUAL):
    return compiled(rule, jax.tree.map(jnp.asarray, replies), weights)


@eqx.filter_jit
def compiled(rule, replies, weights):
    return rule(replies, weights)


def without(slots, weights=EQUAL):
    weights = weights * jnp.array([0.0 if i in slots else 1.0 for i in range(weights.shape[0])])
    return weights / weights.sum()


@pytest.mark.parametrize("off", [(), (2,), (0, 6)])
def test_the_median_is_numpys(off):
    left = [i for i in range(7) if i not in off]
    got = join(rk.aggregate.Median(), REPLIES, without(off))
    for name, values in REPLIES.items():
        np.testing.assert_allclose(got[name], np.median(values[left], axis=0), rtol=1e-12)


def test_a_weighted_median_is_that_of_clients_counted_as_often_as_they_weigh():
    counts = np.array([1, 2, 4, 1, 3, 1, 3])
    got = join(rk.aggregate.Median(), REPLIES, jnp.asarray(counts / counts.sum()))
    for name, values in REPLIES.items():
        want = np.median(np.repeat(values, counts, axis=0), axis=0)
        np.testing.assert_allclose(got[name], want, rtol=1e-12)


@pytest.mark.parametrize("off", [(), (3,)])
def test_the_trimmed_mean_drops_the_extremes(off):
    left = [i for i in range(7) if i not in off]
    got = join(rk.aggregate.TrimmedMean(2 / len(left)), REPLIES, without(off))
    for name, values in REPLIES.items():
        want = np.sort(values[left], axis=0)[2:-2].mean(axis=0)
        np.testing.assert_allclose(got[name], want, rtol=1e-12)


def naive_krum(points, bad, keep):
    n = len(points)
    scores = []
    for i in range(n):
        others = sorted(float(np.sum((points[i] - points[j]) ** 2)) for j in range(n) if j != i)
        scores.append(sum(others[: n - bad - 2]))
    return np.argsort(scores)[:keep]


@pytest.mark.parametrize(("bad", "keep", "off"), [(1, 1, ()), (2, 3, ()), (1, 2, (4,))])
def test_krum_is_what_its_definition_says(bad, keep, off):
    left = [i for i in range(7) if i not in off]
    points = np.concatenate([REPLIES["a"].reshape(7, -1), REPLIES["b"][:, None]], axis=1)
    chosen = np.array(left)[naive_krum(points[left], bad, keep)]
    got = join(rk.aggregate.Krum(bad, keep), REPLIES, without(off))
    for name, values in REPLIES.items():
        np.testing.assert_allclose(got[name], values[chosen].mean(axis=0), rtol=1e-12)


@pytest.mark.parametrize(
    "rule", [rk.aggregate.Median(), rk.aggregate.TrimmedMean(2 / 7), rk.aggregate.Krum(2, 2)]
)
@pytest.mark.parametrize("lie", [1e9, -1e9, np.inf, np.nan])
def test_two_byzantine_clients_of_seven_are_tolerated(rule, lie):
    replies = {name: values.copy() for name, values in REPLIES.items()}
    for values in replies.values():
        values[[1, 5]] = lie
    honest = [0, 2, 3, 4, 6]
    got = join(rule, replies)
    for name, values in REPLIES.items():
        assert np.all(got[name] <= values[honest].max(axis=0) + 1e-12)
        assert np.all(got[name] >= values[honest].min(axis=0) - 1e-12)


def test_float32_stays_float32():
    replies = jnp.ones((5, 2), jnp.float32)
    for rule in (rk.aggregate.Median(), rk.aggregate.TrimmedMean(0.2), rk.aggregate.Krum()):
        got = rule(replies, jnp.full(5, 0.2))
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, 1.0, rtol=1e-6)


def test_what_makes_no_sense_is_refused():
    equal, unequal = jnp.full(4, 0.25), jnp.array([0.4, 0.2, 0.2, 0.2])
    with pytest.raises(ValueError, match="at least 5 clients"):
        rk.aggregate.Krum().check(equal)
    with pytest.raises(ValueError, match="as equals"):
        rk.aggregate.Krum().check(jnp.array([0.4, 0.15, 0.15, 0.15, 0.15]))
    with pytest.raises(ValueError, match="heaviest of 4"):
        rk.aggregate.TrimmedMean(0.25).check(unequal)
    rk.aggregate.TrimmedMean(0.25).check(equal)
    with pytest.raises(ValueError, match="at least 3"):
        rk.aggregate.Median().check(jnp.full(2, 0.5))
    with pytest.raises(ValueError, match=r"below 0\.5"):
        rk.aggregate.TrimmedMean(0.5)
    with pytest.raises(ValueError, match="needs at least 5 clients in every exchange, got 3"):
        join(rk.aggregate.Krum(), jnp.ones((3, 1)), jnp.full(3, 1 / 3))
    with pytest.raises(ValueError, match=r"trim=0.2.*at least 5 clients in every exchange, got 4"):
        join(rk.aggregate.TrimmedMean(0.2), jnp.ones((4, 1)), jnp.full(4, 1 / 4))


def test_a_run_refuses_a_mean_that_does_not_fit_its_clients():
    zoo = rk.zoo.quadratic_losses(n_clients=3, size=2)
    with pytest.raises(ValueError, match="at least 5 clients"):
        population = rk.Population.stacked(zoo.data)
        rk.run(
            rk.FedAvg(lr=0.1),
            zoo.problem,
            population,
            zoo.start,
            rounds=1,
            aggregate=rk.aggregate.Krum(),
        )


def test_a_cohort_that_is_too_small_for_the_rule_is_refused():
    zoo = rk.zoo.quadratic_losses(n_clients=6, size=2)
    population = rk.Population.stacked(zoo.data)
    for rule in (rk.aggregate.Krum(), rk.aggregate.TrimmedMean(0.2)):
        with pytest.raises(ValueError, match=r"at least 5 clients"):
            algorithm = rk.FedAvg(lr=0.1, clients=4)
            rk.run(algorithm, zoo.problem, population, zoo.start, rounds=1, aggregate=rule)


def weiszfeld(points, weights, steps=4000):
    """The geometric median in NumPy."""
    centre = np.average(points, axis=0, weights=weights)
    for _ in range(steps):
        pull = weights / np.maximum(np.linalg.norm(points - centre, axis=1), 1e-12)
        centre = pull @ points / pull.sum()
    return centre


def test_the_geometric_median_is_that_of_all_leaves_together():
    rng = np.random.default_rng(0)
    points, weights = rng.normal(size=(6, 5)), rng.uniform(size=6)
    weights /= weights.sum()
    replies = {"a": jnp.asarray(points[:, :2]), "b": jnp.asarray(points[:, 2:]).reshape(6, 3, 1)}
    got = rk.aggregate.GeometricMedian(iterations=500)(replies, jnp.asarray(weights))
    flat = np.concatenate([np.ravel(got["a"]), np.ravel(got["b"])])
    np.testing.assert_allclose(flat, weiszfeld(points, weights), atol=1e-6)
    moved = points.copy()
    moved[0] = np.nan  # does not count
    replies = jnp.asarray(moved)
    got = rk.aggregate.GeometricMedian(iterations=500)(replies, jnp.asarray(weights))
    np.testing.assert_allclose(got, weiszfeld(points[1:], weights[1:]), atol=1e-6)


def test_centred_clipping_moves_by_clipped_differences():
    replies, weights = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 40.0]]), np.full(3, 1 / 3)
    centre = np.median(replies, axis=0)
    for _ in range(2):
        far = replies - centre
        norms = np.maximum(np.linalg.norm(far, axis=1, keepdims=True), 1e-12)
        centre = centre + np.mean(far * np.minimum(1, 2.0 / norms), axis=0)
    rule = rk.aggregate.CentredClipping(radius=2.0, iterations=2)
    np.testing.assert_allclose(rule(jnp.asarray(replies), jnp.asarray(weights)), centre, rtol=1e-12)
    wide = rk.aggregate.CentredClipping(radius=1e6, iterations=1)
    np.testing.assert_allclose(wide(jnp.asarray(replies), jnp.asarray(weights)), replies.mean(0))


def test_an_attack_replaces_the_first_replies():
    replies = jnp.array([1.0, 2.0, 3.0])
    attacked = rk.aggregate.Attacked(rk.aggregate.Median(), bad=1, scale=-5.0)
    assert float(attacked(replies, jnp.full(3, 1 / 3))) == 2.0
    attacked = rk.aggregate.Attacked(rk.aggregate.Mean(), bad=2, scale=-5.0)
    assert float(attacked(replies, jnp.full(3, 1 / 3))) == pytest.approx((-5 - 10 + 3) / 3)
