"""Parts that combine: problem classes, adjoints, and combinations no paper has named."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arena import at, context, federation, solve

import rookery as rk
from rookery.program.algorithm import numbers_to_arrays

ZOO = rk.zoo.quadratic_bilevel(n_clients=4)
CHAIN = rk.zoo.linear_chain(n_clients=4, sizes=(3, 4))
SADDLE = rk.zoo.saddle(curvature=1.0, n_clients=4)


# ---- compositions of two layers


def test_fednest_finds_the_solution_of_a_composition_and_returns_x_alone():
    algorithm = rk.FedNest(
        outer_lr=0.1,
        inner_lr=0.3,
        inner_rounds=2,
        inner_steps=3,
        outer_steps=2,
        inner_start=np.zeros(4),
    )
    solution = solve(CHAIN, algorithm, 500).solution
    assert len(solution) == 1
    np.testing.assert_allclose(solution[0], CHAIN.solution()[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("kind", "rest"), [(rk.FedNestSGD, 1.5), (rk.LFedNest, 2.0)])
def test_the_scalar_composition_by_hand(kind, rest):
    """LFedNest solves mean k_i (2 x - t_i) = 4 x - 8 = 0; the gradient is 2 (2 x - 3)."""
    zoo = rk.zoo.scalar_composition()
    algorithm = kind(outer_lr=0.1, inner_lr=0.5, inner_start=jnp.zeros(1))
    x = solve(zoo, algorithm, 300).solution[0]
    assert float(x[0]) == pytest.approx(rest, abs=1e-12)


@pytest.mark.parametrize("inner_start", [np.zeros(3), np.zeros((2, 1)), {"y": np.zeros(2)}])
def test_an_inner_start_of_another_shape_is_refused_before_the_first_round(inner_start):
    zoo = rk.zoo.linear_chain(n_clients=3, sizes=(1, 2))
    algorithm = rk.FedNest(outer_lr=0.1, inner_lr=0.1, inner_start=inner_start)
    with pytest.raises(ValueError, match=r"inner_start must be shaped like .*layers\[0\]"):
        solve(zoo, algorithm, 1)


def test_a_composition_needs_an_inner_start_and_two_layers():
    with pytest.raises(ValueError, match="needs inner_start"):
        solve(CHAIN, rk.FedNest(outer_lr=0.1, inner_lr=0.1), 1)
    with pytest.raises(ValueError, match="FedNest solves compositions of two layers, got 3 layers"):
        solve(
            rk.zoo.linear_chain(),
            rk.FedNest(outer_lr=0.1, inner_lr=0.1, inner_start=jnp.zeros(4)),
            1,
        )


# ---- combinations


def test_a_minimax_problem_with_steps_of_the_server():
    nested = rk.Nested(
        inner=rk.parts.ServerSGD(lr=0.1),
        outer=rk.parts.ServerStep(lr=0.05, hypergradient=rk.parts.FedIHGPSum()),
        inner_rounds=4,
    )
    x, y = solve(SADDLE, nested, 600).solution
    np.testing.assert_allclose(x, SADDLE.solution()[0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(y, SADDLE.solution()[1], rtol=0, atol=1e-12)


PAPERS = {
    "FedNest": (
        rk.FedNest(
            outer_lr=0.05,
            inner_lr=0.1,
            inner_rounds=2,
            inner_steps=2,
            ihgp=rk.parts.FedIHGP(terms=3, lipschitz=rk.parts.PowerIteration(iterations=3)),
            clients=2,
        ),
        rk.Nested(
            inner=rk.parts.FedInn(lr=0.1, local_steps=2),
            outer=rk.parts.FedOut(
                lr=0.05,
                adjoint=rk.parts.FedIHGP(terms=3, lipschitz=rk.parts.PowerIteration(iterations=3)),
            ),
            inner_rounds=2,
            clients=2,
        ),
    ),
    "FedMBO": (
        rk.FedMBO(
            outer_lr=rk.parts.PowerDecay(0.05, 0.5),
            inner_lr=0.1,
            inner_rounds=2,
            hypergradient=rk.parts.PHE(terms=3, lipschitz=5.0),
            clients=2,
        ),
        rk.Nested(
            inner=rk.parts.ServerSGD(lr=0.1),
            outer=rk.parts.ServerStep(
                lr=rk.parts.PowerDecay(0.05, 0.5),
                hypergradient=rk.parts.PHE(terms=3, lipschitz=5.0),
            ),
            inner_rounds=2,
            clients=2,
        ),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PAPERS)
def test_a_paper_is_a_combination_under_a_name(name):
    written_out, combined = (solve(ZOO, algorithm, 3) for algorithm in PAPERS[name])
    assert eqx.tree_equal(written_out.solution, combined.solution)
    assert written_out.ledger == combined.ledger


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "algorithm"),
    [
        (
            rk.zoo.quadratic_bilevel,
            rk.FedNestSGD(
                outer_lr=rk.parts.PerCall(0.1),
                inner_lr=0.1,
                inner_rounds=2,
                inner_steps=3,
                outer_steps=2,
                ihgp=rk.parts.FedIHGP(),
            ),
        ),
        (
            rk.zoo.quadratic_bilevel,
            rk.FedNest(outer_lr=0.1, inner_lr=0.1, ihgp=rk.parts.FederatedCG()),
        ),
        (
            rk.zoo.quadratic_bilevel,
            rk.LFedNest(
                outer_lr=0.1,
                inner_lr=0.1,
                inner_rounds=2,
                inner_steps=3,
                outer_steps=2,
                adjoint=rk.parts.LocalNeumann(),
            ),
        ),
        (
            rk.zoo.quadratic_bilevel,
            rk.LFedNestNonAlt(
                outer_lr=0.1, inner_lr=0.1, inner_steps=3, outer_steps=(1, 2, 1, 2, 1)
            ),
        ),
        (
            rk.zoo.quadratic_bilevel,
            rk.FedMBO(
                outer_lr=0.1, inner_lr=0.1, inner_rounds=2, hypergradient=rk.parts.PHE(), clients=2
            ),
        ),
        (
            rk.zoo.quadratic_bilevel,
            rk.FedMBO(
                outer_lr=0.1,
                inner_lr=0.1,
                inner_rounds=2,
                hypergradient=rk.parts.PHESum(),
                clients=2,
                batch_size=1,
            ),
        ),
        (
            rk.zoo.saddle,
            rk.LFedNestSVRG(
                outer_lr=0.1, inner_lr=0.1, inner_rounds=2, inner_steps=3, outer_steps=2
            ),
        ),
        (
            rk.zoo.saddle,
            rk.FedAvgS(outer_lr=rk.parts.PerCall(0.1), inner_lr=0.1, local_steps=2),
        ),
    ],
)
def test_single_precision_stays_single(family, algorithm):
    zoo = family(dtype=np.float32)
    state = algorithm.init(zoo.problem, *map(jnp.asarray, zoo.start))

    def round(algorithm, state, key):
        return algorithm.round(federation(zoo), zoo.problem, state, key)

    new = eqx.filter_eval_shape(round, numbers_to_arrays(algorithm), state, jax.random.key(0))
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(new))


@pytest.mark.slow
def test_runs_that_differ_in_numbers_go_side_by_side():
    algorithms = [
        rk.Nested(
            inner=rk.parts.ServerSGD(lr=b),
            outer=rk.parts.ServerStep(
                lr=a, hypergradient=rk.parts.PHE(terms=3, lipschitz=5.0, chains=2)
            ),
            clients=2,
        )
        for a, b in ((0.05, 0.1), (0.1, 0.2))
    ]
    population = rk.Population.stacked(ZOO.data)
    jobs = [rk.Run(algorithm, ZOO.start) for algorithm in algorithms]
    together = rk.sweep(jobs, ZOO.problem, population, rounds=5)
    alone = [solve(ZOO, algorithm, 5) for algorithm in algorithms]
    for a, b in zip(together, alone, strict=True):
        np.testing.assert_allclose(a.solution[0], b.solution[0], rtol=1e-12)
        assert a.ledger == b.ledger


# ---- conjugate gradients


def cg(iterations, zoo=ZOO, y=None):
    state = at(jnp.ones(3), jnp.ones(4) if y is None else y)
    estimate = rk.parts.FederatedCG(iterations=iterations).estimate
    return estimate(context(zoo), state, jax.random.key(0))[0]


@pytest.mark.slow
def test_conjugate_gradients_are_exact_after_as_many_products_as_y_has_numbers():
    exact = ZOO.adjoint(np.ones(3), np.ones(4))
    errors = [np.linalg.norm(cg(k) - exact) for k in (2, 3, 4, 9)]
    assert errors[0] > errors[1] > 1e-6
    assert errors[2] < 1e-12
    assert errors[3] < 1e-12  # a solved system leaves nothing to divide by


@pytest.mark.slow
def test_conjugate_gradients_of_nothing_are_nothing():
    zoo = rk.zoo.QuadraticBilevel(**{**ZOO.data, "E": 0 * ZOO.E, "d": 0 * ZOO.d}, m0=ZOO.m0)
    np.testing.assert_array_equal(cg(3, zoo, np.zeros(4)), np.zeros(4))


def test_conjugate_gradients_serve_fednest():
    algorithm = rk.FedNest(
        outer_lr=0.1,
        inner_lr=0.2,
        inner_rounds=2,
        inner_steps=2,
        ihgp=rk.parts.FederatedCG(iterations=4),
    )
    x = solve(ZOO, algorithm, 400).solution[0]
    np.testing.assert_allclose(x, ZOO.solution()[0], rtol=0, atol=1e-12)


# ---- bad input


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: rk.parts.FedInn(lr=0.0), ValueError, r"FedInn.lr must be a finite number above 0"),
        (
            lambda: rk.parts.FedInn(lr=0.1, local_steps=0),
            ValueError,
            r"FedInn.local_steps must be at least 1",
        ),
        (
            lambda: rk.parts.FedInn(lr=0.1, anchor_batch=0),
            ValueError,
            "anchor_batch must be at least 1",
        ),
        (
            lambda: rk.parts.FedInnSGD(lr=-1),
            ValueError,
            r"FedInnSGD.lr must be a finite number above 0",
        ),
        (
            lambda: rk.parts.ServerSGD(lr=0),
            ValueError,
            r"ServerSGD.lr must be a finite number above 0",
        ),
        (lambda: rk.parts.FedOut(lr=0), ValueError, r"FedOut.lr must be a finite number above 0"),
        (
            lambda: rk.parts.LFedOut(lr=0.1, local_steps=0),
            ValueError,
            r"LFedOut.local_steps must be at least 1",
        ),
        (
            lambda: rk.parts.FederatedCG(iterations=0),
            ValueError,
            r"FederatedCG.iterations must be at least 1",
        ),
        (
            lambda: rk.parts.ServerStep(lr=rk.parts.PerCall(0.1), hypergradient=rk.parts.PHE()),
            TypeError,
            r"ServerStep.lr must be a number, got PerCall",
        ),
        (
            lambda: rk.Nested(
                inner=rk.parts.ServerSGD(lr=0.1), outer=rk.parts.FedOut(lr=0.1), inner_rounds=0
            ),
            ValueError,
            "inner_rounds must be at least 1, got 0",
        ),
    ],
)
def test_bad_settings_of_parts_are_refused_at_construction(build, error, message):
    with pytest.raises(error, match=message):
        build()


def test_parts_that_do_not_fit_the_problem_or_the_clients():
    phe = rk.Nested(
        inner=rk.parts.FedInn(lr=0.1),
        outer=rk.parts.ServerStep(lr=0.1, hypergradient=rk.parts.PHE()),
    )
    with pytest.raises(TypeError, match="PHE estimates hypergradients of Bilevel problems"):
        phe.check(SADDLE.problem, 4)
    uneven = rk.Nested(
        inner=rk.parts.FedInn(lr=0.1, local_steps=(1, 2)), outer=rk.parts.FedOut(lr=0.1)
    )
    with pytest.raises(ValueError, match=r"FedInn.local_steps has 2 entries for 4 clients"):
        uneven.check(ZOO.problem, 4)
    with pytest.raises(TypeError, match="Nested solves Bilevel, Minimax and two-layer"):
        phe.check(rk.zoo.linear_sequences().problem, 4)  # pyright: ignore[reportArgumentType]


def test_functions_take_a_list_of_local_steps_as_classes_do():
    made = rk.FedNestSGD(outer_lr=0.1, inner_lr=0.1, inner_steps=[1, 2, 3], outer_steps=[1, 1, 2])  # pyright: ignore[reportArgumentType]
    assert isinstance(made.inner, rk.parts.FedInnSGD)
    assert made.inner.local_steps == (1, 2, 3)
