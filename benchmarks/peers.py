"""FedAvg as a user runs it, against other programs that simulate the same clients.

100 clients of 300 rows, 10 per round, 10 local steps of batch 32, with the MLP 784-200-10 and with
a small CNN. Every program of ``benchmarks/peers/`` has a process and an environment of its own.
They start from the same weights, and their losses after the first rounds agree. They take turns,
each with enough rounds that a turn lasts a second or more. Medians over the turns count, in CPU
seconds of the process and its children and in wall seconds on all cores. The first round, with
compilation or the start of a cluster, is stated apart; compiled programs are not kept on disk.

Torch's threads sleep while they wait, which costs them nothing on a quiet machine, and spares them
much CPU time on a busy one.

Run it with ``make bench BENCH="--only peers"``, which installs the others; ``--tiny`` tries it out.
"""

import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timing import Row, at_most, print_rows

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TURNS, TURN_SECONDS, MOST_ROUNDS = 7, 1.5, 100
NAMES = {"mlp": "FedAvg, MLP 784-200-10", "cnn": "FedAvg, CNN 8-16-64"}
SETTINGS = {
    "OMP_WAIT_POLICY": "passive",
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "ROOKERY_COMPILE_CACHE": "off",
}


@dataclass(frozen=True)
class Program:
    """One of the programs: its script is ``peers/with_NAME.py``."""

    title: str
    package: str
    environment: str = ""
    """``.venv-ENVIRONMENT``; this process's own if empty."""

    @property
    def python(self) -> str:
        """The interpreter of the environment."""
        if not self.environment:
            return sys.executable
        return str(ROOT / f".venv-{self.environment}" / "bin" / "python")

    @property
    def missing(self) -> str:
        """Why the environment is not there; empty if it is."""
        if not self.environment or (ROOT / f".venv-{self.environment}" / ".ready").exists():
            return ""
        log = ROOT / f".venv-{self.environment}.log"
        lines = log.read_text().strip().splitlines() if log.exists() else []
        return f"not installed: {lines[-1]}" if lines else "not installed: see make bench"

    def version(self) -> str:
        """Of the package that it stands for."""
        code = f"import importlib.metadata as m; print(m.version({self.package!r}))"
        done = subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=True)
        return done.stdout.strip()


PROGRAMS = {
    "rookery": Program("rookery", "rookery"),
    "jax": Program("JAX by hand", "jax"),
    "fedjax": Program("FedJAX", "fedjax", "bench-fedjax"),
    "pfl": Program("pfl", "pfl", "bench-pfl"),
    "flower": Program("Flower", "flwr", "bench-flower"),
}


WHERE = {
    "cnn": "a round is one compiled loop over the clients, here six at a time; one at a time takes "
    "0.9 of it (big_population has the figure). By hand every client is a call of its own: there "
    "too a compiled loop over them was slower",
    "mlp": "",
}
"""Where the time goes, if another program is faster."""


class Running:
    """A program's process, which runs rounds when it is asked to."""

    def __init__(self, name: str, task: dict[str, Any]):
        kept = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
        path = os.pathsep.join((str(HERE / "peers"), str(ROOT)))
        given = {"PYTHONPATH": path, "ROOKERY_PEER_TASK": json.dumps(task)}
        self.log = ROOT / ".cache" / f"peer-{name}.log"
        self.log.parent.mkdir(exist_ok=True)
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [PROGRAMS[name].python, HERE / "peers" / f"with_{name}.py"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**kept, **SETTINGS, **given},
            )

    def run(self, rounds: int) -> dict[str, float]:
        """CPU and wall seconds of a round, and the loss afterwards."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            print(rounds, file=self.process.stdin, flush=True)
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            lines = self.log.read_text().strip().splitlines()
            errors = [line for line in lines if "Error" in line]
            raise RuntimeError((errors or lines or ["no answer"])[-1][:200])
        return json.loads(answer)

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def measure(task: dict[str, Any], turns: int) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """What was measured of each program, and why the others did not run."""
    failed = {name: program.missing for name, program in PROGRAMS.items() if program.missing}
    running: dict[str, Running] = {}
    found: dict[str, dict[str, Any]] = {}
    try:
        for name in [name for name in PROGRAMS if name not in failed]:
            running[name] = Running(name, task)
            try:
                first = running[name].run(1)
                after = running[name].run(9)
                rounds = round(TURN_SECONDS / after["cpu"])
                rounds = min(MOST_ROUNDS, max(5, rounds))
                running[name].run(rounds)
            except RuntimeError as error:
                failed[name] = f"failed: {error}"
                running.pop(name).close()
                continue
            found[name] = {"first": first, "loss": after["loss"], "rounds": rounds, "turns": []}
        for _ in range(turns):
            for name, process in running.items():
                found[name]["turns"].append(process.run(found[name]["rounds"]))
    finally:
        for process in running.values():
            process.close()
    return found, failed


def rows_of(model: str, turns: int = TURNS, **sizes: int) -> list[Row]:
    """The rows of one network."""
    found, failed = measure({"model": model, **sizes}, turns)
    what, rows = NAMES[model], []
    for one in found.values():
        for kind in ("cpu", "wall"):
            one[kind] = statistics.median(turn[kind] for turn in one["turns"])
    for name, one in found.items():
        program = PROGRAMS[name]
        note = (
            f"{one['wall'] * 1e3:.0f} ms wall; first round {one['first']['cpu']:.1f} CPU seconds; "
            f"loss {one['loss']:.3f} after 10 rounds; {program.package} {program.version()}; "
            f"medians of {turns} turns of {one['rounds']} rounds"
        )
        rows.append(
            Row(f"{what}: {program.title}", one["cpu"] * 1e3, "ms of CPU a round", None, note)
        )
    for name, program in PROGRAMS.items():
        if name == "rookery":
            continue
        for kind, unit in (("cpu", "CPU time"), ("wall", "wall time")):
            line, unit = f"{what}: rookery / {program.title}, {unit}", f"of {program.title}'s"
            if name in found and "rookery" in found:
                ratio = found["rookery"][kind] / found[name][kind]
                note = WHERE[model] if ratio > 1 else ""
            else:
                ratio, note = float("nan"), failed.get(name) or failed["rookery"]
            rows.append(Row(line, ratio, unit, at_most(1), note))
    return rows


def rows() -> list[Row]:
    """All measurements."""
    return [row for model in NAMES for row in rows_of(model)]


if __name__ == "__main__":
    if "--tiny" in sys.argv:
        tiny = {"clients": 20, "rows": 64, "steps": 2, "batch": 8}
        print_rows(row for model in NAMES for row in rows_of(model, turns=2, **tiny))
    else:
        print_rows(rows())
