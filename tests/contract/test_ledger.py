"""Counted costs against the formulas of the papers."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from some_slow import some_slow

import rookery as rk
from rookery.algorithms.fednest.accounting import paper_rounds
from rookery.engines.engine import Program

ZOO = rk.zoo.quadratic_bilevel(n_clients=6, x_size=3, y_size=4)
P, Q = 3 * 8, 4 * 8  # bytes of x and of y
TINY = rk.zoo.quadratic_bilevel(n_clients=3, x_size=1, y_size=2)
SADDLE = rk.zoo.saddle(n_clients=3, x_size=1, y_size=1)
CHAIN = rk.zoo.linear_chain(n_clients=3, sizes=(1, 2))
SETTINGS = [  # T and N
    (3, 2),
    *(pytest.param(*pair, marks=pytest.mark.slow) for pair in ((1, 1), (1, 5), (3, 4))),
]


def ledgers(algorithm, rounds=6, seed=0, zoo=ZOO, engine=None):
    population = rk.Population.stacked(zoo.data)
    program = Program(zoo.problem, population, rk.delays.Clock(), rk.aggregate.Mean())
    state = algorithm.init(zoo.problem, *(jnp.asarray(a) for a in zoo.start))
    runner = (engine or rk.Compiled()).prepare(program, [algorithm])
    return runner.advance([state], [jax.random.key(seed)], 0, [rounds])[0].ledgers


def one_round(algorithm, zoo: Any = TINY):
    """What a round of fixed cost costs, by the eager engine, which need not compile it."""
    (ledger,) = ledgers(algorithm, 1, 0, zoo, rk.Eager())
    return ledger


@pytest.mark.parametrize(("T", "N"), SETTINGS)
def test_sum_makes_2T_plus_N_plus_3_exchanges(T, N):
    algorithm = rk.FedNest(
        outer_lr=0.01,
        inner_lr=0.1,
        inner_rounds=T,
        ihgp=rk.parts.FedIHGPSum(terms=N, lipschitz=5.0),
        clients=3,
    )
    assert [ledger.exchanges for ledger in ledgers(algorithm)] == [2 * T + N + 3] * 6


@pytest.mark.parametrize(("T", "N"), SETTINGS)
def test_random_makes_2T_plus_drawn_hops_plus_3_exchanges(T, N):
    algorithm = rk.FedNest(
        outer_lr=0.01,
        inner_lr=0.1,
        inner_rounds=T,
        ihgp=rk.parts.FedIHGP(terms=N, lipschitz=5.0),
        clients=3,
    )
    made = ledgers(algorithm, rounds=60)
    drawn = [ledger.exchanges - 2 * T - 3 for ledger in made]
    assert set(drawn) == set(range(N))  # uniform on 0..N-1: 60 draws meet all of at most 5
    # one Hessian-vector product per hop and client, and one cross product per client for h
    assert [ledger.hessian_vectors for ledger in made] == [3 * n + 3 for n in drawn]


@pytest.mark.slow
def test_an_estimate_of_lipschitz_is_one_more_exchange_when_it_is_due():
    power = rk.parts.PowerIteration(iterations=4, every=3)
    algorithm = rk.FedNest(
        outer_lr=0.01, inner_lr=0.1, ihgp=rk.parts.FedIHGPSum(terms=2, lipschitz=power)
    )
    assert [ledger.exchanges for ledger in ledgers(algorithm)] == [8, 7, 7, 8, 7, 7]


def test_bytes_with_everyone():
    m, T, N = 6, 2, 3
    algorithm = rk.FedNest(
        outer_lr=0.01,
        inner_lr=0.1,
        inner_rounds=T,
        ihgp=rk.parts.FedIHGPSum(terms=N, lipschitz=5.0),
    )
    ledger = ledgers(algorithm, rounds=1)[0]
    fedinn_down, fedinn_up = (P + Q) + Q, Q + Q
    ihgp_down, ihgp_up = (P + Q) + N * Q, Q + N * Q  # everyone holds x, y after the first exchange
    fedout_down, fedout_up = (P + 2 * Q) + P, P + P
    assert ledger.bytes_down == m * (T * fedinn_down + ihgp_down + fedout_down)
    assert ledger.bytes_up == m * (T * fedinn_up + ihgp_up + fedout_up)
    assert ledger.messages == 2 * m * (2 * T + N + 3)


@pytest.mark.slow
def test_newcomers_of_a_hop_are_sent_the_point_and_others_are_not():
    N, n = 4, 2
    algorithm = rk.FedNest(
        outer_lr=0.01, inner_lr=0.1, ihgp=rk.parts.FedIHGPSum(terms=N, lipschitz=5.0), clients=n
    )
    fixed = n * ((P + 2 * Q) + N * Q + (2 * P + 2 * Q))  # all but the sending of the point
    points = [(ledger.bytes_down - fixed) / (P + Q) for ledger in ledgers(algorithm, rounds=40)]
    assert all(p == int(p) and n <= p <= 6 for p in points)  # at most each client once
    assert len(set(points)) > 1


@pytest.mark.slow
def test_evaluations_are_counted_in_rows():
    zoo = rk.zoo.quadratic_bilevel(n_clients=3, rows=5)
    algorithm = rk.FedNest(
        outer_lr=0.01,
        inner_lr=0.1,
        inner_steps=4,
        outer_steps=2,
        ihgp=rk.parts.FedIHGPSum(terms=2, lipschitz=5.0),
        batch_size=2,
    )
    program = Program(
        zoo.problem, rk.Population.stacked(zoo.data), rk.delays.Clock(), rk.aggregate.Mean()
    )
    state = algorithm.init(zoo.problem, *(jnp.asarray(a) for a in zoo.start))
    runner = rk.Compiled().prepare(program, [algorithm])
    ledger = runner.advance([state], [jax.random.key(0)], 0, [1])[0].ledgers[0]
    anchor, inner, f_y, direct, outer = 5, 3 * 2 * 2, 2, 2, 1 * 2 * 2
    assert ledger.gradients == 3 * (anchor + inner + f_y + direct + outer)
    assert ledger.hessian_vectors == 3 * (2 * 2 + 2)


# ---- FedNest's family (the paper's table 2)


@pytest.mark.parametrize(("T", "N"), SETTINGS)
def test_fednest_is_cheaper_where_there_is_nothing_to_solve(T, N):
    settings = {
        "inner_rounds": T,
        "clients": 2,
        "ihgp": rk.parts.FedIHGPSum(terms=N, lipschitz=5.0),
    }
    assert (
        one_round(rk.FedNest(outer_lr=0.01, inner_lr=0.1, **settings), SADDLE).exchanges
        == 2 * T + 2
    )
    settings["inner_start"] = jnp.zeros(2)
    assert (
        one_round(rk.FedNest(outer_lr=0.01, inner_lr=0.1, **settings), CHAIN).exchanges == 2 * T + 3
    )


@pytest.mark.slow
@pytest.mark.parametrize(("T", "N"), SETTINGS)
def test_fednest_sgd_saves_an_exchange_per_inner_round(T, N):
    settings = {"inner_rounds": T, "inner_steps": 2, "clients": 2}
    ledger = one_round(
        rk.FedNestSGD(
            outer_lr=0.01,
            inner_lr=0.1,
            ihgp=rk.parts.FedIHGPSum(terms=N, lipschitz=5.0),
            **settings,
        )
    )
    assert ledger.exchanges == T + N + 3
    random = rk.FedNestSGD(
        outer_lr=0.01, inner_lr=0.1, ihgp=rk.parts.FedIHGP(terms=N, lipschitz=5.0), **settings
    )
    made = ledgers(random, 40, zoo=TINY)
    drawn = [ledger.hessian_vectors // 2 - 1 for ledger in made]  # per client, but for the cross
    assert set(drawn) == set(range(N))
    assert [ledger.exchanges for ledger in made] == [T + n + 3 for n in drawn]


@pytest.mark.slow
@pytest.mark.parametrize(("T", "N"), SETTINGS)
@pytest.mark.parametrize(("zoo", "start"), [(TINY, None), (SADDLE, None), (CHAIN, jnp.zeros(2))])
def test_the_light_family_does_not_pay_for_the_series(T, N, zoo, start):
    settings = {"clients": 2, "outer_steps": 2, "inner_start": start}
    settings["adjoint"] = rk.parts.LocalNeumannSum(
        terms=N, lipschitz=rk.parts.PowerIteration(iterations=2)
    )
    light = rk.LFedNest(outer_lr=0.01, inner_lr=0.1, inner_rounds=T, **settings)
    svrg = rk.LFedNestSVRG(outer_lr=0.01, inner_lr=0.1, inner_rounds=T, **settings)
    joint = rk.LFedNestNonAlt(outer_lr=0.01, inner_lr=0.1, inner_steps=T, **settings)
    assert one_round(light, zoo).exchanges == T + 1
    assert one_round(svrg, zoo).exchanges == 2 * T + 1
    assert one_round(joint, zoo).exchanges == 1


@pytest.mark.slow
def test_work_and_bytes_of_the_light_family():
    m, T, N, p, q = 3, 2, 4, 8, 16
    light = rk.LFedNest(
        outer_lr=0.01,
        inner_lr=0.1,
        inner_rounds=T,
        outer_steps=2,
        adjoint=rk.parts.LocalNeumannSum(terms=N, lipschitz=rk.parts.PowerIteration(iterations=5)),
    )
    ledger = one_round(light)
    assert (ledger.bytes_down, ledger.bytes_up) == (m * (T + 1) * (p + q), m * (T * q + p))
    # the power iteration once a call, the series and the cross product at every local step
    assert ledger.hessian_vectors == m * (5 + 2 * (N + 1))
    joint = one_round(rk.LFedNestNonAlt(outer_lr=0.01, inner_lr=0.1, clients=2))
    assert (joint.bytes_down, joint.bytes_up, joint.messages) == (2 * (p + q), 2 * (p + q), 4)


@pytest.mark.parametrize("iterations", some_slow([2, 1, 5]))
def test_conjugate_gradients_cost_an_exchange_per_product(iterations):
    algorithm = rk.FedNest(
        outer_lr=0.01, inner_lr=0.1, ihgp=rk.parts.FederatedCG(iterations=iterations)
    )
    assert one_round(algorithm).exchanges == 2 + (iterations + 1) + 2


# ---- FedMBO


@pytest.mark.parametrize(("T", "N"), SETTINGS)
def test_fedmbo_with_the_sum_makes_T_plus_N_plus_2_exchanges(T, N):
    n, p, q = 2, 8, 16
    phe = rk.parts.PHESum(terms=N, lipschitz=5.0, chains=rk.participation.Fixed((0, 2)))
    ledger = one_round(
        rk.FedMBO(outer_lr=0.01, inner_lr=0.1, inner_rounds=T, hypergradient=phe, clients=n)
    )
    assert ledger.exchanges == T + N + 2
    assert ledger.messages == 2 * n * (T + N + 2)
    assert ledger.bytes_up == n * (T * q + (p + q) + N * q + p)
    # the point once to each of the two clients of the chains, then a vector per chain and hop
    assert ledger.bytes_down == n * (T * (p + q) + (p + q) + (N + 1) * q)


@pytest.mark.slow
@pytest.mark.parametrize(("T", "N"), SETTINGS)
def test_fedmbo_goes_on_until_the_longest_chain_ends_and_ended_chains_send_nothing(T, N):
    n = 3
    algorithm = rk.FedMBO(
        outer_lr=0.01,
        inner_lr=0.1,
        inner_rounds=T,
        hypergradient=rk.parts.PHE(terms=N, lipschitz=5.0),
        clients=n,
    )
    made = ledgers(algorithm, rounds=40)
    hops = [ledger.hessian_vectors - n for ledger in made]  # sum of N_i: one row, one product each
    longest = [ledger.exchanges - T - 2 for ledger in made]  # max of N_i
    assert set(longest) <= set(range(N))
    assert max(longest) == N - 1
    assert all(high <= total <= n * high for high, total in zip(longest, hops, strict=True))
    assert [ledger.messages for ledger in made] == [2 * (n * (T + 2) + total) for total in hops]
    assert [ledger.bytes_up for ledger in made] == [
        n * (T * Q + 2 * P + Q) + total * Q for total in hops
    ]


@pytest.mark.parametrize(("T", "N"), SETTINGS)
@pytest.mark.parametrize(
    ("inner", "per_call"),
    [
        (rk.parts.ServerSGD(lr=0.1), 1),
        (rk.parts.FedInn(lr=0.1, local_steps=2), 2),
        (rk.parts.FedInnSGD(lr=0.1), 1),
    ],
)
@pytest.mark.parametrize("estimator", some_slow([rk.parts.PHESum, rk.parts.FedIHGPSum]))
def test_pairs_of_inner_solver_and_hypergradient(T, N, inner, per_call, estimator):
    nested = rk.Nested(
        inner=inner,
        outer=rk.parts.ServerStep(lr=0.01, hypergradient=estimator(terms=N, lipschitz=5.0)),
        inner_rounds=T,
        clients=2,
    )
    assert one_round(nested).exchanges == per_call * T + N + 2


# ---- minimax


@pytest.mark.parametrize("steps", [1, 3, (1, 2, 3)])
def test_fedavg_s_makes_one_exchange(steps):
    ledger = one_round(rk.FedAvgS(outer_lr=0.1, inner_lr=0.1, local_steps=steps), SADDLE)
    assert ledger.exchanges == 1
    assert (ledger.bytes_down, ledger.bytes_up) == (3 * 16, 3 * 16)
    assert ledger.gradients == 2 * (sum(steps) if isinstance(steps, tuple) else 3 * steps)


@pytest.mark.parametrize(("zoo", "start"), [(TINY, None), (SADDLE, None), (CHAIN, jnp.zeros(2))])
@pytest.mark.parametrize("kind", [rk.FedNest, rk.FedNestSGD])
def test_the_sum_costs_what_the_table_of_fednest_says(kind, zoo, start):
    series = rk.parts.FedIHGPSum(terms=2, lipschitz=5.0)
    settings = {"inner_rounds": 2, "ihgp": series, "clients": 2, "inner_start": start}
    algorithm = kind(outer_lr=0.01, inner_lr=0.1, **settings)
    assert one_round(algorithm, zoo).exchanges == paper_rounds(algorithm, zoo.problem)


def test_the_table_of_fednest_counts_hops_that_a_random_length_does_not_make():
    settings: dict[str, Any] = {"outer_lr": 0.01, "inner_lr": 0.1, "inner_rounds": 2}
    random = rk.FedNest(ihgp=rk.parts.FedIHGP(terms=3, lipschitz=5.0), **settings)
    assert paper_rounds(random, TINY.problem) == 2 * 2 + 3 + 3
    assert one_round(random).exchanges < paper_rounds(random, TINY.problem)
    assert paper_rounds(rk.LFedNestSVRG(**settings), TINY.problem) == 2 * 2 + 1
    with pytest.raises(TypeError, match="FedMBO"):
        paper_rounds(rk.FedMBO(**settings), TINY.problem)
