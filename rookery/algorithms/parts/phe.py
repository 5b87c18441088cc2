"""PHE: n independent estimates of the hypergradient, side by side (FedMBO, algorithm 2).

Every chain walks from client to client with a vector of its own, so the mean over chains has 1/n
of the variance of one. FedIHGP averages within a hop instead; the noise of its one random length
stays however many clients take part.
"""

import abc
from dataclasses import KW_ONLY
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.shared import local
from rookery.algorithms.shared.interface import AbstractHypergradient, Sampling
from rookery.algorithms.shared.lipschitz import (
    Lipschitz,
    PowerIteration,
    check_lipschitz,
    lipschitz,
)
from rookery.algorithms.shared.system import hessian_vector
from rookery.problem.bilevel import Bilevel
from rookery.program.federation import AbstractFederation, Cached, Client
from rookery.program.participation import AbstractParticipation, Cohort, Weighted
from rookery.rng import below
from rookery.types import Key, Tree


class AbstractPHE(AbstractHypergradient):
    """An estimator with one result per chain."""

    terms: eqx.AbstractVar[int]
    lipschitz: eqx.AbstractVar[Lipschitz]
    chains: eqx.AbstractVar[AbstractParticipation | None]

    @abc.abstractmethod
    def solve(self, chains: "Chains", f_y: Tree, L: jax.Array, key: Key) -> Tree:
        """The adjoints, one row per chain, from the chains' own f_y."""

    def each(
        self,
        fed: AbstractFederation,
        problem: Any,
        sampling: Sampling,
        x: Tree,
        y: Tree,
        L: jax.Array,
        key: Key,
    ) -> tuple[Tree, jax.Array]:
        """The hypergradients H_i, one row per chain, and L."""
        lipschitz_key, start_key, series_key, last_key = jax.random.split(key, 4)
        L = lipschitz(fed, problem, sampling, x, y, self.lipschitz, L, lipschitz_key)
        chains = Chains(
            fed, problem, self._rule(fed, sampling), sampling.batch_size, fed.cache((x, y))
        )
        d, f_y = chains.start(start_key)
        p = self.solve(chains, f_y, L, series_key)
        return tree.sub(d, chains.cross(p, last_key)), L

    def __call__(self, fed, problem, sampling, x, y, L, key):
        """The plain mean of the chains, and L."""
        each, L = self.each(fed, problem, sampling, x, y, L, key)
        return jax.tree.map(lambda h: jnp.mean(h, axis=0), each), L

    def check(self, problem, n_clients):
        """The problem must be bilevel, and there must be enough clients."""
        if not isinstance(problem, Bilevel):
            raise TypeError(
                f"{type(self).__name__} estimates hypergradients of Bilevel problems, "
                f"got {type(problem).__name__}."
            )
        if self.chains is not None:
            self.chains.check(n_clients)

    def _rule(self, fed, sampling):
        if self.chains is not None:
            return self.chains
        return Weighted(sampling.size(fed.n_clients))


def chain_rule(value: AbstractParticipation | int | None) -> AbstractParticipation | None:
    """Field converter: a number means so many clients, drawn independently by their weights."""
    if value is None or isinstance(value, AbstractParticipation):
        return value
    return Weighted(check.count("the number of chains", value))


class PHE(AbstractPHE):
    """The paper's estimator: every chain is one product of its own random length.

    p_{i,0} = (N/L) f_y, then N_i hops with N_i uniform on 0..N-1; a chain that has ended sends
    nothing. It costs max_i N_i + 2 exchanges.

    Args:
        terms: N.
        lipschitz: L, or how to estimate it.
        chains: n, or the rule that draws the n clients of a hop. A number, and None for as many as
            take part elsewhere, draw them independently by their weights; rules that do not look
            at weights suit clients of equal weight.
    """

    _: KW_ONLY
    terms: int = 5
    lipschitz: Lipschitz = eqx.field(converter=local.number, default_factory=PowerIteration)
    chains: AbstractParticipation | None = eqx.field(converter=chain_rule, default=None)

    def __check_init__(self):
        check.count("PHE.terms", self.terms)
        check_lipschitz("PHE.lipschitz", self.lipschitz)

    def solve(self, chains, f_y, L, key):
        """p_{i,N_i}."""
        length_key, hop_key = jax.random.split(key)
        hops = below(length_key, (_rows(f_y),), self.terms)  # N_i

        def hop(n, p):
            goes_on = n < hops
            product = chains.product(p, goes_on, jax.random.fold_in(hop_key, n))
            return tree.where(goes_on, tree.axpy(-1 / L, product, p), p)

        return chains.fed.repeat(jnp.max(hops), hop, tree.scale(self.terms / L, f_y))


class PHESum(AbstractPHE):
    """Every chain sums the truncated series: N hops, N + 1 terms, no randomness in the length.

    It costs N + 2 exchanges.

    Args:
        terms: N.
        lipschitz: L, or how to estimate it.
        chains: n, or the rule that draws the n clients of a hop. A number, and None for as many as
            take part elsewhere, draw them independently by their weights; rules that do not look
            at weights suit clients of equal weight.
    """

    _: KW_ONLY
    terms: int = 5
    lipschitz: Lipschitz = eqx.field(converter=local.number, default_factory=PowerIteration)
    chains: AbstractParticipation | None = eqx.field(converter=chain_rule, default=None)

    def __check_init__(self):
        check.count("PHESum.terms", self.terms)
        check_lipschitz("PHESum.lipschitz", self.lipschitz)

    def solve(self, chains, f_y, L, key):
        """The sums of the terms 0 to N."""
        everyone = jnp.ones(_rows(f_y), bool)

        def hop(n, carry):
            t, v = carry
            product = chains.product(t, everyone, jax.random.fold_in(key, n))
            t = tree.axpy(-1 / L, product, t)
            return t, tree.add(v, t)

        t = tree.scale(1 / L, f_y)
        return chains.fed.repeat(self.terms, hop, (t, t))[1]


class Chains(eqx.Module):
    """The exchanges that n chains at one point (x, y) are made of, a fresh client for each.

    A client keeps (x, y) for as long as the chains last, so the point is sent to newcomers only.
    """

    fed: AbstractFederation
    problem: Bilevel
    rule: AbstractParticipation
    batch_size: int | None
    point: Cached

    def start(self, key: Key) -> tuple[Tree, Tree]:
        """d_i = f_x and f_y, one row per chain."""
        who, sample_key = jax.random.split(key)
        cohort = self._draw(who)
        point = self.fed.broadcast(cohort, self.point)  # -------------------- down  x, y
        both = self.fed.map(outer_gradients, point, key=sample_key, **self._settings())
        return self.fed.stack(both)  # --------------------------------------- up    f_x, f_y

    def product(self, p: Tree, goes_on: jax.Array, key: Key) -> Tree:
        """g_yy p_i, one row per chain; the row of a chain that has ended means nothing."""
        who, sample_key = jax.random.split(key)
        cohort = self._draw(who).where(goes_on)
        point = self.fed.broadcast(cohort, self.point)  # -------------------- down  x, y if new
        p_i = self.fed.scatter(cohort, p)  # --------------------------------- down  p_i
        products = self.fed.map(hessian_vector, point, p_i, key=sample_key, **self._settings())
        return self.fed.stack(products)  # ----------------------------------- up    g_yy p_i

    def cross(self, p: Tree, key: Key) -> Tree:
        """w_i = g_xy p_i, one row per chain."""
        who, sample_key = jax.random.split(key)
        cohort = self._draw(who)
        point = self.fed.broadcast(cohort, self.point)  # -------------------- down  x, y if new
        p_i = self.fed.scatter(cohort, p)  # --------------------------------- down  p_i
        w_i = self.fed.map(cross_vector, point, p_i, key=sample_key, **self._settings())
        with self.fed.outer():
            return self.fed.stack(w_i)  # ------------------------------------ up    w_i

    def _draw(self, key: Key) -> Cohort:
        draw_key, order_key = jax.random.split(key)
        cohort = self.fed.sample(self.rule, draw_key)
        # a rule promises a random set, not a random order: unshuffled, a chain would meet its own
        # few clients again and again
        order = jax.random.permutation(order_key, len(cohort))
        occurrence = None if cohort.occurrence is None else cohort.occurrence[order]
        ids, active = cohort.ids[order], cohort.active[order]
        return Cohort(ids, active, occurrence, is_weighted=cohort.is_weighted)

    def _settings(self):
        return {"problem": self.problem, "batch_size": self.batch_size}


def outer_gradients(
    client: Client, point: tuple[Tree, Tree], *, problem: Bilevel, batch_size: int | None
) -> tuple[Tree, Tree]:
    """f_x(x, y; φ) and f_y(x, y; θ), on independent samples."""
    x_key, y_key = jax.random.split(client.key)
    x_sample = client.draw(problem.outer_split, batch_size, x_key)
    y_sample = client.draw(problem.outer_split, batch_size, y_key)
    return problem.outer_grad_x(*point, x_sample), problem.outer_grad_y(*point, y_sample)


def cross_vector(
    client: Client, point: tuple[Tree, Tree], p: Tree, *, problem: Bilevel, batch_size: int | None
) -> Tree:
    """g_xy(x, y; ω) p."""
    sample = client.draw(problem.inner_split, batch_size, client.key)
    return problem.inner_cross(*point, p, sample)


def _rows(tree: Tree) -> int:
    return jax.tree.leaves(tree)[0].shape[0]
