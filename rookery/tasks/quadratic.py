"""The quadratic bilevel problem whose solution is known exactly.

    min over x of  mean  1/2 (y - d_i)' Q_i (y - d_i) + r_i' x + 1/2 |x|^2 + x' E_i y
    where y*(x) = argmin over y of  mean  1/2 y' H_i y - y' (B_i x + c_i)

See :mod:`rookery.problem.zoo.quadratic`.
"""

import numpy as np
from numpy.typing import DTypeLike

from rookery.clients.population import Population
from rookery.problem.zoo import quadratic_bilevel
from rookery.runner.metrics import OfSolution
from rookery.tasks.distance import Distance, GradientNorm
from rookery.tasks.task import Task


def quadratic(
    *,
    n_clients: int = 5,
    x_size: int = 3,
    y_size: int = 4,
    heterogeneity: float = 1.0,
    condition: float = 4.0,
    rows: int = 1,
    noise: float = 0.0,
    cross: float = 0.2,
    seed: int = 0,
    dtype: DTypeLike = np.float64,
) -> Task:
    """Find the solution of a random quadratic bilevel problem; the start is zero.

    Args:
        n_clients: how many clients.
        x_size: length of x.
        y_size: length of y.
        heterogeneity: 0 makes all clients equal, 1 makes them as different as they are large.
        condition: largest over smallest eigenvalue of every client's inner Hessian.
        rows: rows per client.
        noise: standard deviation of the rows around their client's matrices.
        cross: size of the coupling x' E y in the outer loss.
        seed: of the random numbers in the problem.
        dtype: of the arrays.
    """
    zoo = quadratic_bilevel(
        n_clients=n_clients, x_size=x_size, y_size=y_size, heterogeneity=heterogeneity,
        condition=condition, rows=rows, noise=noise, cross=cross, seed=seed, dtype=dtype,
    )  # fmt: skip
    return Task(
        problem=zoo.problem,
        population=Population.stacked(zoo.data),
        start=lambda seed: zoo.start,
        evaluate=(
            OfSolution(Distance(("x", "y"), zoo.solution())),
            OfSolution(GradientNorm(*zoo.affine_hypergradient())),
        ),
    )
