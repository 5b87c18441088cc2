"""Steps that find their size: against closed forms, NumPy, and problems that are indefinite."""

import runpy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arena import context, f_y, solve

import rookery as rk
from rookery import algorithms
from rookery.algorithms.shared.auto import Agreement, AutoOpt, following
from rookery.algorithms.shared.curvature import measured_blocks, measured_for
from rookery.algorithms.shared.step_rule import first_opt, inner_rule, move, step_rule
from rookery.algorithms.shared.two_level import NestedState, Opts

FILE = Path(__file__).parents[2] / "experiments" / "untuned" / "quadratics.py"
untuned: Any = SimpleNamespace(**runpy.run_path(str(FILE)))
SCALAR = rk.zoo.scalar_bilevel()  # the clients' inner Hessians are 1 and 3


def test_dog_is_distance_over_gradients_within_bounds():
    rule, w = rk.parts.DoG(first=0.1, most=0.3, growth=1.0, power=0.5), jnp.array([3.0, 4.0])
    rng = np.random.default_rng(0)
    opt, start, total, r = first_opt(rule, w), np.asarray(w), 0.0, 0.0
    capped = 0
    for k in range(8):
        g, before = rng.normal(size=2), np.asarray(w)
        w, opt = move(rule, jnp.asarray(g), opt, w, k)
        total += np.sqrt(k + 1) * (g @ g)
        entry = (1 + np.sqrt(np.mean((before - start) ** 2))) / np.abs(g).max()
        grown = max(r, min(np.linalg.norm(before - start), r * (1 + 1 / (k + 1))))
        rms = np.sqrt(np.mean(before**2))
        r = grown if k else 0.1 * rms / np.abs(g).max() * np.linalg.norm(g)
        size = min(r / np.sqrt(total), 0.3 * entry)
        capped += size < r / np.sqrt(total)
        np.testing.assert_allclose(w, before - size * g, rtol=1e-12)
    assert 0 < capped < 8 and int(opt.memory.clipped) == capped


def test_dog_waits_for_its_first_direction():
    """The hypergradient is zero in round 0 if the outer loss depends on x through y alone."""
    rule, w, g = rk.parts.DoG(first=0.1), jnp.ones(2), jnp.array([2.0, 1.0])
    late, opt = move(rule, jnp.zeros(2), first_opt(rule, w), w, 0)
    np.testing.assert_array_equal(late, w)
    for round, direction in enumerate((g, jnp.zeros(2), g), 1):  # nor does a later one count
        late, opt = move(rule, direction, opt, late, round)
    at_once, start = w, first_opt(rule, w)
    for round in (0, 1):
        at_once, start = move(rule, g, start, at_once, round)
    np.testing.assert_array_equal(late, at_once)
    assert float(jnp.max(jnp.abs(late - w))) > 0.05


def test_the_measured_size_is_one_over_the_curvature_that_steps_meet():
    at, rule, series = context(SCALAR), rk.parts.Curvature(), rk.parts.WarmSeries()
    none = AutoOpt(jnp.zeros(()))
    blocks, opts = (*SCALAR.start, jnp.zeros(1)), ((), none, none)
    state = NestedState(*SCALAR.start, jnp.zeros(()), Opts(inner=none))
    how = {"clients": rk.participation.Everyone(), "batch_size": None}
    each = 0.1, rule, rule
    for is_alone, L in ((False, 2), (True, 3)):  # a step along the mean of both clients, or not
        key = jax.random.key(0)
        _, y, _ = measured_blocks(
            at.fed, SCALAR.problem, None, each, opts, blocks, key, **how, is_alone=is_alone
        )
        assert y.size == pytest.approx(1 / (1.1 * L))
        found, part = measured_for(at, rule, series, state, key, is_alone=is_alone)
        assert found.inner.size == y.size and part.lipschitz == pytest.approx(1.1 * L)
    opt = found.inner
    lower = rk.parts.Curvature().renewed(opt, jnp.array(0.1))  # falls by a fifth at most
    assert lower.size == pytest.approx(opt.size / 0.8)
    assert rk.parts.Curvature().renewed(opt, jnp.array(30.0)).size == pytest.approx(1 / 33)


def test_the_factor_follows_how_directions_agree():
    rule, w = rk.parts.Curvature(gain=0.3, least=0.4, most=1.5), jnp.zeros(2)
    opt = following(rule.renewed(rule.first_opt(w), jnp.array(2.0)), w)
    plain = rule.renewed(rule.first_opt(w), jnp.array(2.0))
    size, factor, last = 1 / 2.2, 1.0, np.zeros(2)
    east, north, long = np.array([1.0, 0.0]), np.array([1.0, 2.0]), np.array([3.0, 0.0])
    for g in (east, east, east, north, -north, east, long, -east, -east, -east, east):
        lengths = np.linalg.norm(g) * np.linalg.norm(last)
        cosine = g @ last / lengths if lengths else 0.0
        turns = cosine < -0.5 or np.linalg.norm(g) > 2 * np.linalg.norm(last) > 0
        factor = np.clip(factor * (0.5 if turns else np.exp(0.3 * cosine)), 0.4, 1.5)
        before, last = np.asarray(w), g
        w, opt = move(rule, jnp.asarray(g), opt, w, 0)
        np.testing.assert_allclose(w, before - size * factor * g, rtol=1e-12)
        moved, plain = move(rule, jnp.asarray(g), plain, w, 0)  # no factor is kept
        np.testing.assert_allclose(moved, w - size * g, rtol=1e-12)
    assert opt.size == plain.size  # 1 / L is as it was measured
    np.testing.assert_allclose(opt.message().size, size * factor)
    half = replace(rule, scale=0.5)
    np.testing.assert_allclose(half.size(opt), size * factor / 2)


def test_only_what_is_fresh_of_a_direction_is_compared():
    rule, w, g = rk.parts.Curvature(), jnp.zeros(2), jnp.array([1.0, 0.0])
    opt = rule.observed(g, following(rule.first_opt(w), w), w)
    assert rule.observed(g, opt, w).memory.factor == pytest.approx(np.exp(0.1))
    turned = rule.observed(g, opt, w, -g)
    assert turned.memory.factor == 0.5
    np.testing.assert_array_equal(turned.memory.last, g)


@pytest.mark.parametrize("L", [5.0, 1.0, 0.5])
def test_steps_find_out_that_a_measured_curvature_is_too_large_or_too_small(L):
    """Gradient descent on a quadratic of condition 100, whose largest curvature is 1."""
    rule, eigenvalues, w = rk.parts.Curvature(), jnp.geomspace(1e-2, 1, 8), jnp.ones(8)

    @jax.jit
    def steps(w, opt):
        def step(_, carry):
            return move(rule, eigenvalues * carry[0], carry[1], carry[0], 0)

        return jax.lax.fori_loop(0, 1400, step, (w, opt))

    w, _ = steps(w, following(AutoOpt(jnp.array(1 / L)), w))
    assert jnp.linalg.norm(w) < 1e-6  # steps of size 1 leave exp(-14) of the flattest direction


def test_sizes_do_not_follow_directions_of_penalties_and_compositions():
    zoo, (x, y) = rk.zoo.scalar_bilevel(), (jnp.zeros(1), jnp.zeros(1))
    kept = {
        "SOBA": rk.SOBA().init(zoo.problem, x, y).opts[1],
        "F2SA": algorithms.F2SA().init(zoo.problem, x, y).opts[1],
        "BRFedBi": algorithms.BRFedBi().init(zoo.problem, x, y).opts[1],
        "FedNest": rk.FedNest().init(zoo.problem, x, y).opts.inner.opts,
    }
    followed = [name for name, opt in kept.items() if isinstance(opt.memory, Agreement)]
    assert followed == ["SOBA", "FedNest"]
    levels = rk.zoo.scalar_composition()
    state = rk.FedNest(inner_start=np.zeros(1)).init(levels.problem, *levels.start)
    assert state.opts.inner.opts.memory == ()


class Cubic:
    """An outer loss that does not depend on x, an inner gradient that is quadratic in x."""

    problem = rk.Bilevel(
        lambda x, y, row: jnp.sum(y**2),
        lambda x, y, row: jnp.sum(y**2) / 2 + row * jnp.sum(x**2 * y),
        outer_split="train",
        inner_split="train",
    )
    data = np.array([[1.0], [5.0]])  # the rows of two clients: 3 in the mean


def test_the_bound_on_outer_steps_is_one_over_the_curvature_of_x_at_fixed_y_and_v():
    x, y, v = jnp.array([1.0, 2.0]), jnp.zeros(2), jnp.array([0.5, -1.0])
    rule, at = rk.parts.DoG(), context(Cubic)
    opts, key = (rule.first_opt(x), (), ()), jax.random.key(0)
    how = {"clients": rk.participation.Everyone(), "batch_size": None}
    for is_alone, row in ((False, 3), (True, 5)):  # (g_y' v)_xx = 2 row diag(v)
        opt, *_ = measured_blocks(
            at.fed, Cubic.problem, None, (rule, 0.1, 0.1), opts, (x, y, v), key, **how,
            is_alone=is_alone,
        )  # fmt: skip
        np.testing.assert_allclose(opt.memory.curvature, 1.1 * 2 * row)
    moved, opt = move(rule, jnp.array([1e-3, 0.0]), opt, x, 0)
    np.testing.assert_allclose(opt.size, 1 / 11)
    np.testing.assert_allclose(moved, x - jnp.array([1e-3, 0.0]) / 11)
    free, _ = move(rule, jnp.array([1e-3, 0.0]), rule.first_opt(x), x, 0)  # nothing measured
    np.testing.assert_allclose(free, x - jnp.array([0.05 * np.sqrt(2.5), 0.0]))


def test_nothing_given_solves_a_quadratic():
    result = solve(SCALAR, rk.FedNest(), 200)
    np.testing.assert_allclose(result.solution[0], SCALAR.solution()[0], rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [rk.FedMBO, rk.FedMSA, rk.SOBA, rk.STSA])
def test_nothing_given_solves_a_quadratic_by_others(kind):
    zoo = rk.zoo.quadratic_bilevel(n_clients=3, seed=1)
    result = solve(zoo, kind(), 1000)
    np.testing.assert_allclose(result.solution[0], zoo.solution()[0], rtol=1e-10)


@pytest.mark.parametrize(("H", "is_damped"), [((-3.0, 1.0), True), ((1.0, 3.0), False)])
def test_an_indefinite_system_is_damped_and_a_definite_one_is_not(H, is_damped):
    zoo = replace(SCALAR, H=np.array(H).reshape(2, 1, 1, 1))  # in the mean -1 and 2
    series = rk.parts.WarmSeries(terms=100, lipschitz=3.0)

    @jax.jit
    def hops(warm):
        state = NestedState(jnp.zeros(1), jnp.zeros(1), jnp.array(3.0), Opts(adjoint=warm))
        return series.estimate_from(context(zoo), state, jax.random.key(0))[2]

    warm = hops(hops(series.first_memory(jnp.zeros(1))))
    if is_damped:
        assert warm.damping == pytest.approx(2.0)
        np.testing.assert_allclose(warm.v, f_y(zoo, np.zeros(1), np.zeros(1)) / (2 - 1), rtol=1e-6)
    else:
        assert warm.damping == 0
        np.testing.assert_allclose(warm.v, zoo.adjoint(np.zeros(1), np.zeros(1)), rtol=1e-10)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rk.FedAvg(lr="auto"), "does not look for one"),
        (lambda: rk.Scaffold(lr="auto", server_lr=1.0), "does not look for one"),
        (lambda: rk.FedNest(inner_lr="atuo"), "inner_lr must be a number, got 'atuo'"),
        (lambda: rk.parts.Curvature(every=0), "Curvature.every must be at least 1"),
        (lambda: rk.parts.Curvature(least=3.0, most=2.0), "most less Curvature.least"),
        (lambda: rk.parts.DoG(first=-1.0), "DoG.first must be a finite number above 0"),
        (lambda: rk.parts.WarmSeries(damping=-1.0), "WarmSeries.damping"),
    ],
)
def test_what_does_not_fit_is_said(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_auto_is_curvature_inside_and_distance_outside():
    assert inner_rule("auto") == rk.parts.Curvature() and step_rule("auto") == rk.parts.DoG()
    assert rk.FedNest().adjoint == rk.parts.WarmSeries()
    assert rk.FedNest(inner_lr=0.1, outer_lr=0.1).adjoint == rk.parts.FedIHGPSum()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [rk.FedNest, rk.FedMBO, rk.FedMSA])
def test_nothing_given_solves_quadratics_of_all_conditions_and_scales(kind):
    zoos = untuned.quadratics()
    _, errors = untuned.errors(kind(), zoos, rounds=700_000, every=20_000)
    assert np.all(errors < 1e-8), np.argsort(-errors)[:3]


@pytest.mark.slow
def test_nothing_given_stays_good_with_slow_clients():
    """An outer step that did not know the age of the results would run away from y and v."""
    dataset = rk.datasets.load("mnist5k")
    parts = rk.partition.shards(dataset.train["labels"], 20, shards_per_client=1)
    parts = rk.partition.split(parts, fractions={"train": 0.5, "validation": 0.5})
    task = rk.tasks.hyper_representation(dataset, parts, hidden=32, l2=0.01)
    slow = rk.delays.Stragglers(rk.delays.LogNormalDelay(1.0, 0.5), (0, 5, 10, 15), 10.0)
    result = rk.run(
        rk.AFBO(batch_size=32), task.problem, task.population, task.start(0), rounds=120,
        evaluate=task.evaluate, clock=rk.delays.Clock(slow), guard=None,
    )  # fmt: skip
    accuracy = result.history["accuracy"]
    assert accuracy[-1] > 0.8 and np.min(accuracy[10:]) > np.max(accuracy) - 0.15, accuracy
