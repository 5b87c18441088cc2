"""One of two processes that compute together: ``python two_processes.py ADDRESS NUMBER WHAT OUT``.

It writes the states of its runs and their ledgers, so that a test can compare them.
"""

import sys
from typing import Any

import jax
import numpy as np

import rookery as rk

LOSSES = rk.zoo.quadratic_losses(n_clients=5, size=2, rows=3, noise=0.3)


def runs():
    """Two step sizes of an algorithm that keeps memory on clients."""
    return [
        rk.Run(rk.Scaffold(lr=lr, local_steps=2, clients=3, batch_size=2), LOSSES.start, seed=3)
        for lr in (0.05, 0.1)
    ]


def states(engine, rounds, some):
    """The leaves of the last states, and the ledgers."""
    population = rk.Population.stacked(LOSSES.data)
    results = rk.sweep(some, LOSSES.problem, population, rounds=rounds, engine=engine)
    leaves = [np.asarray(leaf) for one in results for leaf in jax.tree.leaves(one.state)]
    return leaves, [one.ledger.values() for one in results]


def main():
    """Compute, and write what came out."""
    address, number, what, out = sys.argv[1:]
    jax.config.update("jax_num_cpu_devices", 2)
    jax.config.update("jax_enable_x64", True)
    jax.distributed.initialize(address, 2, int(number), initialization_timeout=60)
    if what == "different rounds":
        try:
            states(rk.Compiled(devices=4), 3 + int(number), runs()[:1])
        except ValueError as error:
            print(error, flush=True)
        return
    n = {"run": 1, "sweep": 2}[what]
    for data in ("replicated", "by client"):
        leaves, ledgers = states(rk.Compiled(devices=4, data=data), 3, runs()[:n])
        named: dict[str, Any] = {str(i): leaf for i, leaf in enumerate(leaves)}
        np.savez(f"{out}-{number}-{data}.npz", ledgers=np.array(ledgers), **named)


if __name__ == "__main__":
    main()
