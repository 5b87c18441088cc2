"""FedAvg-S: local stochastic gradient descent-ascent, the plain baseline of minimax problems.

The comparison method of FedNest's section 4.3 (arXiv:2205.02215).

    paper   code                    meaning
    x, y    x, y                    minimising and maximising variable
    α, β    outer_lr, inner_lr      step sizes
    τ       local_steps             local steps between two averages
    S       clients                 who takes part in an exchange

Cost of a round: 1 exchange. With several local steps and heterogeneous clients it converges to a
biased point, not to the saddle point. Departures from the paper: both variables move at once, as
its name says; the released notebook moves y first, which is the order ``Alternating``.
"""

import abc
from dataclasses import KW_ONLY

import equinox as eqx
import jax

from rookery import tree
from rookery.algorithms.shared import local
from rookery.algorithms.shared.saddle import SaddleState
from rookery.problem.minimax import Minimax
from rookery.program.algorithm import SampledAlgorithm, check_kind
from rookery.program.federation import AbstractFederation, Client
from rookery.types import Key, Sample, Tree


class AbstractOrder(eqx.Module):
    """Which of the two variables of a local step moves first."""

    @abc.abstractmethod
    def __call__(
        self, problem: Minimax, x: Tree, y: Tree, sample: Sample, x_size, y_size
    ) -> tuple[Tree, Tree]:
        """The pair (x, y) after one step."""


class Simultaneous(AbstractOrder):
    """Both move along their gradients at the old pair."""

    def __call__(self, problem, x, y, sample, x_size, y_size):
        """x - α f_x(x, y) and y + β f_y(x, y)."""
        f_x, f_y = problem.grad_x(x, y, sample), problem.grad_y(x, y, sample)
        return tree.axpy(-x_size, f_x, x), tree.axpy(y_size, f_y, y)


class Alternating(AbstractOrder):
    """First y moves, then x along its gradient at the new y."""

    def __call__(self, problem, x, y, sample, x_size, y_size):
        """y+ = y + β f_y(x, y) and x - α f_x(x, y+)."""
        y = tree.axpy(y_size, problem.grad_y(x, y, sample), y)
        return tree.axpy(-x_size, problem.grad_x(x, y, sample), x), y


class FedAvgS(SampledAlgorithm):
    """Local descent in x and ascent in y; both are averaged.

    >>> import rookery as rk
    >>> rk.FedAvgS(outer_lr=0.05, inner_lr=0.1, local_steps=5, order=rk.parts.Alternating()).order
    Alternating()

    Args:
        outer_lr: α, of every local step, or of the whole round (:class:`PerCall`), which lets
            clients with unequal numbers of local steps move equally far.
        inner_lr: β, likewise.
        local_steps: τ, one number or one per client.
        order: which variable moves first.
    """

    _: KW_ONLY
    outer_lr: local.LearningRate = eqx.field(converter=local.number)
    inner_lr: local.LearningRate = eqx.field(converter=local.number)
    local_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)
    order: AbstractOrder = eqx.field(default_factory=Simultaneous)

    def __check_init__(self):
        local.check_fields(self)

    def check(self, problem: Minimax, n_clients: int) -> None:
        """Raise unless the problem is minimax and the settings fit the clients."""
        check_kind(self, problem, Minimax)
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
