"""Rounds of FedNest and FedMSA against the same rounds in torch, in CPU seconds of one run.

The peer, ``torch_rounds.py``, is a re-implementation from the papers' pseudo-code and not the
authors' program: client by client and step by step, as theirs, but without their data loaders,
modules and copies of models, and with one thread. It is probably faster than theirs: when the
authors' programs were measured beside this library on ready tensors, before the settings below
existed, they took 5.5 times the CPU seconds of FedNest (both tasks) and 3.5 times those of FedMSA.
The rows "estimated" multiply these factors with what the settings gain in this run. They are no
measurement, since sizes and threads of that comparison are not known to be those of this one, and
so they have no goal.

Equal on both sides: 100 clients, 10 in a cohort, MNIST's shapes, float32, the numbers of rows,
steps, hops and exchanges.

    hyper-representation    MLP 784-200-10; 300 + 300 rows a client; FedNest, 25 local steps of
                            batch 64, 5 hops
    loss tuning             MLP 784-200-100-10; 118 + 30 rows; FedNest, 3 inner rounds of 10 local
                            steps of batch 64, 3 hops
    FedMSA                  the same network and rows; the direction from all rows of all clients,
                            12 local steps of batch 64

"As in the paper" draws new rows wherever the papers do. "With settings" takes ``prepare`` of the
problem (features once, where only the head moves), ``dealt`` batches, ``fresh=False``, for FedMSA
``renewal=None``, and a ``clients_at_once`` of the engine. They keep the numbers of steps and rows
in a batch, and evaluate fewer rows: the notes have both counts.

Torch comes from an environment of its own: ``make bench`` makes ``.venv-bench-pfl``, or set
ROOKERY_TORCH_PYTHON to a Python that has it.
"""

import itertools
import json
import os
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from fednest_round import gemm_rate
from timing import Row, at_least, print_rows

import rookery as rk
from rookery.clients.datasets import Dataset
from rookery.engines.engine import Program
from rookery.engines.round_costs import ledgers
from rookery.engines.rounds import many_rounds
from rookery.program.algorithm import first_state
from rookery.program.ledger import Ledger
from rookery.tasks.hyper_representation import hyper_representation
from rookery.tasks.loss_tuning import loss_tuning

HERE = Path(__file__).resolve().parent
CLIENTS, REPEATS, ROUNDS = 100, 5, 4
TRIED = "; tried: prepare, dealt, fresh=False, renewal=None, and 1, 2, 5 and 10 clients at once"
COHORT: dict[str, Any] = {"clients": 10, "batch_size": 64}


class Case(NamedTuple):
    """One task: the peer's configuration, our programs and what is wanted."""

    name: str
    peer: dict[str, Any]
    as_paper: tuple[Any, rk.AbstractAlgorithm]
    with_settings: tuple[Any, rk.AbstractAlgorithm]
    authors: float  # their CPU seconds over ours, when both were measured
    goal: float
    at_once: int | None = None  # clients_at_once of the engine, with settings
    has_plain_passes: bool = (
        False  # every gradient and product that is counted is a pass of its own
    )
    where: str = ""  # where the time goes


class Peer:
    """The torch process, which measures itself."""

    def __init__(self):
        self._process = subprocess.Popen(
            [torch_python(), HERE / "torch_rounds.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.version = self._read()["torch"]

    def seconds(self, case: Case, rounds: int) -> float:
        """CPU seconds of one round."""
        request = {"task": case.name, "rounds": rounds, "config": case.peer}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._read()["seconds"]

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


def torch_python() -> str:
    """A Python that has torch."""
    given = os.environ.get("ROOKERY_TORCH_PYTHON")
    found = Path(given) if given else HERE.parent / ".venv-bench-pfl" / "bin" / "python"
    if not found.exists():
        raise FileNotFoundError(
            f"{found} does not exist. The peer needs torch in an environment of its own: run make "
            "bench, which installs it, or set ROOKERY_TORCH_PYTHON."
        )
    return str(found)


def make_data(n_train: int, n_validation: int) -> tuple[Dataset, dict[str, list[np.ndarray]]]:
    """Random rows of MNIST's shapes, dealt to the clients."""
    n, rng = n_train + n_validation, np.random.default_rng(0)
    rows = {
        "inputs": rng.normal(size=(CLIENTS * n, 784)).astype(np.float32),
        "labels": rng.integers(0, 10, CLIENTS * n).astype(np.int32),
    }
    few = {name: values[:10] for name, values in rows.items()}
    parts = {
        "train": [np.arange(i * n, i * n + n_train) for i in range(CLIENTS)],
        "validation": [np.arange(i * n + n_train, (i + 1) * n) for i in range(CLIENTS)],
    }
    return Dataset("random", train=rows, test=few, files=()), parts


def hyper_representation_case() -> Case:
    data = make_data(300, 300)

    def fednest(fresh: bool, dealt: bool) -> rk.AbstractAlgorithm:
        ihgp = rk.parts.FedIHGPSum(terms=5, lipschitz=20.0, fresh=fresh)
        lrs = {"outer_lr": 0.01, "inner_lr": 0.01}
        return rk.FedNest(**lrs, inner_steps=25, ihgp=ihgp, dealt=dealt, **COHORT)

    return Case(
        "hyper_representation",
        {"sizes": [784, 200, 10], "train": 300, "validation": 300, "cohort": 10, "batch": 64}
        | {"inner_rounds": 1, "inner_steps": 25, "terms": 5},
        (hyper_representation(*data), fednest(fresh=True, dealt=False)),
        (hyper_representation(*data, prepare=True), fednest(fresh=False, dealt=True)),
        authors=5.5,
        goal=10,
        at_once=10,
        where="; with one local step in place of 25 and one hop in place of five a round takes 0.8 "
        "of the time: this is features of the cohort's rows and the gradient of the hidden layer",
    )


def loss_tuning_case() -> Case:
    task = loss_tuning(*make_data(118, 30))

    def fednest(fresh: bool, dealt: bool) -> rk.AbstractAlgorithm:
        ihgp = rk.parts.FedIHGPSum(terms=3, lipschitz=20.0, fresh=fresh)
        counts = {"inner_rounds": 3, "inner_steps": 10, **COHORT}
        return rk.FedNest(outer_lr=0.02, inner_lr=0.01, ihgp=ihgp, dealt=dealt, **counts)

    return Case(
        "loss_tuning",
        {"sizes": [784, 200, 100, 10], "train": 118, "validation": 30, "cohort": 10, "batch": 64}
        | {"inner_rounds": 3, "inner_steps": 10, "terms": 3},
        (task, fednest(fresh=True, dealt=False)),
        (task, fednest(fresh=False, dealt=True)),
        authors=5.5,
        goal=10,
        at_once=2,
        has_plain_passes=True,
    )


def fedmsa_case() -> Case:
    task = loss_tuning(*make_data(118, 30))

    def fedmsa(renewal: float | None, fresh: bool) -> rk.AbstractAlgorithm:
        rows = {"momentum_batch": None, "renewal": renewal, "fresh": fresh}
        lrs = {"outer_lr": 0.05, "inner_lr": (0.1, 0.05)}
        return rk.FedMSA(**lrs, local_steps=12, **rows, **COHORT)

    return Case(
        "fedmsa",
        {"sizes": [784, 200, 100, 10], "train": 118, "validation": 30, "cohort": 10, "batch": 64}
        | {"local_steps": 12},
        (task, fedmsa(renewal=0.5, fresh=True)),
        (task, fedmsa(renewal=None, fresh=False)),
        authors=3.5,
        goal=6,
        where="; the direction from all rows of all clients, which the paper asks for, takes three "
        "fifths of it (with one local step in place of twelve a round takes 0.6 of the time)",
    )


class Ours:
    """Some rounds after the first as one compiled program."""

    def __init__(self, task, algorithm: rk.AbstractAlgorithm, at_once: int | None = None):
        start = jax.tree.map(jnp.asarray, tuple(task.start(0)))
        state = first_state(algorithm, task.problem, CLIENTS, start)
        population = jax.device_put(task.population)

        def rounds(population, state, key, n):
            program = Program(task.problem, population, rk.delays.Clock(), rk.aggregate.Mean())
            return many_rounds(program, algorithm, at_once, ROUNDS, state, key, 1, n)

        self._arguments = (population, state, jax.random.key(0), jnp.int32(ROUNDS))
        self._run = jax.jit(rounds).lower(*self._arguments).compile()
        costs = jax.device_get(self._run(*self._arguments)[1])
        self.ledger = ledgers(costs)[0]

    def seconds(self) -> float:
        """CPU seconds of one round."""
        began = time.process_time()
        jax.block_until_ready(self._run(*self._arguments))
        return (time.process_time() - began) / ROUNDS

    def work(self) -> str:
        """What the ledger says of one round."""
        ledger = self.ledger
        return f"{ledger.gradients:,} gradients and {ledger.hessian_vectors:,} products of rows"


def seconds_of_products(sizes: list[int], ledger: Ledger) -> float:
    """CPU seconds of the matrix products of a round, at the rate of one product for all clients.

    A gradient of a row multiplies by every matrix three times, but for the first one, whose input
    needs no gradient; a product with second derivatives costs twice as much.
    """
    weights = [n * m for n, m in itertools.pairwise(sizes)]
    gradient = 2.0 * (3 * sum(weights) - weights[0])
    operations = gradient * (ledger.gradients + 2 * ledger.hessian_vectors)
    return operations / gemm_rate(COHORT["clients"] * COHORT["batch_size"], *sizes[:2])


def measure(case: Case, peer: Peer) -> list[Row]:
    """All three programs take turns, so that a slow moment of the machine meets all of them."""
    paper, settings = Ours(*case.as_paper), Ours(*case.with_settings, case.at_once)
    times: dict[str, list[float]] = {"torch": [], "paper": [], "settings": []}
    for _ in range(REPEATS):
        times["torch"].append(peer.seconds(case, 1))
        times["paper"].append(paper.seconds())
        times["settings"].append(settings.seconds())
    torch, plain, fast = (statistics.median(t) for t in times.values())
    name = case.name.replace("_", "-")
    peer_name = "times faster than torch, re-implemented"
    figures = f"torch {peer.version} {torch:.3f} s, as in the paper {plain:.3f} s"
    note = f"{figures}, with settings {fast:.3f} s of CPU a round"
    if case.has_plain_passes:
        floor = seconds_of_products(case.peer["sizes"], settings.ledger)
        note += f", of which matrix products take {floor:.3f} s at the rate of a single one of "
        note += f"640 x {case.peer['sizes'][0]} x {case.peer['sizes'][1]}"
    note += f"{case.where}{TRIED}"
    return [
        Row(f"{name} as in the paper", torch / plain, peer_name, note=paper.work()),
        Row(f"{name} with settings", torch / fast, peer_name, at_least(case.goal), note),
        Row(
            f"{name} with settings, estimated",
            case.authors * plain / fast,
            "times faster than the authors' program",
            note=f"not measured: {case.authors} recorded x {plain / fast:.2f}; {settings.work()}",
        ),
    ]


def rows() -> list[Row]:
    """The three tasks."""
    peer = Peer()
    try:
        cases = (hyper_representation_case(), loss_tuning_case(), fedmsa_case())
        return [row for case in cases for row in measure(case, peer)]
    finally:
        peer.close()


if __name__ == "__main__":
    print_rows(rows())
