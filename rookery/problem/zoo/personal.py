"""A quadratic bilevel problem whose clients have inner variables of their own, with its solution.

The losses of client i are those of :mod:`rookery.problem.zoo.quadratic`; each client minimises its
own inner loss, so that  y_i*(x) = H_i^{-1} (B_i x + c_i),  and the hypergradient is the mean of the
clients' own.
"""

from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float

from rookery.problem.bilevel import PersonalBilevel
from rookery.problem.zoo.quadratic import QuadraticBilevel, quadratic_bilevel
from rookery.signature import expands


class PersonalQuadratic(eqx.Module):
    """The losses of a :class:`QuadraticBilevel`, each client with its own inner problem.

    >>> zoo = personal_quadratic(n_clients=3)
    >>> x, y = zoo.solution()
    >>> bool(abs(zoo.hypergradient(x)).max() < 1e-12)
    True
    >>> zoo.inner_solutions(x).shape  # a row for each client
    (3, 4)
    """

    losses: QuadraticBilevel

    @property
    def problem(self) -> PersonalBilevel:
        """The losses, both averaged over the same rows."""
        of = self.losses.problem
        return PersonalBilevel(of.outer, of.inner, outer_split="train", inner_split="train")

    @property
    def data(self) -> dict[str, np.ndarray]:
        """Per field, an array [clients, rows, ...]."""
        return self.losses.data

    @property
    def start(self) -> tuple[np.ndarray, np.ndarray]:
        """Zeros for x and for every client's y."""
        return self.losses.start

    def clients(self) -> list[QuadraticBilevel]:
        """Every client as a problem of its own."""
        return [
            QuadraticBilevel(
                **{name: a[i : i + 1] for name, a in self.data.items()}, m0=self.losses.m0
            )
            for i in range(len(self.losses.H))
        ]

    def inner_solutions(self, x: Float[np.ndarray, " x"]) -> Float[np.ndarray, "clients y"]:
        """The inner solutions y_i*(x)."""
        return np.stack([client.inner_solution(x) for client in self.clients()])

    def adjoints(self, x: Float[np.ndarray, " x"]) -> Float[np.ndarray, "clients y"]:
        """The vectors v_i with  H_i v_i = outer_y  of client i at y_i*(x)."""
        return np.stack([one.adjoint(x, one.inner_solution(x)) for one in self.clients()])

    def hypergradient(self, x: Float[np.ndarray, " x"]) -> Float[np.ndarray, " x"]:
        """The exact gradient of the mean outer loss at the clients' own y_i*(x)."""
        return np.mean([client.hypergradient(x) for client in self.clients()], axis=0)

    def affine_hypergradient(self) -> tuple[Float[np.ndarray, "x x"], Float[np.ndarray, " x"]]:
        """The matrix A and the vector b of the hypergradient, which is A x + b."""
        slopes, zeros = zip(*(one.affine_hypergradient() for one in self.clients()), strict=True)
        return np.mean(slopes, axis=0), np.mean(zeros, axis=0)

    def solution(self) -> tuple[Float[np.ndarray, " x"], Float[np.ndarray, " y"]]:
        """x*, where the hypergradient is zero, and the mean of the y_i*(x*)."""
        slope, zero = self.affine_hypergradient()
        x = np.linalg.solve(slope, -zero)
        return x, self.inner_solutions(x).mean(axis=0)


@expands(quadratic_bilevel)
def personal_quadratic(
    **settings: Any,  # those of quadratic_bilevel
) -> PersonalQuadratic:
    """A random instance, with the arguments of :func:`quadratic_bilevel`.

    >>> personal_quadratic(n_clients=3, seed=1).data["H"].shape
    (3, 1, 4, 4)
    """
    return PersonalQuadratic(quadratic_bilevel(**settings))
