"""A run of some seconds that the tests stop at a random moment."""

import sys

import jax.numpy as jnp

import rookery as rk


def size(x, y):
    """Norm of x."""
    return {"size": jnp.linalg.norm(x)}


if __name__ == "__main__":
    zoo = rk.zoo.quadratic_bilevel(n_clients=8, x_size=40, y_size=60, rows=5, noise=0.1)
    algorithm = rk.FedNest(
        outer_lr=0.01,
        inner_lr=0.05,
        inner_steps=100,
        ihgp=rk.parts.FedIHGP(terms=30, lipschitz=5.0),
        clients=4,
        batch_size=2,
    )
    rk.run(
        algorithm,
        zoo.problem,
        rk.Population.stacked(zoo.data),
        zoo.start,
        rounds=100,
        evaluate=[rk.metrics.OfSolution(size)],
        evaluate_every=10,
        checkpoint_every=20,
        stop=rk.stop.Plateau("size", patience=1, goal="max"),
        keep="best:size:max",
        directory=sys.argv[1],
    )
