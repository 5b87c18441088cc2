"""FedMBO: federated bilevel optimisation whose variance falls with the number of clients.

M. Huang, D. Zhang, K. Ji. Achieving linear speedup in non-IID federated bilevel learning.
ICML 2023, arXiv:2302.05412.

    paper   code                            meaning
    x, y    x, y                            outer and inner variable
    α, β    outer_lr, inner_lr              step rules of the server
    T       inner_rounds                    inner steps per round
    n       clients, hypergradient.chains   who takes part in an exchange; chains side by side
    S       batch_size                      rows per evaluation on a client
    N       hypergradient.terms             length of the Neumann series
    ℓ_g,1   hypergradient.lipschitz         largest eigenvalue of the inner Hessian

Cost of a round: T + max_i N_i + 2 exchanges with PHE (N_i hops drawn by chain i), T + N + 2 with
PHESum, and one more in a round that estimates L. Departures from the paper: PHESum is the default,
since a random length is noise that no batch size removes; the clients of the chains are drawn
independently, as the proof assumes, and by their weights, so that unequal weights are right too;
d_i is f_x, where algorithm 2 prints f_y; an inner step starts from the newest y.
"""

import abc
import functools
from dataclasses import KW_ONLY

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.shared.auto import Curvature, DoG
from rookery.algorithms.shared.context import Context
from rookery.algorithms.shared.curvature import at_least, is_measured, measured_for
from rookery.algorithms.shared.levels import TwoLevel
from rookery.algorithms.shared.lipschitz import NeumannSettings, lipschitz
from rookery.algorithms.shared.server import mean_inner_gradient
from rookery.algorithms.shared.step_rule import (
    StepRule,
    check_step_rule,
    first_opt,
    inner_rule,
    move,
    step_rule,
)
from rookery.algorithms.shared.system import hessian_vector
from rookery.algorithms.shared.two_level import (
    AbstractHypergradient,
    Opts,
    State,
    TwoLevelAlgorithm,
)
from rookery.algorithms.shared.warm import WarmSeries
from rookery.problem.bilevel import Bilevel
from rookery.problem.constraints import projected
from rookery.program.federation import AbstractFederation, Cached, Client
from rookery.program.participation import AbstractParticipation, Cohort, Weighted
from rookery.rng import below
from rookery.types import BatchSize, Key, Tree


class FedMBO(TwoLevelAlgorithm):
    """The server takes all steps, along mini-batch gradients of sampled clients (algorithm 1).

    Args:
        outer_lr: α, the step rule of x.
        inner_lr: β, likewise.
        inner_rounds: T, inner steps per round.
        hypergradient: the estimator of the outer gradient, :class:`PHESum` or :class:`PHE`. If None
            it is PHESum, or WarmSeries if L is measured for the inner steps anyway: one vector v
            that the clients' mean products improve from round to round, instead of chains.

    >>> FedMBO(outer_lr=0.05, inner_lr=0.1, hypergradient=PHE(terms=4), clients=10).inner_rounds
    1
    """

    _: KW_ONLY
    outer_lr: StepRule = eqx.field(converter=step_rule, default_factory=DoG)
    inner_lr: StepRule = eqx.field(converter=inner_rule, default_factory=Curvature)
    inner_rounds: int = 1
    hypergradient: AbstractHypergradient | None = None

    def __check_init__(self):
        check_step_rule("outer_lr", self.outer_lr, may_be_auto=True)
        check_step_rule("inner_lr", self.inner_lr, may_be_auto=True)
        check.count("inner_rounds", self.inner_rounds)

    def check(self, problem: TwoLevel, n_clients: int) -> None:
        """Raise unless the problem has two levels and the settings fit it and the clients."""
        self.check_problem(problem, n_clients)
        self.estimator.check(problem, n_clients)

    @property
    def estimator(self) -> AbstractHypergradient:
        """``hypergradient``, or the one that suits the inner steps."""
        if self.hypergradient is not None:
            return self.hypergradient
        return WarmSeries() if is_measured(self.inner_lr) else PHESum()

    @property
    def is_alone(self) -> bool:
        """All steps are the server's."""
        return False

    def first_opts(self, x: Tree, y: Tree) -> Opts:
        """The states of the server's rules and of the estimator, if they have any."""
        own = first_opt(self.inner_lr, y), first_opt(self.outer_lr, x)
        return Opts(*own, self.estimator.first_memory(y))

    def round(self, fed: AbstractFederation, problem: TwoLevel, state: State, key: Key) -> State:
        """T inner steps, then PHE and one outer step."""
        context = Context(fed, problem, self.clients, self.batch_size)
        inner_key, outer_key = jax.random.split(key)
        opts, estimator = measured_for(context, self.inner_lr, self.estimator, state, key)
        y_opt, x_opt, _ = opts

        def inner_step(t, carry):
            y, opt = carry
            q = mean_inner_gradient(context, state.x, y, jax.random.fold_in(inner_key, t))
            y, opt = move(self.inner_lr, q, opt, y, fed.round)
            return projected(problem, "y", y), opt

        y, y_opt = fed.repeat(self.inner_rounds, inner_step, (state.y, y_opt))  # y^{k+1}
        h, L, memory = estimator.from_memory(context, state._replace(y=y), outer_key)  # PHE
        y_opt = at_least(self.inner_lr, y_opt, L)
        x, x_opt = move(self.outer_lr, h, x_opt, state.x, fed.round)  # ------ x^{k+1}
        x = projected(problem, "x", x)
        return state._replace(x=x, y=y, lipschitz=L, opts=Opts(y_opt, x_opt, memory))


def chain_rule(value: AbstractParticipation | int | None) -> AbstractParticipation | None:
    """Field converter: a number of clients is drawn independently by their weights."""
    if value is None or isinstance(value, AbstractParticipation):
        return value
    return Weighted(check.count("the number of chains", value))


class AbstractPHE(NeumannSettings, AbstractHypergradient):
    """n independent estimates of the hypergradient, side by side (algorithm 2).

    Every chain walks from client to client with a vector of its own, so the mean over chains has
    1/n of the variance of one. FedIHGP averages within a hop instead; the noise of its one random
    length stays, however many clients take part.

    Args:
        chains: n, or the rule that draws the n clients of a hop. A number draws them independently
            by their weights, and so does None, with as many as take part elsewhere; rules that
            ignore weights suit clients of equal weight.
    """

    _: KW_ONLY
    chains: AbstractParticipation | None = eqx.field(converter=chain_rule, default=None)

    @abc.abstractmethod
    def solve(self, chains: "Chains", f_y: Tree, L: jax.Array, key: Key) -> Tree:
        """The adjoints, one row per chain, from the chains' own f_y."""

    def each(self, context: Context, state: State, key: Key) -> tuple[Tree, jax.Array]:
        """The hypergradients H_i, one row per chain, and L."""
        lipschitz_key, start_key, series_key, last_key = jax.random.split(key, 4)
        L = lipschitz(context, state, self.lipschitz, lipschitz_key)
        chains = Chains(context, self._rule(context), context.fed.cache((state.x, state.y)))
        d, f_y = chains.start(start_key)
        p = self.solve(chains, f_y, L, series_key)
        return tree.sub(d, chains.cross(p, last_key)), L

    def __call__(self, context, state, key):
        """The plain mean of the chains, and L."""
        each, L = self.each(context, state, key)
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

    def _rule(self, context: Context) -> AbstractParticipation:
        if self.chains is not None:
            return self.chains
        return Weighted(cohort_size(context.clients, context.fed.n_clients))


class PHE(AbstractPHE):
    """The paper's estimator: every chain is one product of its own random length.

    p_{i,0} = (N/L) f_y, then N_i hops with N_i uniform on 0..N-1; a chain that has ended sends
    nothing. It costs max_i N_i + 2 exchanges.

    >>> PHE(terms=4, lipschitz=5.0, chains=10).terms
    4
    """

    def solve(self, chains, f_y, L, key):
        """p_{i,N_i}."""
        length_key, hop_key = jax.random.split(key)
        hops = below(length_key, (_rows(f_y),), self.terms)  # N_i

        def hop(n, p):
            is_running = n < hops
            product = chains.product(p, is_running, jax.random.fold_in(hop_key, n))
            return tree.where(is_running, tree.axpy(-1 / L, product, p), p)

        return chains.context.fed.repeat(jnp.max(hops), hop, tree.scale(self.terms / L, f_y))


class PHESum(AbstractPHE):
    """Every chain sums the truncated series: N hops, N + 1 terms, no randomness in the length.

    It costs N + 2 exchanges.

    >>> PHESum(terms=4).lipschitz.every
    10
    """

    def solve(self, chains, f_y, L, key):
        """The sums of the terms 0 to N."""
        everyone = jnp.ones(_rows(f_y), bool)

        def hop(n, carry):
            t, v = carry
            product = chains.product(t, everyone, jax.random.fold_in(key, n))
            t = tree.axpy(-1 / L, product, t)
            return t, tree.add(v, t)

        t = tree.scale(1 / L, f_y)
        return chains.context.fed.repeat(self.terms, hop, (t, t))[1]


class Chains(eqx.Module):
    """The exchanges that n chains at one point (x, y) are made of, a fresh client for each.

    A client keeps (x, y) for as long as the chains last, so the point is sent to newcomers only.
    """

    context: Context
    rule: AbstractParticipation
    point: Cached

    def start(self, key: Key) -> tuple[Tree, Tree]:
        """d_i = f_x and f_y, one row per chain."""
        fed, cohort, sample_key = self._draw(key)
        point = fed.broadcast(cohort, self.point)  # ------------------------- down  x, y
        both = self.context.map(outer_gradients, point, key=sample_key)
        return fed.stack(both)  # -------------------------------------------- up    f_x, f_y

    def product(self, p: Tree, is_running: jax.Array, key: Key) -> Tree:
        """g_yy p_i, one row per chain; the row of a chain that has ended means nothing."""
        fed, cohort, sample_key = self._draw(key)
        cohort = cohort.where(is_running)
        point = fed.broadcast(cohort, self.point)  # ------------------------- down  x, y if new
        p_i = fed.scatter(cohort, p)  # -------------------------------------- down  p_i
        products = self.context.map(hessian_vector, point, p_i, key=sample_key)
        return fed.stack(products)  # ---------------------------------------- up    g_yy p_i

    def cross(self, p: Tree, key: Key) -> Tree:
        """w_i = g_xy p_i, one row per chain."""
        fed, cohort, sample_key = self._draw(key)
        point = fed.broadcast(cohort, self.point)  # ------------------------- down  x, y if new
        p_i = fed.scatter(cohort, p)  # -------------------------------------- down  p_i
        w_i = self.context.map(cross_vector, point, p_i, key=sample_key)
        with fed.outer():
            return fed.stack(w_i)  # ----------------------------------------- up    w_i

    def _draw(self, key: Key) -> tuple[AbstractFederation, Cohort, Key]:
        """The federation, the clients of a hop in random order, and the key of their samples."""
        who, sample_key = jax.random.split(key)
        draw_key, order_key = jax.random.split(who)
        cohort = self.context.fed.sample(self.rule, draw_key)
        # a rule promises a random set, not a random order: unshuffled, a chain would meet its own
        # few clients again and again
        order = jax.random.permutation(order_key, len(cohort))
        return self.context.fed, cohort.reordered(order), sample_key


def outer_gradients(
    client: Client, point: tuple[Tree, Tree], *, problem: Bilevel, batch_size: BatchSize
) -> tuple[Tree, Tree]:
    """f_x(x, y; φ) and f_y(x, y; θ), on independent samples."""
    x_key, y_key = jax.random.split(client.key)
    x_sample = client.draw(problem.outer_split, batch_size, x_key)
    y_sample = client.draw(problem.outer_split, batch_size, y_key)
    return problem.outer_grad_x(*point, x_sample), problem.outer_grad_y(*point, y_sample)


def cross_vector(
    client: Client, point: tuple[Tree, Tree], p: Tree, *, problem: Bilevel, batch_size: BatchSize
) -> Tree:
    """g_xy(x, y; ω) p."""
    sample = client.draw(problem.inner_split, batch_size, client.key)
    return problem.inner_cross(*point, p, sample)


def _rows(tree: Tree) -> int:
    return jax.tree.leaves(tree)[0].shape[0]


def cohort_size(rule: AbstractParticipation, n_clients: int) -> int:
    """How many slots the cohorts of a rule have."""
    probabilities = jnp.full(n_clients, 1 / n_clients)
    draw = functools.partial(rule.draw, n_clients=n_clients, probabilities=probabilities)
    return len(jax.eval_shape(draw, jax.random.key(0)))
