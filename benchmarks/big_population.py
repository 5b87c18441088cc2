"""Large populations: set-up, rows on disk, and how many clients are computed at once.

Set-up is compared with a plain NumPy sort of as many numbers as the population has rows. The
population on disk is several times as large as the bound on memory that is stated; a process of its
own runs it, whose resident memory is measured. Widths take turns, and the least of several
repetitions counts. All times are CPU seconds.

Run it with ``python benchmarks/big_population.py``.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from timing import Row, at_most, print_rows

import rookery as rk
from rookery import models
from rookery.engines.engine import Program
from rookery.program.aggregate import Mean
from rookery.program.algorithm import first_state
from rookery.program.delays import Clock
from rookery.runner.run_state import Result

CLIENTS, ROWS = 1_000_000, 10
ON_DISK = {"clients": 20_000, "rows": 32, "inputs": 784}  # 2 GB of float32
WINDOW_BYTES = 64 << 20
MB = 1 << 20


def seconds(fn: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    result = fn()
    return time.process_time() - began, result


def set_up() -> list[Row]:
    """Times of partitions, splits and populations of a million clients."""
    n = CLIENTS * ROWS
    numbers = np.random.default_rng(0).permutation(n)
    sort, _ = seconds(lambda: np.sort(numbers))
    data = {"input": np.zeros((n, 4), np.float32), "label": np.zeros(n, np.int32)}
    fractions = {"train": 0.8, "test": 0.2}
    iid, parts = seconds(lambda: rk.partition.iid(n, CLIENTS))
    split, cut = seconds(lambda: rk.partition.split(parts, fractions=fractions))
    build, _ = seconds(lambda: rk.Population.from_parts(data, cut))
    sizes = np.random.default_rng(1).integers(5, 16, CLIENTS)
    sizes = sizes[np.cumsum(sizes) <= n]
    ragged = rk.partition.given_sizes(n, sizes)
    split_ragged, _ = seconds(lambda: rk.partition.split(ragged, fractions=fractions))
    table = {"who": numbers % CLIENTS, "value": numbers.astype(float)}
    from_table, _ = seconds(lambda: rk.Population.from_table(table, client="who"))
    found = {
        "partition.iid": (iid, 2),
        "partition.split, equal clients": (split, 3),
        "partition.split, unequal clients": (split_ragged, 6),
        "Population.from_parts": (build, 4),
        "Population.from_table": (from_table, 20),
    }
    return [
        Row(
            f"{name}, {CLIENTS:,} clients",
            t / sort,
            f"CPU times of a sort of {n:,} numbers",
            at_most(goal),
            f"{t:.2f} s",
        )
        for name, (t, goal) in found.items()
    ]


def mlp_loss(params, row):
    return models.cross_entropy(models.mlp(params, row["input"].reshape(-1)), row["label"])


def cnn_loss(params, row):
    return models.cross_entropy(models.cnn(params, row["input"]), row["label"])


def shard(seed: int, clients: int, rows: int, inputs: int) -> rk.Population:
    rng = np.random.default_rng(seed)
    images = rng.normal(size=(clients, rows, inputs)).astype(np.float32)
    labels = rng.integers(0, 10, (clients, rows)).astype(np.int32)
    return rk.Population.stacked({"input": images, "label": labels})


def resident_bytes() -> int:
    """The most that this process has had; ``ru_maxrss`` would count its parent's too."""
    status = Path("/proc/self/status")
    if not status.exists():  # not on Linux
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(peak.split()[1]) * 1024


def run_on_disk(folder: str, memory: str) -> None:
    """In a process of its own: FedAvg on a population on disk, or read into memory."""
    population = rk.Population.open(folder, verify=False)
    start = (models.mlp_init(np.random.default_rng(0), (ON_DISK["inputs"], 50, 10)),)
    algorithm = rk.FedAvg(lr=0.01, local_steps=5, clients=50, batch_size=16)
    problem = rk.SingleLevel(mlp_loss)
    population = population.in_memory() if memory == "in memory" else population
    engine = rk.Compiled(window_bytes=WINDOW_BYTES)
    if memory == "nothing":  # what the program needs without rows
        population = shard(0, 100, ON_DISK["rows"], ON_DISK["inputs"])
    few, many = 20, 220

    def run(rounds: int) -> Result:
        return rk.run(algorithm, problem, population, start, rounds=rounds, engine=engine)

    run(few)  # compiles
    short, _ = seconds(lambda: run(few))
    long, result = seconds(lambda: run(many))
    spent = (long - short) / (many - few)  # without what a run costs once
    checksum = float(jnp.sum(result.solution[0][0]["w"]))
    print(json.dumps({"cpu": spent, "resident": resident_bytes(), "checksum": checksum}))


def on_disk() -> list[Row]:
    """Cost per round and resident memory of a population larger than a bound."""
    with tempfile.TemporaryDirectory() as parent:
        folder, piece = Path(parent, "population"), ON_DISK["clients"] // 20
        parts = (shard(i, piece, ON_DISK["rows"], ON_DISK["inputs"]) for i in range(20))
        rk.Population.save_joined(folder, parts)
        size = sum(file.stat().st_size for file in folder.iterdir())
        opened, _ = seconds(lambda: rk.Population.open(folder))
        turns: dict[str, list[dict]] = {"nothing": [], "on disk": [], "in memory": []}
        for memory in (*turns, *["on disk", "in memory"] * 2):  # in turns
            command = [sys.executable, __file__, str(folder), memory]
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            turns[memory].append(json.loads(output.splitlines()[-1]))
    base, disk, full = (min(some, key=lambda one: one["cpu"]) for some in turns.values())
    disk["resident"] = max(one["resident"] for one in turns["on disk"])
    assert disk["checksum"] == full["checksum"], "the numbers differ"
    bound = base["resident"] + 4 * WINDOW_BYTES
    return [
        Row(
            f"round of 50 of {ON_DISK['clients']:,} clients on disk, {size / MB:.0f} MB",
            disk["cpu"] / full["cpu"],
            "of the CPU time with rows in memory",
            at_most(1.3),
            f"{disk['cpu'] * 1e3:.1f} ms, least of three turns; a round brings "
            f"{50 * size / ON_DISK['clients'] / MB:.1f} MB of rows into its window, which explains "
            "a part of the difference",
        ),
        Row(
            f"resident memory with windows of {WINDOW_BYTES / MB:.0f} MB",
            disk["resident"] / MB,
            "MB",
            at_most(bound / MB),
            f"with 100 clients {base['resident'] / MB:.0f}, with all rows in memory "
            f"{full['resident'] / MB:.0f}",
        ),
        Row(
            "digests of all rows when a population is opened",
            opened,
            "CPU seconds",
            note=f"{size / opened / 1e9:.1f} GB/s",
        ),
    ]


RULE = (
    "; the engine goes by the bytes of the model alone, since a choice by measurement could change "
    "the last digits of a resumed run; tried: 1, 2, 4, 8, 10 and 16 clients, of which a "
    "perceptron of 621 KB is fastest with four and a CNN of 203 KB, whose activations are larger, "
    "with one; 1.25 MB of models at once is the compromise"
)


def widths(kind: str, cohort: int, rounds: int = 2, repeats: int = 3) -> list[Row]:
    """Clients per step as the engine chooses, against one at a time and all at once."""
    rng = np.random.default_rng(0)
    population = rk.Population.stacked(
        {
            "input": rng.normal(size=(cohort, 30, 28, 28, 1)).astype(np.float32),
            "label": rng.integers(0, 10, (cohort, 30)).astype(np.int32),
        }
    )
    loss, start = {
        "MLP 784-200-10": (mlp_loss, models.mlp_init(rng, (784, 200, 10))),
        "CNN 8-16-64": (cnn_loss, models.cnn_init(rng, (28, 28, 1), (8, 16, 64), 10)),
    }[kind]
    algorithm = rk.FedAvg(lr=0.01, local_steps=5, clients=cohort, batch_size=20)
    problem = rk.SingleLevel(loss)
    program = Program(problem, population, Clock(), Mean())
    state, key = first_state(algorithm, problem, cohort, (start,)), jax.random.key(0)
    engines = {"chosen": None, "one": 1, "all": cohort}
    runners = {
        name: rk.Compiled(clients_at_once=n).prepare(program, [algorithm])
        for name, n in engines.items()
    }

    def call(name: str) -> float:
        def advance():
            progress = runners[name].advance([state], [key], 0, [rounds])
            return jax.block_until_ready(progress[0].state)

        return seconds(advance)[0] / rounds

    times = {name: call(name) * 0 + float("inf") for name in runners}  # compiles
    for _ in range(repeats):
        times = {name: min(times[name], call(name)) for name in runners}
    best = min(times["one"], times["all"])
    return [
        Row(
            f"clients per step as chosen, {kind}, cohort of {cohort:,}",
            times["chosen"] / best,
            "of the CPU time of the better of one and all",
            at_most(1.05),
            f"{times['chosen']:.2f} s a round, {times['chosen'] / times['one']:.2f} of one at a "
            f"time, {times['chosen'] / times['all']:.2f} of all at once{RULE}",
        )
    ]


def rows() -> list[Row]:
    """All measurements."""
    found = set_up() + on_disk()
    for kind in ("MLP 784-200-10", "CNN 8-16-64"):
        for cohort in (100, 1000):
            found += widths(kind, cohort, rounds=2 if cohort == 100 else 1)
    return found


if __name__ == "__main__":
    if len(sys.argv) == 3:
        run_on_disk(*sys.argv[1:])
    else:
        print_rows(rows())
