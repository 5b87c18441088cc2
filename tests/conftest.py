"""Strict numbers for every test: float64 on demand, no silent promotion of types or ranks."""

import gc
import os
from pathlib import Path

# Compiling takes most of the tests' time, and few of them run for long. XLA_FLAGS of the caller's
# own go before these, as in `XLA_FLAGS= make unit`, which tests with all optimisations.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)

import jax
import numpy as np
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


MOST_MAPS = 25_000
MAPS = Path("/proc/self/maps")


def pytest_runtest_teardown():
    """Forget compiled programs when there are many.

    XLA maps pieces of memory for each, Linux grants a process 65,530 of them, and whoever asks for
    more is ended without a word.
    """
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()
        gc.collect()


@pytest.fixture
def differences():
    """The derivative of a function of one flat vector, by central differences of fourth order."""

    def derivative(fn, x, h=1e-3):
        x = np.asarray(x)

        def along(e):
            near = np.asarray(fn(x + h * e)) - np.asarray(fn(x - h * e))
            far = np.asarray(fn(x + 2 * h * e)) - np.asarray(fn(x - 2 * h * e))
            return (8 * near - far) / (12 * h)

        return np.stack([along(e) for e in np.eye(x.size)], axis=-1)

    return derivative
