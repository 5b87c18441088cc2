"""A bilevel problem whose solution is known exactly: watch FedNest find it."""

import jax
import jax.numpy as jnp
from rich.console import Console

import rookery as rk

jax.config.update("jax_enable_x64", True)

zoo = rk.zoo.quadratic_bilevel(n_clients=8)
x_star, y_star = zoo.solution()


def distance(x, y):
    """How far x is from the solution."""
    return {"distance": jnp.linalg.norm(x - x_star)}


algorithm = rk.FedNest(
    outer_lr=0.1, inner_lr=0.2, inner_steps=3, ihgp=rk.parts.FedIHGPSum(terms=40, lipschitz=4.0)
)
result = rk.run(
    algorithm,
    zoo.problem,
    rk.Population.stacked(zoo.data),
    zoo.start,
    rounds=300,
    evaluate=[rk.metrics.OfSolution(distance)],
    evaluate_every=50,
    console=Console(),
)
for row in result.history:
    print(f"round {row['round']:>3}: {row['exchanges']:>6} exchanges, {row['distance']:.2e} away")
