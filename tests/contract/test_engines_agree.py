"""The engines' contract: same key, same trajectory, same ledger, and whole runs can be mapped."""

import os
from contextlib import closing

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from instances import INSTANCES, OPTIMISED, REFUSES

import rookery as rk
from rookery.engines.compiled import programs_compiled
from rookery.engines.engine import Program
from rookery.engines.round_costs import ledgers
from rookery.engines.rounds import many_rounds
from rookery.experiment.registry import ALGORITHMS
from rookery.program.algorithm import first_state
from rookery.remote import Remote
from rookery.remote.engine import RemoteRunner

CASES = INSTANCES["FedNest"]
# `make test-contract` runs all instances for three rounds. `make test` runs the cheapest instance
# of an algorithm for two, few of them over messages; it leaves out variants of other algorithms,
# and those that take longest.
IS_WHOLE = os.environ.get("ROOKERY_CONTRACT") == "all"
LEFT_OUT = set(
    "FedNestSGD LFedNest LFedNestSVRG LFedNestNonAlt AID StocBiO ALSET TTSA Nested SDBO AFLBilevel "
    "AFACD FedBuff AlternatingGDA Extragradient STSA NASA ComposedSGD ScaffoldS AgnosticFL "
    "FedMBO AFACS PerFedAvg FedProx ADBO Prometheus AFBO DRFA SimFBO ShroFBO FedBiO FedBiOAcc "
    "F2SA MemFBO BOME CSOBA CMSOBA EFSOBA FedPAQ "
    "BRFedBi BRFedBiM BRFedBiP AggITD PFedMe Ditto IMAML FedRep FedBiOLocal FedBiOAccLocal "
    "FedDyn Scafflix Scaffnew FedEx FedExP Mime MimeLite "
    "FedNormSGDA FedNormSGDAPlus FedSGDAM OptimisticGDA FedGDAGT FESSGDA ProxSkipVIP "
    "FCSG FCSGM AccFCSGM CODASCA FeDXL QFedAvg FedMSA GDA SCGD".split()
)
CHEAPEST = {"FedNest": "one number"}  # where it is not the first
ROUNDS = 3 if IS_WHOLE else 2


def chosen(name):
    every = list(INSTANCES[name])
    return every if IS_WHOLE else [CHEAPEST.get(name, every[0])]


EVERY = [
    (name, which)
    for name in INSTANCES
    if IS_WHOLE or name not in LEFT_OUT
    for which in chosen(name)
]
WITH_OPTIMISERS = list(OPTIMISED) if IS_WHOLE else ["FedNova"]


def program(zoo, clock=None) -> Program:
    return Program(
        zoo.problem,
        rk.Population.stacked(zoo.data),
        clock or rk.delays.Clock(),
        rk.aggregate.Mean(),
    )


def advance(engine, ready, algorithm, state, key, first, n):
    (progress,) = engine.prepare(ready, [algorithm]).advance([state], [key], first, [n])
    return progress


def initial(zoo, algorithm):
    n_clients = rk.Population.stacked(zoo.data).n_clients
    return first_state(algorithm, zoo.problem, n_clients, zoo.start)


@pytest.mark.parametrize(("name", "which"), EVERY, ids=[f"{n}: {w}" for n, w in EVERY])
def test_engines_agree(name, which):
    agree(name, *INSTANCES[name][which], is_remote=by_messages(name))


@pytest.mark.parametrize("name", WITH_OPTIMISERS)
def test_engines_agree_with_optimisers(name):
    agree(name, *OPTIMISED[name], is_remote=IS_WHOLE or name == "FedAvg")


def agree(name, zoo, algorithm, *, is_remote):
    assert algorithm.name == name
    algorithm.check(zoo.problem, rk.Population.stacked(zoo.data).n_clients)
    outer = rk.delays.ParetoDelay(0.2)
    clock = rk.delays.Clock(rk.delays.LogNormalDelay(0.1), bandwidth=1e4, seed=3, outer_delay=outer)
    ready, key = program(zoo, clock), jax.random.key(7)
    engines = (rk.Compiled(), rk.Eager(), *([Remote()] if is_remote else []))
    runners = [engine.prepare(ready, [algorithm]) for engine in engines]
    states = [initial(zoo, algorithm)] * len(engines)
    down = up = 0
    with closing(runners[-1]) as last:
        for round in range(ROUNDS):
            old = states[0]
            progress = [
                runner.advance([state], [key], round, [1])[0]
                for runner, state in zip(runners, states, strict=True)
            ]
            want, *others = progress
            assert not eqx.tree_equal(old, want.state)
            for got in others:
                same_state(got.state, want.state)
                ((a,), (b,)) = got.ledgers, want.ledgers
                assert a.values()[:-1] == b.values()[:-1]
                assert a.seconds == pytest.approx(b.seconds, rel=1e-12)
                assert a.seconds > 0
            states = [one.state for one in progress]
            down, up = down + want.ledgers[0].bytes_down, up + want.ledgers[0].bytes_up
        if isinstance(last, RemoteRunner):  # what the ledger says is what messages really carried
            assert (last.session.bytes_down, last.session.bytes_up) == (down, up)


def by_messages(name):
    """Whether the remote engine takes part, which compiles every step a second time."""
    return IS_WHOLE or name in {"FedAvg", "FedNest", "Scaffold"}


def same_state(got, want):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-12, 1e-12), got, want)


def test_every_algorithm_has_an_instance_and_takes_optimisers_or_refuses_them():
    assert set(INSTANCES) | set(OPTIMISED) == set(ALGORITHMS), (
        "an algorithm has no instance. Add a small one on a zoo problem to INSTANCES, and one with "
        "optimisers to OPTIMISED, in tests/contract/instances.py."
    )
    assert set(OPTIMISED) | set(REFUSES) == set(ALGORITHMS)
    assert LEFT_OUT < set(INSTANCES)


@pytest.mark.parametrize("at_once", [1, 2, 3])
@pytest.mark.slow
def test_a_cohort_in_chunks_gives_the_same(at_once):
    zoo, algorithm = CASES["estimated lipschitz, unequal local steps"]
    ready, state = program(zoo), initial(zoo, algorithm)
    key = jax.random.key(1)
    whole = advance(rk.Compiled(), ready, algorithm, state, key, 0, 4)
    parts = advance(rk.Compiled(clients_at_once=at_once), ready, algorithm, state, key, 0, 4)
    np.testing.assert_allclose(whole.state.x, parts.state.x, rtol=1e-13)
    assert whole.ledgers == parts.ledgers


@pytest.mark.slow
def test_where_the_rounds_are_cut_changes_nothing():
    zoo, algorithm = CASES["random length, partial, mini-batch"]
    runner = rk.Compiled(rounds_per_call=3).prepare(program(zoo), [algorithm])
    keys, state = [jax.random.key(1)], initial(zoo, algorithm)
    (once,) = runner.advance([state], keys, 0, [7])
    (first,) = runner.advance([state], keys, 0, [2])
    (second,) = runner.advance([first.state], keys, 2, [5])
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), once.state, second.state))
    assert once.ledgers == first.ledgers + second.ledgers


@pytest.mark.slow
def test_a_whole_run_maps_over_seeds_and_step_sizes():
    zoo, algorithm = CASES["random length, partial, mini-batch"]
    ready, state = program(zoo), initial(zoo, algorithm)
    rates = jnp.array([0.02, 0.05, 0.1])
    seeds = jnp.arange(2)

    def one(rate, seed):
        mine = eqx.tree_at(lambda a: a.outer_lr, algorithm, rate)
        return many_rounds(ready, mine, None, 5, state, jax.random.key(seed), 0, 5)

    grid = jax.jit(jax.vmap(jax.vmap(one, in_axes=(None, 0)), in_axes=(0, None)))
    states, costs, _ = grid(rates, seeds)
    for i, rate in enumerate(rates.tolist()):
        for j, seed in enumerate(seeds.tolist()):
            mine = eqx.tree_at(lambda a: a.outer_lr, algorithm, rate)
            want = advance(rk.Compiled(), ready, mine, state, jax.random.key(seed), 0, 5)
            np.testing.assert_allclose(states.x[i, j], want.state.x, rtol=1e-12)
            got = ledgers(jax.tree.map(lambda a, i=i, j=j: a[i, j], costs))
            assert got == want.ledgers


def test_neither_the_second_call_nor_another_step_size_compiles_again():
    zoo, first_algorithm = CASES["one number"]
    state = initial(zoo, first_algorithm)
    compiled = []
    for rate, first in ((0.1, 0), (0.1, 5), (0.2, 0)):
        algorithm = rk.FedNest(outer_lr=rate, inner_lr=0.1)
        advance(rk.Compiled(), program(zoo), algorithm, state, jax.random.key(0), first, 2)
        compiled.append(programs_compiled())
    assert compiled[0] == compiled[1] == compiled[2]
