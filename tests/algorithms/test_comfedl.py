"""ComFedL on its three kinds of problems, with and without gamma."""

import dataclasses
import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from arena import advance, assert_close, solve
from some_slow import some_slow

import rookery as rk
from rookery.algorithms.comfedl.weighting import soft_maximum
from rookery.problem.sample import Rows
from rookery.runner.run_state import DivergenceWarning

GAMMA = 0.7
ROBUST = rk.zoo.robust_quadratic(n_clients=3, size=2, gamma=GAMMA)
LOSSES = ROBUST.plain
NOISY = rk.zoo.quadratic_losses(n_clients=4, size=2, rows=4, noise=0.3)
MAML = rk.zoo.cubic_maml(n_clients=3, size=2)


def eager(zoo, algorithm, rounds=2):
    """The model after some rounds, without compiling them."""
    return np.asarray(advance(zoo, algorithm, rounds)[0].w)


def descend(gradient, lr, rounds=2):
    """Gradient descent from zero."""
    w = np.zeros(2)
    for _ in range(rounds):
        w = w - lr * gradient(w)
    return w


def literal(gamma, zoo):
    """The gradient of mean exp(F_i / gamma), where a zoo member knows F_i and its gradient."""
    return lambda w: np.mean(
        np.exp(zoo.losses(w) / gamma)[:, None] / gamma * zoo.gradients(w), axis=0
    )


def normalised(gamma, zoo):
    """The gradient of gamma log mean exp(F_i / gamma)."""

    def gradient(w):
        weights = np.exp(zoo.losses(w) / gamma)
        return weights / weights.sum() @ zoo.gradients(w)

    return gradient


# ---- what is solved


def test_the_soft_maximum_is_the_greatest_mean_less_its_divergence():
    """F.6 (a), with clients of unequal weight."""
    rng = np.random.default_rng(0)
    f, p = rng.normal(size=5), rng.dirichlet(np.ones(5))
    for gamma in (0.1, 1.0, 10.0):
        primal = float(soft_maximum(jnp.asarray(f), jnp.asarray(p), gamma))

        def dual(r, gamma=gamma):
            return r @ f - gamma * np.sum(r * np.log(r / p))

        best = p * np.exp(f / gamma)
        np.testing.assert_allclose(dual(best / best.sum()), primal, rtol=1e-12)
        assert all(dual(r) <= primal for r in rng.dirichlet(np.ones(5), 200))


PROBLEMS = {
    "composition": (ROBUST, {}, ROBUST.gradient),
    "maml": (MAML, {}, MAML.gradient),
    "drfl": (LOSSES, {"gamma": GAMMA, "weighting": rk.parts.PrintedWeights()}, ROBUST.gradient),
    "damaml": (MAML, {"gamma": 0.3, "weighting": rk.parts.PrintedWeights()}, literal(0.3, MAML)),
    "drfl, normalised": (LOSSES, {"gamma": GAMMA}, normalised(GAMMA, LOSSES)),
    "damaml, normalised": (MAML, {"gamma": 0.3}, normalised(0.3, MAML)),
    "one batch for both": (MAML, {"shared_batch": True}, MAML.gradient),
}


@pytest.mark.parametrize("name", some_slow(PROBLEMS, 2))
def test_a_round_with_one_local_step_is_a_gradient_step(name):
    """F.6 (b): on (6), (7) and (10), whole batches, everyone."""
    zoo, settings, gradient = PROBLEMS[name]
    got = eager(zoo, rk.ComFedL(lr=0.1, **settings))
    np.testing.assert_allclose(got, descend(gradient, 0.1), rtol=1e-12)


def test_these_gradients_are_those_of_their_objectives(differences):
    w = np.array([0.3, -0.2])
    exact = differences(lambda w: np.mean(np.exp(MAML.losses(w) / 0.3)), w)
    np.testing.assert_allclose(literal(0.3, MAML)(w), exact, rtol=1e-8)
    exact = differences(lambda w: 0.3 * np.log(np.mean(np.exp(MAML.losses(w) / 0.3))), w)
    np.testing.assert_allclose(normalised(0.3, MAML)(w), exact, rtol=1e-8)


def test_it_reaches_the_robust_solution():
    result = solve(LOSSES, rk.ComFedL(lr=0.1, gamma=GAMMA), 400)
    np.testing.assert_allclose(result.solution[0], ROBUST.solution()[0], rtol=1e-10)


def test_local_steps_by_hand():
    """Every local step has a weight of its own, by the level of the round's start."""
    got = eager(LOSSES, rk.ComFedL(lr=0.1, local_steps=3, gamma=GAMMA), 1)
    start = np.zeros(2)
    level = GAMMA * np.log(np.mean(np.exp(LOSSES.losses(start) / GAMMA)))
    own = []
    for i in range(3):
        w = start
        for _ in range(3):
            weight = np.exp((LOSSES.losses(w)[i] - level) / GAMMA)
            w = w - 0.1 * weight * LOSSES.gradients(w)[i]
        own.append(w)
    np.testing.assert_allclose(got, np.mean(own, axis=0), rtol=1e-12)


# ---- weightings


def test_shifted_is_literal_with_another_step_size():
    """F.6 (c)."""
    greatest = LOSSES.losses(np.zeros(2)).max()
    shifted = eager(
        LOSSES,
        rk.ComFedL(lr=0.1, local_steps=3, gamma=GAMMA, weighting=rk.parts.ShiftedWeights()),
        1,
    )
    lr = 0.1 * np.exp(-greatest / GAMMA)
    plain = eager(
        LOSSES,
        rk.ComFedL(lr=lr, local_steps=3, gamma=GAMMA, weighting=rk.parts.PrintedWeights()),
        1,
    )
    np.testing.assert_allclose(shifted, plain, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("gamma", [1e30, np.inf])
@pytest.mark.parametrize(
    "weighting", [None, rk.parts.NormalisedWeights(stale_scalar=True, batch_size=1)]
)
def test_an_infinite_gamma_is_fedavg(weighting, gamma):
    """F.6 (d), with the same clients and the same batches."""
    settings = {"lr": 0.1, "local_steps": 3, "clients": 2, "batch_size": 2}
    state, _ = advance(NOISY, rk.ComFedL(**settings, gamma=gamma, weighting=weighting), 3)
    np.testing.assert_array_equal(state.w, eager(NOISY, rk.FedAvg(**settings), 3))
    assert weighting is None or np.isfinite(state.kept.level)


def test_weights_that_divide_by_gamma_refuse_an_infinite_one():
    for weighting in (rk.parts.PrintedWeights(), rk.parts.ShiftedWeights()):
        with pytest.raises(ValueError, match="gamma must be a finite number above 0, got inf"):
            rk.ComFedL(lr=0.1, gamma=np.inf, weighting=weighting)


@pytest.mark.slow
def test_small_batches_far_above_a_stale_level_overflow_unless_weights_are_bounded():
    """e^k for a loss k gamma above the level; with gamma five times as large k is small."""
    zoo = rk.zoo.quadratic_losses(n_clients=6, size=3, rows=5, noise=1.0)

    def run(gamma, max_weight=None):
        weighting = rk.parts.NormalisedWeights(stale_scalar=True, max_weight=max_weight)
        settings = {"lr": 0.05, "local_steps": 3, "clients": 3, "batch_size": 2}
        algorithm = rk.ComFedL(**settings, gamma=gamma, weighting=weighting)
        return solve(zoo, algorithm, 60, guard=None)

    with pytest.warns(DivergenceWarning, match="max_weight"):
        assert run(1.0).status == "diverged"
    for tame in (run(5.0), run(1.0, max_weight=3)):
        assert tame.status == "finished"
        assert np.linalg.norm(tame.solution[0] - zoo.solution()[0]) < 1


@pytest.mark.parametrize("shift", [1000.0, -1000.0])
@pytest.mark.parametrize(
    "weighting",
    [
        pytest.param(rk.parts.NormalisedWeights(), marks=pytest.mark.slow),
        rk.parts.NormalisedWeights(stale_scalar=True),
    ],
)
def test_a_shift_of_all_losses_changes_nothing(shift, weighting):
    """F.6 (e)."""
    algorithm = rk.ComFedL(
        lr=0.1, local_steps=2, gamma=0.1, weighting=weighting, clients=2, batch_size=2
    )
    moved = dataclasses.replace(NOISY, c=NOISY.c + shift)
    np.testing.assert_allclose(eager(moved, algorithm), eager(NOISY, algorithm), rtol=1e-9)


def test_a_stale_level_is_that_of_the_round_before():
    algorithm = rk.ComFedL(
        lr=0.1, local_steps=1, gamma=GAMMA, weighting=rk.parts.NormalisedWeights(stale_scalar=True)
    )
    first, second = (advance(LOSSES, algorithm, rounds)[0] for rounds in (1, 2))

    def level(w):
        return GAMMA * np.log(np.mean(np.exp(LOSSES.losses(w) / GAMMA)))

    start, w = np.zeros(2), np.asarray(first.w)
    np.testing.assert_allclose(w, descend(normalised(GAMMA, LOSSES), 0.1, 1), rtol=1e-12)
    np.testing.assert_allclose(first.kept.level, level(start), rtol=1e-12)
    np.testing.assert_allclose(second.kept.level, level(w), rtol=1e-12)
    weights = np.exp((LOSSES.losses(w) - level(start)) / GAMMA)
    step = np.mean(weights[:, None] * LOSSES.gradients(w), axis=0)
    np.testing.assert_allclose(second.w, w - 0.1 * step, rtol=1e-12)
    result = solve(LOSSES, algorithm, 400)
    np.testing.assert_allclose(result.solution[0], ROBUST.solution()[0], rtol=1e-10)


def test_weights_of_the_population_are_those_of_the_mean():
    share = np.array([0.2, 0.3, 0.5])
    population = rk.Population.stacked(LOSSES.data, weights=share)
    result = rk.run(rk.ComFedL(lr=0.1, gamma=GAMMA), LOSSES.problem, population, LOSSES.start,
                    rounds=1, engine=rk.Eager())  # fmt: skip
    weights = share * np.exp(LOSSES.losses(np.zeros(2)) / GAMMA)
    step = weights / weights.sum() @ LOSSES.gradients(np.zeros(2))
    np.testing.assert_allclose(result.solution[0], -0.1 * step, rtol=1e-12)


@pytest.mark.filterwarnings("ignore::rookery.runner.run_state.DivergenceWarning")
def test_literal_weights_that_overflow_say_what_to_do():
    algorithm = rk.ComFedL(lr=0.01, local_steps=5, gamma=1e-3, weighting=rk.parts.PrintedWeights())
    result = solve(LOSSES, algorithm, 2, engine=rk.Eager(), guard=None)
    assert result.status == "diverged"
    assert "no longer finite. Weights exp" in result.message
    assert "weighting=NormalisedWeights()" in result.message
    for mended in (rk.parts.NormalisedWeights(), rk.parts.PrintedWeights(max_exponent=1.0)):
        algorithm = rk.ComFedL(lr=1e-6, local_steps=5, gamma=1e-3, weighting=mended)
        result = solve(LOSSES, algorithm, 2, engine=rk.Eager())
        assert (result.status, result.message) == ("finished", "")


def test_a_cut_exponent():
    gamma, cut = 0.5, 1.0
    got = eager(
        LOSSES,
        rk.ComFedL(lr=0.1, local_steps=1, gamma=gamma, weighting=rk.parts.PrintedWeights(cut)),
        1,
    )
    start = np.zeros(2)
    exponents = LOSSES.losses(start) / gamma
    assert exponents.min() < cut < exponents.max()
    weights = np.exp(np.minimum(exponents, cut)) / gamma
    np.testing.assert_allclose(got, -0.1 * weights @ LOSSES.gradients(start) / 3, rtol=1e-12)


# ---- clients


@pytest.mark.parametrize(
    ("kind", "splits"), [("problem", ("train", "other")), ("composition", ("train", "train"))]
)
def test_the_two_batches_are_independent_and_from_their_splits(kind, splits):
    """Rows differ in their Hessians too, so that a step tells which row was drawn for what."""
    A = np.eye(2) * np.array([0.4, 0.8, 1.2, 0.6, 1.0, 1.4])[:, None, None]
    data = {"A": A, "b": np.random.default_rng(0).normal(size=(6, 2))}
    problem = getattr(rk.zoo.CubicMAML(A[None], data["b"][None], adaptation_lr=0.5), kind)
    problem = dataclasses.replace(problem, inner_split=splits[0], outer_split=splits[1])
    parts = {"train": [np.arange(3)], "other": [np.arange(3, 6)]}
    clients = rk.Population.from_parts(data, parts)
    rows = {s: [Rows({k: a[i : i + 1] for k, a in data.items()}) for i in of[0]]
            for s, of in parts.items()}  # fmt: skip
    possible = {
        (i, j): -0.1 * problem.gradient(jnp.zeros(2), rows[splits[0]][i], rows[splits[1]][j])
        for i, j in itertools.product(range(3), repeat=2)
    }
    found = []
    for seed in range(6):
        algorithm = rk.ComFedL(lr=0.1, batch_size=1)
        w = rk.run(algorithm, problem, clients, (np.zeros(2),), rounds=1, seed=seed,
                   engine=rk.Eager()).solution[0]  # fmt: skip
        found += [drawn for drawn, step in possible.items() if np.allclose(step, w, rtol=1e-9)]
    assert len(found) == 6  # every step is one of these, and of one only
    assert any(i != j for i, j in found)


@pytest.mark.parametrize("name", some_slow(PROBLEMS, 2))
def test_identical_clients_are_one_client(name):
    zoo, settings, _ = PROBLEMS[name]
    same = dataclasses.replace(zoo, **{k: np.repeat(a[:1], 3, axis=0) for k, a in zoo.data.items()})
    one = dataclasses.replace(zoo, **{k: a[:1] for k, a in zoo.data.items()})
    algorithm = rk.ComFedL(lr=0.1, local_steps=2, **settings)
    assert_close(eager(same, algorithm), eager(one, algorithm), rtol=1e-12)


def test_the_order_of_the_clients_does_not_matter():
    algorithm = rk.ComFedL(lr=0.1, local_steps=2, gamma=GAMMA)
    turned = dataclasses.replace(LOSSES, **{k: a[::-1] for k, a in LOSSES.data.items()})
    np.testing.assert_allclose(eager(turned, algorithm), eager(LOSSES, algorithm), rtol=1e-12)


@pytest.mark.slow
def test_single_precision_stays_single():
    zoo = rk.zoo.cubic_maml(n_clients=2, size=2, dtype=np.float32)
    for weighting in (
        rk.parts.PrintedWeights(1.0),
        rk.parts.ShiftedWeights(),
        rk.parts.NormalisedWeights(stale_scalar=True),
    ):
        state, _ = advance(
            zoo, rk.ComFedL(lr=0.1, local_steps=1, gamma=0.5, weighting=weighting), 2
        )
        assert state.w.dtype == np.float32
    assert state.kept.level.dtype == np.float32


# ---- errors


def test_bad_input():
    with pytest.raises(ValueError, match="Give ComFedL a gamma, or use FedAvg"):
        rk.ComFedL(lr=0.1).check(LOSSES.problem, 3)
    with pytest.raises(ValueError, match="Leave out gamma, or, to be robust in a loss, make it a"):
        rk.ComFedL(lr=0.1, gamma=1).check(ROBUST.problem, 3)
    with pytest.raises(TypeError, match=r"LocalComposition, Meta and SingleLevel .* got Bilevel"):
        rk.ComFedL(lr=0.1).check(rk.zoo.scalar_bilevel().problem, 3)
    with pytest.raises(ValueError, match="give a gamma, or no weighting"):
        rk.ComFedL(lr=0.1, weighting=rk.parts.NormalisedWeights())
    with pytest.raises(ValueError, match="gamma must be a number above 0, or inf, got 0"):
        rk.ComFedL(lr=0.1, gamma=0)
    with pytest.raises(ValueError, match="leave out outer_batch_size"):
        rk.ComFedL(lr=0.1, shared_batch=True, outer_batch_size=2)
    with pytest.raises(ValueError, match="only the inner function takes rows"):
        rk.ComFedL(lr=0.1, gamma=1, outer_batch_size=2).check(LOSSES.problem, 3)
    with pytest.raises(ValueError, match="one split, and the problem has two: 'train' inside, 'a'"):
        rk.ComFedL(lr=0.1, shared_batch=True).check(rk.Meta(sum, adapt_lr=0.1, outer_split="a"), 3)
    for problem, gamma in ((LOSSES.problem, 1), (ROBUST.problem, None)):
        with pytest.raises(ValueError, match="hessian is for Meta problems; leave it out on a"):
            rk.ComFedL(lr=0.1, gamma=gamma, hessian=rk.parts.ExactHessian()).check(problem, 3)
    with pytest.raises(ValueError, match="lr must be a finite number above 0, got -1"):
        rk.ComFedL(lr=-1)
    with pytest.raises(ValueError, match="outer_batch_size must be at least 1, got 0"):
        rk.ComFedL(lr=0.1, outer_batch_size=0)
    with pytest.raises(ValueError, match=r"NormalisedWeights.batch_size must be at least 1, got 0"):
        rk.parts.NormalisedWeights(batch_size=0)
