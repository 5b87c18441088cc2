"""rookery's F2SA (Kwon, Kwon, Wright, Nowak, ICML 2023) as a solver of the harness."""

from typing import ClassVar

from benchmark_utils import rookery_rounds  # pyright: ignore[reportMissingImports]
from benchmark_utils.rookery_solver import (  # pyright: ignore[reportMissingImports]
    COMMON,
    RookerySolver,
)

import rookery as rk


class Solver(RookerySolver):
    """Gradients alone, with a penalty that grows."""

    name = "rookery-F2SA"
    parameters: ClassVar[dict[str, list]] = {
        **COMMON, "step_size": [0.01], "n_inner_steps": [10], "lmbda0": [1.0], "delta_lmbda": [0.1]
    }  # fmt: skip

    n_inner_steps: int
    lmbda0: float
    delta_lmbda: float

    def algorithm(self) -> rk.AbstractAlgorithm:
        """F2SA with one-sided differences."""
        return rookery_rounds.f2sa(
            self.step_size, self.outer_ratio, self.n_inner_steps, self.lmbda0, self.delta_lmbda
        )
