"""A long run compiles nothing new: no engine makes programs from round to round."""

import jax
import pytest

import rookery as rk
from rookery.remote import Remote

ZOO = rk.zoo.quadratic_losses(n_clients=6, size=2)
POPULATION = rk.Population.stacked(ZOO.data)
COMPILED = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def compiled():
    """The names of what JAX has compiled since."""
    seen = []

    def listen(event, *_, **about):
        if event == COMPILED:
            seen.append(about.get("fun_name", "?"))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    jax.monitoring.unregister_event_duration_listener(listen)


MEAN, CLIPPING = rk.aggregate.Mean(), rk.aggregate.CentredClipping(radius=1.0)
PROPORTIONAL, slow = rk.participation.Proportional(3), pytest.mark.slow


@pytest.mark.parametrize(
    ("engine", "clients", "rule"),
    [
        (rk.Eager(), 1, MEAN),
        (Remote(), 3, MEAN),
        (Remote(), 5, rk.aggregate.Krum()),
        (Remote(), 3, CLIPPING),
        pytest.param(rk.Eager(), PROPORTIONAL, rk.aggregate.Median(), marks=slow),
        pytest.param(rk.Eager(), 5, rk.aggregate.Krum(), marks=slow),
        pytest.param(rk.Eager(), 3, CLIPPING, marks=slow),
    ],
    ids=lambda value: type(value).__name__,
)
def test_after_the_fifth_round_nothing_is_compiled(compiled, engine, clients, rule):
    after = {}

    def note(snapshot):
        after[snapshot.round] = list(compiled)

    rk.run(
        rk.FedAvg(lr=0.1, clients=clients), ZOO.problem, POPULATION, ZOO.start, rounds=50,
        engine=engine, aggregate=rule, callback=note, callback_every=1, guard=None,
    )  # fmt: skip
    assert after[5], "the listener heard nothing"
    assert after[50] == after[5]
