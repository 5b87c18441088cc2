"""A run on a Ray cluster of its own that the tests kill and begin again, or on one by address."""

import sys

import jax.numpy as jnp

import rookery as rk


def size(w):
    """Norm of the model."""
    return {"size": jnp.linalg.norm(w)}


def settings(directory):
    """What is run."""
    zoo = rk.zoo.quadratic_losses(n_clients=4, size=2, rows=3, noise=0.3)
    return {
        "algorithm": rk.Scaffold(lr=0.1, local_steps=2, clients=3, batch_size=2),
        "problem": zoo.problem,
        "population": rk.Population.stacked(zoo.data),
        "start": zoo.start,
        "rounds": 30,
        "evaluate": [rk.metrics.OfSolution(size)],
        "evaluate_every": 1,
        "checkpoint_every": 2,
        "directory": directory,
    }


if __name__ == "__main__":
    import jax

    from rookery.remote import Policy, Remote
    from rookery.remote.transports.ray.transport import Ray

    jax.config.update("jax_enable_x64", True)
    directory, *address = sys.argv[1:]
    if address:
        transport = Ray(address=address[0], cpus_per_actor=0.1)
    else:
        transport = Ray(clients_per_actor=2, object_store_memory=100_000_000)
    rk.run(**settings(directory), engine=Remote(transport, Policy(wait_for=200.0)))
