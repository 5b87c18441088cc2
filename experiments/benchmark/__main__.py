"""Run the benchmark, show its tables, write its page.

    python -m experiments.benchmark run RESULTS.jsonl [--minutes 10] [--algorithms SOBA FedNest]
    python -m experiments.benchmark show RESULTS.jsonl
    python -m experiments.benchmark page RESULTS.jsonl PAGE.html
    python -m experiments.benchmark draw RESULTS.jsonl PICTURE.png
    python -m experiments.benchmark list

Each finished cell is a line of the file, and a second call skips it. Call it from the top of the
repository.
"""

import argparse
import json
import time
from itertools import product
from pathlib import Path

from experiments.benchmark.entrants import field
from experiments.benchmark.measuring import FULL, QUICK, Cell, measure
from experiments.benchmark.page import write_page
from experiments.benchmark.pictures import draw
from experiments.benchmark.suite import DATA, KINDS, NATURAL, ONLY_IID, SPLITS
from experiments.benchmark.tables import about, tables
from rookery.experiment.registry import ALGORITHMS

PARTS: tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...] = (
    (("hyper-representation", "hyper-cleaning"), ("mnist",), ("iid", "sorted")),
    (("hyper-representation", "hyper-cleaning"), ("cifar10",), ("iid", "sorted")),
    (("AUC", "fairness", "classification"), ("mnist", "cifar10"), ("iid", "sorted")),
    (("regularisation",), ("mnist", "cifar10"), ("iid", "sorted")),
    (("meta-learning", "personalisation"), ("mnist",), ("sorted",)),
    (tuple(KINDS), DATA, SPLITS),
)
"""Tasks, data sets and splits, in the order in which they are run; the last has all of them."""
MNIST_CONTESTS = list(product(*PARTS[0]))
"""What the picture shows."""
FORMS = tuple(dict.fromkeys(form for kind in KINDS.values() for form in kind.forms))
QUICK_ALGORITHMS = 2
"""Of every form of every task, in the order of their names."""


def cells(algorithms: list[str]) -> list[Cell]:
    """All cells of some algorithms, in the order of :data:`PARTS`."""
    found = []
    for kinds, sets, splits in PARTS:
        for kind in kinds:
            for form in KINDS[kind].forms:
                entered = field(kind, form, tuple(algorithms))[0]
                found += [
                    Cell(name, kind, form, *where)
                    for name in entered
                    for where in product(sets, splits)
                ]
    return [cell for cell in dict.fromkeys(found) if is_possible(cell)]


def is_possible(cell: Cell) -> bool:
    """Whether the data set has this split, and the form a problem on it."""
    is_natural = cell.split == "natural"
    has_problem = cell.split == "iid" or cell.form not in ONLY_IID
    return is_natural == (cell.data in NATURAL) and has_problem


def quick_cells() -> list[Cell]:
    """A few algorithms of every form of every task, on digits."""
    found = [
        Cell(name, kind, form, "digits", split)
        for kind in KINDS
        for form in KINDS[kind].forms
        for name in sorted(field(kind, form)[0])[:QUICK_ALGORITHMS]
        for split in ("iid", "sorted")
    ]
    return list(filter(is_possible, found))


def read(path: Path) -> list[dict]:
    """The finished cells."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]  # a killed run leaves a part


def run(path: Path, wanted: list[Cell], quick: bool, minutes: float | None) -> None:
    """Measure the cells that the file does not have."""
    done = {Cell(*(line[name] for name in Cell._fields)) for line in read(path)}
    left = [cell for cell in wanted if cell not in done]
    end = None if minutes is None else time.monotonic() + 60 * minutes
    print(f"{len(wanted) - len(left)} of {len(wanted)} cells are done", flush=True)
    failed = list[str]()
    with path.open("a", encoding="utf-8") as out:
        for cell in left:
            if end is not None and time.monotonic() > end:
                break
            try:
                line = measure(cell, QUICK if quick else FULL)
            except Exception as error:  # of one algorithm: the others go on, and this is told
                failed.append(f"{' '.join(cell)}: {error!r}")
                print(failed[-1], flush=True)
                continue
            out.write(json.dumps(line, allow_nan=False) + "\n")
            out.flush()
            curves = line["curves"]
            ends = [] if curves is None else [c["value"][-1] for c in next(iter(curves.values()))]
            print(*cell, line["setting"], line["widened"], ends, line["cpu_seconds"], flush=True)
    if failed:
        raise SystemExit(f"{len(failed)} cells failed:\n" + "\n".join(failed))


def main() -> None:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["run", "show", "page", "draw", "list"])
    parser.add_argument("paths", type=Path, nargs="*")
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS), choices=ALGORITHMS)
    for name, known in {"tasks": KINDS, "forms": FORMS, "data": DATA, "splits": SPLITS}.items():
        parser.add_argument(f"--{name}", nargs="+", default=list(known), choices=known)
    parser.add_argument("--minutes", type=float, help="begin no cell after these")
    parser.add_argument("--quick", action="store_true", help="two algorithms of each form, small")
    given = parser.parse_intermixed_args()
    match given.what:
        case "run":
            wanted = [
                cell
                for cell in (quick_cells() if given.quick else cells(given.algorithms))
                if cell.task in given.tasks
                and cell.form in given.forms
                and cell.data in given.data
                and cell.split in given.splits
            ]
            run(given.paths[0], wanted, given.quick, given.minutes)
        case "list":
            for kind, what in KINDS.items():
                for form in what.forms:
                    entered = field(kind, form)[0]
                    print(f"{kind} ({form}): {len(entered)}: {', '.join(entered)}")
        case "show":
            print(tables(read(given.paths[0])))
        case "page":
            lines = read(given.paths[0])
            write_page(lines, given.paths[1], about(lines))
        case _:
            lines = [line for line in read(given.paths[0]) if line["form"] == "bilevel"]
            draw(lines, MNIST_CONTESTS, given.paths[1])


if __name__ == "__main__":
    main()
