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

    def __init__(self, console: Console, n_rounds: int):
        self._console, self._n_rounds = console, n_rounds
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
        self._task = self._bar.add_task("", total=n_rounds, rate="compiling", news="")
        self._title, self._before = "", 0
        self._last_line = time.monotonic()

    def __enter__(self) -> "RunProgress":
        self._bar.start()
        return self

    def __exit__(self, *_) -> None:
        self._bar.stop()

    def begin(self, title: str, before: int) -> None:
        """A new batch of runs begins after so many rounds of earlier ones."""
        self._title, self._before = title, before
        self._bar.update(self._task, description=title, completed=before, rate="compiling")

    def advanced(self, round: int, rounds_per_second: float | None) -> None:
        """So many rounds of this batch are done."""
        rate = "" if rounds_per_second is None else f"{rounds_per_second:.3g} rounds/s"
        self._bar.update(self._task, completed=self._before + round, rate=rate)

    def measured(self, row: Mapping[str, Any], name: str) -> None:
        """An evaluation of one run was made."""
        numbers = {k: v for k, v in row.items() if k not in ("round", *LEDGER_FIELDS)}
        news = "  ".join(f"{k} {v:.4g}" for k, v in list(numbers.items())[:3])
        self._bar.update(self._task, news=news)
        if not self._console.is_terminal and time.monotonic() - self._last_line > 10:
            done, total = self._before + row["round"], self._n_rounds
            self._console.print(f"[{done}/{total}] {name}: round {row['round']}  {news}")
            self._last_line = time.monotonic()
