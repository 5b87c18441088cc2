"""The results of a sweep: a list that can also be a table and a picture."""

from collections.abc import Iterator

import numpy as np

from rookery.program.algorithm import AbstractAlgorithm
from rookery.runner.describe import describe
from rookery.runner.history import Row, columns
from rookery.runner.notebook import results_html
from rookery.runner.run_state import Result


class Results(list[Result]):
    """The results of a sweep, in the order of its runs: a list.

    >>> Results().to_table()
    {}
    """

    def to_table(self) -> dict[str, np.ndarray]:
        """All histories below one another, as in ``History.to_table``.

        Further columns are ``run`` (its title or its algorithm's name), ``seed``, and the settings
        in which the algorithms differ, with dots for settings of parts.

        >>> import rookery as rk
        >>> zoo = rk.zoo.scalar_bilevel()
        >>> runs = [rk.Run(rk.SOBA(outer_lr=lr, inner_lr=0.3), zoo.start) for lr in (0.1, 0.2)]
        >>> population = rk.Population.stacked(zoo.data)
        >>> results = rk.sweep(runs, zoo.problem, population, rounds=2, evaluate_every=2)
        >>> table = results.to_table()
        >>> table["outer_lr"].tolist(), table["round"].tolist()
        ([0.1, 0.1, 0.2, 0.2], [0, 2, 0, 2])
        """
        return columns(
            [
                {"run": result.run.name, "seed": result.run.seed, **settings, **row}
                for result, settings in zip(self, self._settings(), strict=True)
                for row in result.history.rows
            ]
        )

    def _settings(self) -> list[Row]:
        """For each run the settings in which the algorithms differ."""
        flat = [dict(_flat(result.run.algorithm)) for result in self]
        names = dict.fromkeys(name for one in flat for name in one)
        differing = [name for name in names if len({str(one.get(name)) for one in flat}) > 1]
        return [{name: one.get(name) for name in differing} for one in flat]

    def _repr_html_(self) -> str:
        """For notebooks: one line per run, and the curves of all."""
        return results_html(
            [(one.run.name, one.run.seed, one.status, one.rounds, one.history) for one in self]
        )


def _flat(algorithm: AbstractAlgorithm) -> Iterator[tuple[str, object]]:
    """The settings of an algorithm and of its parts, by dotted name."""

    def walk(value: object, name: str) -> Iterator[tuple[str, object]]:
        if not isinstance(value, dict):
            yield name, value if isinstance(value, int | float | str | None) else str(value)
            return
        for key, inner in value.items():
            yield from walk(inner, f"{name}.{key}" if name else key)

    for name, value in walk(describe(algorithm), ""):
        yield "algorithm" if name == "name" else name, value
