"""Accuracy with no step given, over accuracy with tuned steps: algorithms, tasks, data and splits.

    python experiments/untuned/table.py tune FOLDER [--algorithms FedNest AFBO] [--cells N]
    python experiments/untuned/table.py run FOLDER [--algorithms FedNest AFBO] [--cells N]
    python experiments/untuned/table.py transfer FOLDER [--algorithms FedNest AFBO] [--cells N]
    python experiments/untuned/table.py show FOLDER

All runs have 100 rounds. ``tune``: a grid of 15 pairs of steps with one seed; while its best pair
is at an end, three pairs beyond that end, twice at most; then three other seeds with each of the
three best pairs. The grid is judged on rows that no client has, so are the three, and the figure of
the best is that on the test rows. ``run``: the same three seeds with no step given and the default
guard. ``transfer``: three seeds with the steps that were tuned on the data set before in the list,
the last one before the first, and a guard with a limit on what the held-out accuracy may lose. Each
finished cell is a line of ``tuned.jsonl``, ``untuned.jsonl`` or ``transfer.jsonl`` in the folder,
and a second call skips it. Cells come in an order whose beginning is a balanced sample of all.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from cells import ALGORITHMS, CLOCK, DATA, Cell, cells, task

import rookery as rk
from rookery.runner.results import Results
from rookery.runner.run_state import Result

ROUNDS, EVERY = 100, 20
SEEDS, TUNING_SEED = (0, 1, 2), 10
OUTER, INNER = (0.01, 0.1, 1.0, 10.0, 100.0), (0.01, 0.1, 1.0)
STEP_BEYOND, MOST_EXTENSIONS, N_FINALISTS = 10.0, 2, 3
BROKEN = 0.1
"""A run with no step given has broken down if it ends this far below its own best accuracy."""
LOST = 0.05
"""A run with the steps of another data set has, if it ends this far below."""
DROP = 0.03
"""What the guard of such a run allows on the 400 held-out rows, whose accuracy is noisier."""


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


Steps = tuple[float, float]


def beyond(scores: dict[Steps, float]) -> list[Steps]:
    """Three pairs beyond the end of the grid that the best pair is at; none if it is inside."""
    best = max(scores, key=lambda pair: scores[pair])
    outers, inners = (sorted({pair[i] for pair in scores}) for i in (0, 1))
    for ends, axis in ((outers, 0), (inners, 1)):
        if best[axis] not in (ends[0], ends[-1]):
            continue
        far = best[axis] * (STEP_BEYOND if best[axis] == ends[-1] else 1 / STEP_BEYOND)
        others = inners if axis == 0 else outers
        at = min(max(others.index(best[1 - axis]), 1), len(others) - 2)
        near = others[at - 1 : at + 2]
        return [(far, one) if axis == 0 else (one, far) for one in near]
    return []


def tune(cell: Cell) -> dict[str, object]:
    """The figures of the steps that were chosen."""
    begin, metric = time.process_time(), f"holdout_{cell.metric}"
    scores: dict[Steps, float] = {}
    more = list(product(OUTER, INNER))
    for _ in range(1 + MOST_EXTENSIONS):
        steps = [{"outer_lr": outer, "inner_lr": inner} for outer, inner in more]
        found = runs(cell, steps, [TUNING_SEED], None)
        scores |= {pair: final(one, metric) for pair, one in zip(more, found, strict=True)}
        more = beyond(scores)
        if not more:
            break
    finalists = sorted(scores, key=lambda pair: -scores[pair])[:N_FINALISTS]
    steps = [{"outer_lr": outer, "inner_lr": inner} for outer, inner in finalists]
    seen = [runs(cell, [one], SEEDS, None) for one in steps]
    chosen = int(np.argmax([np.mean([final(one, metric) for one in some]) for some in seen]))
    return {
        "final": [final(one, cell.metric) for one in seen[chosen]],
        "steps": steps[chosen],
        "grid": [[*pair, round(score, 4)] for pair, score in scores.items()],
        "is_at_end": bool(more),
        "seconds": round(time.process_time() - begin, 1),
    }


def untuned(cell: Cell) -> dict[str, object]:
    """The figures with no step given."""
    return watched(cell, {}, rk.stop.Guard())


def source_of(cell: Cell) -> Cell:
    """The cell whose steps are transferred to this one."""
    return cell._replace(data=DATA[DATA.index(cell.data) - 1])


def transfer(cell: Cell, tuned: dict[Cell, dict]) -> dict[str, object]:
    """The figures with the steps of the data set before, and a guard that watches the accuracy."""
    source = source_of(cell)
    guard = rk.stop.Guard(metric=f"holdout_{cell.metric}:max", drop=DROP)
    steps = tuned[source]["steps"]
    return {"source": source.data, "steps": steps} | watched(cell, steps, guard)


def watched(cell: Cell, steps: dict[str, float], guard: rk.stop.Guard) -> dict[str, object]:
    """The figures of three seeds under a guard."""
    begin = time.process_time()
    found = runs(cell, [steps], SEEDS, guard)
    return {
        "final": [final(one, cell.metric) for one in found],
        "best": [float(np.nanmax(one.history[cell.metric])) for one in found],
        "status": [one.status for one in found],
        "rollbacks": [len(one.rollbacks) for one in found],
        "seconds": round(time.process_time() - begin, 1),
    }


FILES = {"tune": "tuned.jsonl", "run": "untuned.jsonl", "transfer": "transfer.jsonl"}


def read(path: Path) -> dict[Cell, dict]:
    """The finished cells of a file."""
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [json.loads(line) for line in lines if line.endswith("}")]  # a killed run leaves a part
    return {Cell(*(line.pop(field) for field in Cell._fields)): line for line in found}


def run(what: str, folder: Path, names: list[str], at_most: int | None) -> None:
    """Measure the cells that the file does not have."""
    tuned, done = read(folder / FILES["tune"]), read(folder / FILES[what])
    measure = {"tune": tune, "run": untuned, "transfer": partial(transfer, tuned=tuned)}[what]
    left = [cell for cell in cells() if cell not in done and cell.algorithm in names]
    if what == "transfer":  # others wait for their source to be tuned
        left = [cell for cell in left if source_of(cell) in tuned]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / FILES[what]).open("a", encoding="utf-8") as out:
        for cell in left[:at_most]:
            line = measure(cell)
            out.write(json.dumps(cell._asdict() | line) + "\n")
            out.flush()
            print(*cell, np.round(line["final"], 3), f"{line['seconds']} s", flush=True)


class Pair(NamedTuple):
    """A cell without and with tuning."""

    untuned: dict
    tuned: dict

    @property
    def ratio(self) -> float:
        """Mean accuracy of the untuned seeds over that of the tuned ones."""
        return float(np.mean(self.untuned["final"]) / np.mean(self.tuned["final"]))


def below_best(line: dict, by: float) -> int:
    """How many runs of a cell did not finish, or ended this far below their own best accuracy."""
    each = zip(line["final"], line["best"], line["status"], strict=True)
    return sum(end < best - by or status != "finished" for end, best, status in each)


def show(folder: Path) -> None:
    """Print the medians, every cell from the lowest ratio on, and the runs with others' steps."""
    if not (folder / FILES["tune"]).exists():
        raise FileNotFoundError(f"{folder} has no {FILES['tune']}: run `table.py tune` first.")
    tuned, others, moved = (read(folder / FILES[what]) for what in ("tune", "run", "transfer"))
    pairs = {
        cell: Pair(others[cell], tuned[cell]) for cell in cells() if cell in tuned.keys() & others
    }

    def rows(title: str, key: Callable[[Cell], str]) -> None:
        print(f"\n| {title} | cells | median | smallest | broken down, of runs |")
        print("|---|---|---|---|---|")
        for value in dict.fromkeys(map(key, pairs)):
            some = [pair for cell, pair in pairs.items() if key(cell) == value]
            ratios = [pair.ratio for pair in some]
            bad = sum(below_best(pair.untuned, BROKEN) for pair in some)
            print(
                f"| {value} | {len(some)} | {np.median(ratios):.3f} | {min(ratios):.3f} "
                f"| {bad} of {len(some) * len(SEEDS)} |"
            )

    for field in Cell._fields:
        rows(field, lambda cell, field=field: getattr(cell, field))
    print("\n| algorithm | task | data | split | untuned | tuned | ratio | steps |")
    print("|---|---|---|---|---|---|---|---|")
    for cell, pair in sorted(pairs.items(), key=lambda item: item[1].ratio):
        steps = ", ".join(f"{value:g}" for value in pair.tuned["steps"].values())
        print(
            f"| {cell.algorithm} | {cell.kind} | {cell.data} | {cell.split} "
            f"| {np.mean(pair.untuned['final']):.3f} | {np.mean(pair.tuned['final']):.3f} "
            f"| {pair.ratio:.3f} | {steps}{', at an end' * pair.tuned['is_at_end']} |"
        )
    bad = {cell: n for cell, line in moved.items() if (n := below_best(line, LOST))}
    returns = sum(sum(line["rollbacks"]) for line in moved.values())
    print(
        f"\nsteps of another data set: {len(moved) * len(SEEDS)} runs, {returns} roll-backs, "
        f"{sum(bad.values())} ended more than {LOST} below their best: {sorted(bad)}"
    )
    at_end = sum(pair.tuned["is_at_end"] for pair in pairs.values())
    minutes = " + ".join(
        f"{sum(line['seconds'] for line in some.values()) / 60:.0f}"
        for some in (tuned, others, moved)
    )
    print(
        f"\n{len(pairs)} of {len(cells())} cells, {minutes} CPU minutes; "
        f"best pair at an end after {MOST_EXTENSIONS} extensions in {at_end}"
    )


def main() -> None:
    """Measure cells, or show the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=[*FILES, "show"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS), choices=ALGORITHMS)
    parser.add_argument("--cells", type=int, help="measure at most this many")
    given = parser.parse_args()
    if given.what == "show":
        show(given.folder)
    else:
        run(given.what, given.folder, given.algorithms, given.cells)


if __name__ == "__main__":
    main()
