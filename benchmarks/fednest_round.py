"""Speed and memory of a FedNest round at the paper's size, as ratios within one run.

MNIST shapes, 100 clients of 300 + 300 rows, 10 per exchange, MLP 784-200-10 (outer: the hidden
layer, inner: the head), 25 local steps of batch 64, N = 5. Times are CPU seconds of this process
(all threads) unless said otherwise, the least of several repetitions; compile time is apart.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
from timing import Row, at_least, at_most, cpu_seconds, print_rows

import rookery as rk
from rookery import models
from rookery.engines.engine import Program
from rookery.engines.rounds import many_rounds
from rookery.tasks.hyper_representation import RidgeLoss, loss

COHORT, ROWS, BATCH, LOCAL_STEPS, HOPS = 10, 300, 64, 25, 5
N_IN, HIDDEN, CLASSES = 784, 200, 10
ALGORITHM = rk.FedNest(
    outer_lr=0.01,
    inner_lr=0.01,
    inner_steps=LOCAL_STEPS,
    ihgp=rk.parts.FedIHGPSum(terms=HOPS, lipschitz=20.0),
    clients=COHORT,
    batch_size=BATCH,
)
PROBLEM = rk.Bilevel(loss, RidgeLoss(0.01))


def start():
    rng = np.random.default_rng(0)
    layers = (models.dense_init(rng, N_IN, HIDDEN), models.dense_init(rng, HIDDEN, CLASSES))
    return jax.tree.map(jnp.asarray, layers)


def make_population(n_clients: int) -> rk.Population:
    """Clients are windows on the same 60,000 rows, so that 10,000 of them fit in memory."""
    rng = np.random.default_rng(0)
    n = 60_000
    inputs = rng.normal(size=(n, N_IN)).astype(np.float32)
    data = {"inputs": inputs, "labels": rng.integers(0, CLASSES, n).astype(np.int32)}
    begin = rng.integers(0, n - 2 * ROWS, n_clients).astype(np.int32)
    made = rk.Population(
        data=data,
        offsets=np.stack([begin, begin + ROWS]),
        counts=np.full((2, n_clients), ROWS, np.int32),
        weights=np.full(n_clients, 1 / n_clients),
        splits=("train", "validation"),
        largest=(ROWS, ROWS),
    )
    return jax.device_put(made)


def flops_of_a_round() -> float:
    """Matrix products that a round cannot do without, two operations per multiply-add.

    Products with the hidden layer's matrix, in rows per client: the features of the anchor (300),
    of 24 local steps (the first needs no evaluation; both points share their features), of f_y and
    of every hop; for h the features and the weight gradient, each for f_x and for the cross term.
    Products with the head's matrix: per gradient one forward and one backward; per Hessian-vector
    product four; for h one forward, one to the features, and the same again with a tangent.
    """
    local = (LOCAL_STEPS - 1) * BATCH
    hidden_rows = ROWS + local + BATCH + HOPS * BATCH + 4 * BATCH
    head_rows = 2 * ROWS + 2 * 2 * local + 2 * BATCH + 4 * HOPS * BATCH + 6 * BATCH
    return 2.0 * COHORT * (hidden_rows * N_IN * HIDDEN + head_rows * HIDDEN * CLASSES)


def gemm_rate(m: int, k: int, n: int) -> float:
    """Operations per CPU second of a float32 matrix product."""
    a, b = jnp.ones((m, k)), jnp.ones((k, n))
    times = 20
    product = jax.jit(lambda a, b: a @ b)

    def several():
        return [product(a, b) for _ in range(times)]

    return 2.0 * m * k * n * times / cpu_seconds(several, 5)


def rounds_compiled(population: rk.Population):
    """An XLA executable of many rounds, and what compiling it took."""

    def rounds(population, state, key, first, n):
        program = Program(PROBLEM, population, rk.delays.Clock(), rk.aggregate.Mean())
        return many_rounds(program, ALGORITHM, None, 20, state, key, first, n)

    state = ALGORITHM.init(PROBLEM, *start())
    arguments = (population, state, jax.random.key(0), jnp.int32(0), jnp.int32(0))
    began = time.monotonic()
    compiled = jax.jit(rounds).lower(*arguments).compile()
    return compiled, state, time.monotonic() - began


def round_seconds(compiled, population, state, rounds: int = 10, repeats: int = 5) -> float:
    """CPU seconds of one round."""

    def several():
        return compiled(population, state, jax.random.key(0), jnp.int32(0), jnp.int32(rounds))

    return cpu_seconds(several, repeats) / rounds


def gemm_share(seconds: float) -> Row:
    square = gemm_rate(1024, 1024, 1024)
    shaped = gemm_rate(COHORT * BATCH, N_IN, HIDDEN)
    rate = flops_of_a_round() / seconds
    note = (
        f"{seconds * 1e3:.0f} ms of CPU a round for {flops_of_a_round() / 1e9:.2f} GFLOP; products "
        f"of 1024^3: {square / 1e9:.1f} GFLOP per CPU second, of {COHORT * BATCH}x{N_IN}x{HIDDEN}: "
        f"{shaped / 1e9:.1f}"
    )
    return Row("FedNest round", rate / square, "of the GEMM rate", at_least(0.6), note)


def eager_row(population, compiled_seconds: float) -> Row:
    program = Program(PROBLEM, population, rk.delays.Clock(), rk.aggregate.Mean())
    runner = rk.Eager().prepare(program, [ALGORITHM])
    states, keys = [ALGORITHM.init(PROBLEM, *start())], [jax.random.key(0)]
    runner.advance(states, keys, 0, [1])
    began = time.process_time()
    runner.advance(states, keys, 1, [1])
    eager = time.process_time() - began
    what, note = "FedNest round, eager / compiled", f"eager: {eager:.1f} s of CPU"
    return Row(what, eager / compiled_seconds, "", at_least(10), note)


def population_rows() -> list[Row]:
    """The sizes take turns, so that a slow moment of the machine meets all of them."""
    sizes = (100, 1_000, 10_000)
    ready = []
    for size in sizes:
        population = make_population(size)
        compiled, state, compile_seconds = rounds_compiled(population)
        analysis = compiled.memory_analysis()
        assert analysis is not None
        memory = analysis.temp_size_in_bytes / 1e6
        ready.append((population, compiled, state, memory, compile_seconds))
    times = [float("inf")] * len(sizes)
    for _ in range(4):
        for i, (population, compiled, state, *_rest) in enumerate(ready):
            times[i] = min(times[i], round_seconds(compiled, population, state, repeats=2))
    found = [
        Row(
            f"FedNest round, {size:,} clients",
            seconds * 1e3,
            "ms of CPU",
            note=f"temporary memory {memory:.1f} MB, compiled in {compile_seconds:.1f} s",
        )
        for size, seconds, (*_rest, memory, compile_seconds) in zip(
            sizes, times, ready, strict=True
        )
    ]
    time_ratio, memory_ratio = max(times) / min(times), ready[-1][3] / ready[0][3]
    what = "FedNest round, 100 to 10,000 clients"
    return [
        *found,
        Row(f"{what}: largest / smallest CPU time", time_ratio, "", at_most(1.2)),
        Row(f"{what}: temporary memory, largest / smallest", memory_ratio, "", at_most(1.05)),
    ]


def seeds_row() -> Row:
    zoo = rk.zoo.quadratic_bilevel(n_clients=20, rows=4, noise=0.1, dtype=np.float32)
    algorithm = rk.FedNest(
        outer_lr=0.02,
        inner_lr=0.05,
        inner_steps=5,
        ihgp=rk.parts.FedIHGPSum(terms=5, lipschitz=5.0),
        clients=10,
        batch_size=2,
    )
    population = jax.device_put(rk.Population.stacked(zoo.data))
    state = algorithm.init(zoo.problem, *(jnp.asarray(a) for a in zoo.start))

    def run(population, seed):
        program = Program(zoo.problem, population, rk.delays.Clock(), rk.aggregate.Mean())
        return many_rounds(program, algorithm, None, 200, state, jax.random.key(seed), 0, 200)[0]

    seeds = jnp.arange(8)
    one, all_at_once = jax.jit(run), jax.jit(jax.vmap(run, in_axes=(None, 0)))

    def wall(fn) -> float:
        jax.block_until_ready(fn())
        times = []
        for _ in range(5):
            began = time.monotonic()
            jax.block_until_ready(fn())
            times.append(time.monotonic() - began)
        return min(times)

    in_a_row = wall(lambda: [one(population, seed) for seed in seeds])
    together = wall(lambda: all_at_once(population, seeds))
    what = "FedNest on a toy, 8 seeds in one program / one after another, wall time"
    return Row(what, together / in_a_row, "", at_most(0.75))


def rows() -> list[Row]:
    """All measurements."""
    population = make_population(100)
    compiled, state, _ = rounds_compiled(population)
    seconds = round_seconds(compiled, population, state)
    return [gemm_share(seconds), *population_rows(), seeds_row(), eager_row(population, seconds)]


if __name__ == "__main__":
    print_rows(rows())
