"""What the server's methods for compositions have in common."""

from typing import ClassVar, NamedTuple, Protocol

from rookery import check, tree
from rookery.algorithms.shared.schedule import AbstractSchedule
from rookery.algorithms.shared.step_rule import Size
from rookery.algorithms.shared.views import Blocks
from rookery.program.algorithm import SampledAlgorithm
from rookery.types import Number, Tree


class TrackedState(NamedTuple):
    """x, the followed values z_1 .. z_N, and the state of the step rule of x."""

    x: Tree
    z: Blocks
    opt: Tree = ()


class HasX(Protocol):
    """A state with x among its parts."""

    @property
    def x(self) -> Tree:
        """The solution so far."""
        ...


class AbstractCompositional(SampledAlgorithm):
    """Steps of the server on a composition, whose solution is x."""

    projects: ClassVar[bool] = True

    def solution(self, state: HasX) -> tuple[Tree]:
        """(x,)."""
        return (state.x,)


def mixed(share: Number, new: Tree, old: Tree) -> Tree:
    """share * new + (1 - share) * old."""
    return tree.axpy(share, new, tree.scale(1 - share, old))


def check_share(name: str, size: Size, factor: float = 1.0) -> None:
    """Raise if a share of a new value exceeds one, in round 0 if it depends on the round."""
    first = float(size(0)) if isinstance(size, AbstractSchedule) else size
    if isinstance(first, float) and isinstance(factor, float):
        check.fraction(name, factor * first)
