"""Do two processes, as two machines would, compute the same numbers as one?

The program starts itself twice. On real machines you start it once on each, with the address of the
first machine and the number of the process; docs/devices.md has the details.
"""

import socket
import subprocess
import sys

import jax
import matplotlib.pyplot as plt
import numpy as np

import rookery as rk

PROCESSES, DEVICES_EACH = 2, 2


def solve(engine):
    """FedNest on 6 clients, of which 3 take part in an exchange."""
    zoo = rk.zoo.quadratic_bilevel(n_clients=6, rows=5, noise=0.3)
    algorithm = rk.FedNest(outer_lr=0.05, inner_lr=0.1, clients=3, batch_size=2)
    population = rk.Population.stacked(zoo.data)
    result = rk.run(algorithm, zoo.problem, population, zoo.start, rounds=20, engine=engine)
    return np.asarray(result.solution[0])


def one_of_several(address, number):
    """What each process does: meet the others, then run as usual on everybody's devices."""
    jax.config.update("jax_num_cpu_devices", DEVICES_EACH)
    jax.distributed.initialize(address, PROCESSES, number, initialization_timeout=60)
    x = solve(rk.Compiled(devices=jax.device_count()))
    if number == 0:  # all have the same numbers; one of them speaks
        print(" ".join(value.hex() for value in x.tolist()))


def all_together():
    """Start the processes on this machine, and return what the first of them computed."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, __file__, address]
    processes = [
        subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE, text=True)
        for number in range(PROCESSES)
    ]
    try:
        outputs = [process.communicate(timeout=500)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    last = outputs[0].splitlines()[-1]  # after lines of the library that connects the processes
    return np.array([float.fromhex(word) for word in last.split()])


if __name__ == "__main__":
    if len(sys.argv) == 3:
        one_of_several(sys.argv[1], int(sys.argv[2]))
    else:
        together, alone = all_together(), solve(rk.Compiled())
        apart = np.abs(together - alone).max() / np.abs(alone).max()
        print(f"x = {np.round(together, 4)}, computed by {PROCESSES} processes")
        print(f"largest difference from one process: {apart:.0e}")
        plt.plot(alone, "o", label="one process")
        plt.plot(together, "x", label=f"{PROCESSES} processes")
        plt.legend()
        plt.savefig("two_processes.png")

# %%
# What was learnt: yes, up to rounding. Every process has all devices of all processes, and calls
# run with the same arguments.
