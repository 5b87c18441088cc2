"""Adjoints from one cohort and one sample of each client (``fresh=False``)."""

import itertools
from dataclasses import replace

import jax
import numpy as np
import pytest
from arena import at, context, ledger, solve

import rookery as rk

ZOO = rk.zoo.quadratic_bilevel(n_clients=4, rows=3, noise=0.3)
X, Y = np.array([0.3, -0.2, 0.5]), np.linspace(-1, 1, ZOO.c.shape[-1])


def estimate(where, adjoint, key=1):
    """The adjoint at (X, Y), and the costs of it."""
    v, _ = adjoint.estimate(where, at(X, Y), jax.random.key(key))
    return np.asarray(v), ledger(where.fed)


def series(fresh, terms=3):
    return rk.parts.FedIHGPSum(terms=terms, lipschitz=5.0, fresh=fresh)


def right_side(rows):
    """f_y of all clients on some rows, [clients, rows, y]."""
    Q, d, E = (getattr(ZOO, name)[:, rows] for name in ("Q", "d", "E"))
    pull = np.einsum("crxy,x->cry", E, X)
    return np.einsum("crij,crj->cri", Q, Y - d) + pull


@pytest.mark.slow
def test_with_everyone_and_full_batches_nothing_changes():
    one, costs = estimate(context(ZOO), series(False))
    fresh, fresh_costs = estimate(context(ZOO), series(True))
    np.testing.assert_allclose(one, fresh, rtol=1e-13)
    assert costs == fresh_costs


@pytest.mark.slow
@pytest.mark.parametrize(
    "adjoint",
    [series(False, 200), rk.parts.FederatedCG(iterations=4, fresh=False)],
    ids=["series", "conjugate gradients"],
)
def test_v_solves_the_system_of_one_cohort(adjoint):
    v, _ = estimate(context(ZOO, rk.participation.Uniform(2)), adjoint)
    f_y, errors = right_side(slice(None)), []
    for pair in map(list, itertools.combinations(range(4), 2)):
        H = ZOO.H[pair].mean((0, 1))
        errors.append(np.abs(v - np.linalg.solve(H, f_y[pair].mean((0, 1)))).max())
    assert sorted(errors)[0] < 1e-10 < sorted(errors)[1]


@pytest.mark.slow
def test_the_same_rows_serve_every_product():
    """With one row of one client the series solves a system of rows that are in the data."""
    stretch = np.array([0.5, 1.0, 1.5])[:, None, None]
    zoo = replace(ZOO, H=ZOO.H * stretch)  # rows of a client differ
    v, _ = estimate(context(zoo, rk.participation.Uniform(1), 1), series(False, 400))
    f_y = right_side(slice(None))
    errors = [
        np.abs(v - np.linalg.solve(zoo.H[i, r], f_y[i, s])).max()
        for i, r, s in itertools.product(range(4), range(3), range(3))
    ]
    assert sorted(errors)[0] < 1e-9 < sorted(errors)[-1]


@pytest.mark.slow
def test_exchanges_and_products_are_billed_as_before_and_fewer_bytes_go_down():
    two = rk.participation.Uniform(2)
    _, one = estimate(context(ZOO, two, 2), series(False))
    _, fresh = estimate(context(ZOO, two, 2), series(True))
    assert replace(one, bytes_down=0) == replace(fresh, bytes_down=0)
    point, p = (X.size + Y.size) * 8, Y.size * 8
    assert one.bytes_down == 2 * (point + 3 * p)
    assert fresh.bytes_down > one.bytes_down


@pytest.mark.slow
def test_engines_agree():
    algorithm = rk.FedNest(outer_lr=0.05, inner_lr=0.1, ihgp=series(False), clients=2, batch_size=2)
    compiled, eager = (solve(ZOO, algorithm, 2, engine=e) for e in (rk.Compiled(), rk.Eager()))
    np.testing.assert_allclose(compiled.solution[0], eager.solution[0], rtol=1e-12)
    assert compiled.ledger == eager.ledger


def test_fresh_must_be_a_truth_value():
    with pytest.raises(TypeError, match="FedIHGPSum"):
        rk.parts.FedIHGPSum(fresh=1)  # pyright: ignore[reportArgumentType]
