import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk

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
        (rk.participation.Uniform(7), "7 different clients were asked for, but there are only 5"),
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
