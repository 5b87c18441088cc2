"""Accuracy with no step given, over accuracy with tuned steps: algorithms, tasks, data and splits.

    python experiments/untuned/table.py run RESULTS.jsonl [--algorithms FedNest AFBO] [--cells N]
    python experiments/untuned/table.py show RESULTS.jsonl

A cell costs 27 runs of 100 rounds in programs of three lanes: three seeds with no step given and
the default guard; a grid of 15 pairs of steps with another seed; three seeds with each of its three
best. The grid is judged on rows that no client has, so are the three, and the figure of the best is
that on the test rows. Each finished cell is a line of the file, and a second call skips it. Cells
come in an order whose beginning is a balanced sample of all.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path

import numpy as np
from cells import ALGORITHMS, CLOCK, Cell, cells, task

import rookery as rk
from rookery.runner.results import Results
from rookery.runner.run_state import Result

ROUNDS, EVERY = 100, 20
SEEDS, TUNING_SEED = (0, 1, 2), 10
OUTER, INNER = (0.01, 0.1, 1.0, 10.0, 100.0), (0.01, 0.1, 1.0)
N_FINALISTS = 3
BROKEN = 0.1
"""A run has broken down if it ends this far below its own best accuracy."""


def runs(
    cell: Cell, steps: Iterable[dict], seeds: Iterable[int], guard: rk.stop.Guard | None
) -> Results:
    """Of an algorithm with the given steps, for all seeds."""
    some = task(cell.kind, cell.data, cell.split)
    each = [
        rk.Run(ALGORITHMS[cell.algorithm](**one), some.start(seed), seed)
        for one, seed in product(steps, seeds)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rk.stop.DivergenceWarning)
        warnings.simplefilter("ignore", rk.stop.RollBackWarning)
        return rk.sweep(
            each, some.problem, some.population, rounds=ROUNDS, evaluate=some.evaluate,
            evaluate_every=EVERY, clock=CLOCK, batch=len(SEEDS), guard=guard,
        )  # fmt: skip


def final(result: Result, metric: str) -> float:
    """The metric at the end of a run; 0 if it diverged."""
    value = float(result.history[metric][-1])
    return value if result.status != "diverged" and np.isfinite(value) else 0.0


def measure(cell: Cell) -> dict[str, object]:
    """A line of the results."""
    begin = time.process_time()
    untuned = runs(cell, [{}], SEEDS, rk.stop.Guard())
    seconds = time.process_time() - begin
    grid = [{"outer_lr": outer, "inner_lr": inner} for outer, inner in product(OUTER, INNER)]
    holdout = f"holdout_{cell.metric}"
    scores = [final(one, holdout) for one in runs(cell, grid, [TUNING_SEED], None)]
    finalists = [grid[i] for i in np.argsort(scores)[: -N_FINALISTS - 1 : -1]]
    seen = [runs(cell, [one], SEEDS, None) for one in finalists]
    chosen = int(np.argmax([np.mean([final(one, holdout) for one in some]) for some in seen]))
    tuned = seen[chosen]
    return cell._asdict() | {
        "untuned": [final(one, cell.metric) for one in untuned],
        "best": [float(np.max(one.history[cell.metric])) for one in untuned],
        "status": [one.status for one in untuned],
        "rollbacks": [len(one.rollbacks) for one in untuned],
        "tuned": [final(one, cell.metric) for one in tuned],
        "steps": finalists[chosen],
        "untuned_seconds": round(seconds, 1),
        "seconds": round(time.process_time() - begin, 1),
    }


def read(path: Path) -> list[dict]:
    """The finished cells."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]  # a killed run leaves a part


def run(path: Path, names: list[str], at_most: int | None) -> None:
    """Measure the cells that the file does not have."""
    done = {Cell(*(line[field] for field in Cell._fields)) for line in read(path)}
    left = [cell for cell in cells() if cell not in done and cell.algorithm in names]
    with path.open("a", encoding="utf-8") as out:
        for cell in left[:at_most]:
            line = measure(cell)
            out.write(json.dumps(line) + "\n")
            out.flush()
            print(*cell, f"{ratio(line):.3f}", f"{line['seconds']} s", flush=True)


def ratio(line: dict) -> float:
    """Mean accuracy of the untuned seeds over that of the tuned ones."""
    return float(np.mean(line["untuned"]) / np.mean(line["tuned"]))


def broken(line: dict) -> int:
    """How many untuned runs of a cell broke down."""
    pairs = zip(line["untuned"], line["best"], line["status"], strict=True)
    return sum(end < best - BROKEN or status != "finished" for end, best, status in pairs)


def show(path: Path) -> None:
    """Print the table, the medians and the cells that broke down."""
    lines = read(path)

    def rows(title: str, key: Callable[[dict], str]) -> None:
        print(f"\n| {title} | cells | median | smallest | broken down, of runs |")
        print("|---|---|---|---|---|")
        for value in dict.fromkeys(map(key, lines)):
            some = [line for line in lines if key(line) == value]
            each, bad = [ratio(line) for line in some], sum(map(broken, some))
            print(
                f"| {value} | {len(some)} | {np.median(each):.3f} | {min(each):.3f} "
                f"| {bad} of {len(some) * len(SEEDS)} |"
            )

    rows("algorithm", lambda line: line["algorithm"])
    rows("task", lambda line: line["kind"])
    rows("data", lambda line: line["data"])
    rows("split", lambda line: line["split"])
    print("\n| algorithm | task | data | split | untuned | tuned | ratio |")
    print("|---|---|---|---|---|---|---|")
    for line in sorted(lines, key=ratio):
        print(
            f"| {line['algorithm']} | {line['kind']} | {line['data']} | {line['split']} "
            f"| {np.mean(line['untuned']):.3f} | {np.mean(line['tuned']):.3f} | {ratio(line):.3f} |"
        )
    total = sum(line["seconds"] for line in lines)
    print(f"\n{len(lines)} of {len(cells())} cells, {total / 60:.0f} CPU minutes")


def main() -> None:
    """Run cells, or show the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["run", "show"])
    parser.add_argument("results", type=Path)
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS), choices=ALGORITHMS)
    parser.add_argument("--cells", type=int, help="measure at most this many")
    given = parser.parse_args()
    if given.what == "run":
        run(given.results, given.algorithms, given.cells)
    else:
        show(given.results)


if __name__ == "__main__":
    main()
