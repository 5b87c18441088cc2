"""The words one by one, on both engines, with toy steps."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.engines.eager import EagerFederation
from rookery.engines.engine import Program
from rookery.engines.round_costs import ledgers
from rookery.engines.traced import TracedFederation

ROWS = np.arange(5.0)[:, None, None] * np.ones((5, 1, 2))  # client i holds the row (i, i)
POPULATION = rk.Population.stacked(ROWS)


def on_both(body, clock=None, aggregate=None, population=POPULATION):
    """What a body of words gives on each engine, after checking that the ledgers are equal."""
    program = Program(
        None, population, clock or rk.delays.Clock(), aggregate or rk.aggregate.Mean()
    )
    eager = EagerFederation(jax_program(program), 0)
    value = body(eager)

    def traced():
        fed = TracedFederation(jax_program(program), 0, None)
        return body(fed), fed.costs

    compiled_value, costs = jax.jit(traced)()
    (ledger,) = ledgers(jax.tree.map(lambda a: a[None], costs))
    assert ledger.values()[:-1] == eager.ledger.values()[:-1]
    assert ledger.seconds == pytest.approx(eager.ledger.seconds, rel=1e-12)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), value, compiled_value)
    return value, ledger


def jax_program(program):
    population = jax.tree.map(jnp.asarray, program.population)
    return Program(program.problem, population, program.clock, program.aggregate)


def id_plus(client, value):
    return value + jnp.asarray(client.id).astype(value.dtype)


def own_row_times(client, value, *, factor):
    sample = client.draw("train", None, client.key)
    return factor * sample.average(lambda rows, w: jnp.tensordot(w, rows, 1)) * value


def noise(client, value):
    return value + jax.random.normal(client.key)


def pair(client, value):
    return value, 2.0 * id_plus(client, value)


def test_broadcast_map_mean():
    def body(fed):
        cohort = fed.sample(rk.participation.Everyone(), jax.random.key(0))
        v = fed.broadcast(cohort, jnp.ones(2))
        return fed.mean(fed.map(own_row_times, v, key=jax.random.key(1), factor=3.0))

    value, ledger = on_both(body)
    np.testing.assert_allclose(value, [6.0, 6.0])
    assert ledger == rk.program.Ledger(exchanges=1, messages=10, bytes_down=80, bytes_up=80)


def test_sum_stack_and_scatter():
    def body(fed):
        cohort = fed.sample(rk.participation.Fixed((3, 1)), jax.random.key(0))
        v = fed.scatter(cohort, jnp.array([10.0, 20.0]))
        out = fed.map(id_plus, v)
        return fed.sum(out), fed.stack(out)

    (total, rows), ledger = on_both(body)
    assert float(total) == 34
    assert rows.tolist() == [13, 21]
    assert ledger == rk.program.Ledger(exchanges=2, messages=8, bytes_down=16, bytes_up=32)


def test_weighted_mean_sends_the_weights_too():
    def body(fed):
        cohort = fed.sample(rk.participation.Everyone(), jax.random.key(0))
        ids = fed.map(id_plus, fed.broadcast(cohort, jnp.zeros(())))
        return fed.weighted_mean(ids, ids)

    value, ledger = on_both(body)
    assert float(value) == pytest.approx((1 + 4 + 9 + 16) / 10)
    assert ledger.bytes_up == 5 * 16


def test_weights_of_clients_do_not_go_with_a_robust_rule():
    def body(fed):
        cohort = fed.sample(rk.participation.Everyone(), jax.random.key(0))
        ids = fed.map(id_plus, fed.broadcast(cohort, jnp.zeros(())))
        return fed.weighted_mean(ids, ids)

    with pytest.raises(ValueError, match=r"robust rule.*Median"):
        on_both(body, aggregate=rk.aggregate.Median())


def test_slots_that_are_switched_off_cost_nothing_and_count_for_nothing():
    def body(fed):
        cohort = fed.sample(rk.participation.Everyone(), jax.random.key(0))
        cohort = cohort.where(jnp.array([True, False, True, False, False]))
        v = fed.broadcast(cohort, jnp.zeros(()))
        return fed.mean(fed.map(id_plus, v))

    value, ledger = on_both(body)
    assert float(value) == 1.0
    assert ledger == rk.program.Ledger(exchanges=1, messages=4, bytes_down=16, bytes_up=16)


def test_a_placed_tuple_can_be_taken_apart_and_partly_kept():
    def body(fed):
        cohort = fed.sample(rk.participation.Everyone(), jax.random.key(0))
        first, second = fed.map(pair, fed.broadcast(cohort, jnp.zeros(())))
        return fed.mean(fed.map(id_plus, second)), fed.mean(first)

    (value, _), ledger = on_both(body)
    assert float(value) == pytest.approx(2 * 2 + 2)
    assert ledger.bytes_up == 5 * 8 * 2  # the kept values never travelled


def test_a_shared_value_is_sent_to_newcomers_only_across_cohorts_and_loops():
    def body(fed):
        point = fed.cache(jnp.ones(4))
        first = fed.broadcast(fed.sample(rk.participation.Fixed((0, 1)), jax.random.key(0)), point)
        value = fed.mean(fed.map(id_plus, first))

        def hop(n, value):
            cohort = fed.sample(rk.participation.Fixed((1, 2)), jax.random.key(0))
            at, v = fed.broadcast(cohort, point, value)
            fed.mean(fed.map(id_plus, at))
            return fed.mean(fed.map(id_plus, v))

        return fed.repeat(3, hop, value)

    _, ledger = on_both(body)
    point, value = 32, 32
    assert ledger.bytes_down == 2 * point + (1 * point) + 3 * 2 * value
    assert ledger.exchanges == 1 + 3 * 2


def test_one_client_in_two_slots_gets_a_broadcast_once_and_two_keys():
    def body(fed):
        cohort = fed.sample(rk.participation.WithReplacement(12), jax.random.key(5))
        v = fed.broadcast(cohort, jnp.zeros(()))
        return cohort.ids, fed.stack(fed.map(noise, v, key=jax.random.key(1)))

    (ids, drawn), ledger = on_both(body)
    assert len(set(ids.tolist())) < 12
    assert ledger.bytes_down == 8 * len(set(ids.tolist()))
    assert len(set(drawn.tolist())) == 12


def test_a_clients_draw_does_not_depend_on_the_others():
    def body(fed):
        rows = []
        for clients in ((0, 1, 2), (2, 4)):
            v = fed.broadcast(
                fed.sample(rk.participation.Fixed(clients), jax.random.key(0)), jnp.zeros(())
            )
            rows.append(fed.stack(fed.map(noise, v, key=jax.random.key(1))))
        return rows

    (first, second), _ = on_both(body)
    assert float(first[2]) == float(second[0])


@pytest.mark.parametrize("n", [0, 1, 4])
def test_repeat_a_random_number_of_times_bills_what_was_done(n):
    def body(fed):
        def once(i, value):
            cohort = fed.sample(
                rk.participation.Uniform(2), jax.random.fold_in(jax.random.key(0), i)
            )
            return fed.mean(fed.map(id_plus, fed.broadcast(cohort, value)))

        return fed.repeat(jnp.asarray(n), once, jnp.zeros(()))

    _, ledger = on_both(body)
    assert ledger == rk.program.Ledger(n, 4 * n, 16 * n, 16 * n)


def test_the_clock_waits_for_the_slowest():
    delay = rk.delays.Stragglers(rk.delays.ConstantDelay(2.0), clients=(4,), factor=5.0)
    clock = rk.delays.Clock(delay, bandwidth=(4.0, 4.0, 4.0, 4.0, 8.0))

    def body(fed):
        for clients in ((0, 1), (3, 4)):
            v = fed.broadcast(
                fed.sample(rk.participation.Fixed(clients), jax.random.key(0)), jnp.zeros(())
            )
            fed.mean(fed.map(id_plus, v))
        return ()

    _, ledger = on_both(body, clock)
    assert ledger.seconds == pytest.approx((2 + 16 / 4) + (2 * 5 + 16 / 8))


def test_another_aggregate_stands_in_for_the_mean():
    def body(fed):
        cohort = fed.sample(rk.participation.Everyone(), jax.random.key(0))
        return fed.mean(fed.map(id_plus, fed.broadcast(cohort, jnp.zeros(()))))

    class Largest(eqx.Module):
        def __call__(self, replies, weights):
            return jax.tree.map(lambda r: jnp.max(r, axis=0), replies)

    value, _ = on_both(body, aggregate=Largest())
    assert float(value) == 4.0


def test_means_follow_the_clients_weights():
    population = rk.Population.stacked(ROWS, weights=[1, 1, 1, 1, 4])

    def body(fed):
        cohort = fed.sample(rk.participation.Everyone(), jax.random.key(0))
        return fed.mean(fed.map(id_plus, fed.broadcast(cohort, jnp.zeros(()))))

    assert float(on_both(body, population=population)[0]) == pytest.approx((1 + 2 + 3 + 16) / 8)


# ---- what the language refuses


def refusing_program():
    return Program(None, POPULATION, rk.delays.Clock(), rk.aggregate.Mean())


def eager():
    return EagerFederation(refusing_program(), 0)


def compiled():
    return TracedFederation(refusing_program(), 0, None)


def test_values_of_two_cohorts_do_not_mix():
    fed = eager()
    a = fed.broadcast(fed.sample(rk.participation.Fixed((0, 1)), jax.random.key(0)), jnp.zeros(()))
    b = fed.broadcast(fed.sample(rk.participation.Fixed((2, 3)), jax.random.key(0)), jnp.zeros(()))
    with pytest.raises(ValueError, match="id_plus: the values are placed at different cohorts"):
        fed.map(id_plus, a, b)


def test_a_server_value_must_be_sent():
    with pytest.raises(TypeError, match=r"map takes placed values, got float. Broadcast it first"):
        eager().map(id_plus, 1.0)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="only a placed value can go up"):
        eager().mean(1.0)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("make", [eager, compiled], ids=["eager", "compiled"])
def test_a_step_that_needs_a_key_and_was_given_none_says_so(make):
    fed = make()
    v = fed.broadcast(fed.sample(rk.participation.Everyone(), jax.random.key(0)), jnp.zeros(()))
    with pytest.raises(ValueError, match="draws random numbers"):
        fed.map(noise, v)


def test_a_step_that_hides_a_server_value_is_refused():
    fed = eager()
    v = fed.broadcast(fed.sample(rk.participation.Everyone(), jax.random.key(0)), jnp.zeros(()))
    hidden = jnp.ones(3)
    with pytest.raises(ValueError, match="must be a module-level function"):
        fed.map(lambda client, value: value + hidden, v)
    with pytest.raises(ValueError, match="setting 'factor' holds"):
        fed.map(own_row_times, v, factor=hidden)


def test_scatter_needs_a_row_per_client():
    fed = eager()
    with pytest.raises(ValueError, match="5 clients need 5 rows"):
        fed.scatter(fed.sample(rk.participation.Everyone(), jax.random.key(0)), jnp.zeros(3))


def own_size(client, value):
    return jnp.zeros(client.id + 1)


def test_replies_of_different_shapes_are_refused():
    fed = eager()
    v = fed.broadcast(fed.sample(rk.participation.Everyone(), jax.random.key(0)), jnp.zeros(()))
    with pytest.raises(ValueError, match="own_size: clients replied with different shapes"):
        fed.map(own_size, v)


def test_clients_drawn_by_weight_are_not_weighed_again():
    population = rk.Population.stacked(ROWS, weights=[6, 1, 1, 1, 1])

    def body(fed):
        cohort = fed.sample(rk.participation.Weighted(4000), jax.random.key(0))
        return fed.mean(fed.map(id_plus, fed.scatter(cohort, jnp.zeros(4000))))

    program = Program(
        None, jax.tree.map(jnp.asarray, population), rk.delays.Clock(), rk.aggregate.Mean()
    )
    value = jax.jit(lambda: body(TracedFederation(program, 0, None)))()
    assert float(value) == pytest.approx((0 * 6 + 1 + 2 + 3 + 4) / 10, abs=0.1)


def whole_number(client, value):
    return jnp.int32(10)


def test_a_mean_of_whole_numbers_is_refused():
    fed = eager()
    v = fed.broadcast(fed.sample(rk.participation.Everyone(), jax.random.key(0)), jnp.zeros(()))
    with pytest.raises(TypeError, match="a mean needs floating-point replies, got int32"):
        fed.mean(fed.map(whole_number, v))


def test_settings_may_not_smuggle_arrays():
    fed = eager()
    v = fed.broadcast(fed.sample(rk.participation.Everyone(), jax.random.key(0)), jnp.zeros(()))
    for hidden in ((jnp.ones(3),), {"a": np.ones(2)}, v):
        with pytest.raises(ValueError, match="setting 'factor' holds"):
            fed.map(own_row_times, v, factor=hidden)
