"""ADMM on the inner problem in consensus form, and the derivative of its result.

    min Σ_i g_i(v, y_i)  such that  y_i = z  for every client i

is solved approximately by a fixed number of rounds, from given y_i and z and multipliers ψ_i = 0:

    y_i <- y_i - e_y [ g_{i,y}(v, y_i) + ψ_i + μ (y_i - z) ]
    z   <- z   - e_z [ μ Σ_i (z - y_i) - Σ_i ψ_i ]
    ψ_i <- ψ_i + e_ψ (y_i - z)

each line with the results of the lines before it. Clients answer with gradients of their own
losses, the server does the rest. The result is φ(v), and reverse-mode differentiation through the
rounds gives (dφ/dv)' times a vector: again one exchange per round, in which clients multiply a
vector by their own second derivatives. No matrix is ever formed. A round uses the same samples
forwards and backwards, so the derivative is exact for mini-batches too.
"""

from dataclasses import KW_ONLY
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.shared.schedule import number
from rookery.algorithms.shared.step_rule import check_number
from rookery.problem.bilevel import Bilevel
from rookery.program.federation import AbstractFederation, Client, Placed
from rookery.program.participation import Cohort
from rookery.types import BatchSize, Key, Tree


class Setting(NamedTuple):
    """What the rounds work on.

    Attributes:
        fed: the federation.
        problem: whose inner problem is solved.
        everyone: all clients.
        v: the outer variable, held by all clients.
        batch_size: rows per evaluation on a client; None means all.
        key: of the samples.
    """

    fed: AbstractFederation
    problem: Bilevel
    everyone: Cohort
    v: Placed
    batch_size: BatchSize
    key: Key

    def answers(self, step, k, rows: Tree) -> Tree:
        """One exchange: every client gets its row, and its reply is a row."""
        own = self.fed.scatter(self.everyone, rows)
        key = jax.random.fold_in(self.key, k)
        settings = {"problem": self.problem, "batch_size": self.batch_size}
        return self.fed.stack(self.fed.map(step, self.v, own, key=key, **settings))


class ADMM(eqx.Module):
    """How the inner solution is estimated, and in how many rounds.

    >>> ADMM(rounds=5, lr=0.1).rounds
    5

    Args:
        rounds: K; one exchange each, and another each for the derivative.
        lr: e_y, step size of the clients' copies.
        server_lr: e_z, step size of the server's copy, along a sum over clients.
        multiplier_lr: e_ψ, step size of the multipliers.
        penalty: μ, how strongly the copies are pulled together.
    """

    _: KW_ONLY
    rounds: int = 30
    lr: float = eqx.field(converter=number, default=0.02)
    server_lr: float = eqx.field(converter=number, default=0.02)
    multiplier_lr: float = eqx.field(converter=number, default=0.02)
    penalty: float = eqx.field(converter=number, default=1.0)

    def __check_init__(self):
        check.count("ADMM.rounds", self.rounds)
        for name in ("lr", "server_lr", "multiplier_lr"):
            check_number(
                "ADMM", f"ADMM.{name}", getattr(self, name), "Its steps are differentiated."
            )
        check.not_negative("ADMM.penalty", self.penalty)

    def solve(self, setting: Setting, y: Tree, z: Tree) -> tuple[Tree, Tree, Tree]:
        """φ_i of all clients, φ_z, and the y_i that every round began with."""
        fed, mu = setting.fed, self.penalty

        def forwards(k, carry):
            y, z, psi, trail = carry
            trail = jax.tree.map(lambda all, now: all.at[k].set(now), trail, y)
            g = setting.answers(inner_gradient, k, y)  # -------------------- down  y_i  up  g_y
            y = tree.axpy(-self.lr, tree.axpy(mu, minus(y, z), tree.add(g, psi)), y)
            pull = total(fed, tree.axpy(mu, minus(y, z), psi))
            z = tree.axpy(self.server_lr, pull, z)
            psi = tree.axpy(self.multiplier_lr, minus(y, z), psi)
            return y, z, psi, trail

        trail = jax.tree.map(lambda a: jnp.zeros((self.rounds, *a.shape), a.dtype), y)
        y, z, _, trail = fed.repeat(self.rounds, forwards, (y, z, tree.zeros_like(y), trail))
        return y, z, trail

    def pull_back(self, setting: Setting, trail: Tree, at_y: Tree, at_z: Tree, like_v: Tree):
        """Σ_i (dφ_i/dv)' u_i + (dφ_z/dv)' ζ,  where u_i and ζ are ``at_y`` and ``at_z``."""
        fed, mu = setting.fed, self.penalty

        def backwards(n, carry):
            a, u, zeta, pi = carry  # ``pi`` belongs to ψ; u and π of a client by its weight
            k = self.rounds - 1 - n
            zeta = tree.axpy(-self.multiplier_lr, total(fed, pi), zeta)
            u = tree.axpy(self.multiplier_lr, pi, u)

            pi = plus(pi, tree.scale(self.server_lr, zeta))
            u = plus(u, tree.scale(self.server_lr * mu, zeta))
            zeta = tree.axpy(-self.server_lr * mu * fed.n_clients, zeta, zeta)

            began = jax.tree.map(lambda all: all[k], trail)
            hessian, cross = setting.answers(inner_products, k, (began, u))
            a = tree.axpy(-self.lr, total(fed, cross), a)  # -- down  y_i, u_i  up  g_yy u, g_xy u
            zeta = tree.axpy(self.lr * mu, total(fed, u), zeta)
            pi = tree.axpy(-self.lr, u, pi)
            u = tree.axpy(-self.lr, tree.axpy(mu, u, hessian), u)
            return a, u, zeta, pi

        start = (tree.zeros_like(like_v), at_y, at_z, tree.zeros_like(at_y))
        return fed.repeat(self.rounds, backwards, start)[0]


def total(fed: AbstractFederation, rows: Tree) -> Tree:
    """Σ_i of clients' rows: as many times their weighted mean as there are clients."""
    weights = fed.n_clients * fed.weights
    return jax.tree.map(lambda r: jnp.tensordot(weights.astype(r.dtype), r, 1), rows)


def minus(rows: Tree, value: Tree) -> Tree:
    """Every row minus a value."""
    return jax.tree.map(lambda r, w: r - w[None], rows, value)


def plus(rows: Tree, value: Tree) -> Tree:
    """Every row plus a value."""
    return jax.tree.map(lambda r, w: r + w[None], rows, value)


def inner_gradient(client: Client, v: Tree, y: Tree, *, problem: Bilevel, batch_size) -> Tree:
    """g_{i,y}(v, y_i)."""
    return problem.inner_grad_y(v, y, client.draw(problem.inner_split, batch_size, client.key))


def inner_products(client: Client, v: Tree, own: tuple, *, problem: Bilevel, batch_size) -> Tree:
    """g_{i,yy} u_i and g_{i,xy} u_i at (v, y_i)."""
    y, u = own
    sample = client.draw(problem.inner_split, batch_size, client.key)
    return problem.inner_hvp(v, y, u, sample), problem.inner_cross(v, y, u, sample)
