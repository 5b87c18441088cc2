"""Mean-semideviation: a mean loss plus its upward deviation, three nested levels.

    min over x of  E U + weight sqrt( E max(0, U - E U)^2 + delta ),   U = (b - (a'x)^2)^2

a and b are the clients' measurements of a vector. As in FedMSA (arXiv:2306.01648); see
:mod:`rookery.problem.zoo.semideviation`.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from rookery.clients.population import Population
from rookery.problem import zoo
from rookery.runner.metrics import OfSolution
from rookery.tasks.distance import distance
from rookery.tasks.task import Task


def mean_semideviation(
    *,
    n_clients: int = 2,
    rows: int = 500,
    size: int = 10,
    weight: float = 0.1,
    delta: float = 0.1,
    label_noise: float = 0.001,
    heterogeneity: float = 1.0,
    seed: int = 0,
    dtype: DTypeLike = np.float64,
) -> Task:
    """Recover a vector from squared measurements; the start is 0.1 in every coordinate.

    Args:
        n_clients: how many clients.
        rows: measurements per client.
        size: length of x.
        weight: of the semideviation against the mean.
        delta: keeps the square root smooth.
        label_noise: standard deviation of the noise on the measured squares.
        heterogeneity: from 0, all clients with the same rows, to 1, rows drawn independently.
        seed: of the random numbers in the problem.
        dtype: of the arrays.
    """
    member = zoo.mean_semideviation(
        n_clients=n_clients, rows=rows, size=size, weight=weight, delta=delta,
        label_noise=label_noise, heterogeneity=heterogeneity, seed=seed, dtype=dtype,
    )  # fmt: skip
    (x,) = member.solution()
    return Task(
        problem=member.problem,
        population=Population.stacked(member.data),
        start=lambda seed: member.start,
        evaluate=(OfSolution(DistanceUpToSign(x)),),
    )


class DistanceUpToSign(eqx.Module):
    """The distance of x to the nearer of the two solutions, of which one is minus the other."""

    solution: np.ndarray | jax.Array

    def __call__(self, x: jax.Array) -> dict[str, jax.Array]:
        """``distance_x``."""
        exact = jnp.asarray(self.solution)
        return {"distance_x": jnp.minimum(distance(x, exact), distance(x, -exact))}
