"""Private rows: DP-SGD inside local steps, the same on every engine, and what is refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.algorithms import F2SA
from rookery.clients.local_client import LocalClient
from rookery.problem import OverBatch, OverPairs
from rookery.program.row_privacy import PrivateClient, RowPrivate
from rookery.program.step import python_loop, traced_loop
from rookery.remote import Remote

LOSSES = rk.zoo.quadratic_losses(n_clients=4, size=2, rows=5, noise=0.3)
TINY = rk.zoo.quadratic_bilevel(n_clients=4, x_size=1, y_size=2, rows=5, noise=0.3)
FEDAVG = rk.FedAvg(lr=0.1, local_steps=2, clients=2, batch_size=2)
FIRST_ORDER = F2SA(outer_lr=0.05, inner_lr=0.1, clients=2, batch_size=2)


def private(algorithm: Any = FEDAVG, clip=0.5, noise=0.7, delta=None, **settings) -> RowPrivate:
    return RowPrivate(algorithm, clip=clip, noise=noise, delta=delta, **settings)


def finished(zoo, algorithm, rounds=3, **settings):
    population = rk.Population.stacked(zoo.data)
    return rk.run(algorithm, zoo.problem, population, zoo.start, rounds=rounds, **settings)


def assert_equal(a, b, rtol=0.0):
    jax.tree.map(
        lambda p, q: np.testing.assert_allclose(p, q, rtol=rtol, atol=rtol), a.solution, b.solution
    )


@pytest.mark.parametrize("engine", [rk.Compiled(), rk.Eager()], ids=["compiled", "eager"])
def test_without_clip_and_noise_it_is_the_plain_run_bit_for_bit(engine):
    plain = finished(LOSSES, FEDAVG, engine=engine)
    same = finished(LOSSES, private(clip=np.inf, noise=0), engine=engine)
    assert_equal(plain, same)
    assert plain.ledger == same.ledger


@pytest.mark.slow
@pytest.mark.parametrize(
    ("zoo", "algorithm"),
    [
        (LOSSES, FEDAVG),
        pytest.param(TINY, FIRST_ORDER, marks=pytest.mark.slow),
        pytest.param(LOSSES, rk.Scaffold(lr=0.1, local_steps=2, clients=2), marks=pytest.mark.slow),
    ],
    ids=["FedAvg", "F2SA", "Scaffold"],
)
def test_engines_agree_on_the_noise_and_the_ledger(zoo, algorithm):
    engines = [rk.Eager(), rk.Compiled(), Remote()]
    eager, compiled, remote = [finished(zoo, private(algorithm), engine=e) for e in engines]
    assert_equal(eager, compiled, rtol=1e-10)
    assert_equal(eager, remote, rtol=1e-10)
    assert eager.ledger == compiled.ledger == remote.ledger == finished(zoo, algorithm).ledger


def test_full_batches_without_noise_are_clipped_gradient_descent():
    zoo = rk.zoo.quadratic_losses(n_clients=1, size=2, rows=5, noise=0.3)
    plain = rk.FedAvg(lr=0.1, local_steps=3)
    w = np.asarray(zoo.start[0] if isinstance(zoo.start, tuple) else zoo.start)
    rows = [jax.tree.map(lambda leaf, r=r: leaf[0, r], zoo.data) for r in range(5)]
    gradient = jax.jit(jax.grad(zoo.problem.loss))
    for _ in range(2 * 3):
        each = np.stack([gradient(jnp.asarray(w), row) for row in rows])
        lengths = np.linalg.norm(each, axis=1, keepdims=True)
        assert (lengths > 0.5).any() and (lengths < 50).all()
        w = w - 0.1 * (each * np.minimum(1, 0.5 / lengths)).mean(axis=0)
    found = finished(zoo, private(plain, noise=0), rounds=2)
    np.testing.assert_allclose(found.solution[0], w, rtol=1e-12)


def client_of(rule: RowPrivate, rows: np.ndarray, key=None, loop=python_loop) -> PrivateClient:
    key = jax.random.key(0) if key is None else key
    own: Any = LocalClient(rk.Population.stacked(rows), 0, key, loop)
    return PrivateClient(own, rule, [])


def total(rows, weights):
    return weights @ rows


@pytest.mark.parametrize("size", [None, 3])
def test_the_noise_fits_the_number_of_rows(size):
    client = client_of(private(clip=0.5, noise=0.7), np.zeros((1, 8, 4000)))
    noise = client.draw("train", size, client.key).average(total)
    assert float(np.std(noise)) == pytest.approx(0.7 * 2 * 0.5 / (size or 8), rel=0.05)


def test_no_two_averages_share_their_noise():
    client = client_of(private(clip=0.5, noise=0.7), np.zeros((1, 8, 3)))
    sample, again = (client.draw("train", 2, client.key) for _ in range(2))
    found = [s.average(total) for s in (sample, sample, again)]
    looped = client.repeat(
        3,
        lambda i, rows: rows.at[i].set(client.draw("train", 2, client.key).average(total)),
        jnp.zeros((3, 3)),
    )
    values = np.concatenate([*found, *looped])
    assert len(np.unique(values)) == values.size


def test_rows_of_a_batch_differ_and_all_sets_are_drawn():
    @jax.jit
    @jax.vmap
    def draw(key):
        client = client_of(private(clip=100.0, noise=0), np.eye(5)[None], key, traced_loop)
        return client.draw("train", 3, jax.random.key(0)).average(total)

    sums = np.asarray(draw(jax.random.split(jax.random.key(1), 300)))
    assert all(np.isclose(np.sort(one), [0, 0, 1 / 3, 1 / 3, 1 / 3]).all() for one in sums)
    assert len({tuple(one > 0) for one in sums}) == 10


def test_samples_are_counted_by_their_averages():
    client = client_of(private(), np.zeros((1, 8, 3)))

    def turn(i, carry):
        sample = client.draw("train", 2, client.key)
        sample.average(total)
        sample.average(total)
        return carry

    client.repeat(4, turn, jnp.zeros(()))
    client.draw("train", None, client.key).average(total)
    draws = np.asarray(client.finish())
    assert draws[0, 2] == 4 and draws[1, 1] == 1 and draws.sum() == 5


def test_a_row_that_is_not_finite_does_not_show():
    rows = np.zeros((1, 4, 2))
    rows[0, 1] = np.nan
    client = client_of(private(noise=0), rows)
    assert np.isfinite(client.draw("train", None, client.key).average(total)).all()


@pytest.mark.parametrize(
    ("problem", "match"),
    [
        (rk.SingleLevel(OverPairs(lambda w, a, b: jnp.sum(w * a["b"] * b["b"]))), "over pairs"),
        (
            rk.SingleLevel(OverBatch(lambda w, rows, weights: jnp.sum(weights @ rows["b"] * w))),
            "over a batch",
        ),
    ],
)
def test_losses_of_several_rows_are_refused(problem, match):
    population = rk.Population.stacked({"b": np.ones((4, 5, 2))})
    with pytest.raises(ValueError, match=match):
        rk.run(private(), problem, population, (jnp.zeros(2),), rounds=1)


@pytest.mark.parametrize(
    ("zoo", "algorithm", "match"),
    [
        (TINY, rk.FedNest(outer_lr=0.05, inner_lr=0.1), "turns of a loop"),
        (LOSSES, rk.FedBuff(lr=0.1, buffer_size=2), "fed.poll"),
        (TINY, rk.FedNest(outer_lr=0.05, inner_lr=0.1, dealt=True, batch_size=2), "dealt batches"),
    ],
)
def test_programs_that_cannot_be_accounted_for_are_refused(zoo, algorithm, match):
    with pytest.raises(ValueError, match=match):
        finished(zoo, private(algorithm))


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="clip=inf"):
        private(clip=np.inf)
    with pytest.raises(ValueError, match="needs noise above 0 and a delta"):
        private(noise=0, delta=1e-5, epsilon=1.0)
    with pytest.raises(TypeError, match="private one, RowPrivateFedAvg"):
        private(private())
    with pytest.raises(TypeError, match="takes an algorithm first"):
        private(3)
