"""Where a run reports its measurements, besides its own history."""

from collections.abc import Mapping
from typing import Any, Protocol


class Tracker(Protocol):
    """What follows one run. Any object with these three methods will do.

    Every call of :func:`rookery.run` starts and finishes its tracker once. A run that goes on from
    a checkpoint logs the rows after the checkpoint only; those that a kill cut off from their
    checkpoint come a second time, with the same numbers. What a tracker raises ends the run.

    >>> class Printer:
    ...     def start(self, title, configuration):
    ...         print(title, configuration["seed"])
    ...     def log(self, row):
    ...         print(row["round"], row["exchanges"])
    ...     def finish(self, status):
    ...         print(status)
    """

    def start(self, title: str, configuration: dict[str, Any]) -> None:
        """The run begins or goes on.

        Args:
            title: the job's, or its algorithm's name.
            configuration: what ``config.json`` says of the run, ready for JSON.
        """
        ...

    def log(self, row: Mapping[str, float | int]) -> None:
        """An evaluation was made: ``round``, the ledger's columns and the measured numbers."""
        ...

    def finish(self, status: str) -> None:
        """The run is over: ``finished``, ``diverged``, ``interrupted`` or ``failed``."""
        ...
