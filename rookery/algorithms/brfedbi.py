"""BR-FedBi: a single loop for bilevel problems that tolerates Byzantine clients.

Single-loop Byzantine-resilient federated bilevel optimization. ICLR 2026, OpenReview AzaE6Dcz1C.
Read as a note on the paper and its reviews. Cached momenta are the idea of DeMoA (ICML 2026, read
as a digest): a sampled cohort may have a Byzantine majority, all clients together have not.

    paper           code                meaning
    x, y, z         x, y, v             outer and inner variable, adjoint; z = -v
    D_x, D_y, D_z   d_i                 a client's directions of all three
    AGG             run(aggregate=...)  a robust rule (:mod:`rookery.aggregate`), for each variable
                                        by itself: one that chooses clients, such as Krum, may
                                        choose others for x than for y
    η               outer_lr, inner_lr  step rules
    β               momentum            of the clients

    BRFedBi     d_i = s_i(u; ξ)
    BRFedBiM    d_i = β d_i + (1 - β) s_i(u; ξ)
    BRFedBiP    d_i = d_i + s_i(u; ξ) - s_i(u_i; ξ), u_i where the client was asked last; with
                probability p  d_i = s_i(u; Ξ)  on a large batch (:class:`PAGE`)
    then        u = u - η AGG(d_i)

Without a robust rule and an estimator it is SOBA. A robust rule is biased where honest clients
differ, also without an attack: a median then ends elsewhere than the mean.

Cost of a round: 1 exchange, all three variables down and up. Clients keep d_i, and u_i for PAGE.
"""

from dataclasses import KW_ONLY
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.shared.block_steps import AbstractBilevelSteps
from rookery.algorithms.shared.blocks import evaluate, own_maps
from rookery.algorithms.shared.estimators import PAGE
from rookery.algorithms.shared.schedule import number
from rookery.algorithms.shared.views import Blocks
from rookery.problem.bilevel import Bilevel
from rookery.problem.constraints import projected
from rookery.program.algorithm import with_settings_of
from rookery.program.federation import AbstractFederation, Client
from rookery.program.memory import Memory, PerClient, check_rule
from rookery.types import Count, Key, Tree


class BRFedBiState(NamedTuple):
    """The iterates, what clients keep, what the server has of each client, and rules' states."""

    x: Tree
    y: Tree
    v: Tree
    own: Tree
    cache: Tree
    opts: tuple[Tree, ...]


class Kept(NamedTuple):
    """A client's estimate, where it was made (PAGE), and whether it has made one."""

    d: Blocks
    at: Blocks | tuple[()]
    is_made: jax.Array


class BRFedBi(AbstractBilevelSteps):
    """SOBA with a robust rule for each variable, and estimates that clients keep.

    Args:
        outer_lr: step rule of x.
        inner_lr: of y and v, or a tuple with one each.
        momentum: β of the clients, at least 0 and below 1.
        page: estimates by differences (BR-FedBiP) instead of momentum.
        cached: whether the rule is applied to what all clients sent last, not to the cohort alone.
            A client that has sent nothing yet counts as zero.

    >>> BRFedBi(outer_lr=0.05, inner_lr=0.1, momentum=0.9, cached=True).momentum
    0.9
    """

    is_followed: ClassVar[bool] = False

    _: KW_ONLY
    momentum: float = eqx.field(converter=number, default=0.0)
    page: PAGE | None = None
    cached: bool = False

    def __check_init__(self):
        check.decay("momentum", self.momentum)
        if self.page is not None and self.momentum > 0:
            raise ValueError(
                f"BRFedBi got momentum={self.momentum} and page. Estimates are kept by one of them."
            )
        if self.is_kept or self.cached:
            check_rule(self.name, self.clients)

    @property
    def is_kept(self) -> bool:
        """Whether clients keep their estimates."""
        return self.page is not None or self.momentum != 0

    def init(self, problem: Bilevel, x: Tree, y: Tree) -> BRFedBiState:
        """The given variables, and v = 0; no client has sent anything."""
        blocks = x, y, tree.zeros_like(y)
        zero = tree.zeros_like(blocks)
        at = blocks if self.page is not None else ()
        own = Memory.of(Kept(zero, at, jnp.zeros((), bool))) if self.is_kept else ()
        cache = PerClient.of(zero) if self.cached else ()
        return BRFedBiState(*blocks, own, cache, self.first_opts(problem, blocks))

    def round(
        self, fed: AbstractFederation, problem: Bilevel, state: BRFedBiState, key: Key
    ) -> BRFedBiState:
        """One exchange, and a step of all three variables."""
        blocks, own, cache = (state.x, state.y, state.v), state.own, state.cache
        who, sample_key = jax.random.split(key)
        cohort = fed.sample(self.clients, who)
        at = fed.broadcast(cohort, blocks)  # ------------------------------- down  x, y, v
        settings = {"problem": problem, "algorithm": self, "round": fed.round}
        if isinstance(own, Memory):
            kept = fed.map(renewed, at, fed.recall(cohort, own), key=sample_key, **settings)
            d_i, own = fed.map(estimate_of, kept), fed.keep(own, kept)
        else:
            how = {"view": None, "batch_size": self.batch_size, "round": fed.round}
            d_i = fed.map(own_maps, at, key=sample_key, problem=problem, **how)
        with fed.outer():
            if self.cached:
                rows = fed.stack(d_i, is_aggregated=True)  # ---------------- up    d_i
                cache = PerClient(_written(cache.rows, cohort, rows))
                d = tuple(fed.aggregate(block, fed.weights) for block in cache.rows)
            else:
                d = fed.mean(d_i, apart=True)  # ---------------------------- up    d_i
        opts = self.measured(fed, problem, state.opts, blocks, key)
        (x, y, v), opts = self.step(d, opts, blocks, fed.round)
        return BRFedBiState(projected(problem, "x", x), y, v, own, cache, opts)


@with_settings_of(BRFedBi, without=("page",))
def BRFedBiM(**settings) -> BRFedBi:
    """BR-FedBi whose clients send momenta: ``momentum``, 0.9 if not given.

    >>> BRFedBiM(outer_lr=0.05, inner_lr=0.1).momentum
    0.9
    """
    return BRFedBi(**{"momentum": 0.9, **settings}, label="BRFedBiM")


@with_settings_of(BRFedBi, without=("momentum",))
def BRFedBiP(**settings) -> BRFedBi:
    """BR-FedBi whose clients send estimates by differences: ``page``, p = 0.1 if not given.

    >>> BRFedBiP(outer_lr=0.05, inner_lr=0.1).page.refresh
    0.1
    """
    if settings.get("page") is None:
        settings["page"] = PAGE(0.1)
    return BRFedBi(**settings, label="BRFedBiP")


def renewed(
    client: Client, u: Blocks, kept: Kept, *, problem: Bilevel, algorithm: BRFedBi, round: Count
) -> Kept:
    """The client's estimate at u; the first one has no past."""

    def maps(*points, key, batch_size):
        return evaluate(client, problem, None, batch_size, key, *points, round=round)

    page, batch_size, made = algorithm.page, algorithm.batch_size, jnp.ones((), bool)
    if page is not None:
        start = eqx.tree_at(lambda p: p.refresh, page, jnp.where(kept.is_made, page.refresh, 1.0))
        settings = {"key": client.key, "batch_size": batch_size}
        return Kept(start.renewed(client, maps, u, kept.at, kept.d, **settings), u, made)
    beta = jnp.where(kept.is_made, algorithm.momentum, 0.0)
    (new,) = maps(u, key=client.key, batch_size=batch_size)
    d = tree.add(tree.scale(beta, kept.d), tree.scale(1 - beta, new))
    return Kept(d, (), made)


def estimate_of(client: Client, kept: Kept) -> Blocks:
    """What the client sends of what it keeps."""
    return kept.d


def _written(rows: Blocks, cohort, new: Blocks) -> Blocks:
    """The server's rows after the active clients' new ones."""
    at = jnp.where(cohort.active, cohort.ids, jax.tree.leaves(rows)[0].shape[0])  # beyond: dropped
    return jax.tree.map(lambda all, some: all.at[at].set(some, mode="drop"), rows, new)
