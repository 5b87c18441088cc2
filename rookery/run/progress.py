"""How a run shows itself while it goes on."""

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from rookery.program.ledger import LEDGER_FIELDS

SILENT = Console(quiet=True)


class RunProgress:
    """A bar with rounds, the newest measurements, the rate and the time left.

    Where the output is no terminal, a line per evaluation is printed instead, at most one every
    ten seconds, so that a log file stays readable.
    """

    def __init__(self, console: Console, title: str, first_round: int, n_rounds: int):
        self._console, self._title, self._n_rounds = console, title, n_rounds
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn("[cyan]{task.fields[news]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(
            title, total=n_rounds, completed=first_round, rate="compiling", news=""
        )
        self._last_line = time.monotonic()

    def __enter__(self) -> "RunProgress":
        self._bar.start()
        return self

    def __exit__(self, *_) -> None:
        self._bar.stop()

    def advanced(self, round: int, rounds_per_second: float | None) -> None:
        """So many rounds are done."""
        rate = "" if rounds_per_second is None else f"{rounds_per_second:.3g} rounds/s"
        self._bar.update(self._task, completed=round, rate=rate)

    def measured(self, row: Mapping[str, Any]) -> None:
        """An evaluation was made."""
        numbers = {k: v for k, v in row.items() if k not in ("round", *LEDGER_FIELDS)}
        news = "  ".join(f"{k} {v:.4g}" for k, v in list(numbers.items())[:3])
        self._bar.update(self._task, news=news)
        is_last = row["round"] == self._n_rounds
        if not self._console.is_terminal and (is_last or time.monotonic() - self._last_line > 10):
            self._console.print(f"{self._title}: round {row['round']}/{self._n_rounds}  {news}")
            self._last_line = time.monotonic()
