"""What a server step of an asynchronous program costs against the number of clients.

At fixed arrivals per step the cost should not grow with the population: within 25 % from 18 to
18,000 clients. Every client holds a copy of a linear classifier, so the tables of jobs grow; the
step must not touch more than the rows of those that arrive.

Run it with ``python benchmarks/server_step.py``.
"""

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from timing import Row, at_most, print_rows

import rookery as rk
from rookery.engines.engine import Program
from rookery.engines.round_costs import ledgers
from rookery.engines.rounds import many_rounds
from rookery.program.algorithm import first_state

SIZES = (18, 180, 1_800, 18_000)
ARRIVALS, LOCAL_STEPS, BATCH, N_IN, CLASSES = 9, 10, 64, 400, 10
ROWS, STEPS = 100, 100


class State(NamedTuple):
    """The model, the running mean of gradients, and the jobs."""

    y: Any
    g: Any
    jobs: rk.program.InFlight


class Anarchic(rk.AbstractAlgorithm):
    """One poll a round: a step along the mean of all clients' latest gradients."""

    lr: float = 0.01

    def check(self, problem, n_clients):
        """Anything goes."""

    def init(self, problem, x, y):
        """No gradient has come yet."""
        return State(y, jnp.zeros_like(y), rk.program.InFlight.of("inner", (y,), jnp.zeros_like(y)))

    def round(self, fed, problem, state, key):
        """Wait for some gradients."""
        rules, settings = rk.program.PollRules(wait_for=ARRIVALS), {"problem": problem}
        result = fed.poll(state.jobs, gradient, state.y, rules=rules, key=key, settings=settings)
        g = state.g + result.change
        return State(state.y - self.lr * g, g, result.jobs)

    def solution(self, state):
        """The model."""
        return 0.0, state.y


def gradient(client, y, *, problem):
    """The mean gradient of some local steps."""

    def local_step(e, carry):
        at, total = carry
        sample = client.draw("train", BATCH, jax.random.fold_in(client.key, e))
        g = problem.inner_grad_y(jnp.zeros(()), at, sample)
        return at - jnp.float32(0.01) * g, total + g

    _, total = client.repeat(LOCAL_STEPS, local_step, (y, jnp.zeros_like(y)))
    return total / LOCAL_STEPS


def loss(x, y, row):
    logits = row["inputs"] @ y
    return jax.nn.logsumexp(logits) - logits[row["labels"]]


PROBLEM = rk.Bilevel(loss, loss, outer_split="train")


def make_population(n_clients: int) -> rk.Population:
    """Clients with windows of their own on common rows, so that 18,000 fit into memory."""
    rng = np.random.default_rng(0)
    n = 4_096
    data = {
        "inputs": rng.normal(size=(n, N_IN)).astype(np.float32),
        "labels": rng.integers(0, CLASSES, n).astype(np.int32),
    }
    made = rk.Population(
        data=data,
        offsets=rng.integers(0, n - ROWS, (1, n_clients)).astype(np.int32),
        counts=np.full((1, n_clients), ROWS, np.int32),
        weights=np.full(n_clients, 1 / n_clients),
        splits=("train",),
        largest=(ROWS,),
    )
    return jax.device_put(made)


def make_ready(n_clients: int):
    """A compiled call that takes a number of server steps from a state, and such a state."""
    population, algorithm = make_population(n_clients), Anarchic()
    clock = rk.delays.Clock(rk.delays.LogNormalDelay(0.03))

    def steps(population, state, first, n):
        program = Program(PROBLEM, population, clock, rk.aggregate.Mean())
        return many_rounds(program, algorithm, None, STEPS, state, jax.random.key(0), first, n)

    start = (jnp.zeros(()), jnp.zeros((N_IN, CLASSES), jnp.float32))
    state = first_state(algorithm, PROBLEM, n_clients, start)
    compiled = jax.jit(steps)
    state, _, _ = jax.block_until_ready(compiled(population, state, jnp.int32(0), jnp.int32(20)))
    return lambda n: compiled(population, state, jnp.int32(20), jnp.int32(n))


def seconds_of(call, n: int) -> tuple[float, float]:
    """CPU seconds of a call of n steps, and messages per step."""
    began = time.process_time()
    _, costs, _ = jax.block_until_ready(call(n))
    took = time.process_time() - began
    return took, sum(ledger.messages for ledger in ledgers(costs)[:n]) / 2 / n


def rows() -> list[Row]:
    """All measurements."""
    calls = [make_ready(size) for size in SIZES]
    best = [[float("inf")] * 2 for _ in SIZES]
    arrivals = [0.0] * len(SIZES)
    few, many = STEPS // 10, STEPS
    for _ in range(3):  # the sizes take turns, so that a slow moment meets all of them
        for i, call in enumerate(calls):
            for j, n in enumerate((few, many)):
                took, arrivals[i] = seconds_of(call, n)
                best[i][j] = min(best[i][j], took)
    # a call also copies the state in and out, whatever the number of steps: the difference does not
    each = [(long - short) / (many - few) for short, long in best]
    found = [
        Row(
            f"asynchronous server step, {size:,} clients",
            seconds * 1e3,
            "ms of CPU",
            note=f"{came:.1f} arrivals",
        )
        for size, seconds, came in zip(SIZES, each, arrivals, strict=True)
    ]
    what = f"asynchronous server step, {SIZES[0]} to {SIZES[-1]:,} clients: largest / smallest"
    return [*found, Row(what, max(each) / min(each), "", at_most(1.25))]


if __name__ == "__main__":
    print_rows(rows())
