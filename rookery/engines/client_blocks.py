"""The rows of a population, divided among devices by client."""

from dataclasses import replace

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from rookery.clients.population import Population
from rookery.engines.spread import CLIENTS


def block_size(n_clients: int, n_devices: int) -> int:
    """How many clients a device has; the last may have fewer.

    >>> block_size(n_clients=10, n_devices=4)
    3
    """
    return -(-n_clients // n_devices)


def divided(population: Population, mesh: jax.sharding.Mesh) -> Population:
    """The population with the rows of equally many clients on each device along CLIENTS.

    Offsets count from the beginning of the rows that the client's own device has. All devices have
    arrays of equal length: the shorter ones end in zeros, which no client's offsets reach.
    """
    n_devices = mesh.shape[CLIENTS]
    block = block_size(population.n_clients, n_devices)
    offsets, counts = np.asarray(population.offsets), np.asarray(population.counts)
    spans = [_span(offsets, counts, slice(d * block, (d + 1) * block)) for d in range(n_devices)]
    longest = max(1, *(end - begin for begin, end in spans))
    relative = np.zeros_like(offsets)
    for d, (begin, _) in enumerate(spans):
        own = slice(d * block, (d + 1) * block)
        relative[:, own] = np.where(counts[:, own] > 0, offsets[:, own] - begin, 0)

    def divide(rows):
        sharding = NamedSharding(mesh, PartitionSpec(CLIENTS))
        dtype = jax.dtypes.canonicalize_dtype(rows.dtype)

        def piece(index):
            begin, end = spans[(index[0].start or 0) // longest]
            own = np.zeros((longest, *rows.shape[1:]), dtype)
            own[: end - begin] = rows[begin:end]
            return own

        shape = (n_devices * longest, *rows.shape[1:])
        return jax.make_array_from_callback(shape, sharding, piece)

    return replace(population, data=jax.tree.map(divide, population.data), offsets=relative)


def _span(offsets: np.ndarray, counts: np.ndarray, clients: slice) -> tuple[int, int]:
    """The first row of some clients and the one after the last; they are sorted by client."""
    begin, n = offsets[:, clients], counts[:, clients]
    if not n.any():
        return 0, 0
    return int(begin[n > 0].min()), int((begin + n).max())
