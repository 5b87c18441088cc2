"""Arguments of a wrong type, and numbers that are not finite, are refused by name."""

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
