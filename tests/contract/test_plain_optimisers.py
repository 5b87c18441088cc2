"""``optax.sgd(lr)`` in the place of a step size gives the bits that the step size gives."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import optax
import pytest
from instances import INSTANCES

import rookery as rk
from rookery.engines.engine import Program
from rookery.program.algorithm import first_state

CHEAP = ("FedAvg",)
"""The others are slow tests."""
DIVIDED = ("AFACD", "FedBuff")
"""They divide the step size by the number of results, an optimiser is given the mean of these."""
REFUSED = {"ADBO", "SDBO", "Prometheus", "NASA", "SCGD.inner_lr", "Scaffold.lr", "QFedAvg.lr",
           "AgnosticFL.ascent_lr", "ScaffoldS.outer_lr", "AggITD.inner_lr", "PFedMe.inner_lr",
           "Scaffnew.lr", "Scafflix.lr", "ProxSkipVIP.lr", "Mime.lr", "MimeLite.lr",
           "FESSGDA", "CODASCA", "FeDXL"}  # fmt: skip
EVERY = [
    pytest.param(
        name,
        which,
        marks=() if name in CHEAP and which == next(iter(some)) else pytest.mark.slow,
        id=f"{name}: {which}",
    )
    for name, some in INSTANCES.items()
    for which in some
]


def by_sgd(module: Any, sgd: Callable[[float], Any], refused: set[str], name: str) -> Any:
    """An algorithm or a part whose step sizes are optimisers, where it takes them."""
    for field, value in list(vars(module).items()):
        if field in ("inner", "outer", "warm_up") and isinstance(value, eqx.Module):
            module = replace(module, **{field: by_sgd(value, sgd, refused, name)})
        if field.endswith("lr") and (rule := optimised(value, sgd)) is not value:
            try:
                module = replace(module, **{field: rule})
            except TypeError as error:
                assert "optimiser" in str(error) or f"{field} must be a number, got" in str(error)
                refused.add(f"{name}.{field}")
    return module


def optimised(rule: Any, sgd: Callable[[float], Any]) -> Any:
    """The optimiser of a step size above zero, or of each in a tuple; other rules as they are."""
    if isinstance(rule, tuple):
        return tuple(optimised(one, sgd) for one in rule)
    return sgd(rule) if isinstance(rule, float) and rule > 0 else rule


def bits(zoo, algorithm):
    population = rk.Population.stacked(zoo.data)
    program = Program(zoo.problem, population, rk.delays.Clock(), rk.aggregate.Mean())
    state = first_state(algorithm, zoo.problem, population.n_clients, zoo.start)
    runner = rk.Compiled(rounds_per_call=3).prepare(program, [algorithm])
    (progress,) = runner.advance([state], [jax.random.key(7)], 0, [3])
    return jax.device_get(algorithm.solution(progress.state)), progress.ledgers


@pytest.mark.parametrize(("name", "which"), EVERY)
def test_plain_sgd_is_the_step_size(name, which):
    zoo, algorithm = INSTANCES[name][which]
    want = None
    for sgd in (lambda lr: rk.parts.Optimiser(optax.sgd, learning_rate=lr), optax.sgd):
        refused: set[str] = set()
        changed = by_sgd(algorithm, sgd, refused, name)
        assert {one for one in refused if one.split(".")[0] not in REFUSED} <= REFUSED
        if eqx.tree_equal(changed, algorithm) is True:
            continue  # it has no step size, or refuses all
        want = want or bits(zoo, algorithm)
        got = bits(zoo, changed)
        assert got[1] == want[1]
        if name in DIVIDED:
            close = jax.tree.map(lambda a, b: pytest.approx(a, rel=1e-14) == b, got[0], want[0])
            assert jax.tree.all(close)
        else:
            same = jax.tree.map(lambda a, b: a.tobytes() == b.tobytes(), got[0], want[0])
            assert jax.tree.all(same)
