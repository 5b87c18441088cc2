import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk

KEY = jax.random.key(0)


def comes(model, now, client=0, key=KEY):
    return float(model.comes(key, jnp.int32(client), jnp.asarray(float(now))))


def test_always_on_comes_at_once():
    assert comes(rk.availability.AlwaysOn(), 2.5) == 2.5


def test_bernoulli_waits_a_geometric_number_of_attempts():
    keys = jax.random.split(KEY, 5_000)
    model = rk.availability.BernoulliOn(0.25, 2.0)
    waits = jax.vmap(lambda k: model.comes(k, jnp.int32(0), jnp.zeros(())))(keys)
    assert set(np.unique(np.asarray(waits) % 2.0)) == {0.0}
    np.testing.assert_allclose(np.mean(waits), 2 * 0.75 / 0.25, rtol=0.06)
    np.testing.assert_allclose(np.mean(np.asarray(waits) == 0), 0.25, atol=0.02)
    assert comes(rk.availability.BernoulliOn(1.0, 2.0), 3) == 3


def test_a_day_has_its_share_around_the_peak_of_the_sine():
    model = rk.availability.DiurnalOn(10.0, 0.4, phases=(0.0, 0.5))
    for now in np.arange(0, 30, 0.25):
        start = comes(model, now)
        assert start >= now
        level = np.sin(2 * np.pi * start / 10)
        assert level >= np.sin(2 * np.pi * 0.05) - 1e-9  # 0.4 periods around the peak at 1/4
        if start > now:
            assert np.sin(2 * np.pi * now / 10) < np.sin(2 * np.pi * 0.05) + 1e-9
    assert comes(model, 2.5) == 2.5
    assert comes(model, 2.5, client=1) == pytest.approx(5.5)


def trace(tmp_path, *lines):
    path = tmp_path / "trace.csv"
    path.write_text("client,start,end\n" + "\n".join(lines) + "\n")
    return path


def test_a_trace_is_followed_and_begins_again(tmp_path):
    model = rk.availability.TraceOn(trace(tmp_path, "1,0,2", "0,3,4", "0,1,2", ""))
    assert model.period == 4
    model.check(2)
    wanted = {0: 1, 1: 1, 1.5: 1.5, 2: 3, 3.5: 3.5, 4: 5, 7: 7, 6.5: 7}
    assert {now: comes(model, now) for now in wanted} == wanted
    assert comes(model, 2.5, client=1) == 4
    assert rk.availability.TraceOn(model.path, period=6).period == 6


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["0,1"], "line 2: wanted client,start,end, got 2 fields"),
        (["0,1,2", "0,a,2"], "line 3: '0,a,2' is not three numbers"),
        (["0,2,1"], "line 2: an interval needs 0 <= start < end, got 2.0 to 1.0"),
        (["-1,0,1"], "line 2: no client has the number -1"),
        (["0,3,5", "1,0,1", "0,1,4"], "lines 4 and 2: two intervals of client 0 overlap"),
        ([], "lists no intervals"),
    ],
)
def test_a_bad_trace_is_refused_by_its_line(tmp_path, lines, words):
    with pytest.raises(ValueError, match=words):
        rk.availability.TraceOn(trace(tmp_path, *lines))


def test_a_trace_must_know_its_columns_and_all_clients(tmp_path):
    path = trace(tmp_path, "0,1,2", "2,1,2")
    model = rk.availability.TraceOn(path)
    with pytest.raises(ValueError, match="names client 2, but there are 2 clients"):
        rk.delays.Clock(availability=model).check(2)
    with pytest.raises(ValueError, match="no interval for client 1, 3: they never come"):
        rk.delays.Clock(availability=model).check(4)
    with pytest.raises(ValueError, match="the period is 1, but an interval ends at 2"):
        rk.availability.TraceOn(path, period=1)
    path.write_text("who,from,to\n0,1,2\n")
    with pytest.raises(ValueError, match="line 1: must be client,start,end, got 'who,from,to'"):
        rk.availability.TraceOn(path)


@pytest.mark.parametrize(
    "make",
    [
        lambda: rk.availability.BernoulliOn(0.0, 1.0),
        lambda: rk.availability.BernoulliOn(0.5, 0.0),
        lambda: rk.availability.DiurnalOn(0.0),
        lambda: rk.availability.DiurnalOn(1.0, 1.5),
        lambda: rk.delays.Clock(
            availability=rk.availability.DiurnalOn(1.0, phases=(0.0, 0.1))
        ).check(3),
    ],
)
def test_bad_numbers_are_refused(make):
    with pytest.raises(ValueError, match=r"must be|phases has 2 for 3 clients"):
        make()


def test_kinds_of_jobs_have_delays_of_their_own_and_nobody_else_has_a_say():
    clock = rk.delays.Clock(
        rk.delays.LogNormalDelay(1.0), seed=4, outer_delay=rk.delays.ConstantDelay(7.0)
    )
    now = jnp.zeros(())
    inner = [float(clock.job("inner", jnp.int32(i), n, now)[1]) for i in (0, 1) for n in (0, 1)]
    assert len(set(inner)) == 4
    assert float(clock.job("outer", jnp.int32(0), 0, now)[1]) == 7
    later = clock.job("inner", jnp.int32(0), 0, now + 5)
    assert (float(later[0]), float(later[1])) == (5.0, inner[0])
    same = rk.delays.Clock(rk.delays.LogNormalDelay(1.0), seed=4)
    assert float(same.job("inner", jnp.int32(0), 0, now)[1]) == inner[0]
    assert float(same.job("outer", jnp.int32(0), 0, now)[1]) != inner[0]
