"""What the algorithms that learn one model w have in common."""

from dataclasses import KW_ONLY
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax

from rookery.algorithms.shared import local
from rookery.problem.single_level import SingleLevel
from rookery.program.algorithm import SampledAlgorithm, check_kind
from rookery.program.federation import AbstractFederation, Client
from rookery.program.memory import Probabilities
from rookery.program.polling import InFlight
from rookery.program.step import Step
from rookery.types import Key, Problem, Tree


class ModelState(NamedTuple):
    """The model."""

    w: Tree


class AsyncModelState(NamedTuple):
    """The model, and the jobs whose results move it."""

    w: Tree
    jobs: InFlight


class RobustState(NamedTuple):
    """The model, and the weights λ of the clients, in the simplex."""

    w: Tree
    shares: Probabilities


class AbstractLocalSGD(SampledAlgorithm):
    """Local steps of a cohort from the server's model; a subclass says which, and how they combine.

    Args:
        lr: size of a local step, or of all steps of a round together (:class:`PerCall`).
        local_steps: steps between two averages, one number or one per client.
    """

    kind: ClassVar[type]  # of the problems that a subclass solves

    _: KW_ONLY
    lr: local.LearningRate = eqx.field(converter=local.number)
    local_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)

    def __check_init__(self):
        local.check_fields(self)

    def check(self, problem: Problem, n_clients: int) -> None:
        """Raise unless the problem is of the right kind and the settings fit the clients."""
        check_kind(self, problem, self.kind)
        local.check_fields(self, n_clients)
        self.clients.check(n_clients)

    def init(self, problem: Problem, w: Tree) -> ModelState:
        """The given model."""
        return ModelState(w)

    def solution(self, state: ModelState) -> tuple[Tree]:
        """(w,)."""
        return (state.w,)

    def mean_of(
        self, step: Step, fed: AbstractFederation, problem: Problem, w: Tree, key: Key
    ) -> Tree:
        """One exchange: a cohort gets w, runs ``step``, and its replies are averaged."""
        who, local_key = jax.random.split(key)
        cohort = fed.sample(self.clients, who)
        sent = fed.broadcast(cohort, w)  # ----------------------------------- down  w
        replies = fed.map(step, sent, key=local_key, problem=problem, algorithm=self)
        return fed.mean(replies)  # ------------------------------------------ up    its replies


def gradient_steps(
    client: Client,
    w: Tree,
    *,
    problem: SingleLevel,
    algorithm: Any,  # a protocol cannot ask for fields with converters
) -> Tree:
    """The client's model after its local gradient steps from w.

    Args:
        client: who takes them.
        w: where they start.
        problem: the loss.
        algorithm: any with ``lr``, ``local_steps`` and ``batch_size``.
    """

    def gradient(w, key):
        return problem.gradient(w, client.draw(problem.split, algorithm.batch_size, key))

    lr, steps = algorithm.lr, algorithm.local_steps
    return local.plain_steps(client, gradient, w, lr, steps, client.key)
