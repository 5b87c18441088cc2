"""The engines' contract: same key, same trajectory, same ledger, and whole runs can be mapped."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.engines.engine import Program
from rookery.engines.traced import many_rounds, read_books

NOISY = rk.zoo.quadratic_bilevel(n_clients=4, rows=3, noise=0.3)
SCALAR = rk.zoo.scalar_bilevel()

CASES = {
    "random length, partial, mini-batch": (
        NOISY,
        rk.FedNest(
            outer_lr=0.05,
            inner_lr=0.1,
            inner_rounds=2,
            inner_steps=3,
            outer_steps=2,
            ihgp=rk.FedIHGP(terms=4, lipschitz=5.0),
            clients=2,
            batch_size=2,
            anchor_batch=2,
        ),
    ),
    "sum, everyone, full batch": (
        NOISY,
        rk.FedNest(outer_lr=0.05, inner_lr=0.1, ihgp=rk.FedIHGPSum(terms=2, lipschitz=5.0)),
    ),
    "estimated lipschitz, unequal local steps": (
        NOISY,
        rk.FedNest(
            outer_lr=rk.PerCall(0.05),
            inner_lr=rk.PerCall(0.1),
            inner_steps=(1, 2, 3, 1),
            outer_steps=(2, 1, 1, 2),
            ihgp=rk.FedIHGP(terms=3, lipschitz=rk.PowerIteration(iterations=3, every=2)),
            clients=3,
            batch_size=1,
        ),
    ),
    "clients drawn with replacement": (
        NOISY,
        rk.FedNest(
            outer_lr=0.05,
            inner_lr=0.1,
            ihgp=rk.FedIHGP(terms=3, lipschitz=5.0),
            clients=rk.WithReplacement(5),
            batch_size=2,
        ),
    ),
    "one number": (
        SCALAR,
        rk.FedNest(outer_lr=0.1, inner_lr=0.1, ihgp=rk.FedIHGP(terms=3, lipschitz=3.0), clients=1),
    ),
}

TINY = rk.zoo.quadratic_bilevel(n_clients=3, x_size=1, y_size=2, rows=3, noise=0.3)
SADDLE = rk.zoo.curved_saddle(n_clients=3, x_size=1, y_size=2, rows=3, noise=0.3)
CHAIN = rk.zoo.linear_chain(n_clients=3, sizes=(1, 2), rows=3, noise=0.3)
PARTIAL: dict[str, Any] = {"clients": 2, "batch_size": 2}
START = jnp.zeros(2)

SHORT_CASES = {
    "FedNest, minimax": (SADDLE, rk.FedNest(0.05, 0.1, 2, 2, 2, **PARTIAL)),
    "FedNest, composition": (CHAIN, rk.FedNest(0.05, 0.1, 2, 2, inner_start=START, **PARTIAL)),
    "FedNestSGD": (
        TINY,
        rk.FedNestSGD(0.05, 0.1, 2, (1, 2, 3), ihgp=rk.FedIHGP(3, 5.0), **PARTIAL),
    ),
    "FederatedCG": (TINY, rk.FedNest(0.05, 0.1, ihgp=rk.FederatedCG(2), **PARTIAL)),
    "LFedNest": (TINY, rk.LFedNest(0.05, 0.1, 2, 2, 2, rk.LocalNeumann(3), **PARTIAL)),
    "LFedNestSVRG": (
        TINY,
        rk.LFedNestSVRG(0.05, 0.1, 1, 2, (2, 1, 3), rk.LocalNeumannSum(2, 5.0), **PARTIAL),
    ),
    "LFedNestNonAlt": (CHAIN, rk.LFedNestNonAlt(0.05, 0.1, 2, 2, inner_start=START, **PARTIAL)),
    "FedMBO": (TINY, rk.FedMBO(0.05, 0.1, 2, rk.PHE(4, 5.0, chains=4), **PARTIAL)),
    "FedMBO, sum": (
        TINY,
        rk.FedMBO(0.05, 0.1, 1, rk.PHESum(2, rk.PowerIteration(3), rk.Uniform(2)), **PARTIAL),
    ),
    "PHE with FedInn": (
        TINY,
        rk.Nested(rk.FedInn(0.1, 2), rk.ServerStep(0.05, rk.PHE(3, 5.0)), **PARTIAL),
    ),
    "FedAvgS": (SADDLE, rk.FedAvgS(0.05, 0.1, (1, 2, 3), rk.Alternating(), **PARTIAL)),
}


def program(zoo, clock=None) -> Program:
    return Program(zoo.problem, rk.Population.stacked(zoo.data), clock or rk.Clock(), rk.Mean())


def advance(engine, ready, algorithm, state, key, first, n):
    (progress,) = engine.prepare(ready, [algorithm]).advance([state], [key], first, [n])
    return progress


def initial(zoo, algorithm):
    return algorithm.init(zoo.problem, *(jnp.asarray(a) for a in zoo.start))


@pytest.mark.parametrize("case", [*CASES, *SHORT_CASES])
def test_eager_and_compiled_agree(case):
    rounds = 3 if case in CASES else 2
    zoo, algorithm = {**CASES, **SHORT_CASES}[case]
    clock = rk.Clock(rk.LogNormalDelay(0.1), bandwidth=1e4, seed=3)
    ready = program(zoo, clock)
    state, key = initial(zoo, algorithm), jax.random.key(7)
    eager = advance(rk.Eager(), ready, algorithm, state, key, 0, rounds)
    compiled = advance(rk.Compiled(), ready, algorithm, state, key, 0, rounds)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12),
        eager.state,
        compiled.state,
    )
    for a, b in zip(eager.ledgers, compiled.ledgers, strict=True):
        assert a.values()[:-1] == b.values()[:-1]
        assert a.seconds == pytest.approx(b.seconds, rel=1e-12)
        assert a.seconds > 0


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_a_cohort_in_chunks_gives_the_same(at_once):
    zoo, algorithm = CASES["estimated lipschitz, unequal local steps"]
    ready, state = program(zoo), initial(zoo, algorithm)
    key = jax.random.key(1)
    whole = advance(rk.Compiled(), ready, algorithm, state, key, 0, 4)
    parts = advance(rk.Compiled(clients_at_once=at_once), ready, algorithm, state, key, 0, 4)
    np.testing.assert_allclose(whole.state.x, parts.state.x, rtol=1e-13)
    assert whole.ledgers == parts.ledgers


def test_where_the_rounds_are_cut_changes_nothing():
    zoo, algorithm = CASES["random length, partial, mini-batch"]
    runner = rk.Compiled(rounds_per_call=3).prepare(program(zoo), [algorithm])
    keys, state = [jax.random.key(1)], initial(zoo, algorithm)
    (once,) = runner.advance([state], keys, 0, [7])
    (first,) = runner.advance([state], keys, 0, [2])
    (second,) = runner.advance([first.state], keys, 2, [5])
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), once.state, second.state))
    assert once.ledgers == first.ledgers + second.ledgers


def test_a_whole_run_maps_over_seeds_and_step_sizes():
    zoo, algorithm = CASES["random length, partial, mini-batch"]
    ready, state = program(zoo), initial(zoo, algorithm)
    rates = jnp.array([0.02, 0.05, 0.1])
    seeds = jnp.arange(2)

    def one(rate, seed):
        mine = eqx.tree_at(lambda a: a.outer_lr, algorithm, rate)
        return many_rounds(ready, mine, None, 5, state, jax.random.key(seed), 0, 5)

    grid = jax.jit(jax.vmap(jax.vmap(one, in_axes=(None, 0)), in_axes=(0, None)))
    states, books, _ = grid(rates, seeds)
    for i, rate in enumerate(rates.tolist()):
        for j, seed in enumerate(seeds.tolist()):
            mine = eqx.tree_at(lambda a: a.outer_lr, algorithm, rate)
            want = advance(rk.Compiled(), ready, mine, state, jax.random.key(seed), 0, 5)
            np.testing.assert_allclose(states.x[i, j], want.state.x, rtol=1e-12)
            ledgers = read_books(jax.tree.map(lambda a, i=i, j=j: a[i, j], books))
            assert ledgers == want.ledgers


def test_neither_the_second_call_nor_another_step_size_compiles_again():
    zoo, _ = CASES["one number"]
    traced = []

    def counting_inner(x, y, row):
        traced.append(1)
        return zoo.problem.inner(x, y, row)

    problem = rk.Bilevel(zoo.problem.outer, counting_inner, "train", "train")
    state = initial(zoo, CASES["one number"][1])
    after_first = 0
    for rate, first in ((0.1, 0), (0.1, 5), (0.2, 0)):
        algorithm = rk.FedNest(outer_lr=rate, inner_lr=0.1)
        ready = Program(problem, rk.Population.stacked(zoo.data), rk.Clock(), rk.Mean())
        advance(rk.Compiled(), ready, algorithm, state, jax.random.key(0), first, 2)
        if not first and rate == 0.1:
            after_first = len(traced)
    assert len(traced) == after_first
