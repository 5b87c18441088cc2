"""What the algorithms that learn one model w have in common."""

from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax

from rookery import tree
from rookery.algorithms.shared import local
from rookery.algorithms.shared.statistics import check_statistics, follows_batches
from rookery.algorithms.shared.step_rule import (
    StepRule,
    check_keeping,
    check_step_rule,
    first_opt,
    kept_opt,
    move,
    step_rule,
)
from rookery.problem.constraints import projected, projection
from rookery.problem.single_level import SingleLevel
from rookery.program.algorithm import SampledAlgorithm, check_kind
from rookery.program.federation import AbstractFederation, Client
from rookery.program.memory import Probabilities
from rookery.program.step import Step
from rookery.types import Count, Key, Problem, Tree


class ModelState(NamedTuple):
    """The model, the state of the server's rule, and what clients keep.

    That is the state of the local rule, and the leaves of the model that are their own, with the
    clients' weights in the mean of these leaves.
    """

    w: Tree
    opt: Tree = ()
    own_opt: Tree = ()
    own: Tree = ()
    own_weights: Tree = ()


class RobustState(NamedTuple):
    """The model, the weights λ of the clients, in the simplex, and the state of w's rule."""

    w: Tree
    probabilities: Probabilities
    opt: Tree = ()


class AbstractLocalSGD(SampledAlgorithm):
    """Local steps of a cohort from the server's model; a subclass says which, and how they combine.

    Args:
        lr: step rule of the local steps, or a size for all steps of a round together
            (:class:`PerCall`).
        local_steps: steps between two averages, one number or one per client.
        server_lr: step rule of the server, which takes  w - (mean of the clients' models)  for a
            gradient, as FedOpt does; None makes the mean the new model.
    """

    projects: ClassVar[bool] = True

    kind: ClassVar[type]  # of the problems that a subclass solves

    _: KW_ONLY
    lr: StepRule = eqx.field(converter=step_rule)
    local_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)
    server_lr: StepRule | None = eqx.field(converter=step_rule, default=None)

    def __check_init__(self):
        local.check_fields(self, except_for=("server_lr",))
        check_server_rule(self.server_lr)
        check_keeping(self.name, self.clients, self.lr)

    def check(self, problem: Problem, n_clients: int) -> None:
        """Raise unless the problem is of the right kind and the settings fit the clients."""
        check_kind(self, problem, self.kind)
        local.check_fields(self, n_clients, except_for=("server_lr",))
        self.clients.check(n_clients)

    def check_start(
        self, problem: Problem, start: tuple[Tree, ...], example: Callable[[str], Tree]
    ) -> None:
        """Raise if a step rule would spoil running statistics in the model."""
        follow = follows_batches(problem, start[0], example)
        check_statistics("lr", self.lr, start[0], follow=follow)
        check_statistics("server_lr", self.server_lr, self.shared_part(start[0]), follow=follow)

    def shared_part(self, w: Tree) -> Tree:
        """The leaves of a model that the server moves: all of them."""
        return w

    def init(self, problem: Problem, w: Tree) -> ModelState:
        """The given model; no optimiser has taken a step."""
        return ModelState(w, first_opt(self.server_lr, w), kept_opt(self.lr, w))

    def solution(self, state: ModelState) -> tuple[Tree]:
        """(w,)."""
        return (state.w,)

    def mean_of(
        self,
        step: Step,
        fed: AbstractFederation,
        problem: Problem,
        state: ModelState,
        key: Key,
        *,
        of_models: bool = False,
    ) -> tuple[Tree, ModelState]:
        """One exchange: a cohort gets w and runs ``step``, whose replies may be models.

        Returns:
            the mean of its replies, and the state with what the clients keep.
        """
        who, local_key = jax.random.split(key)
        cohort = fed.sample(self.clients, who)
        w, own = fed.broadcast(cohort, state.w), state.own_opt  # ------------ down  w
        settings = {"problem": problem, "algorithm": self}
        replies, own = local.map_steps(fed, cohort, own, step, w, key=local_key, **settings)
        mean = fed.mean(replies, around=w if of_models else None)  # --------- up    its replies
        return mean, state._replace(own_opt=own)

    def to_mean_of(
        self, step: Step, fed: AbstractFederation, problem: Problem, state: ModelState, key: Key
    ) -> ModelState:
        """One exchange, and the server's step towards the mean of the clients' models."""
        mean, state = self.mean_of(step, fed, problem, state, key, of_models=True)
        w, opt = move_to_mean(self.server_lr, mean, state.opt, state.w, fed.round)
        return state._replace(w=projected(problem, "w", w), opt=opt)


def check_server_rule(rule: StepRule | None) -> None:
    """Raise unless a server's rule is None, a positive number, a schedule or an optimiser."""
    if rule is not None:
        check_step_rule("server_lr", rule)


def move_to_mean(
    rule: StepRule | None, mean: Tree, opt: Tree, w: Tree, round: Count
) -> tuple[Tree, Tree]:
    """The server's step along  w - mean;  without a rule the mean itself."""
    return (mean, opt) if rule is None else move(rule, tree.sub(w, mean), opt, w, round)


def gradient_steps(
    client: Client,
    w: Tree,
    opt: Tree | None = None,
    *,
    problem: SingleLevel,
    algorithm: Any,  # a protocol cannot ask for fields with converters
    round: Count = 0,
) -> tuple[Tree, Tree]:
    """The client's model after its local gradient steps from w, and the state of its rule.

    Args:
        client: who takes them.
        w: where they start.
        opt: the rule's state that the client kept, if any.
        problem: the loss.
        algorithm: any with ``lr``, ``local_steps`` and ``batch_size``.
        round: of the run, for schedules.
    """

    def gradient(w, key):
        return problem.gradient(w, client.draw(problem.split, algorithm.batch_size, key))

    rule, steps = algorithm.lr, algorithm.local_steps
    how = {"project": projection(problem, "w"), "round": round, "opt": opt}
    return local.plain_steps(client, gradient, w, rule, steps, client.key, **how)
