"""The progress bar of a sweep."""

import html
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column
from rich.text import Text

from rookery.runner.history import COSTS

SILENT = Console(quiet=True)
LINE_SECONDS = 10.0
"""The least time between two printed lines where the output is no terminal."""
REDRAW_SECONDS = 0.2
"""The least time between two pictures of the bar in a notebook."""


class RunProgress:
    """A bar with rounds, speed and remaining time; below it the newest measurements.

    Rounds are counted over all batches of a sweep, including those that a resumed run did earlier.
    In a notebook the bar is HTML that is redrawn in place, in the output of the cell. Where the
    output is neither a terminal nor a notebook, evaluations are printed as lines, at most one every
    ten seconds, so that a log file stays readable.

    >>> with RunProgress(SILENT, n_batches=2, rounds=100) as bar:
    ...     bar.begin("FedNest", batch=0, done=40)
    ...     bar.advanced(50, 10.0, n_runs=1)
    ...     bar.completed, bar.remaining
    (50, '0:00:15')
    """

    def __init__(self, console: Console, n_batches: int, rounds: int):
        self._console, self._rounds = console, rounds
        short = Column(no_wrap=True, overflow="ellipsis", max_width=22)
        self._bar = Progress(
            TextColumn("[bold]{task.description}", table_column=short),
            BarColumn(bar_width=None, table_column=Column(min_width=10, ratio=1)),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}", table_column=Column(no_wrap=True)),
            TimeElapsedColumn(),
            TextColumn("[cyan]{task.fields[remaining]}", table_column=Column(no_wrap=True)),
            expand=True,
        )
        self._total = n_batches * rounds
        self._task = self._bar.add_task("", total=self._total, rate="compiling", remaining="")
        self._measurements = Text("", style="cyan", no_wrap=True, overflow="ellipsis")
        self._live = Live(
            Group(self._bar, self._measurements),
            console=console,
            auto_refresh=True,
            transient=False,
        )
        is_notebook = console.is_jupyter and not console.quiet
        self._notebook = _NotebookBar() if is_notebook else None
        self._title, self._rate = "", "compiling"
        self._before = 0
        self._last_line = time.monotonic()
        self.completed, self.remaining = 0, ""

    def __enter__(self) -> "RunProgress":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_) -> None:
        if self._console.is_terminal:
            self._live.stop()
        self._redraw(is_last=True)

    def begin(self, title: str, batch: int, done: int) -> None:
        """Batch number ``batch`` of the sweep starts, or resumes after ``done`` rounds."""
        self._before = batch * self._rounds
        self.completed, self.remaining = self._before + done, ""
        self._title, self._rate = title, "compiling"
        self._bar.update(
            self._task, description=title, completed=self.completed, rate="compiling", remaining=""
        )
        self._redraw()

    def advanced(self, round: int, rounds_per_second: float | None, n_runs: int) -> None:
        """The batch has done ``round`` rounds, at this speed for each of its ``n_runs`` runs."""
        self.completed, rate = self._before + round, ""
        if rounds_per_second is not None:
            rate = f"{rounds_per_second * n_runs:.3g} rounds/s"
            self.remaining = _clock((self._total - self.completed) / rounds_per_second)
        self._rate = rate
        self._bar.update(self._task, completed=self.completed, rate=rate, remaining=self.remaining)
        self._redraw()

    def measured(self, row: Mapping[str, float], name: str) -> None:
        """A run was evaluated."""
        numbers = {k: v for k, v in row.items() if k not in COSTS}
        shown = "  ".join(f"{k} {v:.4g}" for k, v in list(numbers.items())[:3])
        if shown:
            self._measurements.plain = f"round {row['round']}: {shown}"
        is_time = time.monotonic() - self._last_line > LINE_SECONDS
        self._redraw()
        if not self._console.is_terminal and self._notebook is None and is_time:
            done, total = self._before + row["round"], self._total
            self._console.print(f"[{done}/{total}] {name}: round {row['round']}  {shown}")
            self._last_line = time.monotonic()

    def _redraw(self, *, is_last: bool = False) -> None:
        if self._notebook is not None:
            times = [self._rate, f"{self.remaining} left" if self.remaining else ""]
            count = f"{self.completed:,} / {self._total:,}"
            self._notebook.draw(
                self._title,
                self.completed / self._total if self._total else 1.0,
                ", ".join(filter(None, [count, *([] if is_last else times)])),
                self._measurements.plain,
                is_last=is_last,
            )


class _NotebookBar:
    """A bar in the output of a notebook's cell; it needs no widgets."""

    def __init__(self):
        import IPython.display  # pyright: ignore[reportMissingImports]

        self._display: Any = IPython.display  # a part of every notebook, but not of rookery
        self._handle: Any = None  # of IPython
        self._drawn = 0.0

    def draw(self, title: str, share: float, text: str, below: str, *, is_last: bool) -> None:
        """Show the bar, or replace what is shown; the last picture is always drawn."""
        if self._handle is not None and not is_last:
            if time.monotonic() - self._drawn < REDRAW_SECONDS:
                return
        bar = f'<progress value="{share:.4f}" max="1" style="width:240px"></progress>'
        picture = self._display.HTML(
            f'<div style="font:13px sans-serif"><b>{html.escape(title)}</b> {bar} '
            f'{html.escape(text)}<div style="opacity:.75">{html.escape(below)}</div></div>'
        )
        if self._handle is None:
            self._handle = self._display.display(picture, display_id=True)
        else:
            self._handle.update(picture)
        self._drawn = time.monotonic()


def _clock(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> _clock(3725.4)
    '1:02:05'
    """
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"
