"""How the benchmarks measure, and what they report."""

import math
import time
from dataclasses import asdict, dataclass
from typing import Any

import jax


@dataclass(frozen=True)
class Bound:
    """What a figure should keep to: see `at_most` and `at_least`."""

    value: float
    is_upper: bool = True

    def excess(self, figure: float) -> float:
        """Above 1 if the figure misses the bound, and by what factor."""
        return figure / self.value if self.is_upper else self.value / max(figure, 1e-300)

    def __str__(self) -> str:
        return f"at {'most' if self.is_upper else 'least'} {number(self.value)}"


def at_most(value: float) -> Bound:
    return Bound(float(value))


def at_least(value: float) -> Bound:
    return Bound(float(value), is_upper=False)


@dataclass(frozen=True)
class Row:
    """One line of a benchmark: what was measured, the figure, its unit and its goal.

    A comparison with another program is a row whose figure is our time over the other's, whose unit
    names the other, and whose goal is at most 1. What could not be measured is not a number, and
    the note says why.
    """

    what: str
    figure: float
    unit: str = ""
    goal: Bound | None = None
    note: str = ""

    @property
    def misses(self) -> bool:
        """Whether there is a goal that the figure does not keep to."""
        return self.goal is not None and not self.goal.excess(self.figure) <= 1

    def to_json(self) -> dict[str, Any]:
        """Plain values; `from_json` makes a row of them again."""
        return asdict(self) | {"figure": None if math.isnan(self.figure) else self.figure}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Row":
        """The row that `to_json` was called on."""
        goal = values["goal"] and Bound(**values["goal"])
        figure = math.nan if values["figure"] is None else values["figure"]
        return cls(**{**values, "goal": goal, "figure": figure})

    def __str__(self) -> str:
        said = f"{self.what}: {number(self.figure)} {self.unit}".rstrip()
        said += f" (goal: {self.goal}{', missed' if self.misses else ''})" if self.goal else ""
        return said + (f"; {self.note}" if self.note else "")


def number(value: float) -> str:
    """At least three digits of a figure."""
    if math.isnan(value):
        return "not measured"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def cpu_seconds(fn, repeats: int) -> float:
    """Least CPU time of a call, after one call to warm up."""
    jax.block_until_ready(fn())
    times = []
    for _ in range(repeats):
        began = time.process_time()
        jax.block_until_ready(fn())
        times.append(time.process_time() - began)
    return min(times)


def print_rows(rows) -> None:
    """What a script shows when it runs alone."""
    for row in rows:
        print(row, flush=True)
