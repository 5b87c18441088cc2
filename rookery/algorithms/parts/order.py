"""The order in which the two variables of a minimax problem move in a local step."""

import abc

import equinox as eqx

from rookery import tree
from rookery.problem.minimax import Minimax
from rookery.types import Sample, Tree


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
        """X - α f_x(x, y) and y + β f_y(x, y)."""
        f_x, f_y = problem.grad_x(x, y, sample), problem.grad_y(x, y, sample)
        return tree.axpy(-x_size, f_x, x), tree.axpy(y_size, f_y, y)


class Alternating(AbstractOrder):
    """First y moves, then x along its gradient at the new y."""

    def __call__(self, problem, x, y, sample, x_size, y_size):
        """y+ = y + β f_y(x, y) and x - α f_x(x, y+)."""
        y = tree.axpy(y_size, problem.grad_y(x, y, sample), y)
        return tree.axpy(-x_size, problem.grad_x(x, y, sample), x), y
