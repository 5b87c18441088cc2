"""The contract on several devices: same trajectory, same ledger; and programs for others.

`make test-devices` runs every instance.
"""

import os

import equinox as eqx
import jax
import numpy as np
import pytest
from instances import INSTANCES

import rookery as rk
from rookery.engines.engine import Program
from rookery.engines.rounds import many_rounds
from rookery.program.algorithm import first_state

IS_WHOLE = os.environ.get("ROOKERY_CONTRACT") == "all"
EVERY = [(name, which) for name, some in INSTANCES.items() for which in some]
FEW = [("AFACS", "unequal local steps")]  # asynchronous, with a cohort of three
CHOSEN = EVERY if IS_WHOLE else FEW
ALL_OR_NONE = EVERY if IS_WHOLE else []
LAYOUTS = [(2, "replicated"), (4, "replicated"), (4, "by client")]
LOWERED = [
    ("FedNest", "random length, partial, mini-batch"),
    ("FedMBO", "random lengths"),
    ("FedMSA", "bilevel, warmed up"),
    ("AFBO", "active, random local iterations"),
    ("ComFedL", next(iter(INSTANCES["ComFedL"]))),
    ("FedAvg", next(iter(INSTANCES["FedAvg"]))),
]


def ids(cases):
    return [f"{name}: {which}" for name, which in cases]


def program(zoo):
    outer = rk.delays.ParetoDelay(0.2)
    clock = rk.delays.Clock(rk.delays.LogNormalDelay(0.1), bandwidth=1e4, seed=3, outer_delay=outer)
    return Program(zoo.problem, rk.Population.stacked(zoo.data), clock, rk.aggregate.Mean())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "which"), CHOSEN, ids=ids(CHOSEN))
def test_several_devices_agree_with_one(name, which):
    zoo, algorithm = INSTANCES[name][which]
    ready, key = program(zoo), jax.random.key(7)
    state = first_state(algorithm, zoo.problem, ready.population.n_clients, zoo.start)

    def three_rounds(engine):
        runner = engine.prepare(ready, [algorithm])
        (first,) = runner.advance([state], [key], 0, [2])
        (last,) = runner.advance([first.state], [key], 2, [1])
        return last.state, first.ledgers + last.ledgers

    want, ledgers = three_rounds(rk.Compiled(devices=1, rounds_per_call=2))
    for n, data in LAYOUTS:
        got, spent = three_rounds(rk.Compiled(devices=n, data=data, rounds_per_call=2))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-12, 1e-12), got, want)
        assert spent == ledgers


# ---- programs for devices that are not here


def traced(name, which):
    """The program of some rounds, traced but not compiled."""
    zoo, algorithm = INSTANCES[name][which]
    ready = program(zoo)
    state = first_state(algorithm, zoo.problem, ready.population.n_clients, zoo.start)
    arrays, static = eqx.partition(ready, eqx.is_array)

    def rounds(arrays, state, key, n):
        ready = eqx.combine(arrays, static)
        return many_rounds(ready, algorithm, None, 3, state, key, 0, n)

    return jax.jit(rounds).trace(arrays, state, jax.random.key(0), 3)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "which"), LOWERED, ids=ids(LOWERED))
def test_programs_lower_for_cuda_and_tpu_without_callbacks(name, which):
    here = traced(name, which)
    check_no_callback(here)
    for platform in ("cuda", "tpu"):
        text = here.lower(lowering_platforms=(platform,)).as_text()
        assert "stablehlo.while" in text and "callback" not in text


@pytest.mark.parametrize(("name", "which"), ALL_OR_NONE, ids=ids(ALL_OR_NONE))
def test_no_program_calls_back_to_the_host(name, which):
    check_no_callback(traced(name, which))


def check_no_callback(traced):
    names = {equation.primitive.name for equation in equations(traced.jaxpr.jaxpr)}
    assert "while" in names  # the search goes into the rounds
    assert not [name for name in names if "callback" in name or name in ("infeed", "outfeed")]


def test_the_search_for_callbacks_finds_one():
    def calls_back(x):
        shape = jax.ShapeDtypeStruct((), x.dtype)
        return jax.lax.fori_loop(0, 3, lambda _, x: jax.pure_callback(np.sin, shape, x), x)

    with pytest.raises(AssertionError):
        check_no_callback(jax.jit(calls_back).trace(1.0))


def equations(jaxpr):
    """All equations of a program, also those inside loops and calls."""
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(equation.params, is_leaf=is_jaxpr):
            if is_jaxpr(value):
                yield from equations(getattr(value, "jaxpr", value))


def is_jaxpr(value):
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")
