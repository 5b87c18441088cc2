"""What long lives and large models take: memory maps, resident memory and copies of a model.

    copies  by how many sizes of its model the peak of resident memory of a run on the remote engine
            grows if the model grows; clients are threads of the same process, and the caller's
            initial values are one copy (those of NumPy would be two: JAX makes its own)
    soak    many rounds on the remote engine with drawn clients and a robust rule
    tune    a search over settings each of which needs a program of its own

Linux kills a process with more than 65,530 memory maps, and every compiled program takes some, so
the numbers of maps must not grow. Each of these runs in a process of its own::

    python benchmarks/long_lives.py copies 100
    python benchmarks/long_lives.py soak 20000
    python benchmarks/long_lives.py tune 300
"""

import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import jax.numpy as jnp
import numpy as np
from timing import Row, at_most, print_rows

import rookery as rk
from rookery.remote import Remote

MAPS, STATUS = Path("/proc/self/maps"), Path("/proc/self/status")
COPIES = 6
FLAT = 1.05  # the last of some numbers over the first
WHAT = {
    "copies": "A model of 100 MB and two clients on the remote engine: peak of resident memory",
    "soak": "20,000 rounds on the remote engine",
    "tune": "A search over 300 structures",
}
DEFAULT = {"copies": 100, "soak": 20_000, "tune": 300}


def scaled_square(w, row):
    """A loss of one row, whose gradient is a multiple of w."""
    return 0.5 * row["factor"] * jnp.vdot(w, w)


def run_large(size: int) -> None:
    """Some rounds of a model with ``size`` parameters."""
    population = rk.Population.stacked({"factor": np.ones((2, 1), np.float32)})
    algorithm = rk.FedAvg(lr=0.01, local_steps=2)
    start = (jnp.ones(size, jnp.float32),)
    problem = rk.SingleLevel(scaled_square)
    first = rk.metrics.OfSolution(lambda w: {"first": w[0]})
    result = rk.run(
        algorithm, problem, population, start, rounds=4, evaluate=[first], evaluate_every=2,
        engine=Remote(),
    )  # fmt: skip
    assert np.isclose(float(result.solution[0][-1]), 0.99**8, rtol=1e-5)


def peak(megabytes: int) -> Iterator[dict]:
    """The peak of resident memory of a run with such a model."""
    run_large(megabytes * 2**20 // 4)
    yield {"peak": memory("VmHWM")}


def copies(megabytes: int) -> Iterator[dict]:
    """From a quarter of a model to the whole, the growth of the peak in sizes of the model.

    Peaks are medians of three runs: threads and the allocator move a single one by 20 MB.
    """
    quarter, whole = (
        median(measured("peak", size)[0]["peak"] for _ in range(3))
        for size in (megabytes // 4, megabytes)
    )
    yield {"copies": (whole - quarter) / ((megabytes - megabytes // 4) * 2**20)}


def soak(rounds: int) -> Iterator[dict]:
    """Maps and memory at some rounds of a long run; the first after a fortieth of it."""
    zoo = rk.zoo.quadratic_losses(n_clients=5, size=3, rows=4)
    every = max(rounds // 40, 1)
    seen: list[dict] = []

    def look(snapshot):
        seen.append({"at": snapshot.round, **present()})
        print(seen[-1], file=sys.stderr, flush=True)  # a long run shows how far it is

    rk.run(
        rk.FedAvg(lr=0.01, local_steps=2, batch_size=2, clients=3),
        zoo.problem,
        rk.Population.stacked(zoo.data),
        zoo.start,
        rounds=rounds,
        engine=Remote(),
        aggregate=rk.aggregate.Median(),
        callback=look,
        callback_every=every,
    )
    yield from seen[1:]


def tune(structures: int) -> Iterator[dict]:
    """Maps and memory during a search; the first after a tenth of it."""
    zoo = rk.zoo.quadratic_losses(n_clients=2, size=2)
    distance = rk.metrics.OfSolution(lambda w: {"norm": jnp.linalg.norm(w)})
    every = max(structures // 10, 1)
    for first in range(1, structures + 1, every):
        rk.tune(
            lambda local_steps: rk.FedAvg(lr=0.1, local_steps=local_steps),
            {"local_steps": [*range(first, first + every)]},
            zoo.problem,
            rk.Population.stacked(zoo.data),
            zoo.start,
            metric="norm",
            goal="min",
            rounds=1,
            evaluate=[distance],
        )
        yield {"at": first + every - 1, **present()}


def present() -> dict:
    """The memory maps and the resident megabytes of this process."""
    gc.collect()
    maps = MAPS.read_bytes().count(b"\n")
    return {"maps": maps, "megabytes": round(memory("VmRSS") / 1e6)}


def memory(what: str) -> int:
    """A number of bytes that the kernel knows of this process."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(what))
    return int(line.split()[1]) * 1024


MEASURES = {"peak": peak, "copies": copies, "soak": soak, "tune": tune}


def measured(name: str, amount: int) -> list[dict]:
    """What a measurement prints, in a process of its own."""
    command = [sys.executable, __file__, name, str(amount)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def rows() -> list[Row]:
    """All measurements."""
    if not MAPS.exists():
        note = "Linux alone lists memory maps"
        return [Row(what, float("nan"), "", None, note) for what in WHAT.values()]
    (large,) = measured("copies", DEFAULT["copies"])
    found = [Row(WHAT["copies"], large["copies"], "copies of the model", at_most(COPIES))]
    for name in ("soak", "tune"):
        first, *_, last = measured(name, DEFAULT[name])
        for what, unit in (("maps", "memory maps"), ("megabytes", "resident megabytes")):
            title = f"{WHAT[name]}: {unit} at the end over those after {first['at']:,}"
            note = f"{first[what]:,} and {last[what]:,}"
            found.append(Row(title, last[what] / first[what], "", at_most(FLAT), note))
    return found


if __name__ == "__main__":
    if len(sys.argv) > 1:
        name = sys.argv[1]
        for line in MEASURES[name](int(sys.argv[2]) if len(sys.argv) > 2 else DEFAULT[name]):
            print(json.dumps(line), flush=True)
    else:
        print_rows(rows())
