"""Step rules: optimisers against NumPy, at the server, on clients and in their memory."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from arena import federation, solve

import rookery as rk
from rookery.algorithms import FedAdam, FedAvgM, FedNova, FedYogi
from rookery.algorithms.shared.step_rule import first_opt, move
from rookery.engines import compiled
from rookery.program.algorithm import first_state, numbers_to_arrays

Optimiser = rk.parts.Optimiser
ANY: Any = 0.1  # which is neither a function nor a transformation
LOSSES = rk.zoo.quadratic_losses(n_clients=3, size=2, rows=2, noise=0.3)
STEPS = (1, 2, 3)


class Adam:
    """Adam of one variable in NumPy."""

    def __init__(self, lr, b1=0.9, b2=0.999, eps=1e-8):
        self.settings, self.m, self.v, self.t = (lr, b1, b2, eps), 0.0, 0.0, 0

    def step(self, w, g):
        """The variable after one step against g."""
        lr, b1, b2, eps = self.settings
        self.t, self.m = self.t + 1, b1 * self.m + (1 - b1) * g
        self.v = b2 * self.v + (1 - b2) * g * g
        m, v = self.m / (1 - b1**self.t), self.v / (1 - b2**self.t)
        return w - lr * m / (np.sqrt(v) + eps)


def local_adam(zoo, lr, server, keep, rounds):
    """FedAvg with Adam on the clients and a rule at the server, in NumPy."""
    (w,) = zoo.start
    own = [Adam(lr) for _ in STEPS]
    for _ in range(rounds):
        models = []
        for i, steps in enumerate(STEPS):
            adam, w_i = own[i] if keep else Adam(lr), w
            for _ in range(steps):
                w_i = adam.step(w_i, zoo.gradients(w_i)[i])
            models.append(w_i)
        mean = np.mean(models, axis=0)
        w = mean if server is None else server.step(w, w - mean)
    return w, own


@pytest.mark.parametrize("keep", [False, True])
def test_local_adam_starts_afresh_or_stays_with_its_client(keep):
    rule = Optimiser(optax.adam, learning_rate=0.1, keep=keep)
    server = Optimiser(optax.adam, learning_rate=0.5, b1=0.8)
    algorithm = rk.FedAvg(lr=rule, local_steps=STEPS, server_lr=server)
    result = solve(LOSSES, algorithm, 4)
    want, own = local_adam(LOSSES, 0.1, Adam(0.5, b1=0.8), keep, 4)
    np.testing.assert_allclose(result.solution[0], want, rtol=1e-12)
    if not keep:
        assert result.state.own_opt == ()
        return
    moments = result.state.own_opt.rows[0]  # a row for each client, none of another's
    np.testing.assert_allclose(moments.mu, [adam.m for adam in own], rtol=1e-12)
    np.testing.assert_allclose(moments.nu, [adam.v for adam in own], rtol=1e-12)
    assert moments.count.tolist() == [4 * steps for steps in STEPS]


def test_only_the_clients_of_a_cohort_renew_what_they_keep():
    rule = Optimiser(optax.adam, learning_rate=0.1, keep=True)
    state = solve(LOSSES, rk.FedAvg(lr=rule, clients=rk.participation.Fixed((1,))), 3).state
    assert state.own_opt.rows[0].count.tolist() == [0, 3, 0]
    assert np.all(np.asarray(state.own_opt.rows[0].mu)[[0, 2]] == 0)


def test_inner_rounds_of_a_round_hand_on_what_clients_keep():
    zoo = rk.zoo.quadratic_bilevel(n_clients=2, x_size=1, y_size=2, rows=2, noise=0.3)
    x, y = (jnp.asarray(a) for a in zoo.start)
    rows = [jax.tree.map(lambda a, i=i: jnp.asarray(a[i]), zoo.data) for i in range(2)]
    inner = jax.grad(
        lambda y, own: jnp.mean(jax.vmap(zoo.problem.inner, (None, None, 0))(x, y, own))
    )
    own, w = [Adam(0.1), Adam(0.1)], np.asarray(y)
    for _ in range(2 * 3):
        models = []
        for adam, mine in zip(own, rows, strict=True):
            w_i = w
            for _ in range(2):
                w_i = adam.step(w_i, np.asarray(inner(jnp.asarray(w_i), mine)))
            models.append(w_i)
        w = np.mean(models, axis=0)
    rule = Optimiser(optax.adam, learning_rate=0.1, keep=True)
    part = rk.parts.FedInnSGD(lr=rule, local_steps=2)
    algorithm = rk.Nested(inner=part, outer=rk.parts.FrozenOuter(), inner_rounds=3)
    result = solve(zoo, algorithm, 2)
    np.testing.assert_allclose(result.solution[1], w, rtol=1e-12)
    assert result.state.opts.inner.rows[0].count.tolist() == [12, 12]


def test_numbers_have_no_state():
    for algorithm in (rk.FedAvg(lr=0.1), rk.FedAvg(lr=rk.parts.Decay(0.1, 0.5), server_lr=0.5)):
        state = first_state(algorithm, LOSSES.problem, 3, LOSSES.start)
        assert len(jax.tree.leaves(state)) == 1


@pytest.mark.slow
def test_a_schedule_by_round_counts_rounds_not_local_steps():
    (w,) = LOSSES.start
    for round in range(3):
        lr, models = 0.2 * 0.5**round, []
        for i, steps in enumerate(STEPS):
            w_i = w
            for _ in range(steps):
                w_i = w_i - lr * LOSSES.gradients(w_i)[i]
            models.append(w_i)
        w = np.mean(models, axis=0)
    decay = rk.parts.Decay(0.2, 0.5)
    for rule in (
        decay,
        rk.parts.ByRound(optax.exponential_decay(0.2, 1, 0.5)),
        Optimiser(optax.sgd, learning_rate=decay),
    ):
        got = solve(LOSSES, rk.FedAvg(lr=rule, local_steps=STEPS), 3).solution[0]
        np.testing.assert_allclose(got, w, rtol=1e-12)


def test_clipping_at_infinity_changes_nothing():
    def clipped(lr, limit):
        return optax.chain(optax.clip_by_global_norm(limit), optax.sgd(lr))

    g, w = jnp.array([3.0, -4.0]), jnp.array([1.0, 2.0])
    for limit, scale in ((np.inf, 1.0), (1.0, 0.2)):
        rule = Optimiser(clipped, lr=0.1, limit=limit)
        got, _ = move(rule, g, first_opt(rule, w), w, 0)
        np.testing.assert_allclose(got, w - 0.1 * scale * g, rtol=1e-15)


@pytest.mark.slow
def test_single_precision_stays_single():
    zoo = rk.zoo.quadratic_losses(n_clients=3, size=2, dtype=np.float32)
    rule = Optimiser(optax.adamw, learning_rate=rk.parts.Decay(0.1, 0.5), keep=True)
    algorithm = rk.FedAvg(lr=rule, local_steps=2, server_lr=Optimiser(optax.yogi, learning_rate=1))

    def round(algorithm, state, key):
        return algorithm.round(federation(zoo), zoo.problem, state, key)

    state = first_state(algorithm, zoo.problem, 3, zoo.start)
    new = eqx.filter_eval_shape(round, numbers_to_arrays(algorithm), state, jax.random.key(0))
    assert jax.tree.structure(new) == jax.tree.structure(state)
    assert jax.tree.map(lambda a: a.dtype, new) == jax.tree.map(lambda a: a.dtype, state)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(new)} == {"float32", "int32"}


@pytest.mark.slow
def test_a_sweep_over_adams_rate_and_seeds_is_one_program():
    def algorithm(lr):
        rule = Optimiser(optax.adam, learning_rate=lr, keep=True)
        return rk.FedAvg(lr=rule, server_lr=Optimiser(optax.adam, learning_rate=2 * lr), clients=2)

    before = compiled.programs_compiled()
    runs = [rk.Run(algorithm(lr), LOSSES.start, s) for lr in (0.1, 0.2, 0.3) for s in (0, 1)]
    population = rk.Population.stacked(LOSSES.data)
    together = rk.sweep(runs, LOSSES.problem, population, rounds=3)
    assert compiled.programs_compiled() - before == 1
    assert len({str(result.solution) for result in together}) == 6
    alone = solve(LOSSES, algorithm(0.3), 3, seed=1)
    np.testing.assert_allclose(together[-1].solution[0], alone.solution[0], rtol=1e-12)


def test_a_transformation_given_as_it_is():
    rule: Any = optax.adam(0.1)
    got = solve(LOSSES, rk.FedAvg(lr=rule, local_steps=STEPS), 2).solution[0]
    np.testing.assert_allclose(got, local_adam(LOSSES, 0.1, None, False, 2)[0], rtol=1e-12)


ADAM: Any = Optimiser(optax.adam, learning_rate=0.1)
BARE: Any = optax.adam(0.1)
KEPT: Any = Optimiser(optax.adam, learning_rate=0.1, keep=True)
FALLING: Any = rk.parts.Decay(0.1, 0.9)
RISING: Any = optax.linear_schedule(0.0, 0.1, 2)
WARM_UP: Any = rk.parts.ByRound(RISING)
FACTORY: Any = optax.adam
SEARCH: Any = optax.lbfgs()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Optimiser(optax.adam, learning_rat=0.1), "Optimiser.adam.: .*learning_rat"),
        (lambda: Optimiser(optax.sgd, learning_rate=-1), "learning_rate of Optimiser.sgd. must be"),
        (lambda: Optimiser(ANY), "a function that returns an Optax transformation"),
        (lambda: Optimiser(lambda lr: lr, lr=0.1), "not an Optax transformation"),
        (
            lambda: Optimiser(lambda lr: optax.sgd(lr if lr > 0 else 1.0), lr=0.1),
            "decides something by the value of a number",
        ),
        (lambda: rk.FedAvg(lr=0.1, server_lr=KEPT), "server_lr got keep=True"),
        (lambda: rk.FedMBO(outer_lr=KEPT, inner_lr=0.1), "outer_lr got keep=True"),
        (
            lambda: rk.FedAvg(lr=KEPT, clients=rk.participation.Weighted(2)),
            "FedAvg with keep=True keeps a value on every client",
        ),
        (
            lambda: rk.Nested(
                inner=rk.parts.FedInn(lr=KEPT),
                outer=rk.parts.FrozenOuter(),
                clients=rk.participation.WithReplacement(2),
            ),
            "Nested with keep=True",
        ),
        (lambda: rk.DRFA(lr=KEPT, ascent_lr=0.1), "DRFA with keep=True"),
        (lambda: rk.DRFA(lr=0.1, ascent_lr=ADAM), "ascent_lr of DRFA cannot be an optimiser"),
        (lambda: rk.AgnosticFL(lr=0.1, ascent_lr=ADAM), "ascent_lr of AgnosticFL cannot be"),
        (lambda: rk.Scaffold(lr=ADAM), r"lr of Scaffold cannot be an optimiser.*divided by K lr"),
        (lambda: rk.ScaffoldS(outer_lr=0.1, inner_lr=ADAM), "inner_lr of ScaffoldS cannot be"),
        (lambda: rk.QFedAvg(lr=ADAM, q=1.0), "lr of QFedAvg cannot be an optimiser"),
        (lambda: FedNova(lr=ADAM), "lr of FedNova cannot be an optimiser"),
        (lambda: rk.NASA(lr=ADAM), "lr of NASA cannot be an optimiser"),
        (lambda: rk.SCGD(outer_lr=ADAM, inner_lr=ADAM), "inner_lr of SCGD cannot be"),
        (lambda: rk.ADBO(outer_lr=ADAM, inner_lr=0.1), "outer_lr must be a number, got Optimiser"),
        (lambda: rk.parts.ADMM(lr=ADAM), "ADMM.lr must be a number, got Optimiser"),
        (lambda: rk.Prometheus(outer_lr=0.1, inner_lr=FALLING), "inner_lr must be a number"),
        (lambda: rk.ALSET(outer_lr=ADAM, inner_lr=0.1, horizon=9), "outer_lr must be a number"),
        (lambda: rk.TTSA(outer_lr=BARE, inner_lr=0.1), "outer_lr must be a number, got Optimiser"),
        (lambda: rk.ADBO(outer_lr=0.1, inner_lr=BARE), "inner_lr must be a number, got Optimiser"),
        (lambda: rk.TTSA(outer_lr=0.1, inner_lr=ADAM), "inner_lr must be a number"),
        (lambda: rk.FedBuff(lr=FALLING, buffer_size=2), "lr got a schedule by round"),
        (
            lambda: rk.AFACS(lr=Optimiser(optax.sgd, learning_rate=FALLING), server_lr=0.1),
            "lr got a schedule by round",
        ),
        (
            lambda: rk.AFBO(outer_lr=0.1, inner_lr=FALLING, aphe=rk.parts.APHESum()),
            "local_lr, which is inner_lr if not",
        ),
        (lambda: rk.AFACD(lr=KEPT, server_lr=0.1), "lr got keep=True, but the jobs"),
        (
            lambda: rk.FedMSA(outer_lr=KEPT, inner_lr=0.1, output=rk.parts.RandomIterate()),
            "RandomIterate asks a client to take its steps again",
        ),
        (
            lambda: rk.parts.BilevelWarmUp(inner=rk.parts.FedInn(lr=KEPT), inner_rounds=1),
            "BilevelWarmUp got an inner solver with keep=True",
        ),
        (lambda: FedAdam(lr=0.1, server_lr=0.1, b2=1.0), "b2 must be at least 0"),
        (lambda: FedAvgM(lr=0.1, b1=-0.1), "b1 must be at least 0 and below 1"),
        (lambda: FedYogi(lr=0.1, server_lr=0.1, tau=0.0), "tau must be"),
        (lambda: rk.parts.ByRound(ANY), "ByRound takes a function of the round"),
        (lambda: rk.parts.ByRound(lambda r: -1.0), "ByRound in round 0 must be .* 0 or above"),
        (lambda: rk.Scaffold(lr=WARM_UP), "lr of Scaffold, which divides by it, in round 0 must"),
        (lambda: rk.QFedAvg(lr=WARM_UP, q=1.0), "lr of QFedAvg, which divides by it, in round 0"),
        (lambda: rk.FedAvg(lr=FACTORY), r"lr must.* function adam.*Optimiser\(optax.adam"),
        (lambda: rk.SOBA(outer_lr=RISING, inner_lr=0.1), r"outer_lr must be.*ByRound\(sch"),
        (
            lambda: FedAdam(lr=0.1, server_lr=ADAM),
            r"^server_lr of FedAdam cannot be an optimiser.*FedAvg\(server_lr=",
        ),
        (lambda: FedAvgM(lr=0.1, server_lr=BARE), "^server_lr of FedAvgM cannot be an opt"),
        (lambda: Optimiser(optax.adam(0.1), learning_rate=0.2), "got learning_rate for a transfor"),
        (lambda: rk.FedAvg(lr=SEARCH), r"needs more than a direction.*without them"),
        (lambda: Optimiser(optax.polyak_sgd), r"Optimiser\(polyak_sgd\) needs more.*'value'"),
        (
            lambda: Optimiser(rk.parts.proximal_sgd, learning_rate=RISING, prox=lambda w, a: w),
            r"proximal_sgd takes no schedule of Optax.*ByRound\(schedule\)",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_a_warm_up_may_start_at_zero():
    rule, w = rk.FedAvg(lr=WARM_UP).lr, jnp.array(2.0)
    moved = [float(move(rule, jnp.array(1.0), (), w, round)[0]) for round in range(3)]
    np.testing.assert_allclose(moved, [2.0, 1.95, 1.9], rtol=1e-6)


def test_an_optimiser_made_for_one_tree_is_taken():
    mask = {"a": True, "b": False}
    rule = Optimiser(optax.masked(optax.sgd(0.5), mask))
    w = {"a": jnp.array(1.0), "b": jnp.array(1.0)}
    moved, _ = move(rule, w, first_opt(rule, w), w, 0)
    assert (float(moved["a"]), float(moved["b"])) == (0.5, 2.0)  # the mask lets b's direction by
