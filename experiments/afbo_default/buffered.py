"""FedBuff's server on the blocks x, y and v of a bilevel problem, as a rival of AFBO.

A job takes local steps on all blocks at once, as SimFBO's clients do, and brings the change of
each. The server waits for a buffer of results and moves every block by their mean, in which a
result of staleness τ counts 1 / sqrt(1 + τ). Nothing is kept of clients that are not in the buffer,
so a client counts as often as it delivers, and where clients differ the limit is biased.
"""

from dataclasses import KW_ONLY
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.shared.blocks import evaluate
from rookery.algorithms.shared.views import BilevelView, Blocks
from rookery.problem.bilevel import Bilevel
from rookery.problem.constraints import all_projected
from rookery.program.algorithm import BatchedAlgorithm, check_kind
from rookery.program.federation import AbstractFederation, Client
from rookery.program.polling import InFlight, PollRules
from rookery.types import Key, Tree


class FedBuffOnBlocksState(NamedTuple):
    """x, y and v, and the jobs that move them."""

    blocks: Blocks
    jobs: InFlight


class FedBuffOnBlocks(BatchedAlgorithm):
    """Steps of the server along the mean of a buffer of changes of x, y and v.

    Args:
        outer_lr: how far a whole job steps in x; a local step has its share.
        inner_lr: the same in y and v.
        buffer_size: how many results the server waits for.
        local_steps: of a job.
        staleness: the largest staleness of a result, in steps of the server.
    """

    _: KW_ONLY
    outer_lr: float
    inner_lr: float
    buffer_size: int
    local_steps: int = 1
    staleness: int | None = None

    def __check_init__(self):
        check.positive("outer_lr", self.outer_lr)
        check.positive("inner_lr", self.inner_lr)
        check.count("buffer_size", self.buffer_size)
        check.count("local_steps", self.local_steps)

    def check(self, problem: Bilevel, n_clients: int) -> None:
        """Raise unless the problem is bilevel and the clients can fill the buffer."""
        check_kind(self, problem, Bilevel)
        PollRules(self.buffer_size, staleness=self.staleness).check(n_clients)

    def init(self, problem: Bilevel, x: Tree, y: Tree) -> FedBuffOnBlocksState:
        """The given x and y, v = 0, and no job."""
        blocks = (x, y, *BilevelView().added(problem, x, y))
        return FedBuffOnBlocksState(
            blocks, InFlight.of("outer", (blocks,), tree.zeros_like(blocks))
        )

    def round(
        self, fed: AbstractFederation, problem: Bilevel, state: FedBuffOnBlocksState, key: Key
    ) -> FedBuffOnBlocksState:
        """One step of the server: 1 exchange."""
        rules = PollRules(self.buffer_size, staleness=self.staleness, discount=discount)
        settings = {"problem": problem, "algorithm": self}
        arrived = fed.poll(
            state.jobs, block_changes, state.blocks, rules=rules, key=key, settings=settings
        )  # ------------------------------------------------- down  x, y, v  up  their changes
        blocks = tree.axpy(1 / arrived.weight, arrived.sum, state.blocks)
        return FedBuffOnBlocksState(inside(problem, blocks), arrived.jobs)

    def solution(self, state: FedBuffOnBlocksState) -> tuple[Tree, Tree]:
        """(x, y)."""
        x, y, _ = state.blocks
        return x, y


def discount(staleness: jax.Array) -> jax.Array:
    """What a result counts."""
    return 1 / jnp.sqrt(1 + staleness.astype(float))


def inside(problem: Bilevel, blocks: Blocks) -> Blocks:
    """x and y in their sets, and v."""
    x, y, v = blocks
    return (*all_projected(problem, (x, y)), v)


def block_changes(
    client: Client, blocks: Blocks, *, problem: Bilevel, algorithm: FedBuffOnBlocks
) -> Blocks:
    """How the client's local steps move x, y and v."""
    x_size, y_size = (
        each / algorithm.local_steps for each in (algorithm.outer_lr, algorithm.inner_lr)
    )
    sizes = (x_size, y_size, y_size)

    def step(k, here):
        key = jax.random.fold_in(client.key, k)
        how = {"round": 0}  # the view has no settings that change
        (maps,) = evaluate(client, problem, None, algorithm.batch_size, key, here, **how)
        moved = (tree.axpy(-size, s, w) for size, s, w in zip(sizes, maps, here, strict=True))
        return inside(problem, tuple(moved))

    there = client.repeat(algorithm.local_steps, step, blocks)
    return tree.sub(there, blocks)
