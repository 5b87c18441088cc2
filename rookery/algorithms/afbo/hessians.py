"""Whose Hessians the hops of APHE meet, and how the clients' outer jobs follow from them.

ActiveHessians      those of the clients that have just delivered, at the newest values: what a
server can really have. A mean over some clients is not that over all.
StaleHessians       those of all clients, each at the values that it works on: the paper's
formula, which waits for everyone at every hop.
LocalHessians       every client's own, in its job: no hops, and another limit.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import tree
from rookery.algorithms.afbo.aphe import AbstractAPHE
from rookery.algorithms.shared.adjoint import own_piece
from rookery.algorithms.shared.lipschitz import (
    PowerIteration,
    largest_eigenvalue,
    own_lipschitz,
)
from rookery.algorithms.shared.system import (
    AbstractSystem,
    LocalSystem,
    hessian_vector,
    outer_gradient_y,
)
from rookery.problem.bilevel import Bilevel
from rookery.program.federation import AbstractFederation, Cached, Client, Placed
from rookery.program.memory import Memory
from rookery.program.participation import Everyone
from rookery.program.polling import InFlight, PollResult, PollRules
from rookery.types import Key, Tree


class AbstractHessians(eqx.Module):
    """How outer jobs are made and polled."""

    @abc.abstractmethod
    def jobs(self, x: Tree, y: Tree) -> InFlight:
        """Outer jobs before the first of them begins."""

    @abc.abstractmethod
    def poll(
        self,
        fed: AbstractFederation,
        problem: Bilevel,
        jobs: InFlight,
        aphe: AbstractAPHE,
        x: Tree,
        y: Tree,
        L: jax.Array,
        batch_size: int | None,
        key: Key,
        rules: PollRules,
    ) -> tuple[PollResult, jax.Array]:
        """The pieces H_i that arrive, and L."""


class ActiveHessians(AbstractHessians):
    """The clients whose outer result has just arrived answer the hops, at the newest (x, y).

    It costs U + 2 exchanges, and one more in a round that estimates L.
    """

    def jobs(self, x, y):
        """They are sent (x, y) and v."""
        return InFlight.of("outer", ((x, y), y), tree.zeros_like(x))

    def poll(self, fed, problem, jobs, aphe, x, y, L, batch_size, key, rules):
        """The chain, then the poll."""
        point = fed.cache((x, y))
        asked = AskedSystem(fed, problem, jobs.has_arrived, point, batch_size)
        return _chained(asked, point, jobs, aphe, L, key, rules)


class StaleHessians(AbstractHessians):
    """All clients answer the hops, each at the (x, y) that it holds.

    A client that has delivered is sent the newest; the others answer at those they work on. It
    costs U + 2 exchanges, and one more in a round that estimates L.
    """

    def jobs(self, x, y):
        """They are sent (x, y) and v."""
        return InFlight.of("outer", ((x, y), y), tree.zeros_like(x))

    def poll(self, fed, problem, jobs, aphe, x, y, L, batch_size, key, rules):
        """The chain, then the poll."""
        point = fed.cache((x, y), held_by=~jobs.is_idle)
        held = jax.tree.map(
            lambda old, new: tree.where(jobs.is_idle, jnp.broadcast_to(new, old.shape), old),
            jobs.values[0],
            (x, y),
        )
        points = Memory(held, fed.n_clients)
        everyone = HeldSystem(fed, problem, point, points, batch_size)
        return _chained(everyone, point, jobs, aphe, L, key, rules)


class LocalHessians(AbstractHessians):
    """Every client solves for an adjoint of its own on its own data, in its job.

    It costs one exchange. Where clients differ it comes to rest beside the solution.
    """

    def jobs(self, x, y):
        """They are sent (x, y)."""
        return InFlight.of("outer", ((x, y),), tree.zeros_like(x))

    def poll(self, fed, problem, jobs, aphe, x, y, L, batch_size, key, rules):
        """The poll alone."""
        settings = {"problem": problem, "batch_size": batch_size, "aphe": aphe}
        settings["n_clients"] = fed.n_clients
        news = fed.poll(jobs, local_piece, (x, y), rules=rules, key=key, settings=settings)
        return news, L  # --------------------------------------------------- down  x, y  up  H_i


def _chained(system, point: Cached, jobs: InFlight, aphe: AbstractAPHE, L, key: Key, rules):
    fed = system.fed
    L_key, chain_key, job_key = jax.random.split(key, 3)
    L = _lipschitz(system, aphe, L, L_key)
    v = aphe.solve(system, fed.n_clients, L, chain_key)
    news = fed.poll(jobs, piece, point, v, rules=rules, key=job_key, settings=system.settings())
    return news, L  # ------------------------------------------------------- down  v  up  H_i


def _lipschitz(system, aphe: AbstractAPHE, previous: jax.Array, key: Key) -> jax.Array:
    """L of this round; the mean of the clients' largest eigenvalues bounds that of their mean."""
    rule = aphe.lipschitz
    if not isinstance(rule, PowerIteration):
        return jnp.asarray(rule).astype(previous.dtype)

    def estimate(_, previous):
        found = system.mean(largest_eigenvalue, key=key, iterations=rule.iterations)
        # others may answer the hops until the next estimate; in the first round everyone was asked
        return jnp.maximum(previous, tree.scale(rule.safety, found).astype(previous.dtype))

    is_due = jnp.asarray(system.fed.round) % rule.every == 0
    return system.fed.repeat(jnp.where(is_due, 1, 0), estimate, previous)


class AskedSystem(AbstractSystem):
    """The system of the mean Hessian of some clients at one point; every question an exchange."""

    fed: AbstractFederation
    problem: Bilevel
    who: jax.Array
    point: Cached
    batch_size: int | None

    def mean(self, step, *values, key, **rest):
        """What the clients reply in the mean."""
        settings = {**rest, **self.settings()}
        return self.fed.ask(self.who, step, self.point, *values, key=key, settings=settings)

    def right_side(self, key):
        """The mean of f_y."""
        return self.mean(outer_gradient_y, key=key)  # ----------------------- down  x, y  up  f_y

    def product(self, p, key):
        """The mean of g_yy p."""
        return self.mean(hessian_vector, p, key=key)  # ---------------------- down  p  up  g_yy p

    def repeat(self, n, body, init):
        """A loop at the server."""
        return self.fed.repeat(n, body, init)

    def settings(self):
        """What both sides know."""
        return {"problem": self.problem, "batch_size": self.batch_size}


class HeldSystem(AbstractSystem):
    """The system of the mean Hessian of all clients, each at a point of its own."""

    fed: AbstractFederation
    problem: Bilevel
    point: Cached
    points: Memory
    batch_size: int | None

    def mean(self, step, *values, **rest):
        """What the clients reply in the mean."""
        cohort = self.fed.sample(Everyone(), rest["key"])
        self.fed.broadcast(cohort, self.point)  # ---------------------------- down  x, y if idle
        held = self.fed.recall(cohort, self.points)
        placed: list[Placed] = [self.fed.broadcast(cohort, value) for value in values]
        replies = self.fed.map(step, held, *placed, **rest, **self.settings())
        return self.fed.mean(replies)  # ------------------------------------- up

    def right_side(self, key):
        """The mean of f_y."""
        return self.mean(outer_gradient_y, key=key)

    def product(self, p, key):
        """The mean of g_yy p."""
        return self.mean(hessian_vector, p, key=key)

    def repeat(self, n, body, init):
        """A loop at the server."""
        return self.fed.repeat(n, body, init)

    def settings(self):
        """What both sides know."""
        return {"problem": self.problem, "batch_size": self.batch_size}


def piece(
    client: Client, point: tuple[Tree, Tree], v: Tree, *, problem: Bilevel, batch_size: int | None
) -> Tree:
    """H_i = f_x(x, y; ξ) - g_xy(x, y; ζ) v."""
    return own_piece(LocalSystem(client, problem, *point, batch_size), v, client.key)


def local_piece(
    client: Client,
    point: tuple[Tree, Tree],
    *,
    problem: Bilevel,
    batch_size: int | None,
    aphe: AbstractAPHE,
    n_clients: int,
) -> Tree:
    """H_i with the client's own adjoint."""
    L_key, chain_key, piece_key = jax.random.split(client.key, 3)
    at = LocalSystem(client, problem, *point, batch_size)
    L = own_lipschitz(at, aphe.lipschitz, L_key)
    v = aphe.solve(at, n_clients, L, chain_key)
    return own_piece(at, v, piece_key)
