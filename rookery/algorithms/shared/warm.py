"""The adjoint by a series that continues from the last round's v, and so finds the exact one."""

from dataclasses import KW_ONLY

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.shared.adjoint import AbstractAdjoint
from rookery.algorithms.shared.blocks import within
from rookery.algorithms.shared.context import Context
from rookery.algorithms.shared.curvature import damping_for
from rookery.algorithms.shared.lipschitz import NeumannSettings, lipschitz
from rookery.algorithms.shared.schedule import number
from rookery.algorithms.shared.system import GlobalSystem, OneSampleSystem
from rookery.algorithms.shared.two_level import NestedState, State, Warm
from rookery.problem.bilevel import Bilevel
from rookery.types import Key, Tree


class WarmSeries(NeumannSettings, AbstractAdjoint):
    """N hops  v = v - (g_yy v + δ v - f_y) / (L + δ)  from the v of the last round.

    From zero these are the first terms of the Neumann series, which a fixed number truncates: on an
    inner Hessian of condition κ it needs about κ terms. Here v comes closer from round to round
    instead, as y does, and v is exact where x rests. It costs N + 1 exchanges.

    Every hop is checked. If g_yy stretches v by more than L, then L becomes that stretch, for the
    inner steps of later rounds too. If v' g_yy v < 0 the Hessian is indefinite, and v would grow
    without end: then δ becomes twice that curvature, and falls by a tenth in every round without.
    A damped v is biased towards zero; on convex inner problems δ stays zero.

    Args:
        terms: N, hops in a round.
        lipschitz: L, or how to estimate it; an algorithm that measures L for its inner steps
            replaces an estimate by that.
        damping: added to δ in every hop; a bias that helps where the Hessian is nearly singular.
        radius: the largest norm of v; inf is no bound.

    >>> WarmSeries(terms=3).damping
    0.0
    """

    _: KW_ONLY
    damping: float = eqx.field(converter=number, default=0.0)
    radius: float = eqx.field(converter=number, default=float("inf"))

    def __check_init__(self):
        check.not_negative("WarmSeries.damping", self.damping)
        check.positive_or_infinite("WarmSeries.radius", self.radius)

    def first_memory(self, y: Tree) -> Warm:
        """v = 0 and no damping."""
        return Warm(tree.zeros_like(y), jnp.zeros((), jnp.result_type(*jax.tree.leaves(y))))

    def estimate_from(
        self, context: Context, state: State, key: Key
    ) -> tuple[Tree, jax.Array, Tree]:
        """The adjoint v at (x, y), L, and what is remembered."""
        if not isinstance(context.problem, Bilevel):
            return *self.estimate(context, state, key), state.opts.adjoint
        system = GlobalSystem(context, context.fed.cache((state.x, state.y)))
        if not self.fresh:
            draw_key, key = jax.random.split(key)
            system = system.on_one_sample(draw_key)
        warm, L = self._solve(system, state.opts.adjoint, state.lipschitz, key)
        return warm.v, L, warm

    def solve(self, system, L, key):
        """The same from v = 0."""
        warm, L = self._solve(system, self.first_memory(system.point.value[1]), L, key)
        return warm.v, L

    def _solve(
        self, system: GlobalSystem | OneSampleSystem, warm: Warm, L: jax.Array, key: Key
    ) -> tuple[Warm, jax.Array]:
        lipschitz_key, start_key, hop_key = jax.random.split(key, 3)
        x, y = system.point.value
        L = lipschitz(system.context, NestedState(x, y, L), self.lipschitz, lipschitz_key)
        f_y = system.right_side(start_key)

        def hop(n, carry):
            v, seen, L = carry
            image = system.product(v, jax.random.fold_in(hop_key, n))
            length, bend = tree.dot(v, v), tree.dot(v, image)
            unit = jnp.where(length > 0, length, jnp.ones_like(length))
            seen = jnp.maximum(seen, damping_for(bend / unit))
            L = jnp.maximum(L, tree.norm(image) / jnp.sqrt(unit))
            delta = seen + jnp.asarray(self.damping, seen.dtype)
            error = tree.sub(tree.axpy(delta, v, image), f_y)
            return within(self.radius, tree.axpy(-1 / (L + delta), error, v)), seen, L

        start = warm.v, 0.9 * warm.damping, L
        v, damping, L = system.repeat(self.terms, hop, start, most=self.terms)
        return Warm(v, damping), L
