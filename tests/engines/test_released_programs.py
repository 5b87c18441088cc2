"""Programs that are not needed any more are released, with their memory maps."""

import subprocess
import sys
from pathlib import Path

import pytest

MAPS = Path("/proc/self/maps")
# in a process of its own: programs of other tests may be released at any time
PROGRAM = """
import gc, sys
from pathlib import Path
import rookery as rk
from rookery.engines import program_store

zoo = rk.zoo.quadratic_losses(n_clients=2, size=2)
program_store.MOST_LOADED = int(sys.argv[2])
for steps in range(1, int(sys.argv[1]) + 1):  # each needs a program of its own
    algorithm = rk.FedAvg(lr=0.1, local_steps=steps)
    rk.run(algorithm, zoo.problem, rk.Population.stacked(zoo.data), zoo.start, rounds=1)
    gc.collect()
    print(Path("/proc/self/maps").read_bytes().count(b"\\n"))
"""


def maps(structures, most_loaded=16):
    """The number of memory maps after each of some runs."""
    command = [sys.executable, "-c", PROGRAM, str(structures), str(most_loaded)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [int(line) for line in done.stdout.split()]


@pytest.mark.slow
@pytest.mark.skipif(not MAPS.exists(), reason="Linux alone lists memory maps")
def test_a_process_holds_few_programs_at_a_time():
    counts = maps(9, most_loaded=3)
    of_one = counts[2] - counts[1]
    assert of_one > 10, "a program takes memory maps"
    assert counts[-1] - counts[3] < 2 * of_one


@pytest.mark.slow
@pytest.mark.skipif(not MAPS.exists(), reason="Linux alone lists memory maps")
def test_three_hundred_structures_stay_flat():
    counts = maps(300)
    assert counts[-1] < counts[40] + 200
