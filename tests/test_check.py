"""Arguments of a wrong type, and numbers that are not finite, are refused by name."""

import re
from collections.abc import Callable
from typing import Literal, NotRequired, TypedDict

import jax.numpy as jnp
import numpy as np
import pytest

from rookery import check, tree


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0, 0, np.array([0.1, np.nan])])
def test_a_number_that_is_no_step_size(value):
    with pytest.raises(ValueError, match=r"lr must be a finite number above 0"):
        check.positive("lr", value)


@pytest.mark.parametrize("value", ["0.1", None, True, [0.1], np.array(["0.1"]), jnp.array([True])])
def test_a_value_that_is_no_number(value):
    with pytest.raises(TypeError, match="lr must be a number, got"):
        check.positive("lr", value)


def test_a_name_that_is_no_text():
    with pytest.raises(TypeError, match="kind must be one of a, b, got 3"):
        check.one_of("kind", 3, ["a", "b"])  # type: ignore[arg-type]


def test_trees_that_do_not_fit():
    with pytest.raises(ValueError, match=r"different structures.*'a'.*'b'"):
        tree.add({"a": jnp.ones(1)}, {"b": jnp.ones(1)})
    with pytest.raises(ValueError, match="without arrays"):
        tree.dot((), ())


def test_values_are_compared_with_annotations():
    class Row(TypedDict):
        round: int
        loss: NotRequired[float | None]

    fitting = [
        ({"round": 3, "loss": None}, Row), ((1, 2.5), tuple[int, float]), ([1], tuple[int, ...]),
        ({"a": [1]}, dict[str, list[float]]), ("max", Literal["max", "min"]), (3, object),
        (print, Callable[[], None]), (None, int | None),
    ]  # fmt: skip
    for value, kind in fitting:
        check.typed("v", value, kind)
    for value, kind, complaint in [
        ({"loss": 1.0}, Row, "v must have the key round"),
        ({"round": 1, "loss": "a"}, Row, "v.loss must be a number or null, got 'a'"),
        ((1,), tuple[int, float], "v must be a list, got (1,)"),
        ({"a": [1, "b"]}, dict[str, list[float]], "v.a[1] must be a number, got 'b'"),
        ("most", Literal["max", "min"], "v must be 'max' or 'min', got 'most'"),
        (True, int, "v must be a whole number, got True"),
        (3, Row, "v must be a table, got 3"),
    ]:
        with pytest.raises(TypeError, match=re.escape(complaint)):
            check.typed("v", value, kind)
