"""What a user waits for before the first round: imports, tracing, compiling.

Every figure is CPU seconds (all threads) of a process of its own. The programs are those of the
task of digits.toml: hyper-representation on 5,000 digits, 20 clients, 64 hidden units. Cold is the
first call of the compiled engine with an empty compile cache, warm the same in the next process;
both include tracing. Processes take turns, and the least of several counts.

Run it with ``python benchmarks/compile_time.py``, or with the names of some algorithms.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from timing import Row, at_most, print_rows

REPEATS = 3
GOALS = {  # cold and warm
    "FedNest": (4.0, 1.0),
    "FedMSA": (8.0, 1.5),
    "AFBO": (8.0, 1.5),
    "ADBO": (8.0, 1.5),
    "FedMBO": None,
    "Prometheus": None,
}
TOOK = "wall time: tracing {:.1f} s, lowering {:.1f} s, XLA {:.1f} s"
TRIED = (
    "; done: one copy of a round, loops instead of unrolled hops, a generator of random numbers "
    "that XLA compiles once, lighter counters, no garbage collection while tracing (saves 0.2 s); "
    "the rest is XLA's work on many small kernels: of FedNest's 5 s, LLVM takes 2.0 and MLIR 0.9 "
    "for 224 kernels, a dozen for every gradient and product of a step, and passes over the "
    "program 0.8; tried without gain: keys split one by one (213 kernels), one shared loop that "
    "draws cohorts (224), a sum in the search for NaN (222), one module (0 to 5 % less); not used: "
    "XLA's older emitters (7 % less), which may round otherwise and make rounds 2 % slower; LLVM "
    "at level 1 or without its expensive passes (11 to 13 % less), and at level 0 (a third less)"
)
DIGITS = Path(__file__).with_name("digits.toml")

SETTINGS = """
import jax, jax.numpy as jnp, sys, time
import rookery as rk
from pathlib import Path
from rookery.engines.engine import Program
from rookery.experiment import config
from rookery.experiment.task_loader import TaskLoader
from rookery.program.algorithm import first_state
steps = {"outer_lr": 0.01, "inner_lr": 0.01, "batch_size": 32}
ALGORITHMS = {
    "FedNest": lambda: rk.FedNest(**steps, inner_steps=10, clients=10),
    "FedMSA": lambda: rk.FedMSA(**steps, local_steps=5, clients=10),
    "AFBO": lambda: rk.AFBO(**steps, inner_steps=5),
    "ADBO": lambda: rk.ADBO(**steps),
    "FedMBO": lambda: rk.FedMBO(**steps, clients=10),
    "Prometheus": lambda: rk.Prometheus(**steps),
}
"""
FIRST_CALL = (
    SETTINGS
    + """
file, name = sys.argv[1:]
stages = {"jaxpr_trace": 0.0, "jaxpr_to_mlir_module": 0.0, "backend_compile": 0.0}
def note(event, seconds, **about):
    for stage in stages:
        if stage in event:  # the largest is that of the rounds; traces are nested
            stages[stage] = max(stages[stage], seconds)
jax.monitoring.register_event_duration_secs_listener(note)
task = TaskLoader().load(config.load(Path(file), []).curves[0])
algorithm = ALGORITHMS[name]()
program = Program(task.problem, task.population, rk.delays.Clock(), rk.aggregate.Mean())
runner = rk.Compiled().prepare(program, [algorithm])
start = jax.tree.map(jnp.asarray, task.start(0))
state = first_state(algorithm, task.problem, task.population.n_clients, start)
jax.block_until_ready(state)
stages = dict.fromkeys(stages, 0.0)
began = time.process_time()
(progress,) = runner.advance([state], [jax.random.key(0)], 0, [1])
jax.block_until_ready(progress.state)
print(time.process_time() - began, *stages.values())
"""
)
IMPORT = "import time; began = time.process_time(); {}; print(time.process_time() - began)"
PEERS = "import jax, equinox"
OURS = {
    "import of rookery": "import jax, equinox; import rookery",
    "import of rookery and use of FedNest, Bilevel, Population and run": (
        "import jax, equinox; import rookery as rk; rk.FedNest; rk.Bilevel; rk.Population; rk.run"
    ),
}

# ends after the first chunk of rounds; counts how often the data is read
FIRST_ROUND = """
import sys, time
from pathlib import Path
import rookery.cli.main as command
from rookery.engines.compiled import Compiled, programs_compiled
from rookery.experiment.task_loader import TaskLoader
reads = []
read = TaskLoader._read
TaskLoader._read = lambda self, *a: reads.append(a) or read(self, *a)
prepare = Compiled.prepare
def prepared(self, *arguments):
    runner = prepare(self, *arguments)
    advance = runner.advance
    def first(*arguments, **settings):
        advance(*arguments, **settings)
        print(time.process_time() - began, len(reads))
        sys.stdout.flush()
        __import__("os")._exit(0)
    runner.advance = first
    return runner
Compiled.prepare = prepared
began = time.process_time()
command.run(Path(sys.argv[1]), out=Path(sys.argv[2]), overrides=(("run.seeds=[0]",),))
"""
SHOW = """
import sys, time
from pathlib import Path
import rookery.cli.main as command
from rookery.engines.compiled import programs_compiled
began = time.process_time()
command.show(Path(sys.argv[1]))
print()
print(time.process_time() - began, programs_compiled())
"""


def child(code: str, *arguments: str, cache: str) -> list[float]:
    """The numbers on the last line that a program prints, whose compile cache is in a folder."""
    others = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "ROOKERY_COMPILE"))}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**others, "XDG_CACHE_HOME": cache},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [float(number) for number in done.stdout.strip().splitlines()[-1].split()]


def first_calls(name: str) -> list[Row]:
    """The first call of a program, cold and warm."""
    times: dict[str, list[list[float]]] = {"cold": [], "warm": []}
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as cache:
            for kind in times:
                times[kind].append(child(FIRST_CALL, str(DIGITS), name, cache=cache))
    goals = GOALS[name] or (None, None)
    return [
        Row(
            f"{name}, first call, {kind}",
            min(own)[0],
            "s of CPU",
            None if goal is None else at_most(goal),
            TOOK.format(*min(own)[1:]) + TRIED if kind == "cold" else "",
        )
        for (kind, own), goal in zip(times.items(), goals, strict=True)
    ]


def imports() -> list[Row]:
    """Importing rookery, and using it, against importing JAX and Equinox alone."""
    peers: list[float] = []
    times: dict[str, list[float]] = {what: [] for what in OURS}
    with tempfile.TemporaryDirectory() as cache:
        for _ in range(2 * REPEATS):
            peers += child(IMPORT.format(PEERS), cache=cache)
            for what, own in times.items():
                own += child(IMPORT.format(OURS[what]), cache=cache)
    return [
        Row(
            f"{what} / import of JAX and Equinox",
            min(own) / min(peers),
            "",
            at_most(1.2),
            f"{min(own):.2f} s against {min(peers):.2f} s"
            + ("; of the difference rich takes a quarter and 126 short modules the rest" * has_use),
        )
        for (what, own), has_use in zip(times.items(), (False, True), strict=True)
    ]


def commands() -> list[Row]:
    """What ``rookery run`` and ``rookery show`` do before the first round, after their imports."""
    with tempfile.TemporaryDirectory() as cache:
        runs = [
            child(FIRST_ROUND, str(DIGITS), f"{cache}/runs-{i}", cache=cache)
            for i in range(REPEATS + 1)
        ]
        shown = [child(SHOW, str(DIGITS), cache=cache) for _ in range(REPEATS)]
    seconds, compiled = min(shown)
    return [
        Row(
            "rookery run of a cached experiment, from the import to the end of the first round",
            min(one[0] for one in runs[1:]),
            "s of CPU",
            at_most(2.0),
            f"{runs[0][0]:.1f} s with an empty cache",
        ),
        Row("rookery run: how often the data is read", max(one[1] for one in runs), "", at_most(1)),
        Row(
            "rookery show",
            seconds,
            "s of CPU",
            note=f"rounds compiled: {compiled:.0f}; the time is small operations on the server",
        ),
    ]


def rows() -> list[Row]:
    """All measurements."""
    return [*(row for name in GOALS for row in first_calls(name)), *imports(), *commands()]


def main() -> None:
    """Print all rows, or those of the named algorithms."""
    if sys.argv[1:]:
        print_rows(row for name in sys.argv[1:] for row in first_calls(name))
    else:
        print_rows(rows())


if __name__ == "__main__":
    main()
