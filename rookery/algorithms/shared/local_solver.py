"""How a client solves its own inner problem at a given x, without exchanges."""

import abc
from dataclasses import KW_ONLY

import equinox as eqx
import jax

from rookery import check, tree
from rookery.algorithms.shared import levels, local
from rookery.algorithms.shared.step_rule import StepRule, check_step_rule, step_rule
from rookery.algorithms.shared.system import LocalSystem, conjugate_gradients
from rookery.types import Count, Key, Tree


class AbstractLocalSolver(eqx.Module):
    """A way from the client's y towards y*(x)."""

    @abc.abstractmethod
    def solve(self, at: LocalSystem, key: Key, round: Count) -> Tree:
        """The client's y after solving, from that of ``at``."""


class GradientSteps(AbstractLocalSolver):
    """Gradient steps on fresh samples.

    Args:
        lr: step rule; the state of an optimiser is reset in every call.
        steps: how many.

    >>> GradientSteps(0.1, steps=5).steps
    5
    """

    lr: StepRule = eqx.field(converter=step_rule)
    _: KW_ONLY
    steps: int = 1

    def __check_init__(self):
        check_step_rule("GradientSteps.lr", self.lr, "local")
        check.count("GradientSteps.steps", self.steps)

    def solve(self, at, key, round):
        """The last iterate."""
        at = at.prepared_for(self.steps)

        def gradient(y, key):
            return levels.inner_gradient(at.problem, at.x, y, at.inner_sample(key))

        how = {"project": lambda y: y, "round": round}
        return local.plain_steps(at.client, gradient, at.y, self.lr, self.steps, key, **how)[0]


class NewtonSteps(AbstractLocalSolver):
    """Newton's method, each step by conjugate gradients on one sample; it needs no step size.

    One step solves a quadratic inner problem exactly if there are as many iterations as y has
    numbers. It assumes a positive inner Hessian.

    Args:
        steps: how many.
        iterations: Hessian-vector products per step.

    >>> NewtonSteps(iterations=20).steps
    1
    """

    _: KW_ONLY
    steps: int = 1
    iterations: int = 10

    def __check_init__(self):
        check.count("NewtonSteps.steps", self.steps)
        check.count("NewtonSteps.iterations", self.iterations)

    def solve(self, at, key, round):
        """The last iterate."""
        at = at.prepared_for(self.steps * (self.iterations + 1))

        def step(k, y):
            here, own = at.at_inner(y), jax.random.fold_in(key, k)
            g_y = levels.inner_gradient(at.problem, at.x, y, at.inner_sample(own))
            return tree.sub(y, conjugate_gradients(here, g_y, self.iterations, lambda _: own))

        return at.repeat(self.steps, step, at.y, most=self.steps)
