"""What all parts of a round share: the federation, the problem, the cohorts and the batch size."""

from collections.abc import Callable

import equinox as eqx

from rookery.algorithms.shared.local import LocalPlan, LocalSteps, map_steps
from rookery.algorithms.shared.step_rule import StepRule
from rookery.program.federation import AbstractFederation, Placed
from rookery.program.participation import AbstractParticipation, Cohort
from rookery.types import AnyProblem, BatchSize, Key, Tree


class Context(eqx.Module):
    """Where a part of a round works.

    Attributes:
        fed: the federation.
        problem: the problem.
        clients: the rule that draws a cohort.
        batch_size: rows per evaluation on a client; None means all its rows.
    """

    fed: AbstractFederation
    problem: AnyProblem
    clients: AbstractParticipation
    batch_size: BatchSize = None

    def sample(self, key: Key) -> Cohort:
        """Draw a cohort."""
        return self.fed.sample(self.clients, key)

    def map(
        self, step: Callable[..., Tree], *values: Placed, key: Key, **settings: object
    ) -> Placed:
        """Run a client step, which is told the problem and the batch size."""
        settings = {"problem": self.problem, "batch_size": self.batch_size, **settings}
        return self.fed.map(step, *values, key=key, **settings)

    def map_steps(
        self,
        cohort: Cohort,
        kept: Tree,
        step: Callable[..., tuple[Tree, Tree]],
        *values: Placed,
        key: Key,
        lr: StepRule,
        steps: LocalSteps,
        **settings: object,
    ) -> tuple[Placed, Tree]:
        """Run local steps, which get a plan and may keep optimisers' states (:func:`map_steps`)."""
        plan = LocalPlan(self.problem, self.batch_size, lr, steps)
        return map_steps(self.fed, cohort, kept, step, *values, key=key, plan=plan, **settings)
