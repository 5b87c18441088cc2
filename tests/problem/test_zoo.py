"""The zoo's closed forms against formulas written independently of them."""

import dataclasses
from functools import partial

import jax
import numpy as np
import pytest

from rookery.problem import zoo
from rookery.problem.bilevel import Bilevel, PersonalBilevel
from rookery.problem.composition import Composition, LocalComposition
from rookery.problem.conditional import Conditional
from rookery.problem.meta import Meta
from rookery.problem.minimax import Minimax
from rookery.problem.sample import Rows
from rookery.problem.single_level import SingleLevel
from rookery.problem.xrisk import XRisk

close = np.testing.assert_allclose


def each_row(member):
    """All rows of all clients, one after the other; their mean is the clients' mean."""
    flat = {name: a.reshape(-1, *a.shape[2:]) for name, a in member.data.items()}
    n = len(next(iter(flat.values())))
    return [{name: a[i] for name, a in flat.items()} for i in range(n)]


def mean(member, name):
    return np.mean([row[name] for row in each_row(member)], axis=0)


def bilevel_objective(member, x):
    y = np.linalg.inv(mean(member, "H")) @ (mean(member, "B") @ x + mean(member, "c"))
    return np.mean(
        [
            (y - row["d"]) @ row["Q"] @ (y - row["d"]) / 2
            + row["r"] @ x
            + member.m0 * x @ x / 2
            + x @ row["E"] @ y
            for row in each_row(member)
        ]
    )


def personal_objective(member, x):
    """The mean outer loss, every client at the minimum of its own inner loss."""
    clients = member.clients()
    return np.mean([bilevel_objective(client, x) for client in clients])


def saddle_objective(member, x):
    """The maximum over y of a concave quadratic, without its maximiser."""
    slope = mean(member, "b") - mean(member, "A") @ x
    return slope @ np.linalg.inv(mean(member, "D")) @ slope / 2 + x @ mean(member, "R") @ x / 2


def chain_objective(member, x):
    for n in range(len(member.matrices)):
        x = mean(member, f"A{n}") @ x + mean(member, f"a{n}")
    return np.mean([np.sum((x - row["t"]) ** 2) / 2 for row in each_row(member)])


def semideviation_objective(member, x):
    U = np.array([(row["b"] - (row["a"] @ x) ** 2) ** 2 for row in each_row(member)])
    above = np.where(U > U.mean(), U - U.mean(), 0)
    return U.mean() + member.weight * np.sqrt(np.mean(above**2) + member.delta)


def robust_losses(member, w):
    H, b, c = (a.mean(1) for a in member.data.values())
    return np.array([w @ H[i] @ w / 2 - b[i] @ w + c[i] for i in range(len(c))])


def mean_of_losses(member, w):
    return np.mean(robust_losses(member, w))


def robust_objective(member, w):
    return np.mean(np.exp(robust_losses(member, w) / member.gamma))


def maml_objective(member, w):
    values = []
    for A, b in zip(member.A.mean(1), member.b.mean(1), strict=True):
        u = w - member.adaptation_lr * (A @ w + b + w**2 / 2)
        values.append(u @ A @ u / 2 + b @ u + np.sum(u**3) / 6)
    return np.mean(values)


def gan_objective(member, x):
    """The maximum over the critic, by the formula for a concave quadratic."""
    mean = member.z.reshape(-1, member.z.shape[-1]).mean(0)
    return np.sum((mean - x) ** 2) / (2 * member.penalty)


def pair_objective(member, w):
    """Pair by pair."""
    a, b = (v.reshape(-1, v.shape[-1]) @ w for v in (member.a, member.b))
    inner = [np.mean([np.exp((1 - s + t) ** 2 / (2 * member.temperature)) for t in b]) for s in a]
    return np.mean(member.temperature * np.log(inner))


def conditional_objective(member, w):
    """Both means by hand."""
    rows = [
        np.sum((np.mean([(A + n) @ w for n in N], 0) - b) ** 2) / 2
        for A, b, N in zip(
            *(a.reshape(-1, *a.shape[2:]) for a in member.data.values()), strict=True
        )
    ]
    return np.mean(rows)


# per member: how to make it, its exact objective, and whether rows may scatter about their client
MEMBERS = {
    "quadratic_bilevel": (zoo.quadratic_bilevel, bilevel_objective, True),
    "personal_quadratic": (zoo.personal_quadratic, personal_objective, True),
    "saddle": (zoo.saddle, saddle_objective, True),
    "curved_saddle": (partial(zoo.saddle, curvature=1.0), saddle_objective, True),
    "dirac_gan": (partial(zoo.dirac_gan, penalty=0.7), gan_objective, True),
    "linear_chain": (zoo.linear_chain, chain_objective, True),
    "mean_semideviation": (zoo.mean_semideviation, semideviation_objective, False),
    "quadratic_losses": (zoo.quadratic_losses, mean_of_losses, True),
    "robust_quadratic": (zoo.robust_quadratic, robust_objective, True),
    "cubic_maml": (zoo.cubic_maml, maml_objective, True),
    "pair_risk": (zoo.pair_risk, pair_objective, False),
    "conditional_quadratic": (zoo.conditional_quadratic, conditional_objective, False),
}
NOISY = [name for name, (_, _, noisy) in MEMBERS.items() if noisy]
EVERY = {name: make for name, (make, _, _) in MEMBERS.items()} | {
    "linear_sequences": zoo.linear_sequences,
    "fednest_saddle": zoo.fednest_saddle,
}


def exact_gradient(member, x):
    if isinstance(member, zoo.QuadraticBilevel | zoo.PersonalQuadratic):
        return member.hypergradient(x)
    return member.gradient(x)


def relative(vector, scale):
    return np.linalg.norm(vector) / np.linalg.norm(scale)


def a_point(member, seed=7):
    """Somewhere of the size of the solution."""
    x = member.solution()[0]
    return x + 0.3 * np.random.default_rng(seed).normal(size=x.shape)


@pytest.mark.parametrize("name", MEMBERS)
def test_gradient_is_the_derivative_of_the_objective(name, differences):
    make, objective, _ = MEMBERS[name]
    member = make(seed=3)
    x = a_point(member)
    # a small step, as the semideviation is only once differentiable where U meets its mean
    numeric = differences(lambda x: objective(member, x), x, h=1e-4)
    close(exact_gradient(member, x), numeric, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", NOISY)
def test_gradient_with_scattered_rows(name, differences):
    make, objective, _ = MEMBERS[name]
    member = make(rows=3, noise=0.5)
    x = a_point(member)
    numeric = differences(lambda x: objective(member, x), x)
    close(exact_gradient(member, x), numeric, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", [*MEMBERS, "fednest_saddle"])
def test_gradient_vanishes_at_the_solution(name, seed):
    member = EVERY[name](seed=seed)
    x = member.solution()[0]
    assert relative(exact_gradient(member, x), exact_gradient(member, member.start[0])) < 1e-12


@pytest.mark.parametrize("name", MEMBERS)
def test_no_point_nearby_is_lower_than_the_solution(name):
    make, objective, _ = MEMBERS[name]
    member = make()
    x, rng = member.solution()[0], np.random.default_rng(0)
    lowest = objective(member, x)
    for _ in range(10):
        assert objective(member, x + 0.01 * rng.normal(size=x.shape)) > lowest


@pytest.mark.parametrize("name", [*NOISY, "linear_sequences"])
def test_scattered_rows_leave_the_full_batch_problem_unchanged(name):
    plain, scattered = EVERY[name](), EVERY[name](rows=4, noise=0.5)
    assert next(iter(scattered.data.values())).shape[1] == 4
    for a, b in zip(plain.solution(), scattered.solution(), strict=True):
        close(a, b, rtol=1e-10, atol=1e-12)
    assert any(np.ptp(a, axis=1).max() > 0.1 for a in scattered.data.values())


@pytest.mark.parametrize("name", [*MEMBERS, "linear_sequences"])
def test_without_heterogeneity_all_clients_are_equal(name):
    for a in EVERY[name](heterogeneity=0).data.values():
        close(a, np.broadcast_to(a[:1], a.shape), rtol=1e-12, atol=1e-14)
    assert any(np.ptp(a, axis=0).max() > 0.1 for a in EVERY[name]().data.values())


@pytest.mark.parametrize("name", EVERY)
def test_problem_accepts_its_start_and_keeps_its_type(name):
    for dtype in (np.float32, np.float64):
        member = EVERY[name](n_clients=3, dtype=dtype)
        row = {name: a[0, 0] for name, a in member.data.items()}
        asked = []
        member.problem.check(member.start, lambda split: asked.append(split) or row)  # noqa: B023
        assert set(asked) == {"train"}
        arrays = [*member.start, *member.data.values()]
        assert {a.dtype for a in arrays} == {np.dtype(dtype)}
        assert {len(a) for a in member.data.values()} == {3}


@pytest.mark.parametrize("name", EVERY)
def test_closed_forms_are_in_double_precision(name):
    single, double = EVERY[name](n_clients=3, dtype=np.float32), EVERY[name](n_clients=3)
    for a, b in zip(single.solution(), double.solution(), strict=True):
        assert a.dtype == np.float64
        close(a, b, rtol=1e-3, atol=1e-4)


def oracle_gradient(member, x):
    """The gradient put together from the problem's oracles, on all rows of all clients."""
    if isinstance(member, zoo.PersonalQuadratic):
        assert isinstance(member.problem, PersonalBilevel)
        return np.mean([oracle_gradient(client, x) for client in member.clients()], axis=0)
    if isinstance(member.problem, Bilevel | Minimax):
        y = member.inner_solution(x)  # in NumPy
        v = member.adjoint(x, y) if isinstance(member.problem, Bilevel) else None
        gradient, residual = jax.jit(partial(nested_oracles, member))(x, y, v)
        close(residual, np.zeros_like(y), atol=1e-12)
        return gradient
    return jax.jit(partial(composed_oracles, member))(x)


def all_rows(member):
    return Rows(jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), member.data))


def nested_oracles(member, x, y, v):
    """The gradient, and what must vanish at the exact inner solution and adjoint."""
    problem, rows = member.problem, all_rows(member)
    if isinstance(problem, Bilevel):
        gradient = problem.outer_grad_x(x, y, rows) - problem.inner_cross(x, y, v, rows)
        return gradient, problem.inner_hvp(x, y, v, rows) - problem.outer_grad_y(x, y, rows)
    return problem.grad_x(x, y, rows), problem.grad_y(x, y, rows)


def composed_oracles(member, x):
    problem, rows = member.problem, all_rows(member)
    if isinstance(problem, Composition):
        levels = [x]
        for n in range(len(problem.layers)):
            levels.append(problem.layer(n, levels[n], rows))
        cotangent = np.ones(())
        for n in reversed(range(len(problem.layers))):
            cotangent = problem.layer_vjp(n, levels[n], cotangent, rows)
        return cotangent
    if isinstance(problem, SingleLevel | Conditional):
        return problem.gradient(x, rows)
    if isinstance(problem, XRisk):
        return problem.gradient(x, rows, rows)
    assert isinstance(problem, LocalComposition | Meta)
    n_clients = len(member.b)
    own = [Rows(jax.tree.map(lambda a: a[i], member.data)) for i in range(n_clients)]  # noqa: B023
    return sum(problem.gradient(x, rows, rows) for rows in own) / n_clients


@pytest.mark.parametrize("name", MEMBERS)
def test_oracles_give_the_exact_gradient(name):
    make, _, noisy = MEMBERS[name]
    member = make(rows=2, noise=0.3) if noisy else make(rows=20)
    x = a_point(member)
    exact = exact_gradient(member, x)
    close(oracle_gradient(member, x), exact, rtol=1e-10, atol=1e-12 * abs(exact).max())


def test_scalar_bilevel_by_hand():
    member = zoo.scalar_bilevel()
    x, y = member.solution()
    close([x[0], y[0], member.adjoint(x, y)[0]], [-0.3, 0.4, -0.3], rtol=1e-14)
    at = 0.7  # Phi' = x - (y* - 1) / 2  with  y* = (1/2 - x) / 2
    close(member.hypergradient(np.array([at])), [at - ((0.5 - at) / 2 - 1) / 2], rtol=1e-14)


def test_hypergradient_is_not_the_mean_of_the_clients_own():
    """Every client solving its own inner problem gives another field, unless all are equal."""

    def own(member, x):
        fields = []
        for i in range(5):
            data = {name: a[i : i + 1] for name, a in member.data.items()}
            fields.append(dataclasses.replace(member, **data).hypergradient(x))
        return np.mean(fields, axis=0)

    different, equal = zoo.quadratic_bilevel(), zoo.quadratic_bilevel(heterogeneity=0)
    x = np.array([0.5, -1.0, 2.0])
    close(own(equal, x), equal.hypergradient(x), rtol=1e-12)
    exact = different.hypergradient(x)
    assert relative(own(different, x) - exact, exact) > 0.1


def test_quadratic_bilevel_without_cross_terms_by_the_normal_equations():
    member = zoo.quadratic_bilevel(cross=0)
    member = dataclasses.replace(member, Q=np.broadcast_to(np.eye(4), member.Q.shape))
    H, B, c, d, r = (mean(member, name) for name in ("H", "B", "c", "d", "r"))
    J = np.linalg.inv(H) @ B
    x = -np.linalg.inv(member.m0 * np.eye(3) + J.T @ J) @ (r + J.T @ (np.linalg.inv(H) @ c - d))
    close(member.solution()[0], x, rtol=1e-10)


def test_saddle_shares_its_curvature_and_reduces_to_ridge_regression():
    member = zoo.saddle(x_size=4, ridge=0.7, scale=2.0)
    close(member.D, np.broadcast_to(np.eye(4), member.D.shape))
    close(member.R, np.broadcast_to(0.7 * np.eye(4), member.R.shape))
    A, b = mean(member, "A"), mean(member, "b")
    x, y = member.solution()
    close(x, np.linalg.inv(A.T @ A + 0.7 * np.eye(4)) @ A.T @ b, rtol=1e-10)
    close(y, b - A @ x, rtol=1e-10)


@pytest.mark.parametrize("heterogeneity", [0.0, 1.0, 3.0])
def test_curved_saddle_is_a_saddle_on_every_client(heterogeneity):
    member = zoo.saddle(curvature=1.0, heterogeneity=heterogeneity, ridge=0.5)
    assert np.linalg.eigvalsh(member.D).min() > 1 - 1e-12
    assert np.linalg.eigvalsh(member.R).min() > 0.5 - 1e-12


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_fednest_saddle_is_the_papers(scale):
    member = zoo.fednest_saddle(scale=scale)
    t = member.A[:, 0, 0, 0]
    close(member.A[:, 0], t[:, None, None] * np.eye(10))
    assert t.min() > 0 and t.max() < 0.1 and abs(t.mean() - 0.05) < 0.005
    close(member.b.mean((0, 1)), np.zeros(10), atol=1e-13 * scale)
    assert abs(member.b.std() / scale - 1) < 0.05
    close(member.D[:, 0], np.broadcast_to(np.eye(10), (1000, 10, 10)))
    close(member.R[:, 0], np.broadcast_to(10 * np.eye(10), (1000, 10, 10)))
    x, y = member.solution()
    close(np.concatenate([x, y]), np.zeros(20), atol=1e-14 * scale)


def test_scalar_composition_by_hand():
    member = zoo.scalar_composition()
    close(member.solution()[0], [1.5], rtol=1e-14)
    close(member.gradient(np.array([4.0])), [2 * (2 * 4 - 3)], rtol=1e-14)


@pytest.mark.parametrize("sizes", [(2, 3), (3, 4, 5), (2, 2, 3, 4, 4)])
def test_product_of_own_jacobians_is_the_gradient_only_for_equal_clients(sizes):
    """Averaging every client's own product of Jacobians is FedMSA's printed map (its eq. 11)."""

    def field(member, x):
        z = member.levels(x)[-1]
        products = []
        for i in range(5):
            product = z - member.target[i, 0]
            for A in reversed(member.matrices):
                product = A[i, 0].T @ product
            products.append(product)
        return np.mean(products, axis=0)

    x = np.arange(1.0, sizes[0] + 1)
    equal, different = (zoo.linear_chain(sizes=sizes, heterogeneity=h) for h in (0, 1))
    assert len(equal.problem.layers) == len(sizes)
    close(field(equal, x), equal.gradient(x), rtol=1e-12)
    exact = different.gradient(x)
    assert relative(field(different, x) - exact, exact) > 1e-2


def test_levels_of_the_chain_are_the_roots_of_the_sequences():
    member = zoo.linear_chain()
    (x,) = member.solution()
    z = x
    for n, level in enumerate(member.levels(x)):
        z = mean(member, f"A{n}") @ z + mean(member, f"a{n}")
        close(level, z, rtol=1e-12)


def test_semideviation_has_two_opposite_minimisers_near_the_truth():
    member = zoo.mean_semideviation()
    (x,) = member.solution()
    assert relative(x - member.truth, member.truth) < 1e-4
    assert semideviation_objective(member, x) == semideviation_objective(member, -x)
    close(member.gradient(-x), -member.gradient(x), atol=0)
    scale = np.linalg.norm(member.gradient(member.start[0]))
    assert np.linalg.norm(member.gradient(-x)) < 1e-12 * scale


def test_semideviation_measures_as_the_paper_does():
    member = zoo.mean_semideviation(rows=20_000, size=3, n_clients=1)
    noise = member.b - (member.a @ member.truth) ** 2
    assert abs(noise.std() - 0.001) < 5e-5
    M = np.random.default_rng(0).normal(size=(3, 3))  # the first numbers of the same seed
    values, basis = np.linalg.eigh(M.T @ M)
    covariance = basis @ np.diag(np.sqrt(values)) @ basis.T
    close(np.cov(member.a[0].T), covariance, atol=0.05)


@pytest.mark.parametrize("heterogeneity", [0.0, 0.6, 1.0])
def test_semideviation_rows_have_one_law_whatever_the_heterogeneity(heterogeneity):
    member = zoo.mean_semideviation(rows=20_000, size=2, heterogeneity=heterogeneity)
    close(np.cov(member.a[0].T), np.cov(member.a[1].T), atol=0.05)
    correlation = np.corrcoef(member.a[0, :, 0], member.a[1, :, 0])[0, 1]
    assert abs(correlation - (1 - heterogeneity**2)) < 0.03


@pytest.mark.parametrize("gamma", [0.1, 1.0, 10.0])
def test_robust_objective_is_the_worst_mean_less_its_divergence(gamma):
    member = zoo.robust_quadratic(gamma=gamma)
    w, rng = np.array([1.0, -0.5, 0.2, 0.8]), np.random.default_rng(0)
    f = robust_losses(member, w)
    close(member.losses(w), f, rtol=1e-12)

    def dual(r):
        return r @ f - gamma * np.sum(r * np.log(len(r) * r))

    primal = gamma * np.log(np.mean(np.exp(f / gamma)))
    close(dual(member.weights(w)), primal, rtol=1e-10)
    assert all(dual(rng.dirichlet(np.ones(5))) <= primal for _ in range(1000))


def test_small_gamma_protects_the_worst_client():
    worst = []
    for gamma in (100.0, 1.0, 0.01):
        member = zoo.robust_quadratic(gamma=gamma)
        worst.append(member.losses(member.solution()[0]).max())
    assert worst[0] > worst[1] > worst[2]


def test_large_losses_do_not_spoil_the_solution():
    member = zoo.robust_quadratic()
    shifted = dataclasses.replace(member, c=member.c + 1000)
    close(shifted.solution()[0], member.solution()[0], rtol=1e-9)


def test_maml_without_adaptation_is_the_plain_mean():
    member = zoo.cubic_maml(adaptation_lr=0.0)
    (w,) = member.solution()
    close(mean(member, "A") @ w + mean(member, "b") + w**2 / 2, np.zeros(4), atol=1e-14)


def test_maml_as_a_composition_has_the_same_values_and_gradients():
    member = zoo.cubic_maml(n_clients=2, rows=3, noise=0.5)
    w = a_point(member)
    samples = [Rows(jax.tree.map(lambda a: a[i], member.data)) for i in range(2)]  # noqa: B023
    for oracle in ("value", "gradient"):
        own, composed = (getattr(p, oracle)(w, *samples)
                         for p in (member.problem, member.composition))  # fmt: skip
        close(own, composed, rtol=1e-12)
    close(member.losses(w), [member.problem.value(w, s, s) for s in samples], rtol=1e-12)
    close(member.gradients(w).mean(0), member.gradient(w), rtol=1e-12)


def test_sequences_vanish_at_the_solution_and_agree_with_the_oracle():
    member = zoo.linear_sequences(rows=3, noise=0.5)
    solution = member.solution()
    assert [len(block) for block in solution] == [3, 2, 4]
    close(np.concatenate(member.residual(solution)), np.zeros(9), atol=1e-13)

    blocks = tuple(block + 1 for block in solution)
    joined = np.concatenate(blocks)
    expected = np.mean([row["M"] @ joined + row["c"] for row in each_row(member)], axis=0)
    close(np.concatenate(member.residual(blocks)), expected, rtol=1e-12)
    rows = Rows(jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), member.data))
    close(np.concatenate(member.problem.maps(blocks, rows)), expected, rtol=1e-12)


@pytest.mark.parametrize("heterogeneity", [0.0, 1.0, 10.0])
def test_mean_map_of_the_sequences_is_stable_for_any_steps_per_block(heterogeneity):
    member = zoo.linear_sequences(heterogeneity=heterogeneity, coupling=0.9)
    M, rng = mean(member, "M"), np.random.default_rng(0)
    assert np.linalg.eigvalsh((M + M.T) / 2).min() > 0.1 - 1e-9
    assert np.linalg.cond(M) < 20
    for _ in range(20):
        steps = np.repeat(10.0 ** rng.uniform(-2, 2, size=3), [3, 2, 4])
        assert np.linalg.eigvals(steps[:, None] * M).real.min() > 0
