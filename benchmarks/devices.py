"""What dividing a cohort or a sweep among the devices of one processor costs and brings.

FedAvg, 100 clients of 300 rows, 20 per round, 10 local steps of batch 32. The MLP 784-200-10 is all
matrix products, which one device already computes on several cores; softmax regression on 40 inputs
is all small operations, which it does not. A device of the processor is a thread, so wall time can
fall to one part per core, and CPU time shows what the division costs: every device does the
server's work, and replies are gathered. Numbers of devices take turns; the least of several
repetitions counts.

Run it with ``python benchmarks/devices.py``.
"""

import json
import os
import subprocess
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from timing import Row, at_most, print_rows

import rookery as rk
from rookery import models
from rookery.engines.engine import Program
from rookery.program.algorithm import first_state

LAYOUTS: dict[str, dict[str, Any]] = {
    "1 device": {},
    "2 devices": {"devices": 2},
    "4 devices": {"devices": 4},
    "2 devices, data by client": {"devices": 2, "data": "by client"},
}
CLIENTS, ROWS, COHORT, BATCH, LOCAL_STEPS = 100, 300, 20, 32, 10
ROUNDS, REPEATS = 5, 5


def loss(params, row):
    return models.cross_entropy(models.mlp(params, row["input"]), row["label"])


def task(sizes: tuple[int, ...]) -> tuple[Program, rk.AbstractAlgorithm, Any]:
    rng = np.random.default_rng(0)
    shape = (CLIENTS, ROWS)
    population = rk.Population.stacked(
        {
            "input": rng.normal(size=(*shape, sizes[0])).astype(np.float32),
            "label": rng.integers(0, sizes[-1], shape).astype(np.int32),
        }
    )
    algorithm = rk.FedAvg(lr=0.05, local_steps=LOCAL_STEPS, clients=COHORT, batch_size=BATCH)
    problem = rk.SingleLevel(loss)
    start = (jax.tree.map(jnp.asarray, models.mlp_init(rng, sizes)),)
    program = Program(problem, population, rk.delays.Clock(), rk.aggregate.Mean())
    return program, algorithm, first_state(algorithm, problem, CLIENTS, start)


def seconds(sizes: tuple[int, ...], n_runs: int) -> dict[str, tuple[float, float]]:
    """Per layout, wall and CPU seconds of a round of all runs."""
    program, algorithm, state = task(sizes)
    keys = [jax.random.key(i) for i in range(n_runs)]
    runners = {
        name: rk.Compiled(rounds_per_call=ROUNDS, **layout).prepare(program, [algorithm] * n_runs)
        for name, layout in LAYOUTS.items()
    }
    best = dict.fromkeys(runners, (float("inf"), float("inf")))
    for repeat in range(REPEATS + 1):
        for name, runner in runners.items():
            wall, cpu = time.monotonic(), time.process_time()
            jax.block_until_ready(
                [p.state for p in runner.advance([state] * n_runs, keys, 0, [ROUNDS] * n_runs)]
            )
            new = time.monotonic() - wall, time.process_time() - cpu
            if repeat:  # the first compiles
                best[name] = (min(best[name][0], new[0]), min(best[name][1], new[1]))
    return {name: (wall / ROUNDS, cpu / ROUNDS) for name, (wall, cpu) in best.items()}


def measure() -> list[Row]:
    """The rows, in a process whose processor has four devices."""
    found = []
    for what, sizes, n_runs in (
        ("FedAvg, MLP 784-200-10", (784, 200, 10), 1),
        ("FedAvg, softmax regression on 40 inputs", (40, 10), 1),
        ("4 seeds of FedAvg, softmax regression on 40 inputs", (40, 10), 4),
    ):
        times = seconds(sizes, n_runs)
        one = times["1 device"]
        for name, (wall, cpu) in times.items():
            note = f"{wall * 1e3:.1f} ms wall, {cpu * 1e3:.1f} ms of CPU a round"
            if name != "1 device":
                note += f", {cpu / one[1]:.2f} of the CPU time of one device"
                goal = at_most(1) if name == "2 devices" else None
                ratio = wall / one[0]
                if goal and ratio > 1:
                    note += "; in so short a round, devices that wait for each other cost more "
                    note += "than half of the work"
                found.append(Row(f"{what}, {name}", ratio, "of one device's wall", goal, note))
            else:
                found.append(Row(f"{what}, {name}", wall * 1e3, "ms wall a round", None, note))
    return found


def rows() -> list[Row]:
    """All measurements."""
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "4"}
    done = subprocess.run(
        [sys.executable, __file__, "--json"], stdout=subprocess.PIPE, check=True, env=environment
    )
    return [Row.from_json(row) for row in json.loads(done.stdout)]


if __name__ == "__main__":
    if "--json" in sys.argv:
        print(json.dumps([row.to_json() for row in measure()]))
    else:
        print_rows(rows())
