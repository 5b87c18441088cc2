"""The quadratic saddle problem whose solution is known exactly.

    min over x of  max over y of  mean  -[ 1/2 y' D_i y - b_i' y + y' A_i x ] + 1/2 x' R_i x

See :mod:`rookery.problem.zoo.saddle`.
"""

import numpy as np
from numpy.typing import DTypeLike

from rookery.clients.population import Population
from rookery.problem.zoo import curved_saddle
from rookery.run.evaluate import OfSolution
from rookery.tasks.distance import Distance
from rookery.tasks.task import Task


def saddle(
    *,
    n_clients: int = 5,
    x_size: int = 4,
    y_size: int = 4,
    scale: float = 1.0,
    ridge: float = 1.0,
    curvature: float = 0.0,
    heterogeneity: float = 1.0,
    rows: int = 1,
    noise: float = 0.0,
    seed: int = 0,
    dtype: DTypeLike = np.float64,
) -> Task:
    """Find the saddle point of a random quadratic; the start is ten in every coordinate.

    Args:
        n_clients: how many clients.
        x_size: length of x.
        y_size: length of y.
        scale: standard deviation of b_i.
        ridge: least curvature in x; the least curvature in y is 1.
        curvature: size of the curvature beyond the least, in which clients differ.
        heterogeneity: 0 makes all clients equal, 1 draws them independently.
        rows: rows per client; they average to the client's matrices.
        noise: standard deviation of the rows around their client's A_i and b_i.
        seed: of the random numbers in the problem.
        dtype: of the arrays.
    """
    zoo = curved_saddle(
        n_clients=n_clients, x_size=x_size, y_size=y_size, scale=scale, ridge=ridge,
        curvature=curvature, heterogeneity=heterogeneity, rows=rows, noise=noise, seed=seed,
        dtype=dtype,
    )  # fmt: skip
    return Task(
        problem=zoo.problem,
        population=Population.stacked(zoo.data),
        start=lambda seed: zoo.start,
        evaluate=(OfSolution(Distance(("x", "y"), zoo.solution())),),
    )
