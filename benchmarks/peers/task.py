"""The task that all programs solve, and how they are asked for rounds.

This file needs NumPy alone, because every program runs in an environment of its own. A program
calls `turns` for numbers of rounds, runs them, and says what the loss is then; CPU and wall seconds
are taken here, in the same way for all.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SIDE, CLASSES, HIDDEN, WIDTHS = 28, 10, 200, (8, 16, 64)
TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Config:
    """Sizes of the task."""

    model: str = "mlp"
    """``mlp``: 784-200-10. ``cnn``: 3 x 3 convolutions with 8 and 16 channels, each with pooling
    and ReLU, and dense layers of 64 and 10 units."""
    clients: int = 100
    rows: int = 300
    cohort: int = 10
    steps: int = 10
    batch: int = 32
    lr: float = 0.05


def config() -> Config:
    """What the environment says, which processes inherit."""
    return Config(**json.loads(os.environ["ROOKERY_PEER_TASK"]))


def data(c: Config) -> tuple[np.ndarray, np.ndarray]:
    """Images (clients, rows, 28, 28, 1) and labels: a pattern per class, and noise."""
    rng = np.random.default_rng(0)
    patterns = rng.normal(size=(CLASSES, SIDE, SIDE, 1)).astype(np.float32)
    labels = rng.integers(0, CLASSES, (c.clients, c.rows)).astype(np.int32)
    noise = rng.normal(size=(c.clients, c.rows, SIDE, SIDE, 1)).astype(np.float32)
    return patterns[labels] + noise, labels


def start(c: Config) -> list[tuple[np.ndarray, np.ndarray]]:
    """Weights (inputs, outputs) and biases of each layer; inputs of convolutions are 9 pixels."""
    rng = np.random.default_rng(1)
    if c.model == "mlp":
        shapes = [(SIDE * SIDE, HIDDEN), (HIDDEN, CLASSES)]
    else:
        first, second, hidden = WIDTHS
        flat = (SIDE // 4) ** 2 * second
        shapes = [(9, first), (9 * first, second), (flat, hidden), (hidden, CLASSES)]
    return [
        (
            rng.uniform(-(n**-0.5), n**-0.5, (n, m)).astype(np.float32),
            rng.uniform(-(n**-0.5), n**-0.5, m).astype(np.float32),
        )
        for n, m in shapes
    ]


def descendants() -> list[int]:
    """The processes that this one started, and those that they started."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                after_name = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:  # it has just ended
                continue
            parents.setdefault(int(after_name[1]), []).append(int(entry.name))
    found, new = [], [os.getpid()]
    while new:
        new = [child for parent in new for child in parents.get(parent, [])]
        found += new
    return found


def cpu_seconds() -> float:
    """CPU seconds of this process and its descendants, all threads."""
    total = time.process_time() + sum(os.times()[2:4])
    for process in descendants():
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += sum(int(ticks) for ticks in fields[11:15]) / TICK
    return total


def turns() -> Iterator[tuple[int, Callable[..., None]]]:
    """Numbers of rounds to run, each with a function that is called after them.

    Its arguments are a function and its arguments, which give the loss then.
    """
    out = os.fdopen(os.dup(1), "w")  # whatever a library prints goes to standard error
    os.dup2(2, 1)
    for line in sys.stdin:
        rounds = int(line)
        cpu, wall = cpu_seconds(), time.monotonic()

        def done(loss, *arguments, rounds=rounds, cpu=cpu, wall=wall) -> None:
            spent = {"wall": time.monotonic() - wall, "cpu": cpu_seconds() - cpu}
            each = {name: value / rounds for name, value in spent.items()}
            print(json.dumps({**each, "loss": float(loss(*arguments))}), file=out, flush=True)

        yield rounds, done
