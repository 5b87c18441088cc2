"""Who holds what: rows and labels per client, as a table and as a picture."""

import html
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int
from rich import box
from rich.table import Table
from rich.text import Text

from rookery import check

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_CLIENTS = 30
"""How many clients a printed table lists."""
MOST_VALUES = 50
"""How many different labels are counted one by one."""
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")


@dataclass(frozen=True)
class DataDescription:
    """Rows per client and split, and labels per client; ``Population.describe`` makes it.

    ``print`` shows it as text, a notebook as HTML, rich as a table. Long tables are cut after 30
    clients; :meth:`to_markdown` is whole.

    Attributes:
        clients: names of the clients.
        splits: names of the splits.
        rows: number of rows, by split and client.
        label: what the label is called.
        classes: names of the labels, or of their ranges.
        labels: how often each label occurs in all splits, by client and label.

    >>> description = DataDescription(
    ...     clients=("Oslo", "Bergen"), splits=("train", "test"), rows=np.array([[8, 3], [2, 1]])
    ... )
    >>> print(description.to_markdown())
    | client | train | test |
    |:--|--:|--:|
    | Oslo | 8 | 2 |
    | Bergen | 3 | 1 |
    | all | 11 | 3 |
    """

    clients: tuple[str, ...]
    splits: tuple[str, ...]
    rows: Int[np.ndarray, "splits clients"]
    label: str = "label"
    classes: tuple[str, ...] = ()
    labels: Int[np.ndarray, "clients classes"] = field(
        default_factory=lambda: np.zeros((0, 0), np.int64)
    )

    @property
    def columns(self) -> tuple[str, ...]:
        """The headings of the table; the first label's says what it is a label of."""
        classes = [f"{self.label}: {self.classes[0]}", *self.classes[1:]] if self.classes else ()
        return ("client", *self.splits, *classes)

    def lines(self, most: int | None = None) -> list[tuple[str, ...]]:
        """The table's rows as text: one per client, then all clients together.

        Args:
            most: list this many clients and count the others in one line.
        """
        counts = np.concatenate([self.rows.T, self.labels], 1) if self.classes else self.rows.T
        shown = len(self.clients) if most is None else min(most, len(self.clients))
        listed = list(zip(self.clients[:shown], counts[:shown], strict=True))
        if rest := len(self.clients) - shown:
            listed.append((f"{rest} more", counts[shown:].sum(0)))
        listed.append(("all", counts.sum(0)))
        return [(name, *map(str, numbers.tolist())) for name, numbers in listed]

    def __str__(self) -> str:
        lines = [self.columns, *self.lines(MOST_CLIENTS)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]

        def aligned(line: Sequence[str]) -> str:
            first, *others = zip(line, widths, strict=True)
            cells = [first[0].ljust(first[1]), *(text.rjust(width) for text, width in others)]
            return " | ".join(cells)

        rule = "-" + "-|-".join("-" * width for width in widths)[1:]
        return "\n".join([aligned(lines[0]), rule, *map(aligned, lines[1:])])

    def to_markdown(self) -> str:
        """The whole table in Markdown."""
        head = [self.columns, (":--", *["--:"] * (len(self.columns) - 1))]
        escaped = [[cell.replace("|", r"\|") for cell in line] for line in self.lines()]
        top = [f"| {' | '.join(head[0])} |", f"|{'|'.join(head[1])}|"]
        return "\n".join([*top, *(f"| {' | '.join(line)} |" for line in escaped)])

    def _repr_html_(self) -> str:
        """The table in a notebook."""

        def row(tag: str, cells: Sequence[str]) -> str:
            return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"

        body = "".join(row("td", line) for line in self.lines(MOST_CLIENTS))
        return f"<table><thead>{row('th', self.columns)}</thead><tbody>{body}</tbody></table>"

    def __rich__(self) -> Table:
        *lines, total = self.lines(MOST_CLIENTS)
        table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), collapse_padding=True)
        for i, name in enumerate(self.columns):
            widest = max(len(line[i]) for line in [*lines, total])  # headings wrap, numbers do not
            heading = Text(name.replace(": ", ":\n"))
            table.add_column(heading, justify="right" if i else "left", min_width=widest)
        for line in lines:
            table.add_row(*map(Text, line))
        table.add_section()
        table.add_row(*map(Text, total))
        return table

    def figure(self) -> "Figure":
        """Bars of rows per client and split; beside them the shares of labels per client.

        A notebook shows the figure; :meth:`save` writes it to a file.
        """
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        n, k = len(self.clients), len(self.classes)
        height = 1.4 + min(max(0.26 * n, 1.2), 9.0)
        figure = Figure(figsize=(5.2 + (1.4 + min(0.42 * k, 7.0) if k else 0), height))
        figure.set_layout_engine("constrained")
        FigureCanvasAgg(figure)
        widths = [3.0, max(0.42 * min(k, 16), 1.5)] if k else [1.0]
        panels = figure.subplots(
            1, len(widths), sharey=True, squeeze=False, gridspec_kw={"width_ratios": widths}
        )[0]
        bars, before = panels[0], np.zeros(n)
        for i, (split, counts) in enumerate(zip(self.splits, self.rows, strict=True)):
            colour = COLOURS[i % len(COLOURS)]
            bars.barh(np.arange(n), counts, 0.78, left=before, color=colour, label=split)
            before = before + counts
        step = -(-n // 40)  # every name if there is room, otherwise some
        bars.set_yticks(np.arange(0, n, step), [name[:24] for name in self.clients[::step]])
        bars.set_ylim(n - 0.5, -0.5)
        bars.set_xlabel("rows")
        bars.spines[["top", "right"]].set_visible(False)
        if len(self.splits) > 1:
            figure.legend(loc="outside upper left", ncols=len(self.splits), frameon=False)
        if k:
            shares = self.labels / np.maximum(self.labels.sum(1, keepdims=True), 1)
            most = max(float(shares.max()), 0.01)
            image = panels[1].imshow(shares, cmap="Blues", vmin=0, vmax=most, aspect="auto")
            every = -(-k // 30)
            names = [name[:12] for name in self.classes[::every]]
            tilt = 90 if max(map(len, names)) > 3 else 0
            panels[1].set_xticks(np.arange(0, k, every), names, rotation=tilt)
            panels[1].set_xlabel(self.label)
            panels[1].tick_params(axis="y", length=0)
            if n <= 40 and k <= 16:
                for (client, label), count in np.ndenumerate(self.labels):
                    ink = "white" if shares[client, label] > 0.55 * most else "#333333"
                    ink = ink if count else "#AAAAAA"
                    panels[1].text(
                        label, client, str(count), ha="center", va="center", fontsize=7, color=ink
                    )
            bar = figure.colorbar(image, ax=panels[1], shrink=min(1.0, 2.5 / height), pad=0.03)
            bar.set_label("share of the client's rows")
        return figure

    def save(self, path: str | Path, *, dpi: int = 160) -> None:
        """Write the figure; the suffix chooses the format: ``.png``, ``.svg`` or ``.pdf``."""
        self.figure().savefig(path, dpi=dpi)


def count_labels(
    labels: Sequence[Sequence[np.ndarray]], classes: Sequence[str] | None, bins: int | None
) -> tuple[tuple[str, ...], np.ndarray]:
    """The labels, and how often each occurs with each client.

    Args:
        labels: of each client, in each split.
        classes: names of the labels 0, 1, ...
        bins: count in this many ranges of equal width.

    >>> count_labels([[np.array([2, 5])], [np.array([5])]], None, None)[1].tolist()
    [[1, 1], [0, 1]]
    """
    own = [np.concatenate(parts) for parts in labels]
    if any(part.ndim != 1 for part in own):
        raise ValueError(f"a label must be one number per row, got rows of {own[0].shape[1:]}.")
    together = np.concatenate(own)
    if bins is not None:
        if classes is not None:
            raise ValueError("classes names labels one by one; leave it out with bins.")
        edges = np.histogram_bin_edges(together, check.count("bins", bins))
        counts = [np.histogram(part, edges)[0] for part in own]
        names = [f"{a:.3g} to {b:.3g}" for a, b in itertools.pairwise(edges)]
        return tuple(names), np.stack(counts)
    values = np.unique(together) if classes is None else np.arange(len(classes))
    if len(values) > MOST_VALUES and classes is None and together.dtype.kind == "f":
        raise ValueError(
            f"the label has {len(values)} different values; pass bins=10 to count it in ranges."
        )
    if unknown := sorted(set(together.tolist()) - set(values.tolist())):
        raise ValueError(
            f"classes has names of the labels 0 to {len(values) - 1}, but a row has {unknown[0]}."
        )
    counts = [np.array([(part == value).sum() for value in values]) for part in own]
    names = [f"{value}" for value in values] if classes is None else classes
    return tuple(names), np.stack(counts)
