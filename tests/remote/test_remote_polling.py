"""Polls as messages: in virtual time those of the simulation, in real time the first to arrive."""

import functools
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from world import LONG, POPULATION, ZOO, reasons

import rookery as rk
from rookery.engines.engine import Program, Stopped
from rookery.program.algorithm import first_state, numbers_to_arrays
from rookery.remote import Faults, InProcess, Policy, Remote, Worker
from rookery.remote.engine import RemoteRunner
from rookery.remote.protocol.tracing import trace_round

CLOCK = rk.delays.Clock(rk.delays.LogNormalDelay(0.1), bandwidth=1e4, seed=3)
KEY = jax.random.key(4)
MOST = Policy(wait_for=20.0, back_off=0.01, min_replies=0.5)


class State(NamedTuple):
    """The iterate, the mean of the latest gradients, the jobs, and counts of arrivals."""

    w: Any
    g: Any
    jobs: rk.program.InFlight
    arrivals: Any
    stalest: Any


class Anarchic(rk.AbstractAlgorithm):
    """A step along the mean of all clients' latest gradients, after every poll."""

    wait_for: int = 2
    staleness: int | None = None

    def check(self, problem, n_clients):
        """Any problem is fine."""

    def init(self, problem, w):
        """No gradient has arrived."""
        g, none = jnp.zeros_like(w), jnp.zeros((), jnp.int32)
        return State(w, g, rk.program.InFlight.of("inner", (w,), g), none, none)

    def round(self, fed, problem, state, key):
        """One poll."""
        result = fed.poll(
            state.jobs, slope, state.w, key=key, settings={"problem": problem},
            rules=rk.program.PollRules(self.wait_for, staleness=self.staleness),
        )  # fmt: skip
        g = state.g + result.change
        stalest = jnp.maximum(state.stalest, result.stalest)
        return State(state.w - 0.1 * g, g, result.jobs, result.arrivals, stalest)

    def solution(self, state):
        """The iterate."""
        return (state.w,)


def slope(client, w, *, problem):
    return problem.gradient(w, client.draw("train", 2, client.key))


@functools.cache
def plan(algorithm):
    state = first_state(algorithm, ZOO.problem, POPULATION.n_clients, ZOO.start)
    return trace_round(numbers_to_arrays(algorithm), ZOO.problem, POPULATION, state)


def warm_worker(client, program, algorithm, state, _):
    """A worker with a plan of all tests, so that nothing is compiled while others wait."""
    rows = program.population.only(client)
    return Worker(client, ZOO.problem, algorithm, rows, state, plan(Anarchic()))


def go(algorithm, rounds, faults=None, policy=None, in_real_time=True, **settings):
    engine = Remote(InProcess(faults or Faults(), warm_worker), policy or MOST, in_real_time)
    began = time.monotonic()
    result = rk.run(
        algorithm, ZOO.problem, POPULATION, ZOO.start, rounds=rounds, engine=engine, clock=CLOCK,
        **settings,
    )  # fmt: skip
    assert time.monotonic() - began < LONG
    return result


@pytest.fixture(autouse=True, scope="module")
def warm():
    """Compile the step of all tests."""
    go(Anarchic(), 1, policy=Policy(wait_for=120.0), in_real_time=False)


def same(a, b):
    jax.tree.map(lambda u, v: np.testing.assert_allclose(u, v, 1e-12, 1e-12), a, b)


@pytest.mark.slow
def test_a_run_that_is_resumed_in_mid_flight_sends_the_jobs_again():
    algorithm = Anarchic(staleness=3)
    program = Program(ZOO.problem, POPULATION, CLOCK, rk.aggregate.Mean())
    state = first_state(algorithm, ZOO.problem, POPULATION.n_clients, ZOO.start)
    (want,) = rk.Compiled().prepare(program, [algorithm]).advance([state], [KEY], 0, [6])
    ledgers, carried, is_idle = [], [], []
    for first in (0, 2, 4):
        runner = Remote(InProcess(make_worker=warm_worker)).prepare(program, [algorithm])
        assert isinstance(runner, RemoteRunner)
        (progress,) = runner.advance([state], [KEY], first, [2])
        state = progress.state
        ledgers += progress.ledgers
        carried.append(runner.session.bytes_down)
        is_idle.append(bool(state.jobs.is_idle.all()))
        runner.close()
    same(state, want.state)
    assert is_idle == [False] * 3  # there was something in flight at every cut
    assert sum(carried) == sum(ledger.bytes_down for ledger in want.ledgers)
    for got, wanted in zip(ledgers, want.ledgers, strict=True):
        assert got.values()[:-1] == wanted.values()[:-1]
        assert got.seconds == pytest.approx(wanted.seconds, rel=1e-12)


def test_recoverable_faults_change_no_number_of_a_simulation():
    clean = go(Anarchic(), 8, in_real_time=False)
    assert clean.events == ()
    patient = Policy(wait_for=0.5, back_off=0.0, retries=60)
    restarts = Faults(restarts=dict.fromkeys(range(5), 3))
    for faults in (Faults(drop=0.2), restarts, Faults(corrupt=0.2)):
        result = go(Anarchic(), 8, faults, patient, in_real_time=False)
        same(result.state, clean.state)
        assert result.ledger.values()[:-1] == clean.ledger.values()[:-1]
        assert result.events


def test_a_crash_in_a_simulation_is_reported_and_the_others_continue():
    result = go(Anarchic(), 6, Faults(crashes={2: 2}), in_real_time=False)
    assert "client 2: its process has died" in reasons(result)
    assert result.status == "finished"
    with pytest.raises(Stopped, match="clients replied"):
        strict = Policy(wait_for=5.0, retries=1, back_off=0.01)
        go(Anarchic(5), 6, Faults(crashes={2: 2}), strict, in_real_time=False)


def test_a_client_a_hundred_times_slower_delays_no_other():
    fast, slow = 0.03, 3.0
    delays = dict.fromkeys(range(5), fast) | {1: slow}
    began = time.monotonic()
    result = go(Anarchic(), 20, Faults(delays=delays))
    took = time.monotonic() - began  # the ledger does not count the time between rounds
    assert result.events == ()
    jobs = result.state.jobs
    assert result.ledger.seconds < 20 * slow / 2
    assert int(jobs.begun[1]) <= 1 + took / slow
    assert all(int(jobs.begun[i]) >= 5 for i in (0, 2, 3, 4))


def test_seconds_of_the_ledger_are_real():
    began = time.monotonic()
    result = go(Anarchic(), 4, Faults(delays=dict.fromkeys(range(5), 0.2)))
    assert 0.4 <= result.ledger.seconds <= time.monotonic() - began


def test_the_bound_on_staleness_is_kept():
    delays = dict.fromkeys(range(5), 0.01) | {1: 1.0}
    result = go(Anarchic(staleness=3), 12, Faults(delays=delays))
    assert 1 <= int(result.state.stalest) <= 3
    assert int(result.state.jobs.begun[1]) >= 3  # it was waited for, more than once


def test_a_job_that_times_out_is_reported_and_its_client_gets_another():
    policy = Policy(wait_for=0.8, back_off=0.01, min_replies=0.5)
    result = go(Anarchic(staleness=2), 8, Faults(delays={1: 1.5}), policy)
    assert result.status == "finished"
    assert "client 1: no reply within 0.8 s" in reasons(result)
    assert int(result.state.jobs.begun[1]) >= 2
    assert int(result.state.stalest) <= 2


@pytest.mark.parametrize("said", ["its process has died", "NaN or infinity"])
def test_a_client_that_fails_is_left_out_and_reported(said):
    faults = Faults(crashes={2: 2}) if "died" in said else Faults(poison=(2,))
    result = go(Anarchic(), 8, faults)
    assert result.status == "finished"
    assert {event.client for event in result.events} == {2}
    assert said in reasons(result)


def test_a_restarted_client_is_sent_its_job_again():
    result = go(Anarchic(5, staleness=0), 5, Faults(restarts=dict.fromkeys(range(5), 3)))
    assert "not have a handshake with this server" in reasons(result)
    assert result.state.jobs.has_arrived.all() and int(result.state.arrivals) == 5


def test_too_few_results_stop_a_run_in_real_time_and_it_can_be_resumed(tmp_path):
    strict = Policy(wait_for=2.0, retries=1, back_off=0.01)
    settings = {"directory": tmp_path, "checkpoint_every": 1}
    with pytest.raises(Stopped, match="results arrived, 2 are needed"):
        go(Anarchic(), 8, Faults(crashes=dict.fromkeys(range(5), 4)), strict, **settings)
    assert (tmp_path / "events.jsonl").read_text().count("sending the jobs again")
    result = go(Anarchic(), 8, policy=strict, **settings)
    assert (result.status, result.rounds) == ("finished", 8)


@pytest.mark.filterwarnings("ignore::rookery.runner.run_state.DivergenceWarning")
def test_when_all_results_are_nan_the_run_has_diverged():
    result = go(Anarchic(), 3, Faults(poison=(0, 1, 2, 3, 4)), guard=None)
    assert (result.status, result.rounds) == ("diverged", 1)


def test_one_nan_result_is_no_divergence_when_the_others_have_died():
    faults = Faults(poison=(2,), crashes=dict.fromkeys((0, 1, 3, 4), 1))
    with pytest.raises(Stopped, match="0 of 5 results arrived, 1 are needed"):
        go(Anarchic(), 3, faults, Policy(wait_for=20.0, min_replies=0.5, retries=0))


def test_a_late_result_of_a_job_is_accepted():
    # with a new number for each, clients would work on outdated jobs for ever
    delays = Faults(delays=dict.fromkeys(range(5), 1.2))
    policy = Policy(wait_for=0.8, back_off=0.0, retries=8)
    result = go(Anarchic(5, staleness=0), 1, delays, policy)
    assert "no reply within 0.8 s" in reasons(result)
    assert int(result.state.arrivals) == 5
