"""A program is traced again if what its functions read has changed, and only then."""

import functools
import types
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.engines.code_key import CodeKey
from rookery.engines.compiled import programs_compiled

SCALE = 1.0
TABLE = {"target": np.array([1.0, 2.0])}
settings = types.ModuleType("settings")
settings.offset = 0.0  # type: ignore[attr-defined]


def error(w, row):
    return jnp.sum((w - row["a"]) ** 2)


def loss(w, row):
    return SCALE * error(w, row) + settings.offset * jnp.sum(w) + 0.0 * TABLE["target"][0]


class Objective(eqx.Module):
    """A loss that is an object, with a function and numbers among its fields."""

    part: Callable
    weight: float

    def __call__(self, w, row):
        """The loss of a row."""
        return SCALE * self.part(w, row)


def final(loss) -> float:
    population = rk.Population.stacked({"a": np.arange(12.0).reshape(3, 4)})
    problem = rk.SingleLevel(loss)
    result = rk.run(rk.FedAvg(lr=0.1), problem, population, start=(jnp.zeros(()),), rounds=2)
    return float(result.solution[0])


def test_a_changed_global_is_seen_and_an_unchanged_one_compiles_nothing(monkeypatch):
    first = final(loss)
    compiled = programs_compiled()
    assert final(loss) == first
    assert programs_compiled() == compiled
    monkeypatch.setitem(globals(), "SCALE", 0.5)
    assert final(loss) != first
    monkeypatch.setitem(globals(), "SCALE", 1.0)
    compiled = programs_compiled()
    assert final(loss) == first
    assert programs_compiled() == compiled


@pytest.mark.parametrize(
    "make", [lambda: loss, lambda: functools.partial(loss), lambda: jax.vmap(loss)]
)
@pytest.mark.parametrize("change", ["number", "function", "attribute", "entry", "row"])
def test_whatever_a_function_reads_is_part_of_the_key(make, change, monkeypatch):
    fn = make()
    before = CodeKey([fn])
    assert before == CodeKey([fn]) and hash(before) == hash(CodeKey([fn]))
    match change:
        case "number":
            monkeypatch.setitem(globals(), "SCALE", 2.0)
        case "function":
            monkeypatch.setitem(globals(), "error", lambda w, row: jnp.sum(jnp.abs(w - row["a"])))
        case "attribute":
            monkeypatch.setattr(settings, "offset", 1.0)
        case "entry":
            monkeypatch.setitem(TABLE, "target", np.array([1.0, 3.0]))
        case "row":
            monkeypatch.setitem(TABLE, "target", TABLE["target"].copy())
            assert before == CodeKey([fn])  # equal rows are the same
            TABLE["target"][1] = 7.0
    assert before != CodeKey([fn])


def test_a_method_reads_too_and_numbers_of_fields_do_not_count(monkeypatch):
    def own(w, row):
        return factor * error(w, row)

    factor = 1.0
    before = CodeKey([Objective(own, 1.0)])
    assert before == CodeKey([Objective(own, 2.0)])  # an argument of the program
    assert before != CodeKey([Objective(error, 1.0)])
    factor = 2.0
    assert before != CodeKey([Objective(own, 1.0)])
    factor = 1.0
    assert before == CodeKey([Objective(own, 1.0)])
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert before != CodeKey([Objective(own, 1.0)])


def test_cycles_and_unassigned_variables_are_no_trouble():
    def even(n):
        return n == 0 or odd(n - 1)

    before = CodeKey([even])

    def odd(n):
        return n != 0 and even(n - 1)

    assert before != CodeKey([even])
    assert CodeKey([even]) == CodeKey([even])
    itself = []
    itself.append(itself)
    assert CodeKey([lambda: itself]) != CodeKey([even])
