"""Algorithms without any setting on random quadratic bilevel problems, all of them in one program.

    python experiments/untuned/quadratics.py [FedNest FedMBO FedMSA ...]

The inner Hessians have condition numbers from 1 to 1e4 (evenly spaced eigenvalues in every second
problem, geometrically spaced ones in the others), the inner loss, the outer loss and the variables
have scales from 1e-3 to 1e3 each, and clients are equal, half equal or independent. Printed is
after how many rounds all problems are solved to a relative error of 1e-8 in x.
"""

import sys
import time
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import rookery as rk
from rookery import algorithms
from rookery.engines.engine import Program
from rookery.engines.rounds import one_round
from rookery.program.algorithm import first_state, numbers_to_arrays

OPTIMISED = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}
"""XLA's defaults, also where its flags ask for quick compiling: these programs run for minutes."""


def quadratics(n: int = 50, seed: int = 0) -> list[rk.zoo.QuadraticBilevel]:
    """Random problems as described above, of five clients with x of 3 and y of 4 numbers."""
    rng = np.random.default_rng(seed)
    return [_quadratic(rng, is_even=bool(i % 2)) for i in range(n)]


def _quadratic(rng: np.random.Generator, is_even: bool) -> rk.zoo.QuadraticBilevel:
    condition = 10 ** rng.uniform(0, 4)
    inner, outer, size = 10 ** rng.uniform(-3, 3, 3)
    own = rng.choice([0.0, 0.5, 1.0])
    values = (np.linspace if is_even else np.geomspace)(1, condition, 4)

    def spd(values):
        basis = np.linalg.qr(rng.normal(size=(6, 4, 4)))[0]
        return np.einsum("nij,j,nkj->nik", basis, values, basis)

    def clients(draws):  # the first is common to all
        return (draws[:1] + own * (draws[1:] - draws[:1]))[:, None]

    def vector(*shape):
        return clients(rng.normal(size=(6, *shape)))

    return rk.zoo.QuadraticBilevel(
        H=inner * clients(spd(values)),
        B=inner * vector(4, 3),
        c=inner * size * vector(4),
        Q=outer * clients(spd(np.linspace(0.5, 1.5, 4))),
        d=size * vector(4),
        r=outer * size * vector(3),
        E=outer * 0.2 * vector(3, 4),
        m0=outer,
    )


def errors(
    algorithm: rk.AbstractAlgorithm,
    zoos: list[rk.zoo.QuadraticBilevel],
    rounds: int,
    every: int = 2000,
    goal: float = 1e-8,
) -> tuple[int, np.ndarray]:
    """Rounds done until all are solved, or all rounds, and the relative errors in x then."""
    algorithm = numbers_to_arrays(algorithm)
    populations = [rk.Population.stacked(zoo.data) for zoo in zoos]
    programs = [
        Program(zoo.problem, population, rk.delays.Clock(), rk.aggregate.Mean())
        for zoo, population in zip(zoos, populations, strict=True)
    ]
    states = [first_state(algorithm, zoo.problem, 5, zoo.start) for zoo in zoos]
    solutions = np.stack([zoo.solution()[0] for zoo in zoos])
    is_array = [eqx.partition(numbers_to_arrays(program), eqx.is_array) for program in programs]
    arrays = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(some for some, _ in is_array))
    rest = is_array[0][1]

    @partial(jax.jit, compiler_options=OPTIMISED)
    @jax.vmap
    def some_rounds(arrays, state, first):
        program = eqx.combine(arrays, rest)

        def body(i, state):
            return one_round(program, algorithm, None, state, jax.random.key(0), first + i)[0]

        return jax.lax.fori_loop(0, every, body, state)

    state = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    done, error = 0, np.full(len(zoos), np.inf)
    while done < rounds and not np.all(error < goal):
        state = some_rounds(arrays, state, jnp.full(len(zoos), done))
        done += every
        x = jax.vmap(lambda s: algorithm.solution(s)[0])(state)
        error = np.linalg.norm(x - solutions, axis=1) / np.linalg.norm(solutions, axis=1)
    return done, error


def main():
    """Print a row for each algorithm."""
    jax.config.update("jax_enable_x64", True)
    zoos = quadratics()
    for name in sys.argv[1:] or ["FedNest", "FedMBO", "FedMSA", "SOBA"]:
        begin = time.process_time()
        algorithm = getattr(algorithms, name)()
        done, error = errors(algorithm, zoos, rounds=700_000, every=10_000)
        solved, spent = np.sum(error < 1e-8), time.process_time() - begin
        print(
            f"{name:10} {solved}/{len(zoos)} solved after {done} rounds, {spent:.0f} s", flush=True
        )


if __name__ == "__main__":
    main()
