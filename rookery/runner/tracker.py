"""The interface of trackers: they receive a run's measurements as they are made."""

from collections.abc import Mapping
from typing import Protocol


class Tracker(Protocol):
    """Receives the measurements of one run. Any object with these three methods will do.

    Every call of :func:`rookery.run` starts and finishes its tracker once. A resumed run logs only
    the rows after its checkpoint. Rows measured between the last checkpoint and a kill are logged
    twice, with the same numbers. An exception raised by a tracker ends the run.

    >>> class Printer:
    ...     def start(self, title, configuration):
    ...         print(title, configuration["seed"])
    ...     def log(self, row):
    ...         print(row["round"], row["exchanges"])
    ...     def finish(self, status):
    ...         print(status)
    """

    def start(self, title: str, configuration: dict[str, object]) -> None:
        """The run starts or is resumed.

        Args:
            title: the run's title, or its algorithm's name.
            configuration: the run as described in ``config.json``, ready for JSON.
        """
        ...

    def log(self, row: Mapping[str, float | int]) -> None:
        """An evaluation was made: ``round``, the ledger's columns and the measured numbers."""
        ...

    def finish(self, status: str) -> None:
        """The run has ended: finished, diverged, stopped, interrupted or failed."""
        ...
