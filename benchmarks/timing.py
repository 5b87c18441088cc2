"""How the benchmarks measure."""

import time

import jax


def cpu_seconds(fn, repeats: int) -> float:
    """Least CPU time of a call, after one call to warm up."""
    jax.block_until_ready(fn())
    times = []
    for _ in range(repeats):
        began = time.process_time()
        jax.block_until_ready(fn())
        times.append(time.process_time() - began)
    return min(times)
