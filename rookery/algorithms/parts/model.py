"""What the algorithms with one variable w have in common."""

from typing import Any, NamedTuple

from rookery._types import Tree
from rookery.problem.single_level import SingleLevel


class ModelState(NamedTuple):
    """The iterate."""

    w: Tree


def check_single_level(name: str, problem: Any) -> None:
    """Raise unless a problem is single-level."""
    if not isinstance(problem, SingleLevel):
        raise TypeError(f"{name} solves SingleLevel problems, got {type(problem).__name__}.")
