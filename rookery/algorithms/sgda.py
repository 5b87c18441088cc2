"""FedAvg-S: local stochastic gradient descent-ascent, the plain baseline of minimax problems.

The comparison method of FedNest's section 4.3 (arXiv:2205.02215).

    paper   code                    meaning
    x, y    x, y                    minimising and maximising variable
    α, β    outer_lr, inner_lr      step sizes
    τ       local_steps             local steps between two averages
    S       clients                 who takes part in an exchange

Cost of a round: 1 exchange. With more than one local step, clients that differ pull the iterates
beside the saddle point. Departures from the paper: both variables move at once, as its name says;
the released notebook moves y first, which is the order ``Alternating``.
"""

from dataclasses import KW_ONLY
from typing import NamedTuple

import equinox as eqx
import jax

from rookery.algorithms.parts.order import AbstractOrder, Simultaneous
from rookery.algorithms.shared import local
from rookery.problem.minimax import Minimax
from rookery.program.algorithm import AbstractAlgorithm
from rookery.program.federation import AbstractFederation, Client
from rookery.program.participation import AbstractParticipation, participation
from rookery.types import Key, Tree


class SaddleState(NamedTuple):
    """The iterates."""

    x: Tree
    y: Tree


class FedAvgS(AbstractAlgorithm):
    """Local descent in x and ascent in y; both are averaged.

    Args:
        outer_lr: α, of every local step, or of the whole round (:class:`PerCall`), which lets
            clients with unequal numbers of local steps move equally far.
        inner_lr: β, likewise.
        local_steps: τ, one number or one per client.
        order: which variable moves first.
        clients: how many take part in an exchange, a rule that draws them, or None for everyone.
        batch_size: rows per local step; None is all.
    """

    _: KW_ONLY
    outer_lr: local.LearningRate = eqx.field(converter=local.number)
    inner_lr: local.LearningRate = eqx.field(converter=local.number)
    local_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)
    order: AbstractOrder = eqx.field(default_factory=Simultaneous)
    clients: AbstractParticipation = eqx.field(converter=participation, default=None)
    batch_size: int | None = None

    def __check_init__(self):
        local.check_fields(self)

    def check(self, problem: Minimax, n_clients: int) -> None:
        """Raise unless the problem is minimax and the settings fit the clients."""
        if not isinstance(problem, Minimax):
            raise TypeError(f"FedAvgS solves Minimax problems, got {type(problem).__name__}.")
        local.check_fields(self, n_clients)
        self.clients.check(n_clients)

    def init(self, problem: Minimax, x: Tree, y: Tree) -> SaddleState:
        """The given iterates."""
        return SaddleState(x, y)

    def round(
        self, fed: AbstractFederation, problem: Minimax, state: SaddleState, key: Key
    ) -> SaddleState:
        """One exchange."""
        who, local_key = jax.random.split(key)
        cohort = fed.sample(self.clients, who)
        x, y = fed.broadcast(cohort, *state)  # ------------------------------ down  x, y
        both = fed.map(saddle_steps, x, y, key=local_key, problem=problem, algorithm=self)
        with fed.outer():
            x, y = fed.mean(both)  # ----------------------------------------- up    x, y
        return SaddleState(x, y)

    def solution(self, state: SaddleState) -> tuple[Tree, Tree]:
        """(x, y)."""
        return state.x, state.y


def saddle_steps(
    client: Client, x: Tree, y: Tree, *, problem: Minimax, algorithm: FedAvgS
) -> tuple[Tree, Tree]:
    """The client's pair after its local steps."""
    steps = local.steps_of(client, algorithm.local_steps)
    x_size = local.step_size(algorithm.outer_lr, steps)
    y_size = local.step_size(algorithm.inner_lr, steps)

    def step(nu, pair):
        x, y = pair
        key = jax.random.fold_in(client.key, nu)
        sample = client.draw(problem.split, algorithm.batch_size, key)
        return algorithm.order(problem, x, y, sample, x_size, y_size)

    return client.repeat(steps, step, (x, y))
