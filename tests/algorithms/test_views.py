"""Views against closed forms: their maps are zero at the solution, and the first is a gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arena import solve

import rookery as rk
from rookery.algorithms.shared.views import view_of
from rookery.problem.sample import Rows


def mean_maps(zoo, view, blocks):
    """The mean over clients of each client's own maps."""
    n = len(view.splits(zoo.problem))
    clients = jax.tree.leaves(zoo.data)[0].shape[0]
    blocks = jax.tree.map(jnp.asarray, blocks)

    def of(i):
        sample = Rows({name: jnp.asarray(a[i]) for name, a in zoo.data.items()})
        return view.maps(zoo.problem, blocks, (sample,) * n)

    return jax.tree.map(lambda *each: sum(each) / clients, *map(of, range(clients)))


def assert_zero(maps):
    for leaf in jax.tree.leaves(maps):
        np.testing.assert_allclose(leaf, 0, atol=1e-12)


def test_bilevel():
    zoo = rk.zoo.quadratic_bilevel(n_clients=3, x_size=2, y_size=3)
    x = np.array([0.5, -1.0])
    y = zoo.inner_solution(x)
    P, *others = mean_maps(zoo, rk.parts.BilevelView(), (x, y, zoo.adjoint(x, y)))
    np.testing.assert_allclose(P, zoo.hypergradient(x), rtol=1e-12)
    assert_zero(others)
    # away from y*(x) the third map is the residual of  H v = f_y
    y, v = y + 1, np.array([1.0, 2.0, -1.0])
    H = zoo.H.mean((0, 1))
    maps = mean_maps(zoo, rk.parts.BilevelView(), (x, y, v))
    np.testing.assert_allclose(maps[2], H @ (v - zoo.adjoint(x, y)), atol=1e-12)
    np.testing.assert_allclose(maps[1], H @ (y - zoo.inner_solution(x)), atol=1e-12)


def test_minimax():
    zoo = rk.zoo.saddle(curvature=1.0, n_clients=3, x_size=2, y_size=3)
    x = np.array([0.5, -1.0])
    P, S = mean_maps(zoo, rk.parts.MinimaxView(), (x, zoo.inner_solution(x)))
    np.testing.assert_allclose(P, zoo.gradient(x), rtol=1e-12)
    assert_zero(S)
    assert_zero(mean_maps(zoo, rk.parts.MinimaxView(), zoo.solution()))


def test_multisequence():
    zoo = rk.zoo.linear_sequences(n_clients=3, sizes=(2, 1))
    u = (np.array([1.0, 2.0]), np.array([3.0]))
    for got, want in zip(mean_maps(zoo, rk.parts.SequencesView(), u), zoo.residual(u), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)


def adjoints(zoo, x):
    """The adjoints at x with exact values between the layers, a_1 first."""
    means = [A.mean((0, 1)) for A in zoo.matrices]
    a = [zoo.levels(x)[-1] - zoo.target.mean((0, 1))]
    for A in reversed(means[1:]):
        a.insert(0, A.T @ a[0])
    return a


@pytest.mark.parametrize("sizes", [(2, 2), (2, 3, 2), (2, 2, 3, 3)])  # N = 1, 2, 3
def test_composition_by_adjoints_is_exact_however_clients_differ(sizes):
    zoo = rk.zoo.linear_chain(n_clients=3, sizes=sizes, spread=0.6)
    x = np.array([0.5, -1.0])
    values = zoo.levels(x)
    P, *others = mean_maps(zoo, rk.parts.AdjointView(), (x, *values, *adjoints(zoo, x)))
    np.testing.assert_allclose(P, zoo.gradient(x), rtol=1e-12)
    assert_zero(others)
    # the paper's product of a client's own Jacobians: values as exact, x's map is not
    P, *others = mean_maps(zoo, rk.parts.ProductView(), (x, *values))
    assert_zero(others)
    assert np.linalg.norm(P - zoo.gradient(x)) > 0.02 * np.linalg.norm(zoo.gradient(x))


@pytest.mark.parametrize("sizes", [(2, 2), (2, 3, 2), (2, 2, 3, 3)])
def test_the_papers_product_is_exact_for_identical_clients(sizes):
    zoo = rk.zoo.linear_chain(n_clients=2, sizes=sizes, heterogeneity=0.0)
    x = np.array([0.5, -1.0])
    values = zoo.levels(x)
    product = mean_maps(zoo, rk.parts.ProductView(), (x, *values))
    adjoint = mean_maps(zoo, rk.parts.AdjointView(), (x, *values, *adjoints(zoo, x)))
    for a, b in zip(product, adjoint, strict=False):
        np.testing.assert_allclose(a, b, atol=1e-12)
    np.testing.assert_allclose(product[0], zoo.gradient(x), rtol=1e-12)


def test_levels_that_are_trees():
    zoo = rk.zoo.mean_semideviation(n_clients=2, rows=20, size=3)
    (x,) = zoo.solution()
    U = (zoo.b - (zoo.a @ x) ** 2) ** 2
    over = np.maximum(0, U - U.mean())
    s, t = U.mean(), (over**2).mean()
    r = zoo.a @ x
    U_x = (-4 * r * (zoo.b - r**2))[..., None] * zoo.a
    slope = zoo.weight / (2 * np.sqrt(t + zoo.delta))
    a_1 = (slope * (2 * over[..., None] * U_x).mean((0, 1)), 1 - 2 * slope * over.mean())
    blocks = (x, (x, s), (s, t), a_1, (np.array(1.0), slope))
    blocks = jax.tree.map(np.asarray, blocks)
    for leaf in jax.tree.leaves(mean_maps(zoo, view_of(zoo.problem), blocks)):
        np.testing.assert_allclose(leaf, 0, atol=1e-9)


def test_the_natural_view_and_what_does_not_fit():
    chain = rk.zoo.linear_chain().problem
    assert isinstance(view_of(chain), rk.parts.AdjointView)
    assert isinstance(view_of(chain, rk.parts.ProductView()), rk.parts.ProductView)
    with pytest.raises(TypeError, match="BilevelView is a view of Bilevel problems, got Compos"):
        view_of(chain, rk.parts.BilevelView())
    with pytest.raises(TypeError, match="only Bilevel, Minimax, Composition, MultiSequence"):
        view_of(rk.zoo.robust_quadratic().problem)
    bare = rk.Composition(chain.layers)
    with pytest.raises(ValueError, match="z_1 to z_2, the values between the layers, need initial"):
        view_of(bare)
    with pytest.raises(ValueError, match="3 layers need 2 initial values, got 1"):
        view_of(bare, rk.parts.AdjointView(starts=(jnp.zeros(4),)))
    with pytest.raises(ValueError, match=r"starts.*2.*got 1"):
        rk.Composition(chain.layers, starts=(np.zeros(4),))
    wrong = rk.Composition(chain.layers, starts=(np.zeros(4), np.zeros(4)))
    row = {name: a[0, 0] for name, a in rk.zoo.linear_chain().data.items()}
    with pytest.raises(ValueError, match=r"starts\[1\] must be shaped like the value of layers\[1"):
        wrong.check((np.zeros(3),), lambda split: row)


@pytest.mark.parametrize("view", [rk.parts.AdjointView, rk.parts.ProductView])
@pytest.mark.parametrize("kind", [rk.FedMSA, rk.STSA])
def test_starts_of_another_shape_are_refused_before_the_first_round(kind, view):
    zoo = rk.zoo.linear_chain(n_clients=3, sizes=(1, 2))
    algorithm = kind(outer_lr=0.1, inner_lr=0.1, view=view(starts=(np.zeros(3),)))
    with pytest.raises(ValueError, match=r"starts\[0\] must be shaped like .*layers\[0\]"):
        solve(zoo, algorithm, 1)
