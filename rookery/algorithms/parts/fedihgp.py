"""FedIHGP: the inverse of the global inner Hessian times the outer gradient, by vectors alone.

Both estimators walk along the Neumann series of the *mean* inner Hessian,
    g_yy^{-1} = (1/L) Σ_n (I - g_yy / L)^n ,   L at least half the largest eigenvalue of g_yy,
one exchange per hop, each with a fresh cohort and fresh samples: with one cohort throughout, the
mean of a product would not be the product of the means.
"""

import abc

import equinox as eqx
import jax

from rookery import _check, _tree
from rookery._random import below
from rookery._types import Key, Tree
from rookery.algorithms.parts.lipschitz import PowerIteration
from rookery.problem.bilevel import Bilevel
from rookery.program.cohort import AbstractParticipation
from rookery.program.federation import AbstractFederation, Client, Shared


class AbstractIHGP(eqx.Module):
    """An estimator of v with  g_yy v = f_y."""

    terms: eqx.AbstractVar[int]
    lipschitz: eqx.AbstractVar[float | PowerIteration]

    @abc.abstractmethod
    def __call__(self, series: "Series", f_y: Tree, key: Key) -> Tree:
        """The estimate, given f_y and the hops of the series."""

    def __check_init__(self):
        name = type(self).__name__
        _check.count(f"{name}.terms", self.terms)
        if not isinstance(self.lipschitz, PowerIteration):
            _check.positive(f"{name}.lipschitz", self.lipschitz)


class FedIHGP(AbstractIHGP):
    """The paper's estimator: one product of random length, unbiased for the first N terms.

    p_0 = (N/L) f_y, then N' hops with N' uniform on 0..N-1. It costs N' + 1 exchanges.

    Args:
        terms: N.
        lipschitz: L, or how to estimate it.
    """

    terms: int = 5
    lipschitz: float | PowerIteration = eqx.field(default_factory=PowerIteration)

    def __call__(self, series, f_y, key):
        """p_{N'}."""
        length_key, hop_key = jax.random.split(key)
        hops = below(length_key, (), self.terms)  # N'

        def hop(n, p):
            return series.hop(p, jax.random.fold_in(hop_key, n))

        return series.fed.repeat(hops, hop, _tree.scale(self.terms / series.lipschitz, f_y))


class FedIHGPSum(AbstractIHGP):
    """The truncated series itself: N hops, N + 1 terms, no randomness in the length.

    It costs N + 1 exchanges.

    Args:
        terms: N.
        lipschitz: L, or how to estimate it.
    """

    terms: int = 5
    lipschitz: float | PowerIteration = eqx.field(default_factory=PowerIteration)

    def __call__(self, series, f_y, key):
        """The sum of t_0 to t_N."""

        def hop(n, carry):
            t, v = carry
            t = series.hop(t, jax.random.fold_in(key, n))
            return t, _tree.add(v, t)

        t = _tree.scale(1 / series.lipschitz, f_y)
        return series.fed.repeat(self.terms, hop, (t, t))[1]


class Series(eqx.Module):
    """The exchanges that a Neumann series at one point (x, y) is made of.

    A client keeps (x, y) for as long as the series lasts, so hops send it to newcomers only.
    """

    fed: AbstractFederation
    problem: Bilevel
    point: Shared
    lipschitz: jax.Array
    clients: AbstractParticipation
    batch_size: int | None

    def start(self, key: Key) -> Tree:
        """The mean of f_y over a fresh cohort."""
        who, sample_key = jax.random.split(key)
        cohort = self.fed.sample(self.clients, who)
        point = self.fed.broadcast(cohort, self.point)  # -------------------- down  x, y
        f_y = self.fed.map(outer_gradient_y, point, key=sample_key, **self._settings())
        return self.fed.mean(f_y)  # ----------------------------------------- up    f_y

    def hop(self, p: Tree, key: Key) -> Tree:
        """The term after p: p - g_yy p / L, the product averaged over a fresh cohort."""
        who, sample_key = jax.random.split(key)
        cohort = self.fed.sample(self.clients, who)
        point, sent = self.fed.broadcast(cohort, self.point, p)  # ----------- down  p (and x, y)
        product = self.fed.map(hessian_vector, point, sent, key=sample_key, **self._settings())
        return _tree.axpy(-1 / self.lipschitz, self.fed.mean(product), p)  # - up    g_yy p

    def _settings(self):
        return {"problem": self.problem, "batch_size": self.batch_size}


def fedihgp(
    fed: AbstractFederation,
    problem: Bilevel,
    x: Tree,
    y: Tree,
    estimator: AbstractIHGP,
    lipschitz: jax.Array,
    clients: AbstractParticipation,
    batch_size: int | None,
    key: Key,
) -> Tree:
    """The product v at (x, y), by the estimator's own number of exchanges."""
    start_key, series_key = jax.random.split(key)
    series = Series(fed, problem, fed.share((x, y)), lipschitz, clients, batch_size)
    return estimator(series, series.start(start_key), series_key)


def outer_gradient_y(
    client: Client, point: tuple[Tree, Tree], *, problem: Bilevel, batch_size: int | None
) -> Tree:
    """f_y(x, y; ξ)."""
    sample = client.draw(problem.outer_split, batch_size, client.key)
    return problem.outer_grad_y(*point, sample)


def hessian_vector(
    client: Client, point: tuple[Tree, Tree], p: Tree, *, problem: Bilevel, batch_size: int | None
) -> Tree:
    """g_yy(x, y; ζ) p."""
    sample = client.draw(problem.inner_split, batch_size, client.key)
    return problem.inner_hvp(*point, p, sample)
