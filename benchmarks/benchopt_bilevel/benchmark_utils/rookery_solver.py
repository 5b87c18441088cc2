"""What the solvers of rookery have in common, in the form of benchopt's bilevel benchmark."""

import abc
from collections.abc import Callable
from typing import ClassVar

from benchopt import BaseSolver  # pyright: ignore[reportMissingImports]
from benchopt.stopping_criterion import (  # pyright: ignore[reportMissingImports]
    SufficientProgressCriterion,
)

import rookery as rk
from benchmark_utils.rookery_rounds import OneClient  # pyright: ignore[reportMissingImports]

COMMON = {
    "step_size": [0.1],
    "outer_ratio": [1.0],
    "batch_size": [64],
    "eval_freq": [128],
    "random_state": [1],
}
"""Parameters of all solvers, with the names and defaults of the harness."""


class RookerySolver(BaseSolver, abc.ABC):
    """A solver that runs ``eval_freq`` rounds of an algorithm between two evaluations."""

    stopping_criterion = SufficientProgressCriterion(patience=100, strategy="callback")
    parameters: ClassVar[dict[str, list]] = COMMON

    step_size: float
    outer_ratio: float
    batch_size: int | str
    eval_freq: int
    random_state: int

    @staticmethod
    def get_next(stop_val: int) -> int:
        """Evaluate after every ``eval_freq`` rounds, as the solvers of the harness do."""
        return stop_val + 1

    @abc.abstractmethod
    def algorithm(self) -> rk.AbstractAlgorithm:
        """The algorithm of rookery with the solver's parameters."""

    def set_objective(
        self,
        f_inner: Callable,
        f_outer: Callable,
        n_inner_samples: int,
        n_outer_samples: int,
        inner_var0: object,
        outer_var0: object,
        f_inner_fb: Callable,
        f_outer_fb: Callable,
    ) -> None:
        """Take the problem; the functions of the full batch are not needed."""
        self.start = inner_var0, outer_var0
        self.rounds = OneClient(
            self.algorithm(),
            f_inner,
            f_outer,
            n_inner_samples,
            n_outer_samples,
            batch_size=self.batch_size,
            random_state=self.random_state,
        )

    def warm_up(self) -> None:
        """Compile the rounds, which is not timed."""
        self.run_once(2)

    def run(self, callback: Callable[[], bool]) -> None:
        """Rounds until the harness has seen enough."""
        self.rounds.start(*self.start)
        while callback():
            self.rounds.advance(self.eval_freq)

    def get_result(self) -> dict[str, object]:
        """The variables of the harness."""
        inner_var, outer_var = self.rounds.variables
        return {"inner_var": inner_var, "outer_var": outer_var}
