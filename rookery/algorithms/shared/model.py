"""What the algorithms with one variable w have in common."""

from typing import Any, NamedTuple

from rookery.algorithms.shared import local
from rookery.problem.single_level import SingleLevel
from rookery.program.federation import Client
from rookery.program.memory import Probabilities
from rookery.program.polling import InFlight
from rookery.types import Tree


class ModelState(NamedTuple):
    """The iterate."""

    w: Tree


class AsyncModelState(NamedTuple):
    """The iterate, and the jobs whose results move it."""

    w: Tree
    jobs: InFlight


class RobustState(NamedTuple):
    """The model, and the weights λ of the clients."""

    w: Tree
    shares: Probabilities


def check_single_level(name: str, problem: Any) -> None:
    """Raise unless a problem is single-level."""
    if not isinstance(problem, SingleLevel):
        raise TypeError(f"{name} solves SingleLevel problems, got {type(problem).__name__}.")


def gradient_steps(client: Client, w: Tree, *, problem: SingleLevel, algorithm: Any) -> Tree:
    """The client's model after its local steps.

    Args:
        client: who takes them.
        w: where they begin.
        problem: of the loss.
        algorithm: of ``lr``, ``local_steps`` and ``batch_size``.
    """

    def gradient(w, key):
        return problem.gradient(w, client.draw(problem.split, algorithm.batch_size, key))

    lr, steps = algorithm.lr, algorithm.local_steps
    return local.plain_steps(client, gradient, w, lr, steps, client.key)
