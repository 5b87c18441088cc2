from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arena import context
from naive_afbo import Naive
from some_slow import some_slow

import rookery as rk
from rookery.algorithms.afbo import running
from rookery.algorithms.shared.auto import Agreement
from rookery.algorithms.shared.system import AbstractSystem
from rookery.engines.engine import Program
from rookery.problem.zoo.quadratic import QuadraticBilevel
from rookery.program.algorithm import first_state
from rookery.program.memory import PerClient

ZOO = rk.zoo.quadratic_bilevel(n_clients=4, x_size=1, y_size=2, cross=0.3)
APHE = rk.parts.APHESum(terms=2, lipschitz=5.0)
GRID = rk.delays.Stragglers(rk.delays.ConstantDelay(0.1), (1,), 3.0)
SLOW = rk.delays.Stragglers(rk.delays.LogNormalDelay(0.1), (3,), 4.0)


def advance(algorithm, clock=None, rounds=6, zoo=ZOO, engine=None, state=None, first=0):
    population = rk.Population.stacked(zoo.data)
    program = Program(zoo.problem, population, clock or rk.delays.Clock(), rk.aggregate.Mean())
    if state is None:
        state = first_state(algorithm, zoo.problem, population.n_clients, zoo.start)
    runner = (engine or rk.Compiled()).prepare(program, [algorithm])
    return runner.advance([state], [jax.random.key(0)], first, [rounds])[0]


WORLDS = {
    "two delays, a straggler, bounds, local steps": (
        rk.delays.Clock(SLOW, outer_delay=rk.delays.ParetoDelay(0.1), seed=1),
        rk.AFBO(
            outer_lr=0.05,
            inner_lr=0.1,
            inner_rounds=2,
            aphe=APHE,
            inner_steps=(1, 2, 3, 1),
            inner_staleness=2,
            outer_staleness=1,
        ),
    ),
    "ties, clients that fail to come, no bounds, no first wait": (
        rk.delays.Clock(GRID, availability=rk.availability.BernoulliOn(0.5, 0.1), seed=2),
        rk.AFBO(
            outer_lr=0.05,
            inner_lr=0.1,
            inner_rounds=2,
            aphe=APHE,
            inner_steps=(3, 2, 1, 1),
            local_lr=0,
            wait_for=1,
            first_wait_for=1,
            inner_staleness=None,
            outer_staleness=None,
        ),
    ),
    "days and nights, bandwidth, nothing stale": (
        rk.delays.Clock(
            rk.delays.UniformDelay(0.1, 1.0), 1e3, 3, availability=rk.availability.DiurnalOn(3.0)
        ),
        rk.AFBO(
            outer_lr=0.05,
            inner_lr=0.1,
            inner_rounds=1,
            aphe=APHE,
            wait_for=2,
            inner_staleness=0,
            outer_staleness=3,
        ),
    ),
    "no hops, unequal local iterations, bandwidth, one is waited for": (
        rk.delays.Clock(SLOW, 1e3, seed=4, outer_delay=rk.delays.ParetoDelay(0.1)),
        rk.AFBO(
            outer_lr=0.05,
            inner_lr=0.1,
            inner_rounds=2,
            inner_steps=(3, 2, 1, 1),
            wait_for=1,
            first_wait_for=3,
            inner_staleness=None,
            outer_staleness=2,
        ),
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if "ties" in n else [pytest.mark.slow]) for n in WORLDS]
)
def test_a_naive_simulation_gives_the_same_trajectory_and_the_same_clock(name):
    clock, algorithm = WORLDS[name]
    naive = Naive(ZOO, clock, algorithm)
    state, rounds = None, 12
    for cut in range(0, rounds, 4):  # chunks of rounds, the jobs in flight between them
        progress = advance(algorithm, clock, 4, state=state, first=cut)
        state = progress.state
        for ledger in progress.ledgers:
            before = naive.now
            naive.play_round()
            assert ledger.seconds == pytest.approx(naive.now - before, abs=1e-12)
        np.testing.assert_allclose(state.x, naive.x, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(state.y, naive.y, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(state.inner.began, naive.now, rtol=1e-12)
        assert state.inner.begun.tolist() == [w.number for w in naive.workers["inner"]]
    assert max(naive.staleness) > 0
    assert state is not None
    for jobs, bound in (
        (state.inner, algorithm.inner_staleness),
        (state.outer, algorithm.outer_staleness),
    ):
        if bound is not None:
            assert int(jobs.trace.staleness[bound + 1 :].sum()) == 0 < int(jobs.trace.received)


@pytest.mark.slow
def test_without_delays_it_is_the_synchronous_algorithm_step_by_step():
    afbo = rk.AFBO(outer_lr=0.05, inner_lr=0.1, inner_rounds=2, aphe=APHE)
    ihgp = rk.parts.FedIHGPSum(terms=2, lipschitz=5.0)
    nested = rk.Nested(
        inner=rk.parts.ServerSGD(lr=0.1),
        outer=rk.parts.ServerStep(lr=0.05, hypergradient=ihgp),
        inner_rounds=2,
    )
    ours, theirs = (advance(algorithm, rounds=6) for algorithm in (afbo, nested))
    np.testing.assert_allclose(ours.state.x, theirs.state.x, rtol=1e-12)
    np.testing.assert_allclose(ours.state.y, theirs.state.y, rtol=1e-12)
    assert [a.exchanges for a in ours.ledgers] == [a.exchanges for a in theirs.ledgers]
    assert ours.ledgers[0].gradients == theirs.ledgers[0].gradients


# ---- the running adjoint

ANY_DELAY = rk.delays.Clock(SLOW, outer_delay=rk.delays.LogNormalDelay(0.3), seed=5)


def distance(zoo, state):
    """From the solution."""
    ours = zip((state.x, state.y), zoo.solution(), strict=True)
    return max(np.abs(np.asarray(a, float) - b).max() for a, b in ours)


def limit_without_hops(zoo=ZOO, rounds=6000, clock=ANY_DELAY, **settings):
    """Clients take any number of local iterations."""
    algorithm = rk.AFBO(inner_steps=rk.parts.RandomSteps(1, 4), **settings)
    return advance(algorithm, clock, rounds, zoo, rk.Compiled(rounds_per_call=rounds)).state


def altered(**changes):
    """The problem with other matrices of all clients, by name."""
    return QuadraticBilevel(**{**ZOO.data, **changes}, m0=ZOO.m0)


@pytest.mark.slow
@pytest.mark.parametrize("wait_for", [None, 1])
@pytest.mark.parametrize("steps", [{}, {"outer_lr": 0.05, "inner_lr": 0.1, "inner_rounds": 2}])
def test_by_default_the_limit_is_exact_with_any_delays_and_local_iterations(wait_for, steps):
    state = limit_without_hops(wait_for=wait_for, rounds=12000, **steps)
    assert distance(ZOO, state) < 1e-12
    np.testing.assert_allclose(state.v, ZOO.adjoint(*ZOO.solution()), rtol=1e-10)
    assert int(state.inner.trace.staleness[1:].sum()) > 0


@pytest.mark.slow
def test_means_forget_the_rounding_of_early_results():
    far = tuple(np.asarray(a + 1e3, np.float32) for a in ZOO.start)
    data = {name: rows.astype(np.float32) for name, rows in ZOO.data.items()}
    algorithm = rk.AFBO(inner_steps=rk.parts.RandomSteps(1, 4))
    with jax.enable_x64(False):
        result = rk.run(
            algorithm,
            ZOO.problem,
            rk.Population.stacked(data),
            far,
            rounds=4000,
            clock=ANY_DELAY,
            evaluate_every=4000,
        )
        assert result.state.x.dtype == jnp.float32
        assert distance(ZOO, result.state) < 1e-5
        assert float(jnp.abs(result.state.g.g).max()) < 1e-6


def test_the_size_is_what_paths_since_the_clients_read_leave_of_one_over_the_curvature():
    L, begun = np.array([1.0, 2.0, 5.0]), np.array([1.0, 0.9, 0.85])
    weights, zero = np.array([0.5, 0.3, 0.2]), jnp.array(0.0)
    measured = running.Measured(jnp.asarray(L), jnp.zeros(3), jnp.zeros(3))
    jobs: Any = SimpleNamespace(results=running.Results((), (), measured))
    g = jnp.array([3.0, 4.0])
    mean = running.Results(g, g, running.Measured(zero, jnp.array(-0.25), zero))
    rules = running.Rules(rk.parts.Curvature(safety=1.5), rk.parts.Curvature(safety=1.5))
    at = context(ZOO)
    fed: Any = SimpleNamespace(weights=jnp.asarray(weights), when=at.fed.when)
    opts = rules.first_opts(jnp.zeros(2))
    jobs.version, jobs.polls, jobs.has_arrived = jnp.zeros(3), 5, jnp.zeros(3, bool)

    def sized(path, *, factor=1.0, last=g, since=0.0):
        paths = PerClient(running.Paths(jnp.zeros(3), path - jnp.asarray(begun)))
        agreement = Agreement(last, jnp.array(factor))
        lag = running.Lag(paths, agreement, jnp.array(since), jnp.array(4.0))
        return running.sized(fed, rules, opts, mean, jobs, lag)

    found, (y, v), after = sized(1.1)
    lag = weights @ (1.5 * L * (1.1 - begun))
    assert 0.5 < lag < 1.5
    np.testing.assert_allclose(found, 1.5 * weights @ L)
    np.testing.assert_allclose(y.size, (1.5 - lag) / found)
    assert v.damping == 0.5  # twice the negative curvature
    np.testing.assert_allclose(v.size, (1.5 - lag) / (found + 0.5))
    assert sized(2.0)[1][0].size == 0  # y waits
    np.testing.assert_allclose(sized(1.0)[1][0].size, 1 / found)

    np.testing.assert_allclose(after.paths.rows.results, 1.1 - begun + y.size)
    assert after.agreement.factor == 1 and after.path == y.size and after.steps == 5
    _, (y, v), after = sized(1.1, factor=2.0)  # all L_i are divided by the factor
    left = min(1.5 - lag / 2, 1)
    np.testing.assert_allclose(y.size, left / (found / 2), rtol=1e-6)
    np.testing.assert_allclose(v.size, left / (found / 2 + 0.5), rtol=1e-6)
    far = float(3 * lag / found)
    assert sized(1.1, since=0.99 * far)[2].agreement.factor == 1
    _, (y, _), after = sized(1.1, since=1.01 * far)  # g agrees with the last, four steps ago
    np.testing.assert_allclose(after.agreement.factor, np.exp(0.1 * 4))
    assert after.path == y.size and after.steps == 1
    assert sized(1.1, since=far * 1.01, last=-g)[2].agreement.factor == 0.5


def test_paths_are_the_sums_of_sizes_since_a_client_read():
    since = running.Paths(jnp.array([0.3, 0.3, 0.3]), jnp.array([0.5, 0.5, 0.5]))
    # one begins and delivers, one delivers what it began in poll 2, one goes on working
    jobs: Any = SimpleNamespace(
        polls=jnp.array(5), version=jnp.array([4, 2, 1]), has_arrived=jnp.array([1, 1, 0], bool)
    )
    since = since.arrived(jobs).stepped(jnp.array(0.1))
    np.testing.assert_allclose(since.results, [0.1, 0.4, 0.6])
    np.testing.assert_allclose(since.job, [0.1, 0.4, 0.4])


def test_a_found_size_of_v_alone_counts_the_paths_of_v():
    state = limit_without_hops(
        rounds=30, outer_lr=0.05, inner_lr=0.05,
        aphe=rk.parts.RunningAdjoint(lr=rk.parts.Curvature()),
    )  # fmt: skip
    assert float(jnp.max(state.lag.paths.rows.results)) > 0
    most = float(state.lag.agreement.factor) / float(state.lipschitz)
    assert 0 <= float(state.opts.adjoint.size) <= most


@pytest.mark.slow
@pytest.mark.parametrize("who", [1, 3])  # one of the fast clients, or the straggler
@pytest.mark.parametrize("staleness", [9, None])
def test_sizes_that_are_found_suit_a_stiff_client(who, staleness):
    H = ZOO.H.copy()
    H[who] *= 100
    zoo = altered(H=H)
    bounds = {"inner_staleness": staleness, "outer_staleness": staleness}
    early, late = (limit_without_hops(zoo, rounds=n, **bounds) for n in (60, 20000))
    assert distance(zoo, early) < 1  # a mean over those who have just delivered gave 8e5
    assert distance(zoo, late) < 1e-8
    each = np.linalg.eigvalsh(H[:, 0]).max(1)  # of every client
    np.testing.assert_allclose(late.lipschitz, 1.1 * each.mean(), rtol=0.01)


@pytest.mark.slow
def test_without_delays_steps_are_those_of_all_clients_together():
    state = limit_without_hops(rounds=3, clock=rk.delays.Clock(), outer_lr=0.05, inner_lr=0.1)
    d = {name: a.mean((0, 1)) for name, a in ZOO.data.items()}
    Qd = np.einsum("cij,cj->ci", ZOO.data["Q"][:, 0], ZOO.data["d"][:, 0]).mean(0)
    (x, y), v = ZOO.start, np.zeros(2)
    for _ in range(3):
        g, r = d["H"] @ y - d["B"] @ x - d["c"], d["H"] @ v - (d["Q"] @ y - Qd + d["E"].T @ x)
        y, v = y - 0.1 * g, v - 0.1 * r
        x = x - 0.05 * (d["r"] + ZOO.m0 * x + d["E"] @ y + d["B"].T @ v)
    np.testing.assert_allclose(state.x, x, rtol=1e-12)
    np.testing.assert_allclose(state.v, v, rtol=1e-12)


@pytest.mark.slow
def test_where_the_inner_hessian_is_indefinite_the_adjoint_stays_small():
    H = np.broadcast_to(np.diag([1.0, -0.2]), ZOO.H.shape)
    # y stays at zero, where its gradient is
    zoo = altered(H=H, B=0 * ZOO.B, c=0 * ZOO.c)
    state = limit_without_hops(zoo, rounds=300)
    assert np.isfinite(state.x).all() and float(jnp.linalg.norm(state.v)) < 50
    assert float(state.opts.adjoint.damping) > 0.2


LIMIT = rk.delays.Clock(SLOW, outer_delay=rk.delays.UniformDelay(0.1, 0.5))


def limit_of(zoo=ZOO, rounds=4000, clock=LIMIT, **settings):
    settings = {
        "aphe": rk.parts.APHESum(terms=40, lipschitz=5.0),
        "inner_staleness": 3,
        "outer_staleness": 3,
    } | settings
    algorithm = rk.AFBO(outer_lr=0.05, inner_lr=0.1, inner_rounds=2, **settings)
    return advance(algorithm, clock, rounds, zoo, rk.Compiled(rounds_per_call=rounds)).state


@pytest.mark.slow
@pytest.mark.parametrize("local_lr", [0.0, 0.05])
def test_the_limit_with_bounded_delays_is_the_solution_unless_local_steps_drift(local_lr):
    state = limit_of(hessians=rk.parts.StaleHessians(), inner_steps=(1, 2, 3, 4), local_lr=local_lr)
    x, y = ZOO.solution()
    distance = np.abs(state.y - ZOO.inner_solution(np.asarray(state.x))).max()
    if local_lr == 0:
        np.testing.assert_allclose(state.x, x, rtol=1e-8)
        np.testing.assert_allclose(state.y, y, rtol=1e-8)
    else:  # unequal numbers of local steps weigh the clients' gradients unequally
        half = limit_of(
            hessians=rk.parts.StaleHessians(), inner_steps=(1, 2, 3, 4), local_lr=local_lr / 2
        )
        less = np.abs(half.y - ZOO.inner_solution(np.asarray(half.x))).max()
        assert 1.6 < distance / less < 2.4  # O(local_lr)


@pytest.mark.slow
def test_active_clients_find_the_solution_where_all_have_the_same_adjoint():
    same = rk.zoo.quadratic_bilevel(n_clients=4, x_size=1, y_size=2, cross=0.0)
    alike = {name: getattr(same, name).copy() for name in ("H", "Q", "d")}
    for array in alike.values():
        array[:] = array[0]
    zoo = QuadraticBilevel(**{**same.data, **alike})
    state = limit_of(zoo, aphe=rk.parts.APHESum(terms=100, lipschitz=5.0))
    np.testing.assert_allclose(state.x, zoo.solution()[0], rtol=1e-8)
    # elsewhere a mean over some clients is another system, and x moves about
    away = np.abs(limit_of().x - ZOO.solution()[0]).max()
    assert 1e-4 < away < 0.5


@pytest.mark.slow
def test_afl_lands_where_the_mean_of_local_hypergradients_is_zero():
    algorithm = rk.AFLBilevel(
        outer_lr=0.05,
        inner_lr=0.1,
        inner_rounds=2,
        series=rk.parts.APHESum(terms=60, lipschitz=5.0),
        inner_staleness=3,
    )
    state = advance(algorithm, LIMIT, 4000, engine=rk.Compiled(rounds_per_call=4000)).state
    x, y, d = np.asarray(state.x), np.asarray(state.y), {k: a[:, 0] for k, a in ZOO.data.items()}
    own = [
        d["r"][i] + x + d["E"][i] @ y
        + d["B"][i].T @ np.linalg.solve(d["H"][i], d["Q"][i] @ (y - d["d"][i]) + d["E"][i].T @ x)
        for i in range(4)
    ]  # fmt: skip
    np.testing.assert_allclose(np.mean(own, axis=0), 0, atol=1e-5)
    assert np.abs(x - ZOO.solution()[0]).max() > 0.01


@pytest.mark.slow
def test_the_papers_product_recovers_less_than_1_over_e_and_lands_elsewhere():
    s = np.linspace(0.01, 1, 100)  # eigenvalues over L, and f_y = s: the inverse gives 1 / L

    class Diagonal(AbstractSystem):
        def right_side(self, key):
            return jnp.asarray(s)

        def product(self, p, key):
            return 5.0 * s * p

        def repeat(self, n, body, init, *, most):
            return jax.lax.fori_loop(0, n, body, init)

    for U in (1, 4, 18, 100):
        v = rk.parts.APHEPaper(terms=U, lipschitz=5.0).solve(
            Diagonal(), jnp.asarray(5.0), jax.random.key(0)
        )
        np.testing.assert_allclose(5.0 * v, U * s * (1 - s) ** U, rtol=1e-10, atol=1e-12)
        assert float((5.0 * v).max()) < np.exp(-1)
    # with so many hops next to nothing is left: f_x alone is driven to zero
    state = limit_of(
        aphe=rk.parts.APHEPaper(terms=60, lipschitz=5.0), hessians=rk.parts.StaleHessians()
    )
    m = {name: a.mean((0, 1)) for name, a in ZOO.data.items()}
    J = np.linalg.solve(m["H"], m["B"])
    direct = -np.linalg.solve(
        np.eye(1) + m["E"] @ J, m["r"] + m["E"] @ np.linalg.solve(m["H"], m["c"])
    )
    np.testing.assert_allclose(state.x, direct, atol=1e-3)
    assert np.abs(direct - ZOO.solution()[0]).max() > 0.05


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hops", "no hops"])
def test_resuming_in_mid_flight_is_exact(name, tmp_path):
    clock, algorithm = WORLDS["two delays, a straggler, bounds, local steps"]
    if name == "no hops":
        algorithm = rk.AFBO(inner_steps=rk.parts.RandomSteps(1, 3))
    population = rk.Population.stacked(ZOO.data)

    def go(rounds, directory=None):
        return rk.run(
            algorithm, ZOO.problem, population, ZOO.start, rounds=rounds, clock=clock,
            directory=directory, evaluate_every=3,
        )  # fmt: skip

    go(3, tmp_path)
    resumed, whole = go(6, tmp_path), go(6)
    assert not bool(resumed.state.inner.is_idle.all() & resumed.state.outer.is_idle.all())
    jax.tree.map(np.testing.assert_array_equal, resumed.state, whole.state)
    assert resumed.ledger == whole.ledger
    jobs = [rk.Run(algorithm, ZOO.start, seed) for seed in (0, 1)]
    lanes = rk.sweep(jobs, ZOO.problem, population, rounds=6, clock=clock)
    np.testing.assert_allclose(lanes[0].state.x, whole.state.x, rtol=1e-12)
    assert lanes[0].ledger.seconds == pytest.approx(whole.ledger.seconds, rel=1e-12)


SCALAR = rk.zoo.scalar_bilevel()


def one_round(K, U, hessians):
    algorithm = rk.AFBO(
        outer_lr=0.05,
        inner_lr=0.1,
        inner_rounds=K,
        aphe=rk.parts.APHESum(terms=U, lipschitz=5.0),
        hessians=hessians,
    )
    return advance(algorithm, rounds=1, zoo=SCALAR, engine=rk.Eager()).ledgers[0]


@pytest.mark.parametrize(("K", "U"), some_slow([(2, 1), (1, 1), (1, 3)]))
def test_what_a_round_with_hops_costs(K, U):
    m, p, q = 2, 8, 8
    for hessians in (rk.parts.ActiveHessians(), rk.parts.StaleHessians())[: 2 if K == U else 1]:
        ledger = one_round(K, U, hessians)
        assert ledger.exchanges == K + U + 2
        assert ledger.messages == 2 * m * (K + U + 2)
        assert ledger.bytes_down == m * (K * (p + q) + (p + q) + U * q + q)
        assert ledger.bytes_up == m * (K * q + q + U * q + p)
        assert ledger.hessian_vectors == m * (U + 1)


def test_what_a_round_with_a_running_adjoint_costs():
    K, E, m, p, q = 2, 3, 2, 8, 8
    algorithm = rk.AFBO(outer_lr=0.05, inner_lr=0.1, inner_rounds=K, inner_steps=E)
    ledger = advance(algorithm, rounds=1, zoo=SCALAR, engine=rk.Eager()).ledgers[0]
    assert ledger.exchanges == K + 1
    assert ledger.messages == 2 * m * (K + 1)
    assert ledger.bytes_down == m * (K + 1) * (p + 2 * q)
    assert ledger.bytes_up == m * (K * 2 * q + p)
    assert ledger.gradients == m * (K * E * 2 + 1)
    assert ledger.hessian_vectors == m * (K * E + 1)
    # a client that measures L is told so, and what it knows; in its first jobs it always does
    found = rk.AFBO(outer_lr=0.05, inner_lr=rk.parts.Curvature(iterations=4))
    ledger = advance(found, rounds=1, zoo=SCALAR, engine=rk.Eager()).ledgers[0]
    assert ledger.bytes_down == m * (2 * (p + 2 * q) + 1 + 16)
    assert ledger.bytes_up == m * (2 * q + 16 + p)
    assert ledger.hessian_vectors == m * (1 + 4 + 1 + 1)


def test_what_a_round_with_local_hessians_costs():
    ledger = one_round(2, 3, rk.parts.LocalHessians())
    assert ledger.exchanges == 3
    assert (ledger.bytes_down, ledger.bytes_up) == (2 * 3 * 16, 2 * 3 * 8)
    assert ledger.hessian_vectors == 2 * (3 + 1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"wait_for": 0}, "wait_for must be at least 1"),
        ({"inner_staleness": -1}, "inner_staleness must be at least 0"),
        ({"local_lr": -1.0}, "local_lr must be a finite number, 0 or above"),
        ({"inner_steps": (1, 0)}, "inner_steps must be at least 1"),
    ],
)
def test_bad_settings_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        rk.AFBO(outer_lr=0.05, inner_lr=0.1, **settings)


def test_what_a_running_adjoint_cannot_have_is_refused():
    with pytest.raises(ValueError, match=r"RunningAdjoint has none\. Leave hessians out"):
        rk.AFBO(hessians=rk.parts.StaleHessians())
    with pytest.raises(ValueError, match=r"RunningAdjoint\.lr must be a finite number above 0"):
        rk.AFBO(aphe=rk.parts.RunningAdjoint(lr=-1.0))
    with pytest.raises(TypeError, match=r"RunningAdjoint\.lr got DoG"):
        rk.parts.RunningAdjoint(lr=rk.parts.DoG())


def test_what_does_not_fit_the_clients_is_refused():
    with pytest.raises(ValueError, match="wait_for=5 results cannot come from 4 clients"):
        rk.AFBO(outer_lr=0.05, inner_lr=0.1, wait_for=5).check(ZOO.problem, 4)
    with pytest.raises(TypeError, match="AFBO solves Bilevel problems, got Minimax"):
        rk.AFBO(outer_lr=0.05, inner_lr=0.1).check(
            rk.zoo.saddle(n_clients=3).problem,  # type: ignore
            3,
        )
