"""The least objective that the solvers run under: the interface of benchopt's bilevel benchmark."""

from collections.abc import Callable
from typing import ClassVar

import numpy as np
from benchopt import BaseObjective  # pyright: ignore[reportMissingImports]


class Objective(BaseObjective):
    """A bilevel problem whose hypergradient is known."""

    name = "Bilevel optimisation, one client"
    min_benchopt_version = "1.7"
    parameters: ClassVar[dict[str, list]] = {}

    def set_data(
        self, functions: dict[str, Callable], sizes: dict[str, int], metrics: Callable
    ) -> None:
        """Take the problem."""
        self.functions, self.sizes, self.metrics = functions, sizes, metrics

    def get_objective(self) -> dict[str, object]:
        """What a solver gets: functions of mini-batches and of the full batch, and a start."""
        inner, outer = self.functions["inner"], self.functions["outer"]
        return {
            "f_inner": inner,
            "f_outer": outer,
            "n_inner_samples": self.sizes["inner"],
            "n_outer_samples": self.sizes["outer"],
            "inner_var0": np.full(self.sizes["z"], 0.3),
            "outer_var0": np.full(self.sizes["x"], 2.0),
            "f_inner_fb": lambda z, x: inner(z, x, 0, batch_size=self.sizes["inner"]),
            "f_outer_fb": lambda z, x: outer(z, x, 0, batch_size=self.sizes["outer"]),
        }

    def evaluate_result(self, inner_var: object, outer_var: object) -> dict[str, float]:
        """The squared norm of the hypergradient, and how far the inner variable is away."""
        return self.metrics(np.asarray(inner_var), np.asarray(outer_var))

    def get_one_result(self) -> dict[str, object]:
        """A result of the right form, for ``benchopt test``."""
        return {"inner_var": np.zeros(self.sizes["z"]), "outer_var": np.zeros(self.sizes["x"])}
