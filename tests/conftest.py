"""Strict numbers for every test: float64 on demand, no silent promotion of types or ranks."""

import gc
import itertools
import os
from pathlib import Path

# Compiling takes most of the tests' time, and few of them run for long. XLA_FLAGS set by the caller
# replace these: `XLA_FLAGS= make unit` tests with all optimisations.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)
# Compiled programs are shared between workers, between runs and with programs that tests start.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".cache" / "jax")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "0")

import jax
import jaxtyping
import numpy as np
import pytest

# Annotations of problems and clients, shapes included, are checked at run time. Not in the whole
# package: elsewhere a hyper-parameter that is annotated as a float may be a traced array, and the
# zoo takes arrays of JAX where its own are of NumPy.
PROBLEMS = (
    "bilevel", "composition", "meta", "minimax", "multisequence", "oracles", "sample",
    "single_level", "validation",
)  # fmt: skip
jaxtyping.install_import_hook(
    ["rookery.clients", *(f"rookery.problem.{name}" for name in PROBLEMS)], "typechecker.check"
)

jax.config.update("jax_num_cpu_devices", 4)  # tests use the first unless they say otherwise
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

CACHE = Path(__file__).parent.parent / ".cache" / "jax"
MOST_CACHED_BYTES = 2**30
MOST_MAPS = 40_000
MAPS = Path("/proc/self/maps")
TESTS_BETWEEN_COUNTS = 16  # the kernel takes 20 ms to list 20,000 maps
tests_done = itertools.count(1)


def pytest_configure(config):
    """Bound the cache: before the tests, delete its oldest entries beyond MOST_CACHED_BYTES."""
    if hasattr(config, "workerinput") or not CACHE.is_dir():
        return
    kept = 0
    for entry in sorted(CACHE.iterdir(), key=lambda p: p.stat().st_mtime, reverse=True):
        kept += entry.stat().st_size
        if kept > MOST_CACHED_BYTES:
            entry.unlink()


def pytest_collection_finish():
    """Collect garbage less often: modules and tests stay, and passes over them took a tenth."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


def pytest_runtest_teardown():
    """Forget compiled programs when there are many.

    XLA maps pieces of memory for each program. Linux allows a process 65,530 of them and kills it
    when it asks for more.
    """
    if next(tests_done) % TESTS_BETWEEN_COUNTS or not MAPS.exists():
        return
    if MAPS.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()
        gc.collect()


@pytest.fixture
def wrong_types(monkeypatch):
    """Annotations are not checked, as for a user: the package must find the mistake by itself."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture
def users_settings():
    """JAX as a user has it: single precision and JAX's own rules of promotion."""
    usual = {
        "jax_enable_x64": False,
        "jax_numpy_dtype_promotion": "standard",
        "jax_numpy_rank_promotion": "allow",
    }
    before = {name: getattr(jax.config, name) for name in usual}
    for name, value in usual.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


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
