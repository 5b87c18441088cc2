"""Stops runs of the command at random moments, and resumes them: each must end as if undisturbed.

``python tests/runner/kill_many.py 120`` stops 120 times and prints a table. The moments differ from
call to call on purpose unless a seed follows; the outcome must not. Ways to stop a run:

    SIGKILL, SIGTERM, SIGINT   a signal, at any moment from loading to writing the report
    full disk                  the disk is filled at a random moment, and emptied before resuming
    read-only disk             killed, then resumed once while the disk is read-only
    damaged directory          killed, then one file of the run is damaged before resuming

The disks are small ones in memory, which root alone can mount; without that right these two ways
are left out, and the table says so.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "fuzz"))
from mutations import damage_file  # pyright: ignore[reportMissingImports]

ROOT = Path(__file__).parents[2]
EXPERIMENT = """
title = "to be stopped"
[task]
name = "quadratic"
n_clients = 4
rows = 4
noise = 0.1
[algorithm]
name = "FedNest"
outer_lr = 0.02
inner_lr = 0.05
batch_size = 2
clients = 2
[clock]
delay = { name = "LogNormalDelay", median = 1.0 }
[run]
rounds = 1000
evaluate_every = 20
checkpoint_every = 40
keep = "best:distance_x:min"
[curves.FedNest]
[plot]
metrics = ["distance_x"]
"""
SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT}
EXIT_CODES = {"SIGKILL": {-9}, "SIGTERM": {-15, 143}, "SIGINT": {-2, 130}}
DISK = "32m"
STOPS = 4  # of one run before it may end


@dataclass
class Row:
    """What was seen of one way to stop runs.

    Attributes:
        stops: how often runs were stopped.
        while_: what they were doing then.
        refused: how often resuming was refused with a plain error.
        exact: runs that ended with the files of the undisturbed one.
        runs: all runs.
        wrong: what should not have happened.
    """

    stops: int = 0
    while_: Counter = field(default_factory=Counter)
    refused: int = 0
    exact: int = 0
    runs: int = 0
    wrong: list[str] = field(default_factory=list)


class Arena:
    """A folder with an experiment file and the directory of its undisturbed run.

    Args:
        folder: an empty folder.
        chance: draws the moments.
    """

    def __init__(self, folder: Path, chance: random.Random):
        self.chance = chance
        self._file = folder / "config.toml"
        self._file.write_text(EXPERIMENT)
        self.whole = folder / "whole"
        for _ in range(2):  # the first compiles; the time of the second counts
            shutil.rmtree(self.whole, ignore_errors=True)
            began = time.monotonic()
            code, said = finished(self.start(self.whole))
            assert code == 0, said
            self.seconds = time.monotonic() - began

    def start(self, directory: Path) -> subprocess.Popen:
        """Start or resume the run of a directory."""
        command = [sys.executable, "-m", "rookery.cli.entry", "run", str(self._file)]
        cache = {"JAX_COMPILATION_CACHE_DIR": str(ROOT / ".cache" / "jax")}
        # A shell starts background jobs with SIGINT ignored, and children inherit that. It is
        # changed in this process: preexec_fn would fork while JAX has threads.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return subprocess.Popen(
                [*command, "--out", str(directory)], env={**cache, **os.environ}, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
        finally:
            signal.signal(signal.SIGINT, before)

    def stopped(self, how: str, directory: Path, row: Row) -> bool:
        """Start a run and send it a signal at a random moment; whether it came in time."""
        is_new, began = not directory.exists(), time.monotonic()
        child = self.start(directory)
        time.sleep(self.chance.uniform(0, self.seconds))
        doing = doing_now(directory)
        child.send_signal(SIGNALS[how])
        code, said = finished(child)
        if code == 0:
            if is_new:  # the machine has become faster: the next signal comes earlier
                self.seconds = min(self.seconds, 0.9 * (time.monotonic() - began))
            return False
        row.stops += 1
        row.while_[doing] += 1
        if code not in EXIT_CODES[how]:
            row.wrong.append(f"{how} while {doing}: exit code {code}: {said[-300:]}")
        check_said(said, how, row)
        return True

    def resumed(self, directory: Path, row: Row, *, may_refuse: bool = False) -> None:
        """Resume a run to its end, and compare it."""
        code, said = finished(self.start(directory))
        row.runs += 1
        check_said(said, "resuming", row)
        if code == 2 and may_refuse:
            row.refused += 1
        elif code != 0:
            row.wrong.append(f"resuming: exit code {code}: {said[-300:]}")
        elif (what := self._difference(directory)) is not None:
            row.wrong.append(f"resumed, but {what} differs")
        else:
            row.exact += 1

    def _difference(self, directory: Path) -> str | None:
        names = ("history.jsonl", "solution.safetensors", "best.safetensors")
        wanted = sorted(p for p in self.whole.rglob("*") if p.name in names)
        for path in wanted:
            other = directory / path.relative_to(self.whole)
            if not other.is_file() or other.read_bytes() != path.read_bytes():
                return str(path.relative_to(self.whole))
        results = [json.loads((d / "results.json").read_text()) for d in (directory, self.whole)]
        return None if results[0]["curves"] == results[1]["curves"] else "results.json"


def finished(child: subprocess.Popen) -> tuple[int, str]:
    """The exit code of a process and all that it has said."""
    said, _ = child.communicate(timeout=600)
    return child.returncode, said


def doing_now(directory: Path) -> str:
    """What a run is doing, by its files."""
    if (directory / "results.json").exists():
        return "reporting"
    return "running" if list(directory.glob("*/*/history.jsonl")) else "loading"


def check_said(said: str, when: str, row: Row) -> None:
    """A traceback is never right."""
    if "Traceback" in said:
        row.wrong.append(f"{when}: {said[said.index('Traceback') :][-1000:]}")


def by_signal(how: str, arena: Arena, directory: Path, row: Row) -> None:
    """Stop a run some times by a signal, then let it end."""
    for _ in range(STOPS):
        if not arena.stopped(how, directory, row):
            break
    arena.resumed(directory, row)


def by_damage(arena: Arena, directory: Path, row: Row) -> None:
    """Kill a run, damage one of its files, then let it end or be refused."""
    while not [p for p in directory.rglob("*") if p.is_file() and p.stat().st_size]:
        if not arena.stopped("SIGKILL", directory, Row()):
            break
    files = sorted(p for p in directory.rglob("*") if p.is_file() and p.stat().st_size)
    path = arena.chance.choice([p for p in files if p.suffix != ".png"])
    row.stops += 1
    row.while_[f"{damage_file(path, arena.chance)}"] += 1
    arena.resumed(directory, row, may_refuse=True)


def by_full_disk(arena: Arena, directory: Path, row: Row) -> None:
    """Fill the disk of a run at a random moment."""
    child = arena.start(directory)
    time.sleep(arena.chance.uniform(0, arena.seconds))
    doing, filler = doing_now(directory), directory.parent / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 16, 512):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
        code, said = finished(child)
    check_said(said, "on a full disk", row)
    if code != 0:
        row.stops += 1
        row.while_[doing] += 1
        if code != 2 or "No space left" not in said:
            row.wrong.append(f"on a full disk: exit code {code}: {said[-300:]}")
    filler.unlink()
    arena.resumed(directory, row)


def by_read_only_disk(arena: Arena, directory: Path, row: Row) -> None:
    """Kill a run, and resume it once while its disk is read-only."""
    if arena.stopped("SIGKILL", directory, Row()):
        doing = doing_now(directory)
        remount(directory.parent, "ro")
        code, said = finished(arena.start(directory))
        remount(directory.parent, "rw")
        row.stops += 1
        row.while_[doing] += 1
        check_said(said, "on a read-only disk", row)
        if code != 2 or "Read-only" not in said:
            row.wrong.append(f"on a read-only disk: exit code {code}: {said[-300:]}")
    arena.resumed(directory, row)


def remount(disk: Path, how: str) -> None:
    """Make a disk read-only, or writable."""
    subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)


@contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A disk of a few megabytes; None where mounting is not allowed."""
    disk = folder / "disk"
    disk.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(disk)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        yield None
        return
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


ON_DISK = {"full disk": by_full_disk, "read-only disk": by_read_only_disk}


def kill_many(
    stops: int, seed: int | None = None, tell: Callable[[str], None] = lambda line: None
) -> dict[str, Row | None]:
    """Stop runs ``stops`` times; by way, what was seen, or None if the way was left out.

    ``tell`` is given a line after every run.
    """
    chance = random.Random(seed)
    ways = [*SIGNALS, "damaged directory", *ON_DISK]
    rows: dict[str, Row | None] = {way: Row() for way in ways}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        arena = Arena(folder, chance)
        while sum(row.stops for row in rows.values() if row is not None) < stops:
            for way, row in rows.items():
                if row is None:
                    continue
                if way in ON_DISK:
                    with small_disk(folder) as disk:
                        if disk is None:
                            rows[way] = None
                        else:
                            ON_DISK[way](arena, disk / "own", row)
                else:
                    own = folder / "own"
                    if way in SIGNALS:
                        by_signal(way, arena, own, row)
                    else:
                        by_damage(arena, own, row)
                    shutil.rmtree(own, ignore_errors=True)
                tell(f"{way}: stopped {row.stops} times, {row.exact} of {row.runs} runs exact")
    return rows


def table(rows: dict[str, Row | None]) -> str:
    """The rows as Markdown."""
    lines = [
        "| stopped by | times | while | resumed | exactly | refused plainly | wrong |",
        "|---|---|---|---|---|---|---|",
    ]
    for way, row in rows.items():
        if row is None:
            lines.append(f"| {way} | not tried: mounting is not allowed here | | | | | |")
            continue
        doing = ", ".join(f"{what} {n}" for what, n in sorted(row.while_.items()))
        cells = [way, row.stops, doing, row.runs, row.exact, row.refused, len(row.wrong)]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    count, *rest = (int(word) for word in sys.argv[1:] or ("100",))
    seed = rest[0] if rest else None
    seen = kill_many(count, seed, lambda line: print(line, file=sys.stderr, flush=True))
    print(table(seen))
    mistakes = [what for row in seen.values() if row is not None for what in row.wrong]
    for what in mistakes:
        print(f"\n{what}", file=sys.stderr)
    sys.exit(1 if mistakes else 0)
