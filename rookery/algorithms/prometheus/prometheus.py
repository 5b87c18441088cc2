"""Prometheus: decentralised bilevel optimisation, whose agents gossip with their neighbours.

Z. Liu, X. Zhang, P. Khanduri, S. Lu, J. Liu. Prometheus: taming sample and communication
complexities in constrained decentralized stochastic bilevel learning. ICML 2023.

    paper       code            meaning
    x_i, y_i    x, y            an agent's own outer and inner variable
    d_i, p_i    d, p            its estimates of g_y and of its hypergradient (SPIDER)
    u_i         u               its tracker of the mean of all p_j
    W           mixing          who listens to whom: RingGraph, CompleteGraph, MixingMatrix
    α/λ, β      outer_lr, inner_lr  step sizes; without constraints only α/λ matters
    q           renew_every     rounds from one full pass over an agent's rows to the next
    |B|         batch_size      rows per evaluation in between

Every agent i solves an inner problem of its own, and all agree on x. In a round
    x_i <- Σ_j W_ij x_j - (α/λ) u_i,    y_i <- y_i - β d_i,
    (d_i, p_i) <- full, every q rounds; else (d_i, p_i) + those at the new (x_i, y_i) - at the old,
                  both on the same rows,
    u_i <- Σ_j W_ij u_j + p_i - p_i before.
The sum of the u_i is that of the p_i, always, so it converges to a point where all x_i are equal
and the mean of the local hypergradients  f_x - g_xy [g_yy]^{-1} f_y,  each at the agent's own
y_i*(x), is zero. That solves the paper's problem, :class:`PersonalBilevel`; the one of
:class:`Bilevel`, whose inner loss is the mean of all, has another solution when clients are
heterogeneous.

Cost of a round: 1 exchange, x and u down and up, 2 m messages whatever W: the server of a star
relays, and mixes on the way. On a real graph there is no server, and an agent sends x and u to each
of its neighbours: 2 m messages on a ring, as here, and m (m - 1) on a complete graph. A round in
between evaluates both estimates twice. Departures from the paper: no constraint on x; the inverse
Hessian is a truncated Neumann series on the client (:class:`LocalNeumannSum`); all agents count
alike, whatever the clients' weights; the first round only fills d, p and u. Reconstructed from the
method's published idea, and not compared with the authors' pseudo-code.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.prometheus.mixing import AbstractMixing, RingGraph
from rookery.algorithms.shared.adjoint import own_piece
from rookery.algorithms.shared.local_adjoint import (
    AbstractLocalAdjoint,
    LocalNeumannSum,
    own_adjoint,
)
from rookery.algorithms.shared.schedule import number
from rookery.algorithms.shared.step_rule import check_number
from rookery.algorithms.shared.system import LocalSystem
from rookery.algorithms.shared.two_level import REMEDY
from rookery.problem.bilevel import AbstractBilevel, Bilevel
from rookery.program.algorithm import BatchedAlgorithm, check_kind
from rookery.program.federation import AbstractFederation, Client
from rookery.program.memory import Memory, PerClient
from rookery.program.participation import Everyone
from rookery.types import BatchSize, Count, Key, Tree

TRACKING = (
    "Agents agree on x because each subtracts the same multiple of its tracked mean gradient; with "
    "optimisers of their own the mean of x would move along another direction."
)
"""Why the step sizes of Prometheus are numbers."""


class Agent(NamedTuple):
    """What an agent keeps."""

    x: Tree
    y: Tree
    d: Tree
    p: Tree
    u: Tree


class PrometheusState(NamedTuple):
    """The agents, and the next message to each: Σ_j W_ij x_j and Σ_j W_ij u_j."""

    agents: Memory
    mixed: PerClient


class Prometheus(BatchedAlgorithm):
    """Gradient tracking with recursive estimates; every agent has an inner variable of its own.

    >>> import rookery as rk
    >>> rk.Prometheus(outer_lr=0.05, inner_lr=0.1, mixing=rk.parts.CompleteGraph()).mixing
    CompleteGraph()

    Args:
        outer_lr: α/λ.
        inner_lr: β.
        mixing: W, as :class:`RingGraph`, :class:`CompleteGraph` or :class:`MixingMatrix`.
        adjoint: how a client estimates its own inverse Hessian times its own outer gradient.
        renew_every: q; None means ``batch_size``, the paper's choice.
    """

    _: KW_ONLY
    outer_lr: float = eqx.field(converter=number)
    inner_lr: float = eqx.field(converter=number)
    mixing: AbstractMixing = eqx.field(default_factory=RingGraph)
    adjoint: AbstractLocalAdjoint = eqx.field(default_factory=LocalNeumannSum)
    renew_every: int | None = None

    def __check_init__(self):
        for name in ("outer_lr", "inner_lr"):
            check_number("Prometheus", name, getattr(self, name), TRACKING)
        if isinstance(self.batch_size, Mapping) and self.renew_every is None:
            raise ValueError(
                "with a batch_size for each split, renew_every must be given: it is the batch size "
                "otherwise, and there are several."
            )
        if self.renew_every is not None:
            check.count("renew_every", self.renew_every)
            if self.batch_size is None:
                raise ValueError(
                    "renew_every is the number of rounds between full passes, and without a "
                    "batch_size every round is one. Give a batch_size, or leave renew_every out."
                )

    def check(self, problem: AbstractBilevel, n_clients: int) -> None:
        """Raise unless the problem is bilevel and W fits the clients."""
        if not isinstance(problem, AbstractBilevel):
            check_kind(self, problem, Bilevel)
        self.mixing.check(n_clients)

    def init(self, problem: AbstractBilevel, x: Tree, y: Tree) -> PrometheusState:
        """All agents at the given iterates; nothing is estimated yet."""
        zero = tree.zeros_like(x)
        agent = Agent(x, y, tree.zeros_like(y), zero, zero)
        return PrometheusState(Memory.of(agent), PerClient.of((x, zero)))

    def round(
        self, fed: AbstractFederation, problem: AbstractBilevel, state: PrometheusState, key: Key
    ) -> PrometheusState:
        """One step of every agent, then one exchange of their messages."""
        everyone = fed.sample(Everyone(), key)
        settings = {"problem": problem, "algorithm": self, "is_full": self._is_full(fed.round)}
        own = fed.recall(everyone, state.agents)
        mixed = fed.scatter(everyone, state.mixed.rows)  # ------------------- down  W x, W u
        agents, messages = fed.map(agent_step, own, mixed, key=key, **settings)
        with fed.outer():
            messages = fed.stack(messages)  # -------------------------------- up    x_i, u_i
        mixed = self.mixing(messages, fed.n_clients)
        return PrometheusState(fed.keep(state.agents, agents), PerClient(mixed))

    def solution(self, state: PrometheusState) -> tuple[Tree, Tree]:
        """The agents' mean x and mean y."""
        agents = state.agents.rows
        return jax.tree.map(lambda rows: jnp.mean(rows, axis=0), (agents.x, agents.y))

    def remedy(self) -> str:
        """A smaller step, or a larger L."""
        return REMEDY

    def _is_full(self, round: Count) -> Count:
        """1 in a round whose estimates are over all rows, else 0."""
        if self.batch_size is None:
            return 1
        q = self.batch_size if self.renew_every is None else self.renew_every
        assert isinstance(q, int)
        return jnp.where(jnp.asarray(round) % q == 0, 1, 0).astype(jnp.int32)


def agent_step(
    client: Client,
    own: Agent,
    mixed: tuple[Tree, Tree],
    *,
    problem: AbstractBilevel,
    algorithm: Prometheus,
    is_full: Count,
) -> tuple[Agent, tuple[Tree, Tree]]:
    """The agent after its step, and its message: its x and its u."""
    x, u = mixed
    x = tree.axpy(-algorithm.outer_lr, own.u, x)
    y = tree.axpy(-algorithm.inner_lr, own.d, own.y)

    def over_all_rows(_, before):
        return estimates(client, problem, x, y, algorithm.adjoint, None)

    def corrected(_, before):
        new, old = (  # the same keys, hence the same rows, at both points
            estimates(client, problem, *point, algorithm.adjoint, algorithm.batch_size)
            for point in ((x, y), (own.x, own.y))
        )
        return tree.add(before, tree.sub(new, old))

    d, p = client.repeat(is_full, over_all_rows, (own.d, own.p), most=1)
    if algorithm.batch_size is not None:
        d, p = client.repeat(1 - is_full, corrected, (d, p), most=1)
    u = tree.add(u, tree.sub(p, own.p))
    return Agent(x, y, d, p, u), (x, u)


def estimates(
    client: Client,
    problem: AbstractBilevel,
    x: Tree,
    y: Tree,
    adjoint: AbstractLocalAdjoint,
    batch_size: BatchSize,
) -> tuple[Tree, Tree]:
    """g_y and the client's own hypergradient at (x, y), on rows that its key alone decides."""
    inner_key, L_key, series_key, piece_key = jax.random.split(client.key, 4)
    g_y = problem.inner_grad_y(x, y, client.draw(problem.inner_split, batch_size, inner_key))
    at = LocalSystem(client, problem, x, y, batch_size)
    v = own_adjoint(at, adjoint, L_key)(x, series_key)
    return g_y, own_piece(at, v, piece_key)
