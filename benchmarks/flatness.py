"""What a round costs against the number of clients, at equal cohorts.

The cost of a round should depend on who takes part, not on how many clients there are: the largest
over the smallest time may be 1.3, from 100 to 1,000,000 clients (AFBO: from 18 to 100,000).
Measured are CPU seconds of calls of the compiled engine, with all that a call does besides rounds.
Every size has a process of its own, so that its resident memory is known, and the sizes take turns,
so that a slow moment of the machine meets all of them.

Two more questions: what a run adds to rounds that take microseconds, and what 16 seeds in one
program cost against one after the other.

Run it with ``python benchmarks/flatness.py``, or with the names of some questions.
"""

import functools
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from timing import Row, at_most, cpu_seconds, print_rows

import rookery as rk
from rookery import tree
from rookery.algorithms import SOBA
from rookery.engines.engine import Program
from rookery.engines.rounds import many_rounds
from rookery.experiment import config
from rookery.experiment.task_loader import TaskLoader
from rookery.program.algorithm import first_state
from rookery.program.availability import AbstractAvailability

N_IN, CLASSES, ROWS, COHORT, LOCAL_STEPS, BATCH, HOPS = 64, 10, 100, 10, 10, 64, 5
TURNS, ROUNDS = 5, 60
SIZES = (100, 10_000, 1_000_000)
POLLED_SIZES = (18, 1_800, 18_000, 100_000)


def loss(w, row):
    """Cross-entropy of a linear classifier."""
    logits = row["inputs"] @ w
    return jax.nn.logsumexp(logits) - logits[row["labels"]]


def outer_loss(x, y, row):
    """The same, on other rows."""
    return loss(y, row)


def inner_loss(x, y, row):
    """With one weight decay per input, which is the outer variable."""
    return loss(y, row) + 0.5 * jnp.sum(jnp.exp(x)[:, None] * y**2) / N_IN


SINGLE = rk.SingleLevel(loss)
BILEVEL = rk.Bilevel(outer_loss, inner_loss)
W = np.zeros((N_IN, CLASSES), np.float32)
X = np.zeros(N_IN, np.float32)

CASES = {
    "FedAvg": (
        SINGLE,
        rk.FedAvg(lr=0.05, local_steps=LOCAL_STEPS, clients=COHORT, batch_size=BATCH),
        (W,),
        SIZES,
    ),
    "FedNest": (
        BILEVEL,
        rk.FedNest(
            outer_lr=0.05,
            inner_lr=0.05,
            inner_steps=LOCAL_STEPS,
            ihgp=rk.parts.FedIHGPSum(terms=HOPS, lipschitz=5.0),
            clients=COHORT,
            batch_size=BATCH,
        ),
        (X, W),
        SIZES,
    ),
    "SCAFFOLD": (
        SINGLE,
        rk.Scaffold(lr=0.05, local_steps=LOCAL_STEPS, clients=COHORT, batch_size=BATCH),
        (W,),
        SIZES,
    ),
    "AFBO with hops": (
        BILEVEL,
        rk.AFBO(
            outer_lr=0.05,
            inner_lr=0.05,
            aphe=rk.parts.APHESum(terms=HOPS, lipschitz=5.0),
            inner_steps=LOCAL_STEPS,
            wait_for=9,
            first_wait_for=9,
            inner_staleness=None,
            outer_staleness=None,
            batch_size=BATCH,
        ),
        (X, W),
        POLLED_SIZES,
    ),
}


@dataclass(frozen=True)
class Measured:
    """One size: CPU seconds of a round, bytes of state per client, resident megabytes."""

    seconds: float
    state_bytes: float
    before_mb: float
    peak_mb: float


def make_population(n_clients: int) -> rk.Population:
    """Clients with windows of their own on common rows, so that a million fit into memory."""
    rng = np.random.default_rng(0)
    n = 8_192
    data = {
        "inputs": rng.normal(size=(n, N_IN)).astype(np.float32),
        "labels": rng.integers(0, CLASSES, n).astype(np.int32),
    }
    begin = rng.integers(0, n - 2 * ROWS, n_clients).astype(np.int32)
    return rk.Population(
        data=data,
        offsets=np.stack([begin, begin + ROWS]),
        counts=np.full((2, n_clients), ROWS, np.int32),
        weights=np.full(n_clients, 1 / n_clients),
        splits=("train", "validation"),
        largest=(ROWS, ROWS),
    )


class InTurn(AbstractAvailability):
    """Client i comes at second i of every ``n_clients`` seconds: one client a second."""

    n_clients: int = eqx.field(static=True)

    def comes(self, key, client, now):
        """Its next second."""
        return now + (client - now) % self.n_clients

    def check(self, n_clients):
        """The turn goes through all clients."""
        assert n_clients == self.n_clients


def clock(n_clients: int) -> rk.delays.Clock:
    """One client a second begins a job, however many there are.

    If all of them always worked, every client would deliver in every round of AFBO: its hops last
    longer than a job. The cohorts would grow with the number of clients, and the cost with them.
    """
    return rk.delays.Clock(rk.delays.ConstantDelay(0.03), availability=InTurn(n_clients))


def resident_mb() -> float:
    """What this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def child(case: str, n_clients: int, parent: Connection) -> None:
    """Measure one size of one case whenever the parent asks for it."""
    problem, algorithm, start, _ = CASES[case]
    program = Program(problem, make_population(n_clients), clock(n_clients), rk.aggregate.Mean())
    runner = rk.Compiled().prepare(program, [algorithm])
    state = first_state(algorithm, problem, n_clients, start)
    state_bytes, before = tree.nbytes(state) / n_clients, resident_mb()
    keys, done = [jax.random.key(0)], 0
    while True:
        began = time.process_time()
        (progress,) = runner.advance([state], keys, done, [ROUNDS], may_reuse=True)
        state, done = jax.block_until_ready(progress.state), done + ROUNDS
        took = (time.process_time() - began) / ROUNDS
        assert progress.is_finite and len(progress.ledgers) == ROUNDS
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        parent.send(Measured(took, state_bytes, before, peak))
        if not parent.recv():
            return


def measure(case: str) -> dict[int, Measured]:
    """The best of some turns, by the number of clients."""
    processes = multiprocessing.get_context("spawn")
    best: dict[int, Measured] = {}
    children = []
    for size in CASES[case][-1]:
        here, there = processes.Pipe()
        process = processes.Process(target=child, args=(case, size, there), daemon=True)
        process.start()
        here.recv()  # the first call compiles
        children.append((size, here, process))
    for turn in range(TURNS):
        for size, here, _ in children:
            here.send(True)
            got = here.recv()
            if turn == 0 or got.seconds < best[size].seconds:
                best[size] = got
    for _, here, process in children:
        here.send(False)
        process.join()
    return best


def flat_rows(case: str) -> list[Row]:
    """The rows of one algorithm."""
    best = measure(case)
    times = [one.seconds for one in best.values()]
    found = [
        Row(
            f"{case}, {size:,} clients",
            one.seconds * 1e3,
            "ms of CPU a round",
            note=f"{one.state_bytes:,.0f} bytes of state per client, {one.before_mb:,.0f} MB "
            f"resident before the first call, {one.peak_mb:,.0f} MB at most",
        )
        for size, one in best.items()
    ]
    sizes = f"{min(best):,} to {max(best):,} clients"
    ratio = max(times) / min(times)
    what = f"{case}, {sizes}: largest / smallest CPU time of a round"
    return [*found, Row(what, ratio, "", at_most(1.3))]


def tiny_rows() -> list[Row]:
    """A run whose rounds take microseconds, against the same rounds in a single compiled loop."""
    few, many = 2_000, 42_000
    zoo = rk.zoo.quadratic_bilevel(n_clients=1, rows=4, x_size=10, y_size=10, dtype=np.float32)
    algorithm = SOBA(outer_lr=0.001, inner_lr=0.002)
    population = rk.Population.stacked(zoo.data)
    state = first_state(algorithm, zoo.problem, 1, zoo.start)
    program = Program(zoo.problem, population, rk.delays.Clock(), rk.aggregate.Mean())

    @jax.jit
    def loop(state, n):
        key = jax.random.key(0)
        return many_rounds(program, algorithm, None, many, state, key, 0, n)[0]

    def seconds(call, n: int) -> float:
        began = time.process_time()
        jax.block_until_ready(call(n))
        return time.process_time() - began

    def run(n: int):
        result = rk.run(
            algorithm, zoo.problem, population, zoo.start, rounds=n, evaluate_every=10**6
        )
        return result.solution

    calls = {"run": run, "loop": lambda n: loop(state, n)}
    each = dict.fromkeys(calls, float("inf"))
    for turn in range(TURNS + 1):
        for name, call in calls.items():
            took = (seconds(call, many) - seconds(call, few)) / (many - few)
            if turn:  # the first call compiles
                each[name] = min(each[name], took)
    return [
        Row(
            "SOBA with 10 + 10 variables: a run / one compiled loop",
            each["run"] / each["loop"],
            "",
            at_most(1.5),
            f"{each['run'] * 1e6:.1f} and {each['loop'] * 1e6:.1f} us of CPU a round",
        )
    ]


def seed_rows(n_seeds: int = 16) -> list[Row]:
    """Seeds of FedNest on digits in one program against one after the other."""
    curve = config.load(Path(__file__).with_name("digits.toml")).curves[0]
    task, algorithm = TaskLoader().load(curve), curve.algorithm
    program = Program(task.problem, task.population, curve.clock, rk.aggregate.Mean())
    rounds, n_clients = 10, task.population.n_clients

    def ready(lanes: int) -> Callable[[], float]:
        runner = rk.Compiled().prepare(program, [algorithm] * lanes)
        keys = [jax.random.key(seed) for seed in range(lanes)]
        states = [
            first_state(algorithm, task.problem, n_clients, task.start(seed))
            for seed in range(lanes)
        ]
        done = 0

        def advance() -> float:
            nonlocal states, done
            began = time.process_time()
            progress = runner.advance(states, keys, done, [rounds] * lanes, may_reuse=True)
            states = jax.block_until_ready([one.state for one in progress])
            done += rounds
            return (time.process_time() - began) / rounds / lanes

        advance()  # compiles
        return advance

    alone, together = ready(1), ready(n_seeds)
    best = [float("inf")] * 2
    for _ in range(TURNS):
        best = [min(best[0], alone()), min(best[1], together())]
    # rows that must go through the hidden layer's matrix: the anchor's gradient, nine local steps,
    # f_y, the hops, and four products for the hypergradient
    cohort, batch, train, hops = 10, 32, 100, 5
    rows = cohort * (train + 9 * batch + batch + hops * batch + 4 * batch)
    inputs, matrix = jnp.ones((cohort * batch, 784)), jnp.ones((784, 64))
    product = jax.jit(lambda a, b: a @ b)
    times = 50
    needed = cpu_seconds(lambda: [product(inputs, matrix) for _ in range(times)], 5) / times
    share = needed * rows / (cohort * batch) / best[0]
    return [
        Row(
            f"{n_seeds} seeds of FedNest on digits in one program / one by one",
            best[1] / best[0],
            "of the CPU time",
            at_most(0.6),
            f"{best[0] * 1e3:.1f} and {best[1] * 1e3:.1f} ms of CPU a round and seed; the products "
            f"with the hidden layer's matrix alone take {share:.2f} of one by one, and every seed "
            "has a matrix and batches of its own; in a profile of one seed 0.58 of the time are "
            "these products, 0.16 copies of rows and matrices, 0.15 products with the head; only "
            "the rest is overhead, which 16 seeds in one program nearly halve, while their "
            "matrices no longer fit into the cache; tried: 2, 4 and 16 seeds at once take 0.87, "
            "0.89 and 0.94",
        )
    ]


QUESTIONS: dict[str, Callable[[], list[Row]]] = {
    **{case: functools.partial(flat_rows, case) for case in CASES},
    "tiny": tiny_rows,
    "seeds": seed_rows,
}


def rows() -> list[Row]:
    """All measurements."""
    return [row for measure in QUESTIONS.values() for row in measure()]


def main() -> None:
    """Print all rows, or those of the named questions."""
    for name, measure in QUESTIONS.items():
        if len(sys.argv) == 1 or any(part in name for part in sys.argv[1:]):
            print_rows(measure())


if __name__ == "__main__":
    main()
