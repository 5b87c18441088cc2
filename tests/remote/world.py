"""A tiny run over threads; the clients' steps are compiled once for all tests."""

import functools
import time
from typing import Any

import jax

import rookery as rk
from rookery.program.algorithm import first_state, numbers_to_arrays
from rookery.remote import Faults, InProcess, Policy, Remote, Worker
from rookery.remote.protocol.tracing import trace_round

ZOO = rk.zoo.quadratic_losses(n_clients=5, size=2, rows=3, noise=0.3)
POPULATION = rk.Population.stacked(ZOO.data)
FEDAVG = rk.FedAvg(lr=0.1, local_steps=2, batch_size=2)
SCAFFOLD = rk.Scaffold(lr=0.1, local_steps=2, clients=3, batch_size=2)
QUICK = Policy(wait_for=5.0, back_off=0.01)
LONG = 180.0  # seconds: the longest a run may take on a busy machine


@functools.cache
def plan(algorithm_name):
    algorithm = {"FedAvg": FEDAVG, "Scaffold": SCAFFOLD}[algorithm_name]
    state = first_state(algorithm, ZOO.problem, POPULATION.n_clients, ZOO.start)
    return trace_round(numbers_to_arrays(algorithm), ZOO.problem, POPULATION, state)


def warm_worker(client, program, algorithm, state, _):
    """A worker with the plan of all tests, so that nothing is compiled while others wait."""
    rows = program.population.only(client)
    return Worker(client, ZOO.problem, algorithm, rows, state, plan(type(algorithm).__name__))


def go(algorithm: Any = FEDAVG, faults=None, policy=QUICK, make=warm_worker, rounds=4, **settings):
    """A run of four rounds by messages."""
    clean(type(algorithm).__name__)
    engine = Remote(InProcess(faults or Faults(), make), policy)
    return timed(algorithm, engine, rounds, **settings)


@functools.cache
def clean(algorithm_name):
    """The run without faults; it also compiles the steps."""
    algorithm = {"FedAvg": FEDAVG, "Scaffold": SCAFFOLD}[algorithm_name]
    return timed(algorithm, Remote(InProcess(Faults(), warm_worker), Policy(wait_for=120.0)), 4)


def timed(algorithm, engine, rounds, **settings):
    began = time.monotonic()
    result = rk.run(
        algorithm, ZOO.problem, POPULATION, ZOO.start, rounds=rounds, engine=engine, **settings
    )
    assert time.monotonic() - began < LONG
    return result


def only(*clients):
    """The same run with some clients only, simulated."""
    algorithm = rk.FedAvg(
        lr=0.1, local_steps=2, clients=rk.participation.Fixed(clients), batch_size=2
    )
    return rk.run(algorithm, ZOO.problem, POPULATION, ZOO.start, rounds=4, engine=rk.Eager())


def same(a, b):
    pairs = zip(jax.tree.leaves(a.state), jax.tree.leaves(b.state), strict=True)
    return all(bool((u == w).all()) for u, w in pairs)


def reasons(result):
    return " | ".join(f"client {e.client}: {e.reason}" for e in result.events)
