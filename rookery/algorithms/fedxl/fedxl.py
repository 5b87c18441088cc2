"""FeDXL: federated X-risk optimisation with pools of the scores of others.

Z. Guo, R. Jin, J. Luo, T. Yang. FeDXL: provable federated learning for deep X-risk optimization.
ICML 2023, arXiv:2210.14396. From its abstract and the authors' program.

    paper       code                    meaning
    w, G        w, m                    the model, and the momentum of its gradient estimate
    S1, S2      positive, negative      rows z in P and z' in N, of all clients
    B1, B2      batch_size              of every local step, by split
    H1, H2, U   Pools (pools.py)        scores of z and z', and u of z, as clients computed them in
                                        the last round: merged, they stand for everybody's rows
    u           u                       of every own z, a moving average of  mean over z' of ℓ
    γ, β        gamma, beta             how much of u and of m a step renews
    η           lr                      local step size
    K           local_steps             local steps between two averages

    client      K times, on batches of own z and z':
                u_z = (1 - γ) u_z + γ mean_j ℓ(h(z), H2[j])
                G   = mean_z φ'(u_z) mean_j ∂1 ℓ(h(z), H2[j]) ∇h(z)
                      + mean_z' mean_j φ'(U[j]) ∂2 ℓ(H1[j], h(z')) ∇h(z')
                m   = (1 - β) m + β G,   w = w - η m
    server      means of w and m, all of m; the pools of the clients that took part are replaced

With γ = β = 1, one local step, whole batches and pools that are refreshed in every round a step is
an exact gradient step, for any number of clients. Otherwise scores are those of older models.

Cost of a round: 1 exchange. A client sends w, m, the K (2 B1 + B2) scores that it made, and two
counts; it is sent w, m and the same of all clients with their weights. A refresh is one exchange
more: everyone is sent w and replies with K (B1 + B2) scores and two counts. Scores of single rows
leave a client, so the method is not private, and every client of a cohort must answer.

Departures from the authors' program: u starts with its first estimate, not at 1; all of m is
averaged, not one tensor of it; one draw of pool entries serves a whole batch; with sampled clients
the pools keep the latest scores of those that are absent.
"""

from dataclasses import KW_ONLY
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rookery import check, tree
from rookery.algorithms.fedxl.pools import Pools, entries, no_pools, some_of, with_batch, written
from rookery.algorithms.shared.schedule import number
from rookery.algorithms.shared.step_rule import Size, check_size, size_of, step_rule
from rookery.loss import Batch
from rookery.problem.constraints import projected
from rookery.problem.xrisk import XRisk, as_batch
from rookery.program.algorithm import SampledAlgorithm, check_kind
from rookery.program.federation import AbstractFederation, Client
from rookery.program.memory import Memory, PerClient, check_rule
from rookery.program.participation import Everyone
from rookery.samples import rows_per_draw
from rookery.types import Count, Key, Tree


class Own(NamedTuple):
    """What a client keeps of each of its rows of P: u, and whether it has one yet."""

    u: Float[Array, " most"]
    has_u: Bool[Array, " most"]


class FeDXLState(NamedTuple):
    """The model, its momentum, everybody's pools, and what clients keep."""

    w: Tree
    m: Tree
    pools: PerClient
    own: Memory


class FeDXL(SampledAlgorithm):
    """Local steps with momentum against pools of everybody's scores.

    >>> FeDXL(lr=0.1, gamma=0.9, beta=0.1, local_steps=8, batch_size=16).gamma
    0.9

    Args:
        lr: η, a number, a schedule, or a size for the whole round (:class:`PerCall`).
        gamma: γ, above 0 and at most 1.
        beta: β, above 0 and at most 1.
        local_steps: K, the same for all clients.
        pool_batch: pool entries drawn in every local step, with replacement; None uses them all.
        refresh: after how many rounds all clients score their rows again with the server's model;
            None does so in round 0 alone.
    """

    projects: ClassVar[bool] = True
    shows_rows: ClassVar[bool] = True

    _: KW_ONLY
    lr: Size = eqx.field(converter=step_rule)
    gamma: float = eqx.field(converter=number, default=1.0)
    beta: float = eqx.field(converter=number, default=1.0)
    local_steps: int = 1
    pool_batch: int | None = None
    refresh: int | None = None

    def __check_init__(self):
        check_size("FeDXL", "lr", self.lr, "A step follows the momentum m.", "local")
        check.fraction("gamma", self.gamma)
        check.fraction("beta", self.beta)
        check.count("local_steps", self.local_steps)
        for name in ("pool_batch", "refresh"):
            if getattr(self, name) is not None:
                check.count(name, getattr(self, name))
        check_rule("FeDXL", self.clients)

    def check(self, problem: XRisk, n_clients: int) -> None:
        """Raise unless the problem is an X-risk and there are enough clients."""
        check_kind(self, problem, XRisk)
        self.clients.check(n_clients)

    def init(self, problem: XRisk, w: Tree) -> FeDXLState:
        """The given model; round 0 fills the pools."""
        none = self.empty(problem, w)
        u = jnp.zeros(problem.most_positives, none.u.dtype)
        own = Memory.of(Own(u, jnp.zeros_like(u, bool)))
        return FeDXLState(w, tree.zeros_like(w), PerClient.of(none), own)

    def empty(self, problem: XRisk, w: Tree) -> Pools:
        """A client's pools before its first step."""
        sizes = (
            (rows_per_draw(self.batch_size, problem.positive_split), problem.most_positives),
            (rows_per_draw(self.batch_size, problem.negative_split), problem.most_negatives),
        )
        b1, b2 = (most if size is None else min(size, most) for size, most in sizes)
        return no_pools(self.local_steps, b1, b2, jnp.result_type(jax.tree.leaves(w)[0]))

    def round(
        self, fed: AbstractFederation, problem: XRisk, state: FeDXLState, key: Key
    ) -> FeDXLState:
        """One exchange, and one more if the pools are refreshed."""
        who, local_key, pool_key = jax.random.split(key, 3)
        pools = self.refreshed(fed, problem, state, pool_key)
        cohort = fed.sample(self.clients, who)
        merged = pools.rows, fed.weights.astype(pools.rows.u.dtype)
        at = fed.broadcast(cohort, state.w, state.m, merged)  # -------------- down  w, m, pools
        own = fed.recall(cohort, state.own)
        settings = {"problem": problem, "algorithm": self, "round": fed.round}
        replies, own = fed.map(pool_steps, *at, own, key=local_key, **settings)
        with fed.outer():
            w_i, m_i, made = fed.stack(replies)  # --------------------------- up    w, m, pools
        w, m = fed.aggregate((w_i, m_i), fed.slot_weights(cohort))
        return FeDXLState(
            w=projected(problem, "w", w),
            m=m,
            pools=PerClient(written(pools.rows, cohort, made)),
            own=fed.keep(state.own, own),
        )

    def refreshed(
        self, fed: AbstractFederation, problem: XRisk, state: FeDXLState, key: Key
    ) -> PerClient:
        """The pools, scored by the model of now if it is time."""
        round = jnp.asarray(fed.round)
        is_due = round == 0 if self.refresh is None else round % self.refresh == 0

        def scored(pools: Pools) -> Pools:
            everyone = fed.sample(Everyone(), key)
            w = fed.broadcast(everyone, state.w)  # -------------------------- down  w
            settings = {"problem": problem, "algorithm": self}
            fresh = fed.map(fresh_scores, w, key=key, **settings)
            positive, negative, positives, negatives = fed.stack(fresh)  # --- up    scores
            known = Pools(positive, positive, negative, positives, negatives)
            pools = written(pools, everyone, known)
            second, share = entries(pools.negative, pools.negatives, fed.weights)

            def row(i: Count, u: Array) -> Array:
                pairs = problem.losses(pools.positive[i].ravel(), second)
                return u.at[i].set((pairs @ share).reshape(u.shape[1:]))

            return pools._replace(u=fed.repeat(fed.n_clients, row, pools.u))

        return PerClient(fed.when(is_due, scored, state.pools.rows))

    def solution(self, state: FeDXLState) -> tuple[Tree]:
        """(w,)."""
        return (state.w,)


def fresh_scores(client: Client, w: Tree, *, problem: XRisk, algorithm: FeDXL) -> tuple[Array, ...]:
    """Scores of as many batches as a round has steps, and how many of each batch are rows."""

    def score(k: Count, made: Pools) -> Pools:
        first, second, _ = drawn(client, problem, algorithm, jax.random.fold_in(client.key, k))
        h = problem.positive_scores(w, first.rows)
        return with_batch(made, k, first, second, h, h, problem.negative_scores(w, second.rows))

    made = client.repeat(algorithm.local_steps, score, algorithm.empty(problem, w))
    return made.positive, made.negative, made.positives, made.negatives


def pool_steps(
    client: Client,
    w: Tree,
    m: Tree,
    merged: tuple[Pools, Array],
    own: Own,
    *,
    problem: XRisk,
    algorithm: FeDXL,
    round: Count,
) -> tuple[tuple[Tree, Tree, Pools], Own]:
    """The model and its momentum after the local steps, with the pools they made; and new u."""
    pools, weights = merged
    dtype = pools.u.dtype
    gamma, beta = (jnp.asarray(a).astype(dtype) for a in (algorithm.gamma, algorithm.beta))
    size = size_of(algorithm.lr, round, algorithm.local_steps)
    H1, share1 = entries(pools.positive, pools.positives, weights)
    U, _ = entries(pools.u, pools.positives, weights)
    H2, share2 = entries(pools.negative, pools.negatives, weights)

    def step(k, carry):
        w, m, (u, has_u), made = carry
        w = projected(problem, "w", w)
        key, first_key, second_key = jax.random.split(jax.random.fold_in(client.key, k), 3)
        first, second, at = drawn(client, problem, algorithm, key, gradients=1)
        (h2,), omega2 = some_of(algorithm.pool_batch, second_key, share2, H2)
        (h1, u1), omega1 = some_of(algorithm.pool_batch, first_key, share1, H1, U)

        def scores(w: Tree) -> tuple[Array, Array]:
            h = problem.positive_scores(w, first.rows), problem.negative_scores(w, second.rows)
            return h[0].astype(dtype), h[1].astype(dtype)

        h, other = scores(w)
        estimate = problem.losses(h, h2) @ omega2
        u_z = jnp.where(has_u[at], (1 - gamma) * u[at] + gamma * estimate, estimate)
        slope_z, slope_j = problem.slopes(u_z), problem.slopes(u1)

        def surrogate(w: Tree) -> Array:
            """Its gradient is G: all else that depends on w is held."""
            h, other = scores(w)
            of_first = (first.weights.astype(dtype) * slope_z) @ problem.losses(h, h2) @ omega2
            of_second = (omega1 * slope_j) @ problem.losses(h1, other)
            return of_first + of_second @ second.weights.astype(dtype)

        G = jax.grad(surrogate)(w)
        m = tree.add(tree.scale(1 - beta, m), tree.scale(beta, G))
        made = with_batch(made, k, first, second, h, u_z, other)
        return tree.axpy(-size, m, w), m, Own(u.at[at].set(u_z), has_u.at[at].set(True)), made

    begin = (w, m, own, algorithm.empty(problem, w))
    w, m, own, made = client.repeat(algorithm.local_steps, step, begin)
    return (w, m, made), own


def drawn(
    client: Client, problem: XRisk, algorithm: FeDXL, key: Key, gradients: int = 0
) -> tuple[Batch, Batch, Array]:
    """Batches of own rows of P and N, and the numbers of the former among the client's rows."""
    split, other = problem.positive_split, problem.negative_split
    most = client.most_rows(split)
    check_most("most_positives", problem.most_positives, most)
    check_most("most_negatives", problem.most_negatives, client.most_rows(other))
    first_key, second_key = jax.random.split(key)
    size, every = algorithm.batch_size, jnp.arange(most, dtype=jnp.int32)
    positives = client.draw(split, size, first_key)
    numbers = client.draw(split, size, first_key, prepared=every)
    negatives = client.draw(other, size, second_key)
    positives.charge(gradients=gradients)
    negatives.charge(gradients=gradients)
    return as_batch(positives), as_batch(negatives), as_batch(numbers).rows


def check_most(name: str, given: int, most: int) -> None:
    """Raise if a client may have more rows than the problem says."""
    if most > given:
        raise ValueError(
            f"XRisk({name}={given}), but the largest client has {most} of these rows. Give the "
            "number of rows of the largest client."
        )
