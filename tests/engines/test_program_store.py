"""A program that another process has kept is the same program, or is not used."""

import functools
import os
import pathlib
import subprocess
import sys
import time

import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.engines.code_key import fingerprint

FACTOR = 1.0


def loss(w, row):
    return FACTOR * jnp.sum((w - row["a"]) ** 2)


def reads_a_file(w, row):
    with open("factor.txt") as file:
        return float(file.read()) * jnp.sum(w)


def reads_the_clock(w, row):
    return time.time() * jnp.sum(w)


def imports_when_called(w, row):
    import os

    return float(os.environ["FACTOR"]) * jnp.sum(w)


def test_arrays_count_by_shape_and_type_and_other_values_by_value(monkeypatch):
    same = fingerprint([loss, {"a": np.zeros(3), "n": 2}])
    assert same == fingerprint([loss, {"a": np.ones(3), "n": 2}])
    others = [
        fingerprint([loss, {"a": np.zeros(4), "n": 2}]),
        fingerprint([loss, {"a": np.zeros(3, np.float32), "n": 2}]),
        fingerprint([loss, {"a": np.zeros(3), "n": 3}]),
        fingerprint([rk.FedAvg(lr=0.1)]),
        fingerprint([rk.FedAvg(lr=0.2)]),
        fingerprint([rk.FedAvg(lr=0.1, local_steps=2)]),
    ]
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 2.0)
    others.append(fingerprint([loss, {"a": np.zeros(3), "n": 2}]))
    assert None not in others and len({same, *others}) == 8


@pytest.mark.parametrize(
    "value",
    [reads_a_file, reads_the_clock, imports_when_called, object(), pathlib.Path],
)
def test_what_may_differ_in_another_process_has_no_fingerprint(value):
    assert fingerprint([value]) is None


CODE = """
import hashlib, sys
import jax, jax.numpy as jnp, numpy as np
import rookery as rk
from rookery.engines import program_store
from rookery.engines.compiled import programs_compiled

program_store._source = lambda: {source!r}
FACTOR = {factor}

def outer(x, y, row):
    return FACTOR * jnp.sum((y - row["a"]) ** 2) + jnp.sum(x ** 2)

def inner(x, y, row):
    return jnp.sum((y - x * row["b"]) ** 2)

rows = np.random.default_rng(0).normal(size=(2, 4, 6, 3)).astype(np.float32)
population = rk.Population.stacked(dict(a=rows[0], b=rows[1]))
problem, start = rk.Bilevel(outer, inner, outer_split="train"), (jnp.ones(3), jnp.ones(3))
digest = hashlib.sha256()
clock = rk.delays.Clock(rk.delays.LogNormalDelay(0.5))
single = rk.SingleLevel(lambda w, row: FACTOR * jnp.sum((w - row["a"]) ** 2))
runs = [
    (rk.FedNest(outer_lr=0.1, inner_lr=0.1, clients=2, batch_size=2), problem, start),
    (rk.AFBO(outer_lr=0.1, inner_lr=0.1), problem, start),
    (rk.Scaffold(lr=0.1, clients=2), single, (jnp.ones(3),)),
]
for algorithm, of, at in runs:
    result = rk.run(algorithm, of, population, at, rounds=7, clock=clock)
    digest.update(repr(result.ledger).encode())
    for leaf in jax.tree.leaves(result.solution):
        digest.update(np.asarray(leaf).tobytes())
both = [rk.Run(runs[0][0], start, seed=seed) for seed in (0, 1)]
sweep = rk.sweep(both, problem, population, rounds=3)
for result in sweep:
    for leaf in jax.tree.leaves(result.solution):
        digest.update(np.asarray(leaf).tobytes())
print(digest.hexdigest(), programs_compiled())
"""


def run_script(folder, cache, factor=1.0, source="first"):
    """A digest of the numbers, and how many programs the process has traced."""
    others = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    environ = {**others, "ROOKERY_COMPILE_CACHE": str(cache)}
    script = folder / "script.py"
    script.write_text(CODE.format(factor=factor, source=source))
    done = subprocess.run(
        [sys.executable, script], env=environ, check=True, capture_output=True, text=True
    )
    digest, programs = done.stdout.split()
    return digest, int(programs)


@pytest.mark.slow  # processes that import JAX
def test_the_next_process_compiles_nothing_and_has_the_same_numbers(tmp_path):
    run = functools.partial(run_script, tmp_path, tmp_path / "cache")
    plain = run_script(tmp_path, "off")
    assert plain[1] == 4
    assert run() == plain
    assert run() == (plain[0], 0)
    changed = run(factor=2.0)
    assert changed[1] == 4 and changed[0] != plain[0]
    # programs of another version of rookery are traced; those that are equal are not compiled
    assert run(source="second") == plain
    assert run(source="second") == (plain[0], 0)
    for path in (tmp_path / "cache").glob("program-*"):
        path.write_bytes(path.read_bytes()[:1000])
    assert run() == plain  # damaged files are not used
    for path in (tmp_path / "cache").iterdir():
        path.unlink()
    assert run() == plain
    assert run() == (plain[0], 0)


@pytest.mark.slow
def test_a_program_from_jax_own_cache_is_not_kept(tmp_path):
    """XLA would write it without its machine code."""
    run = functools.partial(run_script, tmp_path, tmp_path / "cache")
    first = run()
    for name in ("program-*", "traced-*"):
        for path in (tmp_path / "cache").glob(name):
            path.unlink()
    assert run() == run() == first
    assert not list((tmp_path / "cache").glob("program-*"))
