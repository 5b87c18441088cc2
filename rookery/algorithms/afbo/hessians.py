"""Whose Hessians the hops of APHE use, and at which values.

ActiveHessians  those of the clients that have just delivered, at the newest values: all that a
server can get without waiting. A mean over some clients is not that over all.
StaleHessians   those of all clients, each at the values that it works on: the paper's formula,
which waits for every client at every hop.
LocalHessians   every client's own, in its job: no hops, and a biased limit.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import tree
from rookery.algorithms.shared.lipschitz import Lipschitz, PowerIteration, largest_eigenvalue
from rookery.algorithms.shared.system import AbstractSystem, hessian_vector, outer_gradient_y
from rookery.problem.bilevel import Bilevel
from rookery.program.federation import AbstractFederation, Cached, Placed
from rookery.program.memory import Memory
from rookery.program.participation import Everyone
from rookery.program.polling import InFlight
from rookery.types import BatchSize, Key, Tree

Point = tuple[Tree, Tree]
"""(x, y)."""


class AbstractServerSystem(AbstractSystem):
    """The linear system of a mean Hessian, whose products cost the server an exchange each."""

    fed: AbstractFederation
    problem: Bilevel
    batch_size: BatchSize
    point: Cached

    @abc.abstractmethod
    def mean(self, step, *values: Tree, key: Key, **settings) -> Tree:
        """The mean of what a client step returns at (x, y)."""

    def right_side(self, key):
        """The mean of f_y."""
        return self.mean(outer_gradient_y, key=key)  # ----------------------- down  x, y  up  f_y

    def product(self, p, key):
        """The mean of g_yy p."""
        return self.mean(hessian_vector, p, key=key)  # ---------------------- down  p  up  g_yy p

    def repeat(self, n, body, init, *, most):
        """A loop at the server."""
        return self.fed.repeat(n, body, init)

    def lipschitz(self, rule: Lipschitz, previous: jax.Array, key: Key) -> jax.Array:
        """L of this round: given, or estimated in one exchange when it is due.

        The mean of the clients' largest eigenvalues bounds that of their mean.
        """
        if not isinstance(rule, PowerIteration):
            return jnp.asarray(rule).astype(previous.dtype)

        def estimate(previous):
            found = self.mean(largest_eigenvalue, key=key, iterations=rule.iterations)
            # other clients may answer the hops before the next estimate; the first round asks all
            return jnp.maximum(previous, tree.scale(rule.safety, found).astype(previous.dtype))

        return self.fed.when(jnp.asarray(self.fed.round) % rule.every == 0, estimate, previous)


class ActiveSystem(AbstractServerSystem):
    """The system of some clients' mean Hessian at one point."""

    who: jax.Array

    def mean(self, step, *values, key, **settings):
        """Ask the clients where ``who`` is true."""
        settings |= {"problem": self.problem, "batch_size": self.batch_size}
        return self.fed.ask(self.who, step, self.point, *values, key=key, settings=settings)


class StaleSystem(AbstractServerSystem):
    """The system of all clients' mean Hessian, each at a point of its own."""

    points: Memory

    def mean(self, step, *values, key, **settings):
        """Ask every client at the point that it holds."""
        cohort = self.fed.sample(Everyone(), key)
        self.fed.broadcast(cohort, self.point)  # ---------------------------- down  x, y if idle
        held = self.fed.recall(cohort, self.points)
        placed: list[Placed] = [self.fed.broadcast(cohort, value) for value in values]
        settings |= {"problem": self.problem, "batch_size": self.batch_size}
        return self.fed.mean(self.fed.map(step, held, *placed, key=key, **settings))  # up


class AbstractHessians(eqx.Module):
    """Whose Hessians the hops use."""

    @abc.abstractmethod
    def jobs(self, x: Tree, y: Tree) -> InFlight:
        """Outer jobs before the first of them starts."""

    @abc.abstractmethod
    def system(
        self,
        fed: AbstractFederation,
        problem: Bilevel,
        batch_size: BatchSize,
        point: Point,
        jobs: InFlight,
    ) -> AbstractServerSystem | None:
        """The system of this round; None if every client solves one of its own."""


class ActiveHessians(AbstractHessians):
    """The clients whose outer result has just arrived answer the hops, at the newest (x, y).

    It costs U + 2 exchanges, and one more in a round that estimates L.

    >>> import rookery as rk
    >>> hops, whose = rk.parts.APHESum(), ActiveHessians()
    >>> rk.AFBO(outer_lr=0.1, inner_lr=0.1, aphe=hops, hessians=whose).hessians
    ActiveHessians()
    """

    def jobs(self, x, y):
        """They are sent (x, y) and v."""
        return InFlight.of("outer", ((x, y), y), tree.zeros_like(x))

    def system(self, fed, problem, batch_size, point, jobs):
        """The mean over those clients."""
        return ActiveSystem(fed, problem, batch_size, fed.cache(point), jobs.has_arrived)


class StaleHessians(AbstractHessians):
    """All clients answer the hops, each at the (x, y) that it holds.

    A client that has delivered is sent the newest; the others answer at those they work on. It
    costs U + 2 exchanges, and one more in a round that estimates L.

    >>> StaleHessians()
    StaleHessians()
    """

    def jobs(self, x, y):
        """They are sent (x, y) and v."""
        return InFlight.of("outer", ((x, y), y), tree.zeros_like(x))

    def system(self, fed, problem, batch_size, point, jobs):
        """The mean over all clients."""
        cached = fed.cache(point, held_by=~jobs.is_idle)
        held = jax.tree.map(
            lambda old, new: tree.where(jobs.is_idle, jnp.broadcast_to(new, old.shape), old),
            jobs.values[0],
            point,
        )
        return StaleSystem(fed, problem, batch_size, cached, Memory(held, fed.n_clients))


class LocalHessians(AbstractHessians):
    """Every client solves for an adjoint of its own on its own data, in its job.

    It costs one exchange. With heterogeneous clients it converges to a biased point.

    >>> LocalHessians()
    LocalHessians()
    """

    def jobs(self, x, y):
        """They are sent (x, y)."""
        return InFlight.of("outer", ((x, y),), tree.zeros_like(x))

    def system(self, fed, problem, batch_size, point, jobs):
        """None: there are no hops."""
        return None
