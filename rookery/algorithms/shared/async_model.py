"""What the asynchronous methods that learn one model w have in common: jobs that begin at w."""

from typing import NamedTuple

import equinox as eqx

from rookery import tree
from rookery.algorithms.shared.step_rule import StepRule, first_opt
from rookery.problem.single_level import SingleLevel
from rookery.program.algorithm import BatchedAlgorithm
from rookery.program.federation import AbstractFederation
from rookery.program.polling import InFlight, PollResult, PollRules
from rookery.program.step import Step
from rookery.types import Key, Tree


class AsyncModelState(NamedTuple):
    """The model, the jobs whose results move it, and the state of the server's rule."""

    w: Tree
    jobs: InFlight
    opt: Tree = ()


class AbstractAsyncModel(BatchedAlgorithm):
    """Jobs of the clients from the server's model; the server steps by what has just arrived."""

    server_lr: eqx.AbstractVar[StepRule]

    def init(self, problem: SingleLevel, w: Tree) -> AsyncModelState:
        """The given model; no job has begun."""
        jobs = InFlight.of("inner", (w,), tree.zeros_like(w))
        return AsyncModelState(w, jobs, first_opt(self.server_lr, w))

    def poll(
        self,
        step: Step,
        fed: AbstractFederation,
        problem: SingleLevel,
        state: AsyncModelState,
        rules: PollRules,
        key: Key,
    ) -> PollResult:
        """One exchange: idle clients begin ``step`` at w, and the server waits by the rules."""
        settings = {"problem": problem, "algorithm": self}
        return fed.poll(state.jobs, step, state.w, rules=rules, key=key, settings=settings)

    def solution(self, state: AsyncModelState) -> tuple[Tree]:
        """(w,)."""
        return (state.w,)
