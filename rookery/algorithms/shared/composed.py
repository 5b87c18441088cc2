"""What the server's methods for compositions have in common."""

from typing import NamedTuple, Protocol

from rookery import check, tree
from rookery.algorithms.shared.schedule import AbstractSchedule, Rate, check_rates
from rookery.algorithms.shared.views import Blocks
from rookery.program.algorithm import SampledAlgorithm
from rookery.types import Number, Tree


class TrackedState(NamedTuple):
    """x and the followed values z_1 .. z_N."""

    x: Tree
    z: Blocks


class HasX(Protocol):
    """A state with x among its parts."""

    @property
    def x(self) -> Tree:
        """The solution so far."""
        ...


class AbstractCompositional(SampledAlgorithm):
    """Steps of the server on a composition, whose solution is x."""

    def solution(self, state: HasX) -> tuple[Tree]:
        """(x,)."""
        return (state.x,)


def mixed(share: Number, new: Tree, old: Tree) -> Tree:
    """share * new + (1 - share) * old."""
    return tree.axpy(share, new, tree.scale(1 - share, old))


def check_share(name: str, rate: Rate, factor: float = 1.0) -> None:
    """Raise if a share of a new value, which is largest in round 0, exceeds one."""
    first = rate.lr if isinstance(rate, AbstractSchedule) else rate
    if isinstance(first, float) and isinstance(factor, float):
        check.fraction(name, factor * first)


def check_step_sizes(algorithm: SampledAlgorithm) -> None:
    """Raise unless all step sizes, the fields that end in ``lr``, are positive or fall."""
    for name, value in vars(algorithm).items():
        if name.endswith("lr"):
            check_rates(name, value)
