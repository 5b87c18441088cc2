"""The adjoint v with  g_yy v = f_y,  and the hypergradient that follows from it."""

import abc

import jax

from rookery.algorithms.shared import levels
from rookery.algorithms.shared.interface import AbstractHypergradient, Sampling
from rookery.algorithms.shared.levels import TwoLevel
from rookery.algorithms.shared.system import GlobalSystem
from rookery.problem.composition import Composition
from rookery.problem.minimax import Minimax
from rookery.program.federation import AbstractFederation, Client, Placed
from rookery.types import Key, Tree


class AbstractAdjoint(AbstractHypergradient):
    """An estimator of the adjoint of all clients together, one vector at the server."""

    @abc.abstractmethod
    def solve(self, system: GlobalSystem, L: jax.Array, key: Key) -> tuple[Tree, jax.Array]:
        """The estimate v in a bilevel problem, and L."""

    def estimate(
        self,
        fed: AbstractFederation,
        problem: TwoLevel,
        sampling: Sampling,
        x: Tree,
        y: Tree,
        L: jax.Array,
        key: Key,
    ) -> tuple[Tree, jax.Array]:
        """The adjoint v at (x, y), and L.

        A composition costs one exchange and a minimax problem none, whatever the estimator.
        """
        if isinstance(problem, Minimax):
            return None, L
        system = GlobalSystem(fed, problem, sampling, fed.cache((x, y)))
        if isinstance(problem, Composition):
            return system.right_side(key), L
        return self.solve(system, L, key)

    def __call__(self, fed, problem, sampling, x, y, L, key):
        """The hypergradient at the adjoint: one exchange more than the adjoint itself."""
        who, adjoint_key, piece_key = jax.random.split(key, 3)
        v, L = self.estimate(fed, problem, sampling, x, y, L, adjoint_key)
        cohort = fed.sample(sampling.clients, who)
        x, y, v = fed.broadcast(cohort, x, y, v)  # -------------------------- down  x, y, v
        h = mean_hypergradient(fed, problem, sampling, x, y, v, piece_key)  #  up    h
        return h, L

    def check(self, problem, n_clients):
        """Always fits."""


def mean_hypergradient(
    fed: AbstractFederation,
    problem: TwoLevel,
    sampling: Sampling,
    x: Placed,
    y: Placed,
    v: Placed,
    key: Key,
) -> Tree:
    """The mean h of the pieces of a cohort that holds x, y and v."""
    settings = {"problem": problem, "batch_size": sampling.batch_size}
    h_i = fed.map(hypergradient_piece, x, y, v, key=key, **settings)
    with fed.outer():
        return fed.mean(h_i)  # ---------------------------------------------- up    h


def hypergradient_piece(
    client: Client, x: Tree, y: Tree, v: Tree, *, problem: TwoLevel, batch_size: int | None
) -> Tree:
    """h_i = f_x(x, y; ξ) - g_xy(x, y; ζ) v, or what stands for it."""
    return own_piece(client, problem, x, y, v, batch_size, client.key)


def own_piece(
    client: Client, problem: TwoLevel, x: Tree, y: Tree, v: Tree, batch_size: int | None, key: Key
) -> Tree:
    """The client's h_i, its two parts on samples of their own."""
    outer_key, inner_key = jax.random.split(key)
    outer_sample = client.draw(levels.outer_split(problem), batch_size, outer_key)
    inner_sample = client.draw(levels.inner_split(problem), batch_size, inner_key)
    return levels.hypergradient_piece(problem, x, y, v, outer_sample, inner_sample)
