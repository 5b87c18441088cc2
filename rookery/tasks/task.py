"""What a ready-made task consists of."""

from dataclasses import dataclass
from typing import Any

from rookery._types import Tree
from rookery.clients.population import Population
from rookery.run.evaluate import AbstractEvaluation


@dataclass(frozen=True)
class Task:
    """A problem with its clients, its initial values and what to measure on the way."""

    problem: Any
    population: Population
    start: tuple[Tree, ...]
    evaluate: tuple[AbstractEvaluation, ...]
