"""Run all benchmarks, each in a process of its own, and keep what they found.

A benchmark is a script of this folder with a function ``rows()`` that returns `timing.Row`s. What
misses its goal, or is slower than another program, comes first. Written are ``results.json``, a
picture, and the table of ``docs/benchmarks.md``. With ``--only`` a long run can be done in pieces:
what the JSON already has of other benchmarks stays.

Run it with ``make bench``, or ``python benchmarks/run_all.py --only flatness --only devices``.
"""

import argparse
import ast
import datetime
import importlib.metadata
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from timing import Row, number

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RESULTS = ("results.json", "results.png", "results.svg", "benchmarks.md")
BEGIN, END = "<!-- begin of results -->", "<!-- end of results -->"
CHILD = """
import importlib, json, sys
from pathlib import Path
found = importlib.import_module(sys.argv[1]).rows()
Path(sys.argv[2]).write_text(json.dumps([row.to_json() for row in found]))
"""


def benchmarks(folder: Path = HERE) -> list[str]:
    """The names of the scripts that have a function ``rows``."""
    found = []
    for file in sorted(folder.glob("*.py")):
        body = ast.parse(file.read_text()).body
        if any(isinstance(part, ast.FunctionDef) and part.name == "rows" for part in body):
            found.append(file.stem)
    return found


def measure(name: str, folder: Path = HERE) -> dict[str, Any]:
    """The rows of one benchmark, and when and under which load they were measured."""
    before, began = os.getloadavg()[0], time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch, "rows.json")
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        done = subprocess.run(
            [sys.executable, "-c", CHILD, name, output],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path},
            stderr=subprocess.PIPE,
            text=True,
        )
        rows = json.loads(output.read_text()) if done.returncode == 0 else []
    found = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
        "commit": commit(),
        "load": [round(before, 1), round(os.getloadavg()[0], 1)],
        "seconds": round(time.monotonic() - began),
        "versions": versions(),
        "rows": rows,
    }
    if done.returncode:
        found["error"] = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        print(done.stderr[-4000:], file=sys.stderr)
    return found


def git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def commit() -> str:
    """The commit that is checked out, with a mark if files have changed since."""
    try:
        return git("rev-parse", "--short", "HEAD").strip() + (" and changes" * bool(changed()))
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def changed() -> list[str]:
    """Files that differ from the commit, without results."""
    lines = git("status", "--porcelain").splitlines()
    return [line[3:] for line in lines if not line.endswith(RESULTS)]


def versions() -> dict[str, str]:
    """Of Python and of the packages that decide about speed."""
    packages = ("rookery", "jax", "jaxlib", "equinox", "numpy")
    return {"python": platform.python_version()} | {
        name: importlib.metadata.version(name) for name in packages
    }


def machine() -> dict[str, Any]:
    """What the figures depend on besides the program."""
    model = platform.processor() or platform.machine()
    cpus = Path("/proc/cpuinfo")
    if cpus.exists():
        lines = [line for line in cpus.read_text().splitlines() if line.startswith("model name")]
        model = lines[0].split(":", 1)[1].strip() if lines else model
    return {"system": platform.system(), "processor": model, "cores": os.cpu_count()}


def rows_by_urgency(results: dict[str, Any]) -> list[tuple[str, Row]]:
    """All rows with the name of their benchmark: what misses its goal most, then the others."""
    rows = [
        (name, Row.from_json(row))
        for name, one in results["benchmarks"].items()
        for row in one["rows"]
    ]

    def urgency(item: tuple[str, Row]) -> tuple[int, float]:
        row = item[1]
        if row.goal is None:
            return 2, 0.0
        excess = row.goal.excess(row.figure)
        return (0, -math.inf if math.isnan(excess) else -excess) if row.misses else (1, 0.0)

    return sorted(rows, key=urgency)


def conditions(results: dict[str, Any]) -> str:
    """One sentence about machine and load."""
    loads = [load for one in results["benchmarks"].values() for load in one["load"]]
    cores, found = results["machine"]["cores"], list(results["benchmarks"].values())
    dates = sorted(one["date"][:10] for one in found)
    commits = ", ".join(sorted({one["commit"] for one in found}))
    return (
        f"{cores} cores ({results['machine']['processor']}), load {min(loads)} to {max(loads)} "
        f"({'quiet' if max(loads) <= 1.5 * cores else 'busy: times are upper bounds'}), "
        f"{dates[0]} to {dates[-1]}, commit {commits}"
    )


def failures(results: dict[str, Any]) -> dict[str, str]:
    return {name: one["error"][0] for name, one in results["benchmarks"].items() if "error" in one}


def show(results: dict[str, Any]) -> None:
    """One table in the terminal."""
    table = Table(title="Benchmarks: what misses its goal comes first", caption=conditions(results))
    for column, justify in (("what", "left"), ("figure", "right"), ("unit", "left")):
        table.add_column(column, justify=justify)  # pyright: ignore[reportArgumentType]
    for column in ("goal", "note", "script"):
        table.add_column(column)
    for name, row in rows_by_urgency(results):
        style = "" if row.goal is None else "red" if row.misses else "green"
        goal = "" if row.goal is None else str(row.goal)
        table.add_row(row.what, number(row.figure), row.unit, goal, row.note, name, style=style)
    console = Console(width=None if sys.stdout.isatty() else 200)
    for name, error in failures(results).items():
        console.print(f"[bold red]{name} failed:[/] {error}")
    console.print(table)


def markdown(results: dict[str, Any]) -> str:
    """The tables of the page."""

    def line(*cells: str) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rows = rows_by_urgency(results)
    missed = [row for row in rows if row[1].misses]
    kept = [row for row in rows if row[1].goal is not None and not row[1].misses]
    text = [f"Measured on {conditions(results)}.", ""]
    text += [f"{name} failed: {error}\n" for name, error in failures(results).items()]
    for title, part in (
        ("Goals missed, or slower than another program", missed),
        ("Goals kept", kept),
        ("Figures without a goal", [row for row in rows if row[1].goal is None]),
    ):
        if part:
            text += [f"## {title}", "", line("what", "figure", "goal", "note", "script")]
            text += ["|---|---|---|---|---|"]
            text += [
                line(
                    row.what,
                    f"{number(row.figure)} {row.unit}".strip(),
                    str(row.goal or ""),
                    row.note,
                    name,
                )
                for name, row in part
            ]
            text += [""]
    return "\n".join(text)


def draw(results: dict[str, Any], files: list[Path]) -> None:
    """Every figure that has a goal, divided by it: left of the line is kept, right of it missed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter, NullFormatter

    rows = [(row, row.goal) for _, row in rows_by_urgency(results) if row.goal and row.figure > 0]
    rows.sort(key=lambda pair: -pair[1].excess(pair[0].figure))
    excess = [goal.excess(row.figure) for row, goal in rows]
    figure, axes = plt.subplots(figsize=(10, 1.3 + 0.3 * len(rows)), layout="constrained")
    for i, ((row, goal), value) in enumerate(zip(rows, excess, strict=True)):
        colour = "tab:red" if row.misses else "tab:green"
        axes.plot([1, value], [i, i], color=colour, linewidth=1.5)
        axes.plot(value, i, "o", color=colour)
        axes.annotate(
            f"{number(row.figure)} ({goal})",
            (value, i),
            xytext=(7 if value >= 1 else -7, 0),
            textcoords="offset points",
            ha="left" if value >= 1 else "right",
            va="center",
            fontsize=8,
        )
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), [row.what for row, _ in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    low, high = min([1.0, *excess]), max([1.0, *excess])
    axes.set_xlim(low / 6, high * 6)  # room for the annotations
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("figure / goal (goal / figure where more is better); 1 is the goal")
    axes.grid(axis="x", alpha=0.3)
    for file in files:
        figure.savefig(file, dpi=120)
    plt.close(figure)


def write_page(page: Path, table: str) -> None:
    """Replace the results of a page, and leave what stands around them."""
    text = page.read_text() if page.exists() else f"# Benchmarks\n\n{BEGIN}\n{END}\n"
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    page.write_text(f"{head}{BEGIN}\n{table}\n{END}{tail}")


def arguments() -> argparse.Namespace:
    known = benchmarks()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--only", action="append", choices=known, metavar="NAME", help=f"one of {', '.join(known)}"
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="folder for all results instead of benchmarks/ and docs/; the files of the repository "
        "may differ from its commit then",
    )
    parser.add_argument(
        "--show", action="store_true", help="measure nothing: show and draw what was kept"
    )
    return parser.parse_args()


def main() -> int:
    options = arguments()
    if options.output is None and not options.show and changed():
        print(
            f"these files differ from the commit: {', '.join(changed())}. Results in the "
            "repository come from committed code: commit first, or name a folder with --output",
            file=sys.stderr,
        )
        return 2
    folder = options.output or HERE
    page = options.output / "benchmarks.md" if options.output else ROOT / "docs" / "benchmarks.md"
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "results.json"
    results = json.loads(kept.read_text()) if kept.exists() else {}
    if not options.show and results.get("machine") != machine():
        results = {"machine": machine(), "benchmarks": {}}  # figures of two machines do not mix
    for name in [] if options.show else options.only or benchmarks():
        print(f"{name} ... (load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores)", flush=True)
        results["benchmarks"][name] = measure(name)
        kept.write_text(
            json.dumps(results, indent=1) + "\n"
        )  # a run that is stopped keeps its part
    if not results.get("benchmarks"):
        print(f"{kept} has no results yet", file=sys.stderr)
        return 2
    show(results)
    draw(results, [folder / "results.png", folder / "results.svg"])
    picture = os.path.relpath(folder / "results.svg", page.parent)
    write_page(page, f"![Figures relative to their goals]({picture})\n\n{markdown(results)}")
    return 1 if failures(results) else 0


if __name__ == "__main__":
    sys.exit(main())
