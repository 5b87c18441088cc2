"""Clocks on which clients' work takes time: how long, and the same on every engine."""

import tomllib
from contextlib import closing
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from instances import INSTANCES

import rookery as rk
from rookery.engines.engine import Program
from rookery.program.algorithm import first_state
from rookery.remote import Remote

LOSSES = rk.zoo.quadratic_losses(n_clients=2, size=2, rows=6)
BILEVEL = rk.zoo.quadratic_bilevel(n_clients=2, x_size=1, y_size=2)
ALONE = rk.delays.Clock(compute=rk.delays.Compute(gradient=0.5))
MIXED = rk.delays.Clock(
    rk.delays.LogNormalDelay(0.1),
    bandwidth=1e4,
    seed=3,
    outer_delay=rk.delays.ParetoDelay(0.2),
    compute=rk.delays.Compute(gradient=(0.05, 0.01, 0.2), hessian_vector=0.07),
)


def rounds(zoo, algorithm, clock, engine=None, n=1, state=None, first=0):
    population = rk.Population.stacked(zoo.data)
    program = Program(zoo.problem, population, clock, rk.aggregate.Mean())
    if state is None:
        state = first_state(algorithm, zoo.problem, population.n_clients, zoo.start)
    with closing((engine or rk.Eager()).prepare(program, [algorithm])) as runner:
        return runner.advance([state], [jax.random.key(7)], first, [n])[0]


ENGINES = [rk.Eager(), pytest.param(rk.Compiled(), marks=pytest.mark.slow)]


@pytest.mark.parametrize("engine", ENGINES)
def test_an_exchange_lasts_as_long_as_the_client_with_the_most_work(engine):
    def seconds(**settings):
        return rounds(LOSSES, rk.FedAvg(lr=0.1, **settings), ALONE, engine).ledgers[0].seconds

    assert seconds(local_steps=1, batch_size=2) == 2 * 0.5
    assert seconds(local_steps=2, batch_size=2) == 2 * 2 * 0.5  # twice the iterations
    assert seconds(local_steps=1, batch_size=4) == 4 * 0.5  # twice the rows
    assert seconds(local_steps=1) == 6 * 0.5  # all rows
    assert seconds(local_steps=(1, 3), batch_size=2) == 3 * 2 * 0.5


@pytest.mark.parametrize("engine", ENGINES)
def test_a_job_of_twice_the_local_iterations_takes_twice_the_time(engine):
    algorithm = rk.AFACS(lr=0.1, server_lr=0.1, local_steps=(1, 2), batch_size=2, wait_for=1)
    state = rounds(LOSSES, algorithm, ALONE, engine, n=6).state
    trace = state.jobs.trace.as_dict()
    lasted = np.subtract(trace["ended"], trace["began"])
    assert set(lasted[np.equal(trace["client"], 0)]) == {2 * 0.5}
    assert set(lasted[np.equal(trace["client"], 1)]) == {2 * 2 * 0.5}
    # client 0 has delivered twice as often, but for the first poll, which waits for both
    assert state.jobs.begun.tolist()[0] > state.jobs.begun.tolist()[1]


@pytest.mark.slow
def test_times_are_the_same_in_float32():
    algorithm = rk.AFACS(lr=0.1, server_lr=0.1, local_steps=(1, 2), batch_size=2, wait_for=1)
    with jax.enable_x64(False):
        half = rounds(LOSSES, algorithm, ALONE, rk.Compiled(), n=3).ledgers
    whole = rounds(LOSSES, algorithm, ALONE, rk.Compiled(), n=3).ledgers
    assert [a.seconds for a in half] == [a.seconds for a in whole]


@pytest.mark.slow
def test_a_product_takes_twice_the_time_of_a_gradient_unless_it_is_given():
    algorithm = rk.AFBO(outer_lr=0.1, inner_lr=0.1, inner_steps=3)

    def seconds(**compute):
        clock = rk.delays.Clock(compute=rk.delays.Compute(**compute))
        return rounds(BILEVEL, algorithm, clock).ledgers[0].seconds

    # three times g_y, f_y and g_yy v, then f_x and g_xy v; a client has one row
    assert seconds(gradient=1) == 3 * (1 + 1 + 2) + 1 + 2
    assert seconds(gradient=1, hessian_vector=10) == 3 * (1 + 1 + 10) + 1 + 10
    assert seconds(gradient=[1, 5], hessian_vector=0) == 5 * (3 * 2 + 1)


def test_no_time_for_work_is_the_clock_without_it():
    delay = rk.delays.ConstantDelay(1.0)
    free = rk.delays.Clock(delay, compute=rk.delays.Compute(gradient=0))
    assert eqx.tree_equal(free, rk.delays.Clock(delay))
    for gradient, product in ((0, 0.1), ((0, 0.1), 0)):
        work = rk.delays.Compute(gradient=gradient, hessian_vector=product)
        assert rk.delays.Clock(delay, compute=work).compute == work


def test_the_figures_of_afbo_say_that_work_takes_no_time():
    files = sorted((Path(__file__).parents[2] / "experiments").glob("afbo_fig*/config.toml"))
    assert len(files) == 8
    for file in files:
        said = tomllib.loads(file.read_text())["clock"]["compute"]
        assert said == {"name": "Compute", "gradient": 0.0}


def test_time_of_work_comes_on_top_of_delays_and_transfers():
    plain = rk.delays.Clock(rk.delays.ConstantDelay(1.0), bandwidth=8.0)
    both = rk.delays.Clock(
        rk.delays.ConstantDelay(1.0), bandwidth=8.0, compute=rk.delays.Compute(0.5)
    )
    algorithm = rk.FedAvg(lr=0.1, batch_size=2)
    before, after = (rounds(LOSSES, algorithm, c).ledgers[0].seconds for c in (plain, both))
    assert after == before + 2 * 0.5


SHOWN = [
    ("AFBO", "running adjoint, steps not given"),
    ("AFBO", "active, random local iterations"),
    ("FedNest", "estimated lipschitz, unequal local steps"),
    ("ADBO", "mini-batch, half are waited for"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "which"), SHOWN)
def test_engines_agree_on_the_time_of_work(name, which):
    zoo, algorithm = INSTANCES[name][which]
    clock = MIXED
    if zoo.data["H"].shape[0] != 3:
        clock = rk.delays.Clock(rk.delays.LogNormalDelay(0.1), compute=rk.delays.Compute(0.05))
    want = rounds(zoo, algorithm, clock, rk.Compiled(devices=1), n=3)
    assert [a.seconds for a in want.ledgers] != [
        a.seconds for a in rounds(zoo, algorithm, rk.delays.Clock(), rk.Compiled(), n=3).ledgers
    ]
    others = [
        rk.Eager(),
        Remote(),
        *(rk.Compiled(devices=4, data=d) for d in ("replicated", "by client")),
    ]
    for engine in others:
        got = rounds(zoo, algorithm, clock, engine, n=3)
        for a, b in zip(got.ledgers, want.ledgers, strict=True):
            assert a.values()[:-1] == b.values()[:-1]
            assert a.seconds == pytest.approx(b.seconds, rel=1e-12)
        ours, theirs = (algorithm.solution(p.state) for p in (got, want))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-12, 1e-12), ours, theirs)
    # and where the rounds are cut changes nothing
    part = rounds(zoo, algorithm, clock, rk.Compiled(devices=1), n=2)
    rest = rounds(zoo, algorithm, clock, rk.Compiled(devices=1), state=part.state, first=2)
    jax.tree.map(np.testing.assert_array_equal, rest.state, want.state)
    assert part.ledgers + rest.ledgers == want.ledgers


@pytest.mark.slow
def test_a_resumed_run_is_exact(tmp_path):
    zoo, algorithm = INSTANCES["AFBO"]["running adjoint, steps not given"]
    population = rk.Population.stacked(zoo.data)

    def go(n, directory=None):
        settings = {"clock": MIXED, "directory": directory, "evaluate_every": 3}
        return rk.run(algorithm, zoo.problem, population, zoo.start, rounds=n, **settings)

    go(3, tmp_path)
    resumed, whole = go(6, tmp_path), go(6)
    jax.tree.map(np.testing.assert_array_equal, resumed.state, whole.state)
    assert resumed.ledger == whole.ledger


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rk.delays.Compute(-1.0), r"Compute\.gradient must be"),
        (lambda: rk.delays.Compute(1.0, (1.0, -2.0)), r"Compute\.hessian_vector must be"),
        (
            lambda: rk.delays.Clock(compute=rk.delays.Compute((1.0, 2.0))).check(3),
            r"Compute\.gradient has 2 numbers for 3 clients",
        ),
    ],
)
def test_bad_times_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_server_without_rows_cannot_simulate_the_time_of_work():
    example = {name: jnp.asarray(rows[0, 0]) for name, rows in LOSSES.data.items()}
    population = rk.Population.elsewhere(example, n_clients=2)
    program = Program(LOSSES.problem, population, ALONE, rk.aggregate.Mean())
    with pytest.raises(ValueError, match="needs the clients' rows"):
        Remote().prepare(program, [rk.FedAvg(lr=0.1)])
    Remote(in_real_time=True).prepare(program, [rk.FedAvg(lr=0.1)])
