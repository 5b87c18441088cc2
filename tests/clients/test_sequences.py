"""Sequences of unequal length: padding must not change a number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.problem import masked_mean
from rookery.problem.sample import Rows

RANDOM = np.random.default_rng(0)
SEQUENCES = [RANDOM.normal(size=(n, 2)) for n in (3, 1, 5)]
W = RANDOM.normal(size=2)


def loss(w, row):
    return masked_mean((row["values"] @ w - 1.0) ** 2, row["mask"])


def test_the_length_of_the_padding_changes_neither_loss_nor_gradient():
    problem = rk.SingleLevel(loss)
    value = np.mean([np.mean((s @ W - 1) ** 2) for s in SEQUENCES])
    slope = np.mean([2 * (s @ W - 1) @ s / len(s) for s in SEQUENCES], axis=0)
    for length, filler in ((None, 0.0), (8, 0.0), (64, 7.0)):
        padded = rk.datasets.pad_sequences(SEQUENCES, length=length, value=filler)
        assert padded["values"].shape == (3, length or 5, 2)
        got = jax.jit(problem.value_and_gradient)(W, Rows(padded))
        np.testing.assert_allclose(got[0], value, rtol=1e-15)
        np.testing.assert_allclose(got[1], slope, rtol=1e-15)


def test_values_outside_the_mask_get_no_gradient():
    slope = jax.grad(masked_mean)(jnp.array([1.0, jnp.nan, 5.0]), jnp.array([True, False, True]))
    assert slope.tolist() == [0.5, 0.0, 0.5]
    assert float(masked_mean(jnp.ones(2), jnp.zeros(2, bool))) == 0


def test_a_model_that_is_infinite_at_the_padding_needs_other_inputs_there():
    inputs, mask = jnp.array([3.0, 5.0, 0.0]), jnp.array([True, True, False])

    def mean_log(w, inputs):
        return masked_mean(jnp.log(w * inputs), mask)

    assert np.isfinite(mean_log(2.0, inputs))
    assert np.isnan(jax.grad(mean_log)(2.0, inputs))  # zero times infinity
    assert float(jax.grad(mean_log)(2.0, jnp.where(mask, inputs, 1.0))) == 0.5


def test_mistakes_are_named():
    pad = rk.datasets.pad_sequences
    for value in (np.nan, np.inf):
        with pytest.raises(ValueError, match="value must be finite"):
            pad(SEQUENCES, value=value)
    with pytest.raises(ValueError, match="sequence 2 has 5 places"):
        pad(SEQUENCES, length=4)
    with pytest.raises(ValueError, match="first axis"):
        pad([np.zeros((2, 3)), np.zeros((2, 4))])
    with pytest.raises(ValueError, match="empty"):
        pad([])
    with pytest.raises(TypeError, match="token numbers"):
        pad([["a", "b"], ["c"]])
