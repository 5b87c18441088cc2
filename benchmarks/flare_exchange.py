"""Overhead of the remote engine over NVIDIA FLARE: an empty exchange.

An empty exchange sends an array to every client and gets it back. Through the engine that is a
broadcast, a step and a stack; the raw call is one of FLARE's Collab API to all sites at once, with
a buffer of the same size that comes back. The two alternate, so that a slow moment affects both.
Four sites of one client each run in processes of FLARE's simulator. Target: at most 1.3 times the
raw call, at 1 KB and at 1 MB.

This file is also the study that the sites run. Run it with ``make bench-remote``.
"""

import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import rookery as rk
from rookery.engines.engine import Program
from rookery.program.participation import Everyone
from rookery.remote import Policy

CLIENTS, TARGET = 4, 1.3
REPEATS = {1_000: 200, 1_000_000: 60}


class State(NamedTuple):
    """The arrays that are exchanged."""

    values: tuple[Any, ...]


class Echo(rk.AbstractAlgorithm):
    """An empty exchange per size."""

    def check(self, problem, n_clients):
        """Anything goes."""

    def init(self, problem, value):
        """Buffers of all sizes, whatever the problem."""
        return State(tuple(jnp.zeros(size // 4, jnp.float32) for size in REPEATS))

    def round(self, fed, problem, state, key):
        """Send them and get them back."""
        cohort = fed.sample(Everyone(), key)
        return State(
            tuple(fed.stack(fed.map(same, fed.broadcast(cohort, v)))[0] for v in state.values)
        )

    def solution(self, state):
        """The buffers."""
        return (state.values,)


def same(client, value):
    """The argument."""
    return value


zoo = rk.zoo.quadratic_losses(n_clients=CLIENTS, size=2, rows=1, dtype=np.float32)
problem, algorithm, start = zoo.problem, Echo(), zoo.start
everyone = rk.Population.stacked(zoo.data)
sites = tuple(f"site-{i + 1}" for i in range(CLIENTS))
population = rk.Population.elsewhere(everyone.example("train"), CLIENTS)
policy = Policy(wait_for=600.0)


def load(site):
    """One row, which no step uses."""
    return rk.Population.stacked(jax.tree.map(lambda a: a[:1], zoo.data))


def main(engine, directory):
    """Alternate the two, and write the measurements to a file."""
    from nvflare.collab import collab  # pyright: ignore[reportMissingImports]

    program = Program(problem, population, rk.delays.Clock(), rk.aggregate.Mean())
    runner = engine.prepare(program, [algorithm])
    runner.advance([algorithm.init(problem, 0)], [jax.random.key(0)], 0, [2])
    cohort = Everyone().draw(jax.random.key(0), CLIENTS, jnp.asarray(population.weights))
    lines = []

    def exchange(values):
        fed = runner.federation(0)
        jax.block_until_ready(fed.stack(fed.map(same, fed.broadcast(cohort, values))))

    for size, repeats in REPEATS.items():
        values, buffer = np.ones(size // 4, np.float32), np.random.default_rng(0).bytes(size)
        times = [], []
        for i in range(repeats + 10):
            began = time.perf_counter()
            exchange(values)
            between = time.perf_counter()
            replies = dict(collab.clients(timeout=600.0).ping(buffer))
            ended = time.perf_counter()
            assert len(replies) == CLIENTS
            if i >= 10:
                times[0].append(between - began)
                times[1].append(ended - between)
        ours, raw = (statistics.median(some) for some in times)
        # on a busy machine the fastest tenth is more telling
        quick = [statistics.quantiles(some, n=10)[0] for some in times]
        lines.append(
            f"  {size:>9,} bytes: engine {ours * 1e3:.2f} ms, raw {raw * 1e3:.2f} ms, "
            f"ratio {ours / raw:.2f}, of the fastest tenth {quick[0] / quick[1]:.2f} "
            f"(target: at most {TARGET})"
        )
    runner.close()
    directory.mkdir(parents=True)
    (directory / "measured.txt").write_text("\n".join(lines))


if __name__ == "__main__":
    print(
        f"jax {jax.__version__}, NVIDIA FLARE's simulator, Python {platform.python_version()}, "
        f"{platform.machine()}, {CLIENTS} clients"
    )
    with tempfile.TemporaryDirectory() as folder:
        command = ["flare-simulate", __file__, "--workspace", folder]
        done = subprocess.run(
            [sys.executable, "-m", "rookery.cli.main", *command], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        print((Path(folder) / "runs" / "flare_exchange" / "measured.txt").read_text())
