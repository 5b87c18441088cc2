"""Step rules that find their size themselves: by curvature for inner, by distance for outer steps.

    Curvature   f / L,  L the largest curvature that inner steps meet, measured on clients, and f a
                factor that grows as long as consecutive directions agree
    DoG         (distance from the start) / sqrt(Σ k^p |h|²), at most 1 / L of x where L is measured

Both are one number. The server finds it, and steps that clients take get it with the message that
starts them, so it is billed. What the server remembers of a rule is :class:`AutoOpt`;
:class:`ServerOpts` marks those of local rules, of which a size goes down with every call. How L is
measured is in :mod:`rookery.algorithms.shared.curvature`.
"""

import abc
import dataclasses
from dataclasses import KW_ONLY
from typing import NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.shared.schedule import number
from rookery.types import Count, Tree


class AutoOpt(NamedTuple):
    """The size of a step, the damping added to its direction, and what the rule remembers.

    The last is the server's alone. ``damping`` is empty for variables that need none.
    """

    size: jax.Array
    damping: Tree = ()
    memory: Tree = ()

    def message(self) -> "AutoOpt":
        """What clients are sent of it: the size and the damping."""
        size = self.size
        if isinstance(self.memory, Agreement):
            size = size * self.memory.factor
        return AutoOpt(size, self.damping)


class Agreement(NamedTuple):
    """What :class:`Curvature` remembers: the last direction, and the factor on 1 / L."""

    last: Tree
    factor: jax.Array


class ServerOpts(NamedTuple):
    """States of local rules that stay at the server; clients are sent the sizes with every call."""

    opts: Tree

    def message(self) -> Tree:
        """What goes down: sizes and dampings."""
        return jax.tree.map(
            lambda opt: opt.message() if isinstance(opt, AutoOpt) else opt,
            self.opts,
            is_leaf=lambda leaf: isinstance(leaf, AutoOpt),
        )


class AbstractAuto(eqx.Module):
    """A rule whose size is found during the run.

    Args:
        scale: factor on the size that was found; a guard makes it smaller.
    """

    scale: float = eqx.field(converter=number, default=1.0, kw_only=True)

    def __check_init__(self):
        check.positive(f"{type(self).__name__}.scale", self.scale)

    def with_smaller_steps(self, factor: float) -> Self:
        """The rule with all its steps multiplied by a factor."""
        return dataclasses.replace(self, scale=self.scale * factor)

    def size(self, opt: AutoOpt) -> jax.Array:
        """Of a step."""
        size = opt.message().size
        return size * jnp.asarray(self.scale, size.dtype)

    @abc.abstractmethod
    def first_opt(self, w: Tree) -> AutoOpt:
        """The state before the first step from ``w``."""

    @abc.abstractmethod
    def observed(
        self, direction: Tree, opt: AutoOpt, w: Tree, fresh: Tree | None = None
    ) -> AutoOpt:
        """The state with the size for a step from ``w`` along a direction that the server has.

        Args:
            direction: of the step.
            opt: the state.
            w: the variable.
            fresh: the part of the direction that is of this round alone; all of it if None.
        """

    def move(
        self, direction: Tree, opt: AutoOpt, w: Tree, steps: Count = 1
    ) -> tuple[Tree, AutoOpt]:
        """One of ``steps`` equal steps. A client, which has no memory, takes the size as sent."""
        opt = self.observed(direction, opt, w)
        size = self.size(opt) / jnp.asarray(steps).astype(opt.size.dtype)
        if jax.tree.leaves(opt.damping):
            direction = tree.axpy(opt.damping, w, direction)
        return tree.axpy(-size, direction, w), opt


TURN = -0.5
"""A direction with a smaller cosine turns back: its steep part has outgrown all others."""
GROWS = 2.0
"""A direction that is so many times as long as the last one grows."""
SAFETY = 1.1
"""Factor on a measured L, which power iteration approaches from below."""


class Curvature(AbstractAuto):
    """Steps of size 1 / L, with L the measured curvature of the inner problem.

    Each client of a cohort finds the largest eigenvalue of its inner Hessian by power iteration,
    renewed as x moves: one exchange with a number up. L is their mean, which is at least that of
    the mean Hessian; where clients take several local steps and meet their own Hessians, L is the
    largest of them. Between two measurements L falls by a fifth at most. The same L serves the
    series and systems of the adjoint v.

    Steps are as long as L allows only where L is tight. Batches of few rows and clients that differ
    have a larger L than their mean has, and a network's L grows as long as steps are short. So the
    size is f / L with a factor f, which every step multiplies by  exp(gain cos),  cos the cosine
    between its direction and the last one: steps grow while directions agree, and shrink where
    noise is all that is left (L. B. Almeida, T. Langlois, J. D. Amaral, A. Plakhov. Parameter
    adaptation in stochastic optimization. On-line Learning in Neural Networks, 1998). Where a
    direction turns back, with a cosine below -1/2, or is more than twice as long as the last one, f
    is halved at once: steps are too long for the steepest directions, which grow unseen until they
    outweigh the others. f stays 1 where clients take several local steps, which could run away
    before the server sees them; for the levels of compositions, whose L is known; for penalties
    (:class:`PenaltyView`), whose two inner variables need the same size; and where directions are
    no sign of progress, because they are compressed, chosen by a robust method, or means of earlier
    ones.

    Where the inner Hessian is indefinite, v would grow along directions of negative curvature. If
    v' g_yy v < 0 is measured, the system of v is damped to  (g_yy + δ I) v = f_y,  δ twice that
    curvature, which halves with every measurement that does not see it. The damped v is biased
    towards zero. On convex inner problems δ is zero.

    Args:
        safety: factor on the measured L, which power iteration approaches from below.
        every: rounds from one measurement to the next; the first ``every`` rounds measure each.
        iterations: Hessian-vector products per client and measurement.
        gain: how fast the factor f follows the directions; 0 keeps it at 1.
        least: the smallest f.
        most: the largest f.

    >>> import rookery as rk
    >>> rk.FedNest(inner_lr="auto").inner_lr == rk.parts.Curvature()
    True
    """

    _: KW_ONLY
    safety: float = eqx.field(converter=number, default=SAFETY)
    every: int = 5
    iterations: int = 20
    gain: float = eqx.field(converter=number, default=0.1)
    least: float = eqx.field(converter=number, default=0.5)
    most: float = eqx.field(converter=number, default=5.0)

    def __check_init__(self):
        check.positive("Curvature.safety", self.safety)
        check.count("Curvature.every", self.every)
        check.count("Curvature.iterations", self.iterations)
        check.not_negative("Curvature.gain", self.gain)
        check.positive("Curvature.least", self.least)
        check.not_negative("Curvature.most less Curvature.least", self.most - self.least)

    def first_opt(self, w):
        """No size: the first measurement comes before the first step."""
        return AutoOpt(_zero(w))

    def observed(self, direction, opt, w, fresh=None):
        """The state with the factor for this direction; the same where none is kept."""
        if not isinstance(opt.memory, Agreement):
            return opt
        return opt._replace(memory=self.agreed(opt.memory, direction, fresh))

    def agreed(
        self, memory: Agreement, direction: Tree, fresh: Tree | None = None, steps: Count = 1
    ) -> Agreement:
        """The factor after a direction, which is kept.

        Args:
            memory: the factor, and the direction that this one is compared with.
            direction: of the step.
            fresh: the part of it that is compared; all of it if None.
            steps: how many steps lie between the two directions.
        """
        fresh = direction if fresh is None else fresh
        before, now = tree.norm(memory.last), tree.norm(fresh)
        is_known = before * now > 0
        cosine = tree.dot(memory.last, fresh) / jnp.where(is_known, before * now, 1)
        dtype = memory.factor.dtype
        gain, least, most = (jnp.asarray(v, dtype) for v in (self.gain, self.least, self.most))
        cosine = cosine.astype(dtype)
        change = jnp.exp(gain * jnp.asarray(steps, dtype) * cosine)
        turns = ((cosine < TURN) | (is_known & (now > GROWS * before))) & (gain > 0)
        two = jnp.full_like(change, 2)
        factor = memory.factor * jnp.where(turns, 1 / two, jnp.clip(change, 1 / two, two))
        last = jax.tree.map(lambda new, old: new.astype(old.dtype), direction, memory.last)
        return Agreement(last, jnp.clip(factor, least, most))

    def renewed(self, opt: AutoOpt, measured: jax.Array) -> AutoOpt:
        """The state after a measurement of the largest eigenvalue."""
        known = jnp.where(opt.size > 0, 1 / jnp.where(opt.size > 0, opt.size, 1), 0)
        return opt._replace(size=1 / renewed_curvature(known, measured, self.safety))


def following(opt: Tree, w: Tree) -> Tree:
    """The first state of a :class:`Curvature` rule with a factor that follows the directions.

    States of other rules stay as they are.
    """
    if isinstance(opt, ServerOpts):
        return ServerOpts(following(opt.opts, w))
    if not isinstance(opt, AutoOpt) or isinstance(opt.memory, DoGMemory):
        return opt
    return opt._replace(memory=Agreement(tree.zeros_like(w), jnp.ones_like(opt.size)))


def renewed_curvature(known: jax.Array, measured: jax.Array, safety: float) -> jax.Array:
    """L after a measurement; it falls by a fifth at most."""
    measured = tree.scale(safety, measured.astype(known.dtype))
    return jnp.maximum(measured, tree.scale(0.8, known))


class DoGMemory(NamedTuple):
    """What :class:`DoG` remembers; ``clipped`` of its ``steps`` were cut to the bound by entry.

    ``curvature`` is L of x, and zero as long as it is not measured.
    """

    start: Tree
    distance: jax.Array
    total: jax.Array
    steps: jax.Array
    clipped: jax.Array
    curvature: jax.Array


class DoG(AbstractAuto):
    """Distance over gradients: size  r / sqrt(Σ k^p |h_k|²),  r the distance from the start.

    M. Ivgi, O. Hinder, Y. Carmon. DoG is SGD's best friend: a parameter-free dynamic step size
    schedule. ICML 2023, arXiv:2302.12022. The sum runs over all directions h_1, h_2 .. so far: the
    size falls as long as they are noise, and stays where they vanish.

    Two departures from the paper are for nested problems, where y and v lag behind x, and too large
    a step makes all of them swing further and further. The paper's distance would grow with the
    swings, and the size with it. Here r grows at most by the factor  1 + growth / k  in step k, so
    the sum wins, and the size falls until the swings do. And p is 1/2, not 0: the size falls like
    1 / k^(3/4) and not like 1 / k^(1/2) while swings or noise last. Directions that are zero do not
    count: where the outer loss depends on x through y alone, the first one is, as v starts at zero.

    Args:
        first: how far the first step would move the entry of x that it moves most, as a fraction of
            the root mean square of all entries, or of one if that is less.
        most: how far a later step may move it, as a fraction of one plus the root mean square of
            the entries' distances from the start; the bound of all steps.
        growth: by how much r may grow, see above.
        power: p; the paper's is 0.

    >>> import rookery as rk
    >>> rk.FedNest().outer_lr == rk.parts.DoG()
    True
    """

    _: KW_ONLY
    first: float = eqx.field(converter=number, default=0.05)
    most: float = eqx.field(converter=number, default=0.2)
    growth: float = eqx.field(converter=number, default=1.0)
    power: float = eqx.field(converter=number, default=0.5)

    def __check_init__(self):
        check.positive("DoG.first", self.first)
        check.positive("DoG.most", self.most)
        check.positive("DoG.growth", self.growth)
        check.not_negative("DoG.power", self.power)

    def first_opt(self, w):
        """The start, and no gradient yet."""
        zero = _zero(w)
        w, none = tree.as_arrays(w), jnp.zeros((), jnp.int32)
        return AutoOpt(zero, (), DoGMemory(w, zero, zero, none, none, zero))

    def observed(self, direction, opt, w, fresh=None):
        """The size for this direction, whatever of it is fresh."""
        if not isinstance(opt.memory, DoGMemory):
            return opt
        start, r, total, k, clipped, L = opt.memory
        dtype = r.dtype
        squares = tree.dot(direction, direction).astype(dtype)
        steepest = _largest_entry(direction).astype(dtype)
        far = tree.norm(tree.sub(w, start)).astype(dtype)
        root = jnp.sqrt(jnp.asarray(tree.size(w), dtype))
        scale = 1 + far / root
        # a step of size  s / steepest  moves the entry that it moves most by s
        steepest = jnp.where(steepest > 0, steepest, jnp.ones_like(steepest))
        rms = jnp.maximum(tree.norm(w).astype(dtype) / root, jnp.ones_like(root))
        first = jnp.asarray(self.first, dtype) * rms / steepest * jnp.sqrt(squares)
        most = r * (1 + jnp.asarray(self.growth, dtype) / (k + 1).astype(dtype))
        is_step = squares > 0  # the first step is the first one along a direction
        grown = jnp.where(k == 0, first, jnp.maximum(r, jnp.minimum(far, most)))
        r = jnp.where(is_step, grown, r)
        total = total + (k + 1).astype(dtype) ** jnp.asarray(self.power, dtype) * squares
        size = r / jnp.sqrt(jnp.where(total > 0, total, jnp.ones_like(total)))
        bound = jnp.asarray(self.most, dtype) * scale / steepest
        clipped = clipped + (is_step & (size > bound)).astype(clipped.dtype)
        size = jnp.minimum(size, bound)
        size = jnp.where(L * size > 1, 1 / jnp.where(L > 0, L, jnp.ones_like(L)), size)
        memory = DoGMemory(start, r, total, k + is_step.astype(k.dtype), clipped, L)
        return opt._replace(size=size, memory=memory)

    def renewed(self, opt: AutoOpt, measured: jax.Array) -> AutoOpt:
        """The state after a measurement of the largest eigenvalue."""
        L = renewed_curvature(opt.memory.curvature, measured, SAFETY)
        return opt._replace(memory=opt.memory._replace(curvature=L))


def inner_auto(value: object) -> object:
    """Field converter: "auto" of an inner variable is :class:`Curvature`."""
    return Curvature() if isinstance(value, str) and value == "auto" else value


def outer_auto(value: object) -> object:
    """Field converter: "auto" of any other variable is :class:`DoG`."""
    return DoG() if isinstance(value, str) and value == "auto" else value


def _largest_entry(a: Tree) -> jax.Array:
    """The largest absolute value of any entry."""
    each = [jnp.max(jnp.abs(leaf), initial=0) for leaf in jax.tree.leaves(a)]
    return jnp.max(jnp.stack([one.astype(each[0].dtype) for one in each]))


def _zero(w: Tree) -> jax.Array:
    """Zero in the precision of a variable."""
    return jnp.zeros((), jnp.result_type(*jax.tree.leaves(w)))
