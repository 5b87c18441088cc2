"""Quadratic saddle problems whose solutions are known exactly.

    min over x of  max over y of  mean  -[ 1/2 y' D_i y - b_i' y + y' A_i x ] + 1/2 x' R_i x

See :mod:`rookery.problem.zoo.saddle`.
"""

import numpy as np
from numpy.typing import DTypeLike

from rookery.clients.population import Population
from rookery.problem import zoo
from rookery.runner.metrics import OfSolution
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
    instance = zoo.curved_saddle(
        n_clients=n_clients, x_size=x_size, y_size=y_size, scale=scale, ridge=ridge,
        curvature=curvature, heterogeneity=heterogeneity, rows=rows, noise=noise, seed=seed,
        dtype=dtype,
    )  # fmt: skip
    return _task(instance)


def fednest_saddle(
    *,
    n_clients: int = 1000,
    size: int = 10,
    scale: float = 1.0,
    ridge: float = 10.0,
    coupling: float = 0.1,
    seed: int = 0,
    dtype: DTypeLike = np.float64,
) -> Task:
    """Find the saddle point of FedNest's own instance, zero; the start is ten in every coordinate.

    Here R_i is the ridge times the identity, D_i the identity and A_i = t_i I: clients differ in
    t_i and b_i and share their curvature.

    Args:
        n_clients: how many clients.
        size: length of x and of y.
        scale: standard deviation of the b_i before their mean is taken off.
        ridge: curvature in x.
        coupling: t_i is uniform between 0 and this.
        seed: of the random numbers in the problem.
        dtype: of the arrays.
    """
    return _task(
        zoo.fednest_saddle(
            n_clients=n_clients, size=size, scale=scale, ridge=ridge, coupling=coupling, seed=seed,
            dtype=dtype,
        )
    )  # fmt: skip


def _task(instance: zoo.QuadraticSaddle) -> Task:
    return Task(
        problem=instance.problem,
        population=Population.stacked(instance.data),
        start=lambda seed: instance.start,
        evaluate=(OfSolution(Distance(("x", "y"), instance.solution())),),
    )
