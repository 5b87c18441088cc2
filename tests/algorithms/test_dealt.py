"""FedInn on dealt batches: each row once a pass, and the gradient at the anchor once a batch."""

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arena import context, ledger, solve

import rookery as rk
from rookery.clients.local_client import LocalClient
from rookery.program.step import python_loop

ZOO = rk.zoo.quadratic_bilevel(n_clients=4, rows=5, noise=0.3)
X, Y = np.array([0.3, -0.2, 0.5]), np.linspace(-1, 1, ZOO.c.shape[-1])


def fedinn(where, steps, dealt):
    part = rk.parts.FedInn(lr=0.1, local_steps=steps, dealt=dealt)
    y, _ = part(where, jnp.asarray(X), jnp.asarray(Y), (), jax.random.key(1))
    return np.asarray(y), ledger(where.fed)


@pytest.mark.parametrize("size", [2, 4, None])
def test_every_row_is_in_one_batch(size):
    parts = [np.arange(7), np.arange(7, 10), np.arange(10, 11)]
    population = rk.Population.from_parts(np.arange(11.0), {"train": parts})
    for id, rows in enumerate(parts):
        client = LocalClient(population, id, jax.random.key(0), python_loop)
        deal = client.deal("train", size, client.key)
        assert deal.batches == {2: 4, 4: 2, None: 1}[size]
        samples = [deal.sample(b) for b in range(deal.batches)]
        kept = [sample.average(lambda *both: both) for sample in samples]
        seen = [np.asarray(rows)[np.asarray(weights) > 0] for rows, weights in kept]
        fractions = [float(deal.fraction(b)) for b in range(deal.batches)]
        sizes = [len(batch) for batch in seen]
        assert sorted(np.concatenate(seen).tolist()) == rows.tolist()
        assert max(sizes) - min(sizes) <= 1
        assert max(sizes) <= (size or 7)
        np.testing.assert_allclose(fractions, np.array(sizes) / len(rows), rtol=1e-12)


@pytest.mark.slow
def test_with_full_batches_nothing_changes_but_the_work():
    dealt, costs = fedinn(context(ZOO), 3, True)
    drawn, drawn_costs = fedinn(context(ZOO), 3, False)
    np.testing.assert_allclose(dealt, drawn, rtol=1e-12)
    assert costs.gradients == 4 * 5 * (1 + 2)  # clients, rows, anchor and two steps
    assert drawn_costs.gradients == 4 * 5 * (1 + 2 * 2)
    assert replace(costs, gradients=0) == replace(drawn_costs, gradients=0)


@pytest.mark.slow
def test_the_inner_solution_is_a_fixed_point_with_small_batches():
    y_star = jnp.asarray(ZOO.inner_solution(X))
    part = rk.parts.FedInn(lr=0.1, local_steps=4, dealt=True)
    where = context(ZOO, batch_size=2)
    y, _ = part(where, jnp.asarray(X), y_star, (), jax.random.key(1))
    np.testing.assert_allclose(y, y_star, rtol=1e-12)


def test_rows_are_billed_as_they_are_evaluated():
    _, costs = fedinn(context(ZOO, batch_size=2), 4, True)
    # batches of 2, 2 and 1 rows in turn: all for the anchor, one for each step but the first
    assert costs.gradients == 4 * (5 + 5)


def test_a_step_uses_the_rows_of_its_batch():
    """Two local steps of one client whose Hessians differ by row, against NumPy."""
    stretch = np.array([0.5, 0.7, 1.0, 1.3, 1.5])[:, None, None]
    zoo = rk.zoo.quadratic_bilevel(n_clients=1, rows=5, noise=0.3)
    zoo = replace(zoo, H=zoo.H * stretch)
    y, _ = fedinn(context(zoo, batch_size=3), 2, True)
    H, B, c = zoo.H[0], zoo.B[0], zoo.c[0]
    q = np.mean([H[r] @ Y - B[r] @ X - c[r] for r in range(5)], axis=0)
    first = Y - 0.1 * q
    ends = []
    for batch in map(list, itertools.combinations(range(5), 3)):
        drift = H[batch].mean(0) @ (first - Y)
        ends.append(first - 0.1 * (drift + q))
    errors = [np.abs(y - end).max() for end in ends]
    assert sorted(errors)[0] < 1e-14 < sorted(errors)[1]


@pytest.mark.slow
def test_engines_agree():
    algorithm = rk.FedNest(
        outer_lr=0.05, inner_lr=0.1, inner_steps=4, dealt=True, clients=2, batch_size=2
    )
    compiled, eager = (solve(ZOO, algorithm, 2, engine=e) for e in (rk.Compiled(), rk.Eager()))
    np.testing.assert_allclose(compiled.solution[0], eager.solution[0], rtol=1e-12)
    assert compiled.ledger == eager.ledger


def test_settings_that_do_not_go_together_are_refused():
    with pytest.raises(ValueError, match="anchor_batch=3"):
        rk.FedNest(outer_lr=0.1, inner_lr=0.1, dealt=True, anchor_batch=3)
