"""rookery's SOBA (Dagréou, Ablin, Vaiter, Moreau, NeurIPS 2022) as a solver of the harness."""

from benchmark_utils import rookery_rounds  # pyright: ignore[reportMissingImports]
from benchmark_utils.rookery_solver import RookerySolver  # pyright: ignore[reportMissingImports]

import rookery as rk


class Solver(RookerySolver):
    """Steps of x, y and v at once."""

    name = "rookery-SOBA"

    def algorithm(self) -> rk.AbstractAlgorithm:
        """SOBA, with steps that fall like the square root of the round."""
        return rookery_rounds.soba(self.step_size, self.outer_ratio)
