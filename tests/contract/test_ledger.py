"""Counted costs against the formulas of the papers."""

import jax
import jax.numpy as jnp
import pytest

import rookery as rk
from rookery.engines.engine import Program

ZOO = rk.zoo.quadratic_bilevel(n_clients=6, x_size=3, y_size=4)
P, Q = 3 * 8, 4 * 8  # bytes of x and of y


def ledgers(algorithm, rounds=6, seed=0):
    population = rk.Population.stacked(ZOO.data)
    program = Program(ZOO.problem, population, rk.Clock(), rk.Mean())
    state = algorithm.init(ZOO.problem, *(jnp.asarray(a) for a in ZOO.start))
    runner = rk.Compiled().prepare(program, [algorithm])
    return runner.advance([state], [jax.random.key(seed)], 0, [rounds])[0].ledgers


@pytest.mark.parametrize(("T", "N"), [(1, 1), (1, 5), (3, 4)])
def test_sum_makes_2T_plus_N_plus_3_exchanges(T, N):
    algorithm = rk.FedNest(
        outer_lr=0.01, inner_lr=0.1, inner_rounds=T, ihgp=rk.FedIHGPSum(N, 5.0), clients=3
    )
    assert [ledger.exchanges for ledger in ledgers(algorithm)] == [2 * T + N + 3] * 6


@pytest.mark.parametrize(("T", "N"), [(1, 1), (1, 5), (3, 4)])
def test_random_makes_2T_plus_drawn_hops_plus_3_exchanges(T, N):
    algorithm = rk.FedNest(
        outer_lr=0.01, inner_lr=0.1, inner_rounds=T, ihgp=rk.FedIHGP(N, 5.0), clients=3
    )
    made = ledgers(algorithm, rounds=60)
    drawn = [ledger.exchanges - 2 * T - 3 for ledger in made]
    assert set(drawn) == set(range(N))  # uniform on 0..N-1: 60 draws meet all of at most 5
    # one Hessian-vector product per hop and client, and one cross product per client for h
    assert [ledger.hessian_vectors for ledger in made] == [3 * n + 3 for n in drawn]


def test_an_estimate_of_lipschitz_is_one_more_exchange_when_it_is_due():
    power = rk.PowerIteration(iterations=4, every=3)
    algorithm = rk.FedNest(outer_lr=0.01, inner_lr=0.1, ihgp=rk.FedIHGPSum(2, power))
    assert [ledger.exchanges for ledger in ledgers(algorithm)] == [8, 7, 7, 8, 7, 7]


def test_bytes_with_everyone():
    m, T, N = 6, 2, 3
    algorithm = rk.FedNest(outer_lr=0.01, inner_lr=0.1, inner_rounds=T, ihgp=rk.FedIHGPSum(N, 5.0))
    ledger = ledgers(algorithm, rounds=1)[0]
    fedinn_down, fedinn_up = (P + Q) + Q, Q + Q
    ihgp_down, ihgp_up = (P + Q) + N * Q, Q + N * Q  # everyone holds x, y after the first exchange
    fedout_down, fedout_up = (P + 2 * Q) + P, P + P
    assert ledger.bytes_down == m * (T * fedinn_down + ihgp_down + fedout_down)
    assert ledger.bytes_up == m * (T * fedinn_up + ihgp_up + fedout_up)
    assert ledger.messages == 2 * m * (2 * T + N + 3)


def test_newcomers_of_a_hop_are_sent_the_point_and_others_are_not():
    N, n = 4, 2
    algorithm = rk.FedNest(outer_lr=0.01, inner_lr=0.1, ihgp=rk.FedIHGPSum(N, 5.0), clients=n)
    fixed = n * ((P + 2 * Q) + N * Q + (2 * P + 2 * Q))  # all but the sending of the point
    points = [(ledger.bytes_down - fixed) / (P + Q) for ledger in ledgers(algorithm, rounds=40)]
    assert all(p == int(p) and n <= p <= 6 for p in points)  # at most each client once
    assert len(set(points)) > 1


def test_evaluations_are_counted_in_rows():
    zoo = rk.zoo.quadratic_bilevel(n_clients=3, rows=5)
    algorithm = rk.FedNest(
        outer_lr=0.01,
        inner_lr=0.1,
        inner_steps=4,
        outer_steps=2,
        ihgp=rk.FedIHGPSum(2, 5.0),
        batch_size=2,
    )
    program = Program(zoo.problem, rk.Population.stacked(zoo.data), rk.Clock(), rk.Mean())
    state = algorithm.init(zoo.problem, *(jnp.asarray(a) for a in zoo.start))
    runner = rk.Compiled().prepare(program, [algorithm])
    ledger = runner.advance([state], [jax.random.key(0)], 0, [1])[0].ledgers[0]
    anchor, inner, f_y, direct, outer = 5, 3 * 2 * 2, 2, 2, 1 * 2 * 2
    assert ledger.gradients == 3 * (anchor + inner + f_y + direct + outer)
    assert ledger.hessian_vectors == 3 * (2 * 2 + 2)
