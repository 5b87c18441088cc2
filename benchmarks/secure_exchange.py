"""Secure aggregation against plain means: time and bytes of one exchange.

An exchange sends an array to every client, gets it back and takes the mean, over threads of this
process. The secure one has three messages instead of one, masks the replies and restores the
secrets of all clients; with drop-outs, one client ends before its reply in every exchange. Time is
CPU time of the whole process, so of the server and all clients together. Bytes are those of all
messages of an exchange at the port, of one client, in both directions.

cryptography has an environment of its own: run it with ``make bench BENCH="--only
secure_exchange"``, after ``make .venv-secure/.ready``.
"""

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from timing import Row, print_rows

import rookery as rk
from rookery.engines.engine import Program
from rookery.program.participation import Everyone
from rookery.remote import InProcess, Policy, Remote, SecureAggregation
from rookery.remote.client.worker import Worker
from rookery.remote.protocol import wire
from rookery.remote.transports.in_process import own_worker

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv-secure"
CASES = [(10, 1_000), (10, 1_000_000), (50, 1_000)]  # clients, floats
REPEATS = {1_000: 10, 1_000_000: 3}


class State(NamedTuple):
    """The array that is exchanged."""

    value: Any


class Echo(rk.AbstractAlgorithm):
    """One exchange per round: the mean of what was sent."""

    def check(self, problem, n_clients):
        """Anything goes."""

    def init(self, problem, value):
        """The value."""
        return State(value)

    def round(self, fed, problem, state, key):
        """Send it and take the mean."""
        cohort = fed.sample(Everyone(), key)
        return State(fed.mean(fed.map(same, fed.broadcast(cohort, state.value))))

    def solution(self, state):
        """The value."""
        return (state.value,)


def same(client, value):
    """The argument."""
    return value


class Metered:
    """A worker that counts bytes, and leaves out some requests as if it had ended before them."""

    def __init__(self, worker: Worker, drops: bool):
        self._worker, self._drops = worker, drops
        self.nbytes = 0

    def answer_in_parts(self, data: wire.Buffer | wire.Parts) -> wire.Parts:
        """The reply, or a failure in place of a masked one."""
        message = wire.decode(data)
        reply = self._worker.answer_in_parts(data)
        if self._drops and message.kind is wire.Kind.RUN:
            failure = wire.Message(
                wire.Kind.FAILURE, message.name, message.client, message.slot, message.exchange,
                {"reason": wire.encode_text("dropped"), "lost": jnp.zeros((), jnp.uint8)},
            )  # fmt: skip
            reply = wire.encode_parts(failure)
        self.nbytes += wire.size_of(data) + wire.size_of(reply)
        return reply


def exchange(n: int, size: int, secure: SecureAggregation | None, drops: bool = False):
    """Median CPU milliseconds of an exchange, and the bytes of one client's messages."""
    zoo = rk.zoo.quadratic_losses(n_clients=n, size=2, rows=1)
    population = rk.Population.stacked(zoo.data)
    program = Program(zoo.problem, population, rk.delays.Clock(), rk.aggregate.Mean())
    metered: dict[int, Metered] = {}

    def make(client, *others) -> Any:
        metered[client] = Metered(own_worker(client, *others), drops and client == n - 1)
        return metered[client]

    policy = Policy(wait_for=600.0, min_replies=0.5, retries=0)
    engine = Remote(InProcess(make_worker=make), policy, secure=secure)
    runner: Any = engine.prepare(program, [Echo()])
    state = State(jnp.ones(size, jnp.float32))
    key, times = jax.random.key(0), []
    runner.advance([state], [key], 0, [1])
    before = metered[0].nbytes
    repeats = REPEATS[size]
    for i in range(repeats):
        began = time.process_time()
        runner.advance([state], [key], 1 + i, [1])
        times.append(1e3 * (time.process_time() - began))
    runner.close()
    return statistics.median(times), (metered[0].nbytes - before) / repeats


def measured() -> list[Row]:
    """What was measured in this process."""
    found = []
    for n, size in CASES:
        what = f"{n} clients, {size:,} float32"
        plain, plain_bytes = exchange(n, size, None)
        for bits in (32, 64):
            secure = SecureAggregation(bits=bits)
            cpu, nbytes = exchange(n, size, secure)
            note = f"plain {plain:.1f} ms and {plain_bytes:,.0f} bytes per client"
            found.append(Row(f"Secure mean of {what}, {bits} bits", cpu, "ms of CPU", None, note))
            found.append(
                Row(f"Bytes of a secure mean of {what}, {bits} bits", nbytes, "per client", None,
                    f"{nbytes / plain_bytes:.2f} times the plain one's")
            )  # fmt: skip
        cpu, _ = exchange(n, size, SecureAggregation(), drops=True)
        what = f"Secure mean of {what}, 64 bits, one drops out"
        found.append(Row(what, cpu, "ms of CPU"))
    return found


def rows() -> list[Row]:
    """What was measured, here or in the environment that has cryptography."""
    if importlib.util.find_spec("cryptography") is not None:
        return measured()
    if not (ENVIRONMENT / ".ready").exists():
        why = f"{ENVIRONMENT.name} is missing: make {ENVIRONMENT.name}/.ready"
        return [Row("Secure mean", float("nan"), "ms of CPU", None, why)]
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch, "rows.json")
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
        command = [ENVIRONMENT / "bin" / "python", __file__, output]
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        return [Row.from_json(row) for row in json.loads(output.read_text())]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps([row.to_json() for row in measured()]))
    else:
        print_rows(rows())
