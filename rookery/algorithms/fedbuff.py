"""FedBuff: federated learning with buffered asynchronous aggregation.

J. Nguyen, K. Malik, H. Zhan, A. Yousefpour, M. Rabbat, M. Malek, D. Huba. Federated learning with
buffered asynchronous aggregation. AISTATS 2022, arXiv:2106.06639.

    paper   code            meaning
    w       w               the model
    η_ℓ     lr              step size of a local step
    η_g     server_lr       step size of the server
    Q       local_steps     local steps of a job
    K       buffer_size     results that the server waits for
    Δ_i     jobs.results    how a job has moved its model; here w_i - w, the paper's is w - w_i
    s(τ)    discount        what a result of staleness τ counts:  (1 + τ)^-discount

The server goes on when its buffer is full, along the mean of the buffer, in which a stale result
counts  s(τ) = 1 / sqrt(1 + τ);  the mean is over K, not over the sum of the s(τ). Without delays
and with room for everyone it is FedAvg.

Cost of a round: 1 exchange, w down to who begins and Δ_i up from who arrives. A client counts as
often as it delivers: where clients differ, the fast ones pull w beside the minimiser, and so do
several local steps. Departures from the paper: all clients are at work, and one that has delivered
begins again when the server has gone on, so that it is in a buffer once at most; results that are
ready at the same moment arrive together, so that there may be more than K; clients count by their
weights; batches are drawn with replacement.
"""

from dataclasses import KW_ONLY

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.shared import local
from rookery.algorithms.shared.model import AsyncModelState, check_single_level, gradient_steps
from rookery.problem.single_level import SingleLevel
from rookery.program.algorithm import AbstractAlgorithm
from rookery.program.federation import AbstractFederation, Client
from rookery.program.polling import InFlight, PollRules
from rookery.types import Key, Tree


class FedBuff(AbstractAlgorithm):
    """Steps of the server along the mean of a buffer of results, the stale ones discounted.

    Args:
        lr: η_ℓ, of every local step, or of a whole job (:class:`PerCall`).
        buffer_size: K.
        local_steps: Q, one number or one per client.
        server_lr: η_g.
        discount: the power in s(τ); a half is the paper's, 0 counts all results alike.
        staleness: the largest of a result, in steps of the server; None is any.
        batch_size: rows per local step; None is all.
    """

    _: KW_ONLY
    lr: local.LearningRate = eqx.field(converter=local.number)
    buffer_size: int
    local_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)
    server_lr: float = eqx.field(converter=local.number, default=1.0)
    discount: float = eqx.field(converter=local.number, default=0.5)
    staleness: int | None = None
    batch_size: int | None = None

    def __check_init__(self):
        local.check_fields(self)
        check.count("buffer_size", self.buffer_size)
        check.not_negative("discount", self.discount)
        if self.staleness is not None:
            check.count("staleness", self.staleness, least=0)

    def check(self, problem: SingleLevel, n_clients: int) -> None:
        """Raise unless the problem is single-level and the clients can fill the buffer."""
        check_single_level("FedBuff", problem)
        local.check_fields(self, n_clients)
        if self.buffer_size > n_clients:
            raise ValueError(
                f"{n_clients} clients cannot fill a buffer_size of {self.buffer_size}: each is in "
                f"the buffer once at most. Use at most {n_clients}."
            )

    def init(self, problem: SingleLevel, w: Tree) -> AsyncModelState:
        """The given model; no job has begun."""
        return AsyncModelState(w, InFlight.of("inner", (w,), tree.zeros_like(w)))

    def round(
        self, fed: AbstractFederation, problem: SingleLevel, state: AsyncModelState, key: Key
    ) -> AsyncModelState:
        """One step of the server."""
        w, jobs = state
        settings = {"problem": problem, "algorithm": self}
        rules = PollRules(self.buffer_size, staleness=self.staleness, discount=self.factor)
        news = fed.poll(jobs, model_change, w, rules=rules, key=key, settings=settings)
        w = tree.axpy(self.server_lr / news.weight, news.sum, w)  # --------- down  w  up  Δ_i
        return AsyncModelState(w, news.jobs)

    def factor(self, staleness: jax.Array) -> jax.Array:
        """s(τ)."""
        return (1 + staleness.astype(float)) ** -jnp.asarray(self.discount, float)

    def solution(self, state: AsyncModelState) -> tuple[Tree]:
        """(w,)."""
        return (state.w,)


def model_change(client: Client, w: Tree, *, problem: SingleLevel, algorithm: FedBuff) -> Tree:
    """Δ_i, how the client's local steps move w."""
    own = gradient_steps(client, w, problem=problem, algorithm=algorithm)
    return tree.sub(own, w)
