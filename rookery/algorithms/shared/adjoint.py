"""The adjoint v with  g_yy v = f_y,  and the hypergradient that follows from it."""

import abc
from dataclasses import KW_ONLY

import jax

from rookery.algorithms.shared import levels
from rookery.algorithms.shared.context import Context
from rookery.algorithms.shared.levels import TwoLevel
from rookery.algorithms.shared.system import GlobalSystem, LocalSystem, OneSampleSystem
from rookery.algorithms.shared.two_level import AbstractHypergradient, State
from rookery.problem.composition import Composition
from rookery.problem.minimax import Minimax
from rookery.program.federation import Client, Placed
from rookery.types import BatchSize, Key, Tree


class AbstractAdjoint(AbstractHypergradient):
    """An estimator of the adjoint of all clients together, one vector at the server.

    Args:
        fresh: whether every product has a fresh cohort and fresh samples, as in the papers. If not,
            one cohort with one sample of each client serves all products of a call. A compiled
            program then computes what they share once, and the point is sent to fewer clients; the
            numbers of exchanges and of products stay. v then solves the system of that sample. Its
            mean is not the v of all clients, because the inverse of a mean is not the mean of
            inverses; the difference shrinks with the rows of the sample. With all clients and full
            batches both are equal.
    """

    _: KW_ONLY
    fresh: bool = True

    def __check_init__(self):
        if not isinstance(self.fresh, bool):
            raise TypeError(
                f"{type(self).__name__}.fresh must be True or False, got {self.fresh!r}."
            )

    @abc.abstractmethod
    def solve(
        self, system: GlobalSystem | OneSampleSystem, L: jax.Array, key: Key
    ) -> tuple[Tree, jax.Array]:
        """The estimate v in a bilevel problem, and L."""

    def estimate(self, context: Context, state: State, key: Key) -> tuple[Tree, jax.Array]:
        """The adjoint v at (x, y), and L.

        A composition costs one exchange and a minimax problem none, whatever the estimator.
        """
        x, y, L = state.x, state.y, state.lipschitz
        if isinstance(context.problem, Minimax):
            return None, L
        system = GlobalSystem(context, context.fed.cache((x, y)))
        if isinstance(context.problem, Composition):
            return system.right_side(key), L
        if self.fresh:
            return self.solve(system, L, key)
        draw_key, key = jax.random.split(key)
        return self.solve(system.on_one_sample(draw_key), L, key)

    def estimate_from(
        self, context: Context, state: State, key: Key
    ) -> tuple[Tree, jax.Array, Tree]:
        """The adjoint v, L, and what the estimator remembers, which most do not."""
        return *self.estimate(context, state, key), state.opts.adjoint

    def __call__(self, context, state, key):
        """The hypergradient at the adjoint: one exchange more than the adjoint itself."""
        return self.from_memory(context, state, key)[:2]

    def from_memory(self, context, state, key):
        """The same, and what the estimator remembers."""
        who, adjoint_key, piece_key = jax.random.split(key, 3)
        v, L, memory = self.estimate_from(context, state, adjoint_key)
        cohort = context.sample(who)
        x, y, v = context.fed.broadcast(cohort, state.x, state.y, v)  # ------ down  x, y, v
        return mean_hypergradient(context, x, y, v, piece_key), L, memory  # - up    h

    def check(self, problem, n_clients):
        """Always fits."""


def mean_hypergradient(context: Context, x: Placed, y: Placed, v: Placed, key: Key) -> Tree:
    """The mean h of the pieces of a cohort that holds x, y and v."""
    h_i = context.map(hypergradient_piece, x, y, v, key=key)
    with context.fed.outer():
        return context.fed.mean(h_i)  # -------------------------------------- up    h


def hypergradient_piece(
    client: Client, x: Tree, y: Tree, v: Tree, *, problem: TwoLevel, batch_size: BatchSize
) -> Tree:
    """h_i = f_x(x, y; ξ) - g_xy(x, y; ζ) v, or what stands for it."""
    return own_piece(LocalSystem(client, problem, x, y, batch_size), v, client.key)


def own_piece(at: LocalSystem, v: Tree, key: Key) -> Tree:
    """The client's h_i, its two parts on samples of their own."""
    outer_key, inner_key = jax.random.split(key)
    outer_sample, inner_sample = at.outer_sample(outer_key), at.inner_sample(inner_key)
    return levels.hypergradient_piece(at.problem, at.x, at.y, v, outer_sample, inner_sample)
