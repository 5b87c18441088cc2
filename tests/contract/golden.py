"""Digests of a short run of every contract instance on the compiled engine.

A refactoring must not change a number. Record before it, check after it:

    python tests/contract/golden.py            # writes golden.json
    python tests/contract/golden.py --add      # records only instances that are new
    python tests/contract/golden.py --check    # exits with 1 and names what differs

An entry has a digest of the bits of the solution after every round, the ledger of every round, and
the last solution itself. Bits may differ between processors and versions of JAX, so
``test_golden.py`` compares the ledger exactly and the last solution to 1e-10.
"""

import argparse
import hashlib
import json
import os
from pathlib import Path

os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)
import jax
import numpy as np

FILE = Path(__file__).with_name("golden.json")
ROUNDS = 4


def main():
    """Record, or compare with what was recorded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--add", action="store_true", help="record new instances, keep the others")
    parser.add_argument("--only", default="", help="names that contain this")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    from instances import INSTANCES

    names = [(n, w) for n, some in INSTANCES.items() for w in some if arguments.only in f"{n}: {w}"]
    if not arguments.check:
        golden = json.loads(FILE.read_text()) if arguments.add else {}
        for name, which in names:
            if f"{name}: {which}" in golden:
                continue
            golden[f"{name}: {which}"] = golden_run(*INSTANCES[name][which])
            print(f"{name}: {which}", flush=True)
        FILE.write_text(json.dumps(golden, indent=1) + "\n")
        return
    golden = json.loads(FILE.read_text())
    if not arguments.only and set(golden) != {f"{n}: {w}" for n, w in names}:
        print("instances differ:", set(golden) ^ {f"{n}: {w}" for n, w in names})
        raise SystemExit(1)
    differ = 0
    for name, which in names:
        want, got = golden[f"{name}: {which}"], golden_run(*INSTANCES[name][which])
        wrong = [key for key in want if repr(want[key]) != repr(got[key])]
        differ += bool(wrong)
        print(f"{name}: {which}:", f"DIFFERS in {', '.join(wrong)}" if wrong else "equal")
    print(f"{len(names) - differ} equal, {differ} differ")
    raise SystemExit(differ > 0)


def golden_run(zoo, algorithm) -> dict:
    """The digest, the ledgers and the last solution of a few rounds."""
    runner, state = prepared(zoo, algorithm)
    digest, ledgers, leaves = hashlib.sha256(), [], []
    for round in range(ROUNDS):
        (progress,) = runner.advance([state], [jax.random.key(7)], round, [1])
        state = progress.state
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(algorithm.solution(state))]
        for leaf in leaves:
            digest.update(f"{leaf.dtype}{leaf.shape}".encode() + leaf.tobytes())
        ledgers += [[float(number).hex() for number in progress.ledgers[0].values()]]
    return {
        "trajectory": digest.hexdigest(),
        "ledgers": ledgers,
        "solution": [leaf.astype(float).ravel().tolist() for leaf in leaves],
    }


def prepared(zoo, algorithm):
    """What advances the instance by a round, with delays, and its state before round 0."""
    import rookery as rk
    from rookery.engines.engine import Program
    from rookery.program.algorithm import first_state

    population = rk.Population.stacked(zoo.data)
    clock = rk.delays.Clock(
        rk.delays.LogNormalDelay(0.1), bandwidth=1e4, seed=3, outer_delay=rk.delays.ParetoDelay(0.2)
    )
    program = Program(zoo.problem, population, clock, rk.aggregate.Mean())
    runner = rk.Compiled(rounds_per_call=1).prepare(program, [algorithm])
    return runner, first_state(algorithm, zoo.problem, population.n_clients, zoo.start)


if __name__ == "__main__":
    main()
