"""The word poll, on a program so small that everything can be followed by hand."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery import uint64
from rookery.engines.eager import EagerFederation
from rookery.engines.engine import Program
from rookery.engines.traced import TracedFederation
from rookery.program.async_trace import ROWS as TRACE_ROWS
from rookery.program.async_trace import AsyncTrace
from rookery.program.polling import PollRules

SLOW = rk.delays.Stragglers(rk.delays.ConstantDelay(1.0), (2,), 2.5)
ROWS = {"a": np.array([[1.0], [10.0], [100.0]])}


def federation(clock=None, aggregate=None):
    population = jax.tree.map(jnp.asarray, rk.Population.stacked(ROWS))
    program = Program(
        None, population, clock or rk.delays.Clock(SLOW), aggregate or rk.aggregate.Mean()
    )
    return EagerFederation(program, 0)


def jobs(n_clients=3):
    return rk.program.InFlight.of("inner", (jnp.zeros(()),), jnp.zeros(())).for_clients(n_clients)


def scaled(client, w):
    """The client's number times what it was sent."""
    row = client.draw("train", None, client.key)
    return row.average(lambda rows, weights: weights @ rows["a"]) * w


def poll(fed, jobs, w, wait_for=1, **rules):
    rules = PollRules(wait_for, **rules)
    return fed.poll(jobs, scaled, jnp.asarray(w), rules=rules, key=jax.random.key(0))


def test_results_are_of_the_values_received_whatever_the_server_does_meanwhile():
    fed = federation()
    first = poll(fed, jobs(), 1.0)
    assert (fed.now, int(first.arrivals)) == (1.0, 2)
    assert first.jobs.results.tolist() == [1, 10, 0]
    assert float(first.sum) == float(first.change) == pytest.approx(11 / 3)
    second = poll(fed, first.jobs, 2.0)  # the two begin again; the third still works on 1.0
    assert (fed.now, second.jobs.results.tolist()) == (2.0, [2, 20, 0])
    third = poll(fed, second.jobs, float("nan"), wait_for=1)  # poison
    assert (fed.now, int(third.arrivals), int(third.stalest)) == (2.5, 1, 2)
    assert third.jobs.results.tolist() == [2, 20, 100]
    assert float(third.change) == pytest.approx(100 / 3)
    assert third.jobs.begun.tolist() == [3, 3, 1]


def test_the_trace_tells_who_worked_on_which_version_and_when():
    fed, now = federation(), jobs()
    for w in (1.0, 2.0, 3.0):
        now = poll(fed, now, w).jobs
    trace = now.trace.as_dict()
    assert trace["client"] == [0, 1, 0, 1, 2]
    assert trace["began"] == [0, 0, 1, 1, 0]
    assert trace["ended"] == trace["taken"] == [1, 1, 2, 2, 2.5]
    assert (trace["version"], trace["used_in"]) == ([0, 0, 1, 1, 0], [0, 0, 1, 1, 2])
    assert trace["received"] == 5
    assert trace["staleness"][:4] == [4, 0, 1, 0]
    assert trace["staleness"][4:] == [0] * 29


def test_a_result_that_had_to_wait_was_there_before_it_was_taken():
    fed = federation()
    trace = poll(fed, jobs(), 1.0, wait_for=3).jobs.trace.as_dict()
    assert (trace["ended"], trace["taken"]) == ([1, 1, 2.5], [2.5, 2.5, 2.5])


@pytest.mark.slow
def test_a_full_trace_still_counts():
    trace = AsyncTrace.empty()
    for i in range(TRACE_ROWS + 3):
        job = dict.fromkeys(("began", "ended", "taken"), i)
        trace = trace.add([i % 2 == 0, True], client=i, version=0, used_in=50, **job)
    wanted = [i for i in range(TRACE_ROWS) for _ in range(1 + (i % 2 == 0))][:TRACE_ROWS]
    assert trace.as_dict()["client"] == wanted
    assert int(trace.received) == TRACE_ROWS + 3 + (TRACE_ROWS + 4) // 2
    assert trace.staleness.tolist() == [0] * 32 + [int(trace.received)]


def test_only_idle_clients_are_sent_anything_and_only_arrivals_are_billed():
    fed = federation()
    result = poll(fed, jobs(), 1.0)
    assert fed.ledger == rk.program.Ledger(1, 4, 3 * 8, 2 * 8, seconds=1.0)
    poll(fed, result.jobs, 1.0)
    assert fed.ledger == rk.program.Ledger(2, 8, 5 * 8, 4 * 8, seconds=2.0)


def test_a_discount_scales_a_result_in_the_sum_by_its_own_staleness_and_nowhere_else():
    fed, now, sums, changes = federation(), jobs(), [], []
    for _ in range(3):
        result = poll(fed, now, 1.0, discount=lambda staleness: 1 / (1.0 + staleness.astype(float)))
        now = result.jobs
        sums.append(float(result.sum))
        changes.append(float(result.change))
    assert sums == pytest.approx([11 / 3, 11 / 3, 100 / 3 / 3])  # fresh, fresh, of staleness 2
    assert changes == pytest.approx([11 / 3, 0, 100 / 3])
    assert now.results.tolist() == [1, 10, 100]
    assert fed.ledger == rk.program.Ledger(3, 10, 7 * 8, 5 * 8, seconds=2.5)


@pytest.mark.parametrize(("bound", "waits"), [(0, 2.5), (1, 2.5), (2, 3.0), (None, 3.0)])
def test_the_server_waits_for_who_would_be_too_stale(bound, waits):
    fed, result = (
        federation(rk.delays.Clock(rk.delays.Stragglers(rk.delays.ConstantDelay(1.0), (2,), 2.5))),
        None,
    )
    now = jobs()
    stalest = []
    for _ in range(3 if bound is None else bound + 1):
        result = poll(fed, now, 1.0, staleness=bound, wait_for=2)
        now = result.jobs
        stalest.append(int(result.stalest))
    assert fed.now == waits
    assert max(stalest) == (2 if bound is None else bound)


def test_who_is_away_begins_later_with_the_values_of_then(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("client,start,end\n0,0,9\n1,0,9\n2,1.5,9\n")
    fed = federation(
        rk.delays.Clock(rk.delays.ConstantDelay(1.0), availability=rk.availability.TraceOn(path))
    )
    result = poll(fed, jobs(), 1.0)
    assert result.jobs.is_idle.tolist() == [True, True, True]
    assert fed.ledger.bytes_down == 2 * 8
    result = poll(fed, result.jobs, 2.0)  # it comes at 1.5 and is at work at 2.0
    assert result.jobs.is_idle.tolist() == [True, True, False]
    result = poll(fed, result.jobs, 3.0)
    assert (fed.now, result.jobs.results.tolist()) == (2.5, [2, 20, 200])


def test_a_synchronous_exchange_lets_time_pass_for_all():
    fed = federation()
    result = poll(fed, jobs(), 1.0)
    everyone = jnp.ones(3, bool)
    assert float(fed.ask(everyone, scaled, jnp.asarray(3.0), key=jax.random.key(0))) == 111
    assert fed.now == 3.5  # the straggler's 2.5 seconds
    result = poll(fed, result.jobs, 2.0, wait_for=1)
    assert (fed.now, int(result.arrivals)) == (3.5, 1)  # what had been finished meanwhile
    assert (
        fed.ask(
            jnp.array([True, False, False]), scaled, fed.cache(jnp.ones(())), key=jax.random.key(0)
        )
        == 1
    )


def test_simultaneous_events_are_one_in_spite_of_rounding():
    fed = federation(rk.delays.Clock(rk.delays.Stragglers(rk.delays.ConstantDelay(0.1), (2,), 3.0)))
    now = jobs()
    for _ in range(3):
        now = poll(fed, now, 1.0).jobs
    assert now.has_arrived.tolist() == [True, True, True]  # 0.1 + 0.1 + 0.1 and 0.3


def test_errors_say_what_to_do():
    fed = federation()
    with pytest.raises(ValueError, match="wait_for=4 results cannot come from 3 clients"):
        poll(fed, jobs(), 1.0, wait_for=4)
    with pytest.raises(ValueError, match="rows for 5 clients, and there are 3"):
        poll(fed, jobs(5), 1.0)
    with pytest.raises(ValueError, match="created for values"):
        poll(fed, jobs(), [1.0, 2.0])
    with pytest.raises(ValueError, match="created for results"):
        poll(fed, replace(jobs(), results=jnp.zeros((3, 2))), 1.0)
    with pytest.raises(TypeError, match="InFlight, got int"):
        fed.poll(3, scaled, jnp.zeros(()), rules=PollRules(1), key=jax.random.key(0))  # type: ignore
    with pytest.raises(ValueError, match="module-level function"):
        fed.poll(
            jobs(), lambda client, w: w, jnp.zeros(()), rules=PollRules(1), key=jax.random.key(0)
        )
    with pytest.raises(ValueError, match="already have rows, for 3 clients"):
        jobs().for_clients(3)
    with pytest.raises(ValueError, match=r"unknown kind of jobs 'iner'. Did you mean 'inner'"):
        rk.program.InFlight.of("iner", (), 0.0)
    with pytest.raises(ValueError, match="Leave it at Mean"):
        poll(federation(aggregate=lambda replies, weights: replies), jobs(), 1.0)


# ---- values that differ between clients


def shifted(client, own, w):
    """The client's number times what all were sent, plus what it alone was sent."""
    return scaled(client, w) + own["first"] + own["second"][1]


def own_rows(n=3):
    return rk.program.PerClient(
        {"first": jnp.arange(1.0 * n) / 10, "second": jnp.arange(2.0 * n).reshape(n, 2)}
    )


def own_jobs():
    row = {"first": jnp.zeros(()), "second": jnp.zeros(2)}
    return rk.program.InFlight.of("inner", (row, jnp.zeros(())), jnp.zeros(())).for_clients(3)


def test_each_client_is_sent_its_own_row_and_one_row_is_billed():
    fed = federation()
    at = {"rules": PollRules(1), "key": jax.random.key(0)}
    result = fed.poll(own_jobs(), shifted, own_rows(), jnp.ones(()), **at)
    assert result.jobs.results.tolist() == [1 + 1, 10 + 0.1 + 3, 0]
    assert (fed.ledger.bytes_down, fed.ledger.bytes_up) == (3 * 4 * 8, 2 * 8)
    poison = jax.tree.map(lambda a: a * jnp.nan, own_rows())
    for _ in range(2):  # the third still works with the row of then
        result = fed.poll(result.jobs, shifted, poison, jnp.ones(()), **at)
    assert float(result.jobs.results[2]) == 100 + 0.2 + 5
    who = jnp.array([False, True, True])
    down = fed.ledger.bytes_down
    mean = fed.ask(who, shifted, own_rows(), jnp.zeros(()), key=jax.random.key(0))
    assert float(mean) == pytest.approx((0.1 + 3 + 0.2 + 5) / 2)
    assert fed.ledger.bytes_down - down == 2 * 4 * 8


@pytest.mark.slow
def test_both_engines_send_the_same_rows():
    population = jax.tree.map(jnp.asarray, rk.Population.stacked(ROWS))
    clock = rk.delays.Clock(rk.delays.LogNormalDelay(1.0), bandwidth=100.0, seed=5)
    program = Program(None, population, clock, rk.aggregate.Mean())
    key = jax.random.key(1)

    def polls(fed):
        jobs, rows = own_jobs(), own_rows()
        for _ in range(3):
            result = fed.poll(jobs, shifted, rows, jnp.ones(()), rules=PollRules(2), key=key)
            jobs = result.jobs
            rows = jax.tree.map(lambda a, s=result.sum: a + s, rows)
        asked = fed.ask(jobs.has_arrived, shifted, rows, jnp.ones(()), key=key)
        return jobs, asked

    eager = EagerFederation(program, 0)

    @jax.jit
    def compiled():
        fed = TracedFederation(program, 0, None)
        return polls(fed), fed.costs

    got, costs = compiled()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-12, 1e-12), got, polls(eager))
    assert uint64.read(costs.counters)[2] == eager.ledger.bytes_down
    assert float(costs.seconds) == pytest.approx(eager.now, rel=1e-12)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (own_rows(2), r"a PerClient needs 3 rows along its first axis.*float64\[2, 2\]"),
        (rk.program.PerClient.of({"first": 0.0}), "a PerClient needs 3 rows"),
        (
            rk.program.PerClient({"first": jnp.zeros(3), "second": jnp.zeros((3, 4))}),
            "created for values",
        ),
        (own_rows().rows, "created for values"),
    ],
)
def test_rows_of_a_wrong_shape_are_refused(rows, words):
    with pytest.raises(ValueError, match=words):
        federation().poll(
            own_jobs(), shifted, rows, jnp.ones(()), rules=PollRules(1), key=jax.random.key(0)
        )
    with pytest.raises(ValueError, match="already has a row for each client"):
        own_rows().for_clients(3)
