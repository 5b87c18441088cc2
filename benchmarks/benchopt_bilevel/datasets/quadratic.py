"""A small quadratic problem in benchopt's form."""

from typing import ClassVar

from benchmark_utils.quadratic import Quadratic  # pyright: ignore[reportMissingImports]
from benchopt import BaseDataset  # pyright: ignore[reportMissingImports]


class Dataset(BaseDataset):
    """Random quadratics, the same in every run with one seed."""

    name = "quadratic"
    parameters: ClassVar[dict[str, list]] = {"random_state": [0]}

    random_state: int

    def get_data(self) -> dict[str, object]:
        """The two functions, their sizes and the metrics."""
        problem = Quadratic(self.random_state)
        return {
            "functions": {which: problem.function(which) for which in ("inner", "outer")},
            "sizes": {
                "inner": problem.n_inner, "outer": problem.n_outer, "z": problem.p, "x": problem.d
            },
            "metrics": problem.metrics,
        }  # fmt: skip
