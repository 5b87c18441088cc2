"""rookery's StocBiO (Ji, Yang, Liang, ICML 2021) as a solver of the harness."""

from typing import ClassVar

from benchmark_utils import rookery_rounds  # pyright: ignore[reportMissingImports]
from benchmark_utils.rookery_solver import (  # pyright: ignore[reportMissingImports]
    COMMON,
    RookerySolver,
)

import rookery as rk


class Solver(RookerySolver):
    """Inner steps, a Neumann series, and one outer step."""

    name = "rookery-StocBiO"
    parameters: ClassVar[dict[str, list]] = {
        **COMMON, "n_inner_steps": [10], "n_shia_steps": [10]
    }  # fmt: skip

    n_inner_steps: int
    n_shia_steps: int

    def algorithm(self) -> rk.AbstractAlgorithm:
        """StocBiO, with constant steps."""
        return rookery_rounds.stocbio(
            self.step_size, self.outer_ratio, self.n_inner_steps, self.n_shia_steps
        )
