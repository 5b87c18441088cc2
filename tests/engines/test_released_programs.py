"""Programs that are not needed any more are released, with their memory maps."""

import gc
from pathlib import Path

import pytest

import rookery as rk
from rookery.engines import program_store

ZOO = rk.zoo.quadratic_losses(n_clients=2, size=2)
MAPS = Path("/proc/self/maps")


def maps():
    gc.collect()
    return MAPS.read_bytes().count(b"\n")


def structures(n):
    """The number of memory maps after each of n runs, all of which need a program of their own."""
    counts = []
    for steps in range(1, n + 1):
        algorithm = rk.FedAvg(lr=0.1, local_steps=steps)
        rk.run(algorithm, ZOO.problem, rk.Population.stacked(ZOO.data), ZOO.start, rounds=1)
        counts.append(maps())
    return counts


@pytest.mark.skipif(not MAPS.exists(), reason="Linux alone lists memory maps")
def test_a_process_holds_few_programs_at_a_time(monkeypatch):
    monkeypatch.setattr(program_store, "MOST_LOADED", 3)
    counts = structures(9)
    of_one = max(counts[2] - counts[1], 10)
    assert counts[1] - counts[0] > 10, "a program of its own takes memory maps"
    assert counts[-1] - counts[3] < 2 * of_one


@pytest.mark.slow
@pytest.mark.skipif(not MAPS.exists(), reason="Linux alone lists memory maps")
def test_three_hundred_structures_stay_flat():
    counts = structures(300)
    assert counts[-1] < counts[40] + 200
