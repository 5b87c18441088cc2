"""FedBuff: federated learning with buffered asynchronous aggregation.

J. Nguyen, K. Malik, H. Zhan, A. Yousefpour, M. Rabbat, M. Malek, D. Huba. Federated learning with
buffered asynchronous aggregation. AISTATS 2022, arXiv:2106.06639.

    paper   code            meaning
    w       w               the model
    η_ℓ     lr              rule of a local step
    η_g     server_lr       step rule of the server
    Q       local_steps     local steps of a job
    K       buffer_size     results that the server waits for
    Δ_i     jobs.results    how a job has moved its model; here w_i - w, the paper's is w - w_i
    s(τ)    discount        what a result of staleness τ counts:  (1 + τ)^-discount

The server steps as soon as its buffer is full, along the mean of the buffer, in which a stale
result counts  s(τ) = 1 / sqrt(1 + τ);  the mean is over K, not over the sum of the s(τ). Without
delays and with a buffer for all clients it is FedAvg.

Cost of a round: 1 exchange, w down to the clients that start a job and Δ_i up from those that
deliver. A client counts as often as it delivers, so with heterogeneous clients the method converges
to a point biased towards the fast ones; several local steps add a bias of their own. Departures
from the paper: all clients work all the time, and one that has delivered starts again after the
server's step, so it is in a buffer at most once; results that finish at the same moment arrive
together, so there may be more than K; clients count by their weights; batches are drawn with
replacement.
"""

from dataclasses import KW_ONLY
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.shared import local
from rookery.algorithms.shared.async_model import AbstractAsyncModel, AsyncModelState
from rookery.algorithms.shared.model import gradient_steps
from rookery.algorithms.shared.schedule import number
from rookery.algorithms.shared.step_rule import StepRule, move_by_sum, step_rule
from rookery.problem.constraints import projected
from rookery.problem.single_level import SingleLevel
from rookery.program.algorithm import check_kind
from rookery.program.federation import AbstractFederation, Client
from rookery.program.polling import PollRules
from rookery.types import Key, Tree


class FedBuff(AbstractAsyncModel):
    """Steps of the server along the mean of a buffer of results, the stale ones discounted.

    >>> import rookery as rk
    >>> rk.FedBuff(lr=0.1, buffer_size=10, local_steps=5).discount
    0.5

    Args:
        lr: η_ℓ, the rule of every local step, or a size for a whole job (:class:`PerCall`); no
            schedule, since a job spans several rounds. An optimiser is reset in every job.
        buffer_size: K, results that the server waits for.
        local_steps: Q, one number or one per client.
        server_lr: η_g, the step rule of the server, for which minus the mean of the buffer is the
            gradient.
        discount: the power in s(τ); a half is the paper's, 0 counts all results alike.
        staleness: the largest staleness of a result, in steps of the server; None means no bound.
    """

    projects: ClassVar[bool] = True

    _: KW_ONLY
    lr: StepRule = eqx.field(converter=step_rule)
    buffer_size: int
    local_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)
    server_lr: StepRule = eqx.field(converter=step_rule, default=1.0)
    discount: float = eqx.field(converter=number, default=0.5)
    staleness: int | None = None

    def __check_init__(self):
        local.check_fields(self, place="job")
        check.count("buffer_size", self.buffer_size)
        check.not_negative("discount", self.discount)
        if self.staleness is not None:
            check.count("staleness", self.staleness, least=0)

    def check(self, problem: SingleLevel, n_clients: int) -> None:
        """Raise unless the problem is single-level and the clients can fill the buffer."""
        check_kind(self, problem, SingleLevel)
        local.check_fields(self, n_clients, place="job")
        if self.buffer_size > n_clients:
            raise ValueError(
                f"{n_clients} clients cannot fill a buffer_size of {self.buffer_size}: each is in "
                f"the buffer at most once. Use at most {n_clients}."
            )

    def round(
        self, fed: AbstractFederation, problem: SingleLevel, state: AsyncModelState, key: Key
    ) -> AsyncModelState:
        """One step of the server."""
        rules = PollRules(self.buffer_size, staleness=self.staleness, discount=self.factor)
        arrived = self.poll(model_change, fed, problem, state, rules, key)
        back, n = tree.scale(-1, arrived.sum), arrived.weight  # ------------ down  w  up  Δ_i
        w, opt = move_by_sum(self.server_lr, back, n, state.opt, state.w, fed.round)
        return AsyncModelState(projected(problem, "w", w), arrived.jobs, opt)

    def factor(self, staleness: jax.Array) -> jax.Array:
        """s(τ)."""
        return (1 + staleness.astype(float)) ** -jnp.asarray(self.discount, float)


def model_change(client: Client, w: Tree, *, problem: SingleLevel, algorithm: FedBuff) -> Tree:
    """Δ_i, how the client's local steps move w."""
    own, _ = gradient_steps(client, w, problem=problem, algorithm=algorithm)
    return tree.sub(own, w)
